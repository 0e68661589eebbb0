"""Colours of configs on a map: one each, told apart without hue, and far apart where regions touch.

The colours are those of matplotlib's viridis (Smith and van der Walt 2015; CC0), which darkens evenly, in colour
blindness and in grey, too. A config gets the free one that differs most from those of its neighbours.
"""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_VIRIDIS = (
    *("#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"),
)
# The darkest is left out: a line on it would not be seen.
_LEAST = 0.12
OTHER = "#b9bec6"


def viridis(place: float) -> str:
    """The colour at a place from 0, dark, to 1, light."""
    step = place * (len(_VIRIDIS) - 1)
    low = min(int(step), len(_VIRIDIS) - 2)
    ends = (_rgb(_VIRIDIS[low]), _rgb(_VIRIDIS[low + 1]))
    return "#" + "".join(f"{round(one + (two - one) * (step - low)):02x}" for one, two in zip(*ends, strict=True))


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def luminance(colour: str) -> float:
    """The relative luminance of a colour, 0 to 1 (WCAG 2.2)."""
    parts = (value / 255 for value in _rgb(colour))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ink_on(colour: str) -> str:
    """Black or white, whichever has the more contrast with a colour (WCAG 2.2)."""
    light = luminance(colour)
    return "#000000" if (light + 0.05) / 0.05 >= 1.05 / (light + 0.05) else "#ffffff"


def colours(regions: pd.DataFrame, count: int) -> list[str]:
    """A colour for each of `count` configs, the numbers in the column `config` of regions; the others are `OTHER`."""
    shown = sorted(set(regions["config"]), key=lambda config: -(regions["config"] == config).sum())
    near = _touching(regions, count)
    free = list(np.linspace(_LEAST, 1, max(len(shown), 2)))
    places: dict[int, float] = {}
    for config in sorted(shown, key=lambda config: -near[config].sum()):
        others = [places[other] for other in np.flatnonzero(near[config]).tolist() if other in places]
        place = max(free, key=lambda place: (min((abs(place - other) for other in others), default=0.0), place))
        free.remove(place)
        places[config] = place
    return [viridis(places[config]) if config in places else OTHER for config in range(count)]


def _touching(regions: pd.DataFrame, count: int) -> NDArray[np.bool_]:
    """Bool (count, count): which configs have regions that share a border, with a tolerance of rounding."""
    near = np.zeros((count, count), np.bool_)
    meets = np.ones((len(regions), len(regions)), np.bool_)
    for axis in "xy":
        least, most = (regions[f"{axis}{end}"].to_numpy() for end in "01")
        meets &= (least[:, None] <= most * 1.001 + 1) & (most[:, None] * 1.001 + 1 >= least)
    least, most = regions["z0"].to_numpy(), regions["z1"].to_numpy()
    meets &= (least[:, None] <= most) & (most[:, None] >= least)
    config = regions["config"].to_numpy(np.int64)
    first, second = np.nonzero(meets)
    near[config[first], config[second]] = True
    np.fill_diagonal(near, False)
    return near
