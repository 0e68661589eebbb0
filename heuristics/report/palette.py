"""Colours of configs on a map: similar configs have similar colours, and all differ in lightness, so also in grey.

The value of one knob gives the hue: the first knob whose values differ, text knobs before numeric ones. Sorted by that
knob and then by the others, the configs become lighter step by step. Warm and cold hues alternate, so that neighbours
in lightness are distinct for the colour-blind too. The colour space is OKLCH (Ottosson 2020).
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from normtune.kernels.config import Config

OTHER = "#b9bec6"
# A sequential scale from light to dark (matplotlib's viridis).
SHADES = ("#addc30", "#3bbb75", "#2c728e", "#472d7b")
# Degrees.
_HUES = (262, 45, 190, 85, 235, 335, 125)
_LIGHTNESS = 0.42, 0.92
_CHROMA = 0.11
# Additional steps of lightness between groups.
_BETWEEN = 2
# From OKLab to the cube roots of cone responses, and from these to linear sRGB.
_ROOTS = np.array(
    [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.291485548]]
)
_LINEAR = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.707614701],
    ]
)


class Colour(NamedTuple):
    """A colour of a config, the colour of text on it, and the config's group: its value of the knob for the hue."""

    colour: str = OTHER
    ink: str = "#000000"
    group: str = ""


def luminance(colour: str) -> float:
    """The relative luminance of a colour, 0 to 1 (WCAG 2.2)."""
    parts = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


def ink_on(colour: str) -> str:
    """Black or white, whichever has more contrast with a colour (WCAG 2.2)."""
    light = luminance(colour)
    return "#000000" if (light + 0.05) / 0.05 >= 1.05 / (light + 0.05) else "#ffffff"


def colours(configs: Sequence[Config]) -> Mapping[Config, Colour]:
    """The colour of each config."""
    groups: dict[str, list[Config]] = {}
    knob = _first_knob(configs)
    for config in sorted(configs, key=lambda config: _order(config, knob)):
        groups.setdefault(_value(config, knob), []).append(config)
    steps = len(configs) - 1 + _BETWEEN * (len(groups) - 1)
    colour_of, step = {}, 0
    least, most = _LIGHTNESS
    for number, (group, members) in enumerate(groups.items()):
        for config in members:
            colour = _srgb(least + (most - least) * (step / steps if steps else 0.5), _HUES[number % len(_HUES)])
            colour_of[config] = Colour(colour, ink_on(colour), group)
            step += 1
        step += _BETWEEN
    return colour_of


def _first_knob(configs: Sequence[Config]) -> str:
    """The first knob with several values, text knobs before numeric ones; empty without one."""
    knobs = {knob.name: knob.kind for config in configs for knob in config.knobs}
    differing = [name for name in knobs if len({config._asdict().get(name) for config in configs}) > 1]
    return next(iter(sorted(differing, key=lambda name: knobs[name] is not str)), "")


def _value(config: Config, knob: str) -> str:
    kind_of = {one.name: one.kind for one in config.knobs}
    if knob not in kind_of:
        return "others"
    value = config._asdict()[knob]
    return str(value) if kind_of[knob] is str else f"{knob.removeprefix('num_')} {value}"


def _order(config: Config, knob: str) -> tuple[bool, tuple[tuple[bool, int, str], ...]]:
    values = [config._asdict().get(knob), *config]
    return knob not in config._fields, tuple(
        (isinstance(value, str), value if isinstance(value, int) else 0, str(value)) for value in values
    )


def _srgb(lightness: float, hue: float) -> str:
    """The colour of a lightness and a hue, with the most chroma up to `_CHROMA` that sRGB can show."""
    chroma = _CHROMA
    while True:
        a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
        linear = _LINEAR @ (_ROOTS @ (lightness, a, b)) ** 3
        if (linear >= 0).all() and (linear <= 1).all():
            break
        chroma -= 0.005
    parts = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts.tolist())
