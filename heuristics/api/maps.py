"""The maps of `normtune show` from Python.

In: measurements, and maybe a table. Out: a frame of the best configs or of a table's configs. `showing` computes and
draws them.
"""

import os
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from normtune.heuristics.regret.build import matrices_of, outdated
from normtune.heuristics.regret.fixed_log import MILLION
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.showing.config_map import BestMap, best_map, table_map
from normtune.heuristics.writing.named_files import selected
from normtune.kernels.key import Key
from normtune.kernels.problem import AXES
from normtune.kernels.tablefile.loaded import LoadedTable
from normtune.kernels.tablefile.locate import load_table
from normtune.results.evidence import Evidence
from normtune.results.options import keywords_of, option
from normtune.results.records import Device
from normtune.results.source import Measured, Selection, data_option


class DeviceMaps(NamedTuple):
    """The maps of one device.

    Attributes:
        device: the device.
        measurements: their number.
        maps: of each operator, variant and dtype with times; None if the table has no function for it.
        notes: why data was left out.
    """

    device: Device
    measurements: int
    maps: dict[Key, BestMap | None]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class MapRequest(Selection):
    """Arguments of `show_map`."""

    data: Measured = data_option()
    _: KW_ONLY
    table: str | os.PathLike[str] | None = option(
        "The file of a table, or the name of one that ships with normtune. Default: map the best configs."
    )


@keywords_of(MapRequest)
def show_map(request: MapRequest) -> pd.DataFrame:
    """Map the best config of each shape, or the configs of a table and their losses, as `normtune show` does.

    Returns:
        A row for each shape with times. Columns device, operator (with its variant), dtype, rows, hidden, config (the
        table's; without a table, of the configs within 1 % of the best the one that is within 1 % at the most shapes),
        best (the fastest config), and loss (of the table's config against the best, 0.0123 for 1.23 %; nan without a
        table or time).

    Raises:
        UsageError: an operator, dtype or regime was not measured, or the table cannot be used.
        NormtuneError: the store cannot be read.
    """
    loaded = None if request.table is None else load_table(request.table)
    rows = [
        (part.device.label, key.text, key.dtype, *shape, config, content.best[shape], content.losses.get(shape))
        for part in maps_of(selected(request, request.data, loaded), loaded)
        for key, content in part.maps.items()
        if content
        for shape, config in content.config_at.items()
    ]
    frame = pd.DataFrame(rows, columns=["device", "operator", "dtype", *AXES, "config", "best", "loss"])
    return frame.assign(loss=np.expm1(frame["loss"].astype(float) / MILLION))


def maps_of(evidence: Evidence, table: LoadedTable | None) -> list[DeviceMaps]:
    """The maps of measurements of one cache mode, device by device."""
    parts = []
    for device in evidence.devices():
        part = evidence.of(device)
        current = part.current()
        matrices, notes = matrices_of(current, device)
        maps = {matrix.key: _map(current, matrix, table) for matrix in matrices}
        parts.append(DeviceMaps(device, len(current.frame), maps, (*outdated(part, current), *notes)))
    return parts


def _map(current: Evidence, matrix: TimingMatrix, table: LoadedTable | None) -> BestMap | None:
    frame = current.part(matrix.key)
    shapes = {*zip(*(frame[axis].tolist() for axis in AXES), strict=True)}
    if table is None:
        return best_map(matrix, shapes)
    answer = table.function(matrix.key)
    return table_map(matrix, shapes, answer) if answer else None
