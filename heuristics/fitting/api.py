"""Fit from Python: measurements in a pandas DataFrame, dataclasses out.

In: a DataFrame with one row per measurement or sample, from any source, and the GPU. Out: `Table`, with lookup, text
and save. `pipeline` does the fit. A table that is read from a file is `locate.Table`.
"""

import os
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normtune.errors import UsageError
from normtune.heuristics.fitting import baseline, emit, regenerate
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit as fit_evidence
from normtune.heuristics.fitting.pipeline import used
from normtune.heuristics.fitting.result import Fit, Function, Shared
from normtune.heuristics.fitting.write import check_evidence, check_table, write_table
from normtune.heuristics.tablefile.tree import choose
from normtune.kernels.config import Config
from normtune.kernels.problem import split_key
from normtune.kernels.target import MOST_SMS, TARGETS, target_for
from normtune.results.dataframe import evidence_of
from normtune.results.evidence import Evidence
from normtune.results.parquet_csv import write_parquet
from normtune.results.records import Device
from normtune.results.source import in_regime

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Table:
    """A fitted table.

    Attributes:
        device: the GPU that it is for.
        options: of the fit.
        functions: one for each operator, variant and dtype with one of its own: `tree`, `figures` (slowdowns as
            millionths of a logarithm), and the `dtypes` that it serves.
        shared: measured variants and dtypes that take another's function, with the cost.
        notes: data left out, and why.
        fit: the whole result of the fit.
        evidence: the measurements that were used.
    """

    device: Device
    options: FitOptions
    functions: tuple[Function, ...]
    shared: tuple[Shared, ...]
    notes: tuple[str, ...]
    fit: Fit
    evidence: Evidence

    def lookup(self, operator: str, dtype: str, rows: int, hidden: int) -> Config:
        """The config for `rows` rows of `hidden` elements; a variant falls back to its plain operator, as in kernels.

        Raises:
            UsageError: the table has no function for that operator and dtype, or a size is not positive.
        """
        if rows < 1 or hidden < 1:
            raise UsageError(f"{rows} rows of {hidden}: expected positive integers")
        for key in (operator, split_key(operator)[0]):
            for function in self.functions:
                if function.key == key and dtype in function.dtypes:
                    return choose(function.tree, rows, hidden)
        known = ", ".join(f"{function.key} {dtype}" for function in self.functions for dtype in function.dtypes)
        raise UsageError(f"no table for {operator!r} in {dtype!r}: expected one of {known}")

    def text(self) -> str:
        """The table as Python source, a module that stands alone, with the header that `save` writes."""
        return self._text(Path("heuristics.py"), None)

    def _text(self, table: Path, data: Path | None) -> str:
        return emit.module_text(self.fit, regenerate.line(regenerate.without_store(self.options, table, data)))

    def save(
        self, path: str | os.PathLike[str], evidence: str | os.PathLike[str] | None = None, force: bool = False
    ) -> None:
        """Write the table to a file, whole or not at all.

        Args:
            path: of the table; a file that normtune wrote there before is replaced.
            evidence: of a `.parquet` file for the measurements: `normtune check` then fits again and compares, and
                `normtune data import` adds them to a store.
            force: whether to replace files that normtune did not write, or that were edited.

        Raises:
            UsageError: a file cannot be written there, or should not be replaced.
            NormtuneError: writing failed.
        """
        table, data = Path(path), None if evidence is None else Path(evidence)
        check_table(table, force)
        if data:
            check_evidence(data, force)
            write_parquet(self.evidence, data)
        write_table(self._text(table, data), table)


def fit(
    data: "pd.DataFrame | Evidence",
    *,
    name: str | None = None,
    target: str | None = None,
    sms: int | None = None,
    l2_bytes: int | None = None,
    **options: Any,
) -> Table:
    """The table of least regret on measurements of one GPU.

    Args:
        data: a DataFrame for `results.dataframe.evidence_of`, one row per measurement: `operator`, `dtype`, `rows`,
            `hidden`, `config`, and `samples` or `nanoseconds`; or the evidence of a store or a recording.
        name: the driver's name of the GPU; required with a DataFrame, as is the target.
        target: the compiler's name, `sm_90`.
        sms: multiprocessors; by default those of the best-known GPU of the target.
        l2_bytes: of the L2 cache, likewise.
        **options: the fields of `FitOptions`: `leaves`, `objective`, `max_slowdown`, `weights`, ...

    Raises:
        UsageError: a column is missing or has invalid values, an option or the target is unknown, or a value of an
            option is out of range.
        NormtuneError: there is nothing to fit, or no table under these conditions.
    """
    known = FitOptions.__dataclass_fields__
    for option in options:
        if option not in known:
            raise UsageError(f"unknown option {option!r}: expected one of {', '.join(known)}")
    for option, value in options.items():
        if isinstance(value, os.PathLike):
            options[option] = os.fspath(value)
    if isinstance(options.get("operators"), str):
        options["operators"] = (options["operators"],)
    names = options.get("operators", ())
    if not isinstance(names, list | tuple) or not all(isinstance(key, str) for key in names):
        raise UsageError(f"operators is {names!r}: expected a sequence of names")
    fit_options = FitOptions(**{**options, "operators": tuple(names)})
    if isinstance(data, Evidence) and any(fact is not None for fact in (name, target, sms, l2_bytes)):
        raise UsageError("evidence says what its GPU is: leave name, target, sms and l2_bytes out")
    evidence = data if isinstance(data, Evidence) else evidence_of(data, _device(name, target, sms, l2_bytes))
    evidence = in_regime(evidence, fit_options.regime, "the DataFrame" if evidence is not data else "the evidence")
    in_use = baseline.baseline(fit_options.baseline, Path()) if fit_options.baseline is not None else None
    result = fit_evidence(evidence, fit_options, incumbents=in_use)
    return Table(
        device=result.device,
        options=fit_options,
        functions=result.functions,
        shared=result.shared,
        notes=result.notes,
        fit=result,
        evidence=used(evidence, fit_options.operators),
    )


def _device(name: str | None, target: str | None, sms: int | None, l2_bytes: int | None) -> Device:
    for argument, value in (("name", name), ("target", target)):
        if not isinstance(value, str) or not value.strip():
            raise UsageError(
                f"{argument} is {value!r}: expected that of the GPU, as name='NVIDIA H200', target='sm_90'"
            )
    for argument, number in (("sms", sms), ("l2_bytes", l2_bytes)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, Integral) or number < 1):
            raise UsageError(f"{argument} is {number!r}: expected a positive integer")
    if sms is not None and sms > MOST_SMS:
        raise UsageError(f"sms is {str(sms)[:20]}: expected at most {MOST_SMS}")
    known = TARGETS.get(str(target))
    if known is None and sms is None:
        raise UsageError(f"sms is None: expected the number of multiprocessors, as no GPU of {target!r} is known")
    limits = target_for(str(target), int(sms or (known.sms if known else 0)))
    return Device(
        str(name), str(target), limits.sms, int(l2_bytes or limits.l2_bytes), 0, "from a DataFrame", "unknown"
    )
