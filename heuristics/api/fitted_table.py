"""The base class of fitted tables: their text as a module, and their files.

In: a fit, its measurements and their source. Out: the text, with the command that writes it again, and files. `fit` and
`any_gpu` make the tables.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from normtune.errors import UsageError
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.result import TableFunction
from normtune.heuristics.writing import regenerate
from normtune.heuristics.writing.regenerate import Command, Source
from normtune.heuristics.writing.write import check_files, write_table
from normtune.kernels.arguments import checked
from normtune.kernels.key import Key
from normtune.results.evidence import Evidence
from normtune.results.exchange.parquet_csv import write_parquet
from normtune.results.source import Measured


def source_of(data: Measured, recording: str | None) -> Source | None:
    """The source of the measurements that `taken` loads; None for an open store and for evidence."""
    if data is None or isinstance(data, str | os.PathLike):
        return Source(None if data is None else os.fspath(data), recording)
    return None


FunctionT = TypeVar("FunctionT", bound=TableFunction)


def function_of(functions: Sequence[FunctionT], operator: str, dtype: str) -> FunctionT:
    """The function for an operator and dtype; a variant without one uses the function of its plain operator.

    Raises:
        UsageError: neither exists.
    """
    served = {key: function for function in functions for key in function.served}
    for key in Key.parse(operator, dtype).names:
        if key in served:
            return served[key]
    known = ", ".join(map(str, served))
    raise UsageError(f"no table for {operator!r} in {dtype!r}: expected one of {known}")


@dataclass(frozen=True, kw_only=True)
class FittedTable(ABC):
    """A fitted table of either kind.

    Attributes:
        options: of the fit.
        notes: why data was left out.
        evidence: the measurements that were used.
        source: where the header says that these are; None if they are in no store and no recording.
    """

    options: FitOptions
    notes: tuple[str, ...]
    evidence: Evidence
    source: Source | None = None

    @abstractmethod
    def _module(self, command: Command) -> str:
        """The text of the module, with `command` in its header."""

    def module(self, path: Path, data: Path | None = None, in_folders: bool = False) -> str:
        """The text of the module for a file; arguments as of `regenerate.command`."""
        return self._module(regenerate.command(self.source, self.options, path, data, in_folders))

    def text(self) -> str:
        """The table as Python source, a module that stands alone, with the header that `save` writes."""
        return self.module(Path("heuristics.py"))

    @checked
    def save(
        self, path: str | os.PathLike[str], evidence: str | os.PathLike[str] | None = None, force: bool = False
    ) -> None:
        """Write the table to a file, whole or not at all, as `normtune fit --out` does.

        Args:
            path: of the table; a file that normtune wrote there before is replaced.
            evidence: path of a `.parquet` file for the measurements, from which `normtune check` fits the table again
                to compare, and which `normtune data merge` adds to a store.
            force: whether to replace files that normtune did not write, or that were edited.

        Raises:
            UsageError: a file cannot be written there, or should not be replaced.
            NormtuneError: writing failed.
        """
        table, data = Path(path), None if evidence is None else Path(evidence)
        check_files(table, data, force)
        self.write(table, data)

    def write(self, table: Path | None, data: Path | None, in_folders: bool = False) -> list[Path]:
        """The same as `save`, without checks of the files; a file that is None is not written.

        Returns:
            The files, in the order in which they were written.
        """
        if data:
            write_parquet(self.evidence, data)
        if table:
            write_table(self.module(table, data, in_folders), table)
        return [path for path in (data, table) if path]
