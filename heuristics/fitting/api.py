"""Fit from Python: measurements in a pandas DataFrame, dataclasses out.

In: a DataFrame with one row per measurement or sample, from any source, and the GPU. Out: `Table`, with lookup, text
and save. `pipeline` does the fit. A table that is read from a file is `locate.Table`.
"""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import pandas as pd

from normtune.errors import UsageError
from normtune.heuristics.fitting import baseline as baselines
from normtune.heuristics.fitting import emit, regenerate
from normtune.heuristics.fitting.options import TIE_PERCENT, FitOptions
from normtune.heuristics.fitting.pipeline import fit as fit_evidence
from normtune.heuristics.fitting.pipeline import used
from normtune.heuristics.fitting.result import Fit, Function, Shared
from normtune.heuristics.fitting.write import check_evidence, check_table, write_table
from normtune.heuristics.regret.fixed_log import fraction
from normtune.heuristics.tablefile.tree import choose
from normtune.kernels.config import Config
from normtune.kernels.problem import split_key
from normtune.kernels.target import MOST_SMS, TARGETS, target_for
from normtune.results.database.store import Store
from normtune.results.dataframe import evidence_of
from normtune.results.evidence import Evidence
from normtune.results.names import named
from normtune.results.parquet_csv import write_parquet
from normtune.results.records import Device
from normtune.results.regimes import COLD
from normtune.results.source import Measured, in_regime, taken


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

    def figures(self) -> pd.DataFrame:
        """The figures of each function, and of what shares one.

        Returns:
            A row for each operator (with its variant) and dtype that was measured; columns operator, dtype, leaves,
            configs, problems, mean, worst, cross_validated and gap. Losses are fractions of the best config's time,
            0.0123 for 1.23 %; nan where there were too few sizes.
        """
        rows = []
        for key, dtype, one in self.fit.with_data():
            losses = one.loss.fractions
            others = (math.nan if value is None else fraction(value) for value in (one.cross_validated, one.gap))
            rows.append((key, dtype, one.leaves, one.configs, one.loss.problems, losses.mean, losses.worst, *others))
        columns = ("operator", "dtype", "leaves", "configs", "problems", "mean", "worst", "cross_validated", "gap")
        return pd.DataFrame(rows, columns=list(columns))

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
    data: pd.DataFrame | Measured = None,
    *,
    recording: str | None = None,
    name: str | None = None,
    target: str | None = None,
    sms: int | None = None,
    l2_bytes: int | None = None,
    leaves: int | None = None,
    operators: str | Iterable[str] = (),
    objective: str = "mean",
    max_slowdown: float | None = None,
    tie_percent: float = TIE_PERCENT,
    weights: str | os.PathLike[str] = "decades",
    max_configs: int | None = None,
    baseline: str | os.PathLike[str] | None = None,
    batch_invariant: bool = False,
    regime: str = COLD,
) -> Table:
    """Fit the table that loses least on measurements of one GPU, as `normtune fit` does.

    Args:
        data: a store, open or by its file or URL; the default store without it; evidence; or a DataFrame with one row a
            measurement and the columns `operator`, `dtype`, `rows`, `hidden`, `config`, and `samples` or `nanoseconds`.
        recording: name of a recording that ships with normtune, in place of data.
        name: of the GPU, as its driver calls it; required with a DataFrame, as is the target.
        target: the compiler's name, `sm_90`.
        sms: multiprocessors; by default those of the best-known GPU of the target.
        l2_bytes: of the L2 cache, likewise.
        leaves: the most leaves a function may have; None chooses each number by cross-validation.
        operators: plain names or names with a variant to be fitted; empty means all that were measured.
        objective: `mean` for the least mean slowdown, `worst` for the least mean of those trees whose worst is least.
        max_slowdown: no measured problem may take more than so many times its best config's time; None for no bound.
        tie_percent: trees whose mean slowdown is that near to the least are equally good, and the simplest is taken.
        weights: of problems in means: `decades`, `equal`, or a CSV file with columns rows, hidden and weight.
        max_configs: the most distinct configs of a function; None for no bound.
        baseline: a rule by name or a table's file, than which no leaf may be slower; None for none.
        batch_invariant: whether the table also gets functions that do not look at rows.
        regime: of the times that are fitted: `cold`, `warm` or `eager`.

    Raises:
        UsageError: a column is missing or holds what it may not, the target is unknown, the measurements are of several
            GPUs, or a value of an option is out of range.
        NormtuneError: there is nothing to fit, no table under these conditions, or the store cannot be read.
    """
    options = FitOptions(
        leaves=leaves,
        operators=named("operators", operators),
        objective=objective,
        max_slowdown=max_slowdown,
        tie_percent=tie_percent,
        weights=_text(weights),
        max_configs=max_configs,
        baseline=_text(baseline),
        batch_invariant=batch_invariant,
        regime=regime,
    )
    device_facts = (name, target, sms, l2_bytes)
    if not isinstance(data, Evidence | Store | str | os.PathLike | None):
        if recording is not None:
            raise UsageError("a DataFrame and a recording are both given: measurements come from one of them")
        evidence = in_regime(evidence_of(data, _device(*device_facts)), regime, "the DataFrame")
    elif any(fact is not None for fact in device_facts):
        raise UsageError("evidence says what its GPU is: leave name, target, sms and l2_bytes out")
    else:
        evidence = taken(data, recording, regime)
    in_use = baselines.baseline(options.baseline, Path()) if options.baseline is not None else None
    found = fit_evidence(evidence, options, incumbents=in_use)
    return Table(
        device=found.device,
        options=options,
        functions=found.functions,
        shared=found.shared,
        notes=found.notes,
        fit=found,
        evidence=used(evidence, options.operators),
    )


def _text(value: Any) -> Any:
    """A path as text; what else was given is judged by `FitOptions`."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


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
