"""The maps of `normtune show` from Python.

In: measurements, and maybe a table. Out: `Maps` of the best configs or of a table's configs, with a frame. `showing`
computes and draws them.
"""

import math
import os
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from normtune.heuristics.regret.build import matrices_of, outdated
from normtune.heuristics.regret.fixed_log import fraction
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.showing.config_map import BestMap, best_map, table_map
from normtune.heuristics.writing.named_files import selected
from normtune.kernels.problem import AXES, Shape
from normtune.kernels.tablefile.loaded import LoadedTable
from normtune.kernels.tablefile.locate import load_table
from normtune.results.evidence import Evidence
from normtune.results.options import keywords_of, option
from normtune.results.records import Device
from normtune.results.source import Measured, Selection, data_option


class ConfigMap(NamedTuple):
    """The map of one operator and dtype.

    Attributes:
        operator: with its variant.
        dtype: its dtype.
        content: the config of each shape; None if the table has no function for it.
    """

    operator: str
    dtype: str
    content: BestMap | None


class DeviceMaps(NamedTuple):
    """The maps of one device.

    Attributes:
        device: the device.
        measurements: their number.
        maps: one for each operator, variant and dtype with times.
        notes: why data was left out.
    """

    device: Device
    measurements: int
    maps: tuple[ConfigMap, ...]
    notes: tuple[str, ...]


class Maps(NamedTuple):
    """Maps of the best configs, or of those of a table.

    Attributes:
        table: the file of the table; None for the best configs.
        devices: the maps of each device.
    """

    table: Path | None
    devices: tuple[DeviceMaps, ...]

    def frame(self) -> pd.DataFrame:
        """The maps, a row for each shape with times.

        Returns:
            Columns device, operator (with its variant), dtype, rows, hidden, config (the table's; without a table, of
            the configs within 1 % of the best the one that is within 1 % at the most shapes), best (the fastest
            config), and loss (of the table's config against the best, 0.0123 for 1.23 %; nan without a table or time).
        """
        rows = [
            (part.device.label, item.operator, item.dtype, *shape, config, item.content.best[shape], _loss(item, shape))
            for part in self.devices
            for item in part.maps
            if item.content
            for shape, config in item.content.shown.items()
        ]
        return pd.DataFrame(rows, columns=list(_MAP))


_MAP = ("device", "operator", "dtype", *AXES, "config", "best", "loss")


def _loss(item: ConfigMap, shape: Shape) -> float:
    loss = item.content.losses.get(shape) if item.content else None
    return math.nan if loss is None else fraction(loss)


@dataclass(frozen=True)
class MapRequest(Selection):
    """Arguments of `show_map`."""

    data: Measured = data_option()
    _: KW_ONLY
    table: str | os.PathLike[str] | None = option(
        "The file of a table, or the name of one that ships with normtune. Default: map the best configs."
    )


@keywords_of(MapRequest)
def show_map(request: MapRequest) -> Maps:
    """Map the best config of each shape, or the configs of a table and their losses, as `normtune show` does.

    Raises:
        UsageError: an operator, dtype or regime was not measured, or the table cannot be used.
        NormtuneError: the store cannot be read.
    """
    loaded = None if request.table is None else load_table(request.table)
    return maps_of(selected(request, request.data, loaded), loaded)


def maps_of(evidence: Evidence, table: LoadedTable | None) -> Maps:
    """The maps of measurements of one cache mode, device by device."""

    def on(device: Device) -> DeviceMaps:
        part = evidence.of(device)
        current = part.current()
        matrices, notes = matrices_of(current, device)
        maps = tuple(_map(current, matrix, table) for matrix in matrices)
        return DeviceMaps(device, len(current.frame), maps, (*outdated(part, current), *notes))

    return Maps(table.source if table else None, tuple(map(on, evidence.devices())))


def _map(current: Evidence, matrix: TimingMatrix, table: LoadedTable | None) -> ConfigMap:
    frame, key = current.part(matrix.key), matrix.key
    shapes = {*zip(*(frame[axis].tolist() for axis in AXES), strict=True)}
    if table is None:
        return ConfigMap(key.text, key.dtype, best_map(matrix, shapes))
    answer = table.function(key)
    return ConfigMap(key.text, key.dtype, table_map(matrix, shapes, answer) if answer else None)
