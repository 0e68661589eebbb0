"""The fit of the table of one GPU from Python.

In: a store, or a DataFrame with one row per measurement or sample and the GPU. Out: `Table`, with
lookup, text, save and install. `pipeline` does the fit; `locate.LoadedTable` is a table read from a file.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import pandas as pd

from normtune.errors import UsageError
from normtune.heuristics.fitting import baseline as baselines
from normtune.heuristics.fitting.options import FitKeywords, FitOptions
from normtune.heuristics.fitting.pipeline import Progress, used
from normtune.heuristics.fitting.pipeline import fit as fit_evidence
from normtune.heuristics.fitting.result import Fit, FittedFunction, Shared
from normtune.heuristics.regret.fixed_log import fraction
from normtune.heuristics.report.notebook import html_with_charts
from normtune.heuristics.writing import emit, installing
from normtune.heuristics.writing.installing import Installed
from normtune.heuristics.writing.regenerate import command
from normtune.heuristics.writing.report import verdict
from normtune.heuristics.writing.write import check_files, write_table
from normtune.kernels.arguments import checked
from normtune.kernels.config import Config
from normtune.kernels.key import Key, dtype_of
from normtune.kernels.problem import axes_at
from normtune.kernels.tablefile.locate import installed_path
from normtune.kernels.tablefile.tree import choose
from normtune.results.database.store import Store
from normtune.results.database.url import DEFAULT_STORE
from normtune.results.elsewhere import Elsewhere
from normtune.results.evidence import Evidence
from normtune.results.exchange.dataframe import evidence_of
from normtune.results.exchange.parquet_csv import write_parquet
from normtune.results.options import keyword, keywords_of, option
from normtune.results.parallel.cluster_maps import on_cluster
from normtune.results.records import Device
from normtune.results.regimes import in_regime
from normtune.results.source import Measured, on_device, read_evidence

_FIGURES = (
    *("operator", "dtype", "leaves", "configs", "problems", "untimed"),
    *("mean", "plain", "worst", "bound", "cross_validated", "worst_validated", "gap", "baseline", "faster"),
)


def source_of(data: Measured) -> str:
    """The value of `--store` with the measurements of `read_evidence`; empty for an open store and for evidence."""
    if data is None:
        return os.environ.get("NORMTUNE_STORE") or DEFAULT_STORE
    return os.fspath(data) if isinstance(data, str | os.PathLike) else ""


def function_of(functions: Sequence[FittedFunction], operator: str, dtype: str) -> FittedFunction:
    """The function for an operator and dtype; a variant without one uses the function of its plain operator.

    Raises:
        UsageError: neither exists.
    """
    served = {key: function for function in functions for key in function.served}
    for key in Key.parse(operator, dtype_of(dtype)).names:
        if key in served:
            return served[key]
    keys = ", ".join(map(str, served))
    raise UsageError(f"no table for {operator!r} in {str(dtype)!r}: expected one of {keys}")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A fitted table.

    Attributes:
        device: the GPU that the table is made for.
        options: of the fit.
        functions: the fitted functions, each with `tree`, `figures` (losses in log_ppm), and the
            `dtypes` that use it.
        shared: measured variants and dtypes that use the function of another, and their loss by sharing.
        notes: why data was left out.
        fit: the complete result of the fit.
        evidence: the measurements that were used.
        source: the value of `--store` with these; empty if they are in no store.
    """

    device: Device
    functions: tuple[FittedFunction, ...]
    shared: tuple[Shared, ...]
    fit: Fit
    options: FitOptions
    notes: tuple[str, ...]
    evidence: Evidence
    source: str = ""

    @checked
    def lookup(self, operator: str, dtype: str, rows: int, hidden: int, third: int | None = None) -> Config:
        """The config for `rows` rows of `hidden` elements, or for the two or three sizes of an operator's own axes.

        A variant without a function uses the function of its plain operator.

        Raises:
            UsageError: the table has no function for that operator and dtype, or sizes are not positive or too few.
        """
        function = function_of(self.functions, operator, dtype)
        shape = (rows, hidden) if third is None else (rows, hidden, third)
        axes = axes_at(function.key)
        if len(shape) != len(axes) or min(shape) < 1:
            raise UsageError(f"{' x '.join(map(str, shape))}: expected positive integers, {', '.join(axes)}")
        return choose(function.tree, shape, axes)

    def figures(self) -> pd.DataFrame:
        """The figures of each measured operator and dtype.

        Returns:
            A row for each measured operator (with its variant) and dtype; columns operator, dtype, leaves, configs,
            problems (those with a time), untimed (the number of others), mean, plain (the mean with equal weights),
            worst, bound (plain with the untimed ones estimated), cross_validated and worst_validated (mean and worst
            between sizes), gap, baseline (its name) and faster (geometric mean of
            the baseline's time over this table's, less 1). Losses are fractions of the best config's time, 0.0123 for
            1.23 %; nan where there were too few sizes.
        """
        rows = []
        for key, figures in self.fit.with_data().items():
            loss, compared = figures.loss, self.fit.compared.get(key)
            bound = loss.plain if loss.bound is None else loss.bound
            between = figures.cross_validated, figures.worst_validated
            logs = loss.mean, loss.plain, loss.worst, bound, *between, figures.gap, compared and compared.faster
            *losses, faster = (math.nan if log is None else fraction(log) for log in logs)
            counts = figures.leaves, figures.configs, loss.problems, loss.untimed
            rows.append((key.text, key.dtype, *counts, *losses, compared.name if compared else "", faster))
        return pd.DataFrame(rows, columns=list(_FIGURES))

    def module(self, path: Path, data: Path | None = None) -> str:
        """The text of the module for a file; arguments as of `regenerate.command`."""
        return emit.module_text(self.fit, command(self.source, self.options, path, data))

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

    def write(self, table: Path | None, data: Path | None) -> list[Path]:
        """The same as `save`, without checks of the files; a file that is None is not written.

        Returns:
            The files, in the order in which they were written.
        """
        if data:
            write_parquet(self.evidence, data)
        if table:
            write_table(self.module(table, data), table)
        return [path for path in (data, table) if path]

    def install(self, force: bool = False) -> Installed:
        """Install the table for this user and its GPU, as `normtune fit --install` does.

        Args:
            force: whether to install the table of a replay or of a GPU that this machine does not have, and to replace
                an installed table that was edited.

        Raises:
            UsageError: force is needed and not set, or the user's data folder cannot be written.
            NormtuneError: writing failed.
        """
        gpu = emit.gpu_of(self.device)
        installing.check([gpu], force)
        refit = command(self.source, self.options, installed_path(gpu.name))
        return installing.write_installed(emit.module_text(self.fit, refit), gpu, self.fit.data.unpaired)

    def _repr_html_(self) -> str:
        """The verdict, and maps where the packages that draw are installed."""
        from normtune.heuristics.api.report import of_fit

        return html_with_charts(verdict(self.fit), lambda: of_fit(self.fit, self.evidence).maps())


@dataclass(frozen=True)
class FitRequest(FitKeywords, Elsewhere):
    """Arguments of `fit`."""

    data: pd.DataFrame | Measured = option(
        "A store, open or by its file or URL, the name of a recording, or evidence; or another program's measurements, "
        "a DataFrame with one row a measurement or sample and the columns `operator`, `dtype`, `rows`, `hidden`, "
        "`config` or a column for each knob, and one of `nanoseconds`, `microseconds`, `milliseconds`, `seconds` and "
        "`samples`. Default: the default store."
    )
    _: KW_ONLY
    l2_bytes: int | None = option(
        "Bytes of the L2 cache of the GPU of a DataFrame. Default: those of the best-known GPU of the target."
    )
    replaces: str | os.PathLike[str] | None = option(
        "A table's file, which the new table is compared with, as where `fit` replaces a table."
    )
    ray: str | None = option("Fit on the CPUs of a Ray cluster: `auto`, `HOST:PORT` or `local`.")
    progress: Progress | None = keyword(
        "Receives the numbers of fitted functions and of all, after each operator. Default: nobody."
    )


@keywords_of(FitRequest)
def fit(request: FitRequest) -> Table:
    """Fit a table to the measurements of one GPU, as `normtune fit` does.

    Raises:
        UsageError: a column is missing or has an invalid value, the target is unknown, the measurements are of several
            GPUs, or an option is out of range.
        NormtuneError: there is nothing to fit, no table meets the options, the store cannot be read, or no cluster is
            there.
    """
    cluster = on_cluster(request.ray)
    data, options, source = request.data, FitOptions.of(request), ""
    if options.baseline is not None and request.replaces is not None:
        raise UsageError("baseline and replaces are both given: expected one of them to compare the table with")
    elsewhere = Elsewhere.said_by(request)
    if not isinstance(data, Evidence | Store | str | os.PathLike | None):
        evidence = evidence_of(data, elsewhere.device(request.l2_bytes), elsewhere.columns, elsewhere.where)
        evidence = in_regime(evidence, options.regime, "the DataFrame")
        evidence = evidence if options.device is None else on_device(evidence, options.device)
    elif elsewhere.facts() or request.l2_bytes is not None:
        raise UsageError(
            "a store or evidence has its own GPU: leave name, target, sms, columns, where and l2_bytes out; "
            "`merge_data` adds a file of another program to a store"
        )
    else:
        evidence = read_evidence(data, options.regime, device=options.device)
        source = source_of(data)
    incumbents = None if options.baseline is None else baselines.baseline(options.baseline, Path())
    replaced = None if request.replaces is None else baselines.of_file(request.replaces)
    with cluster:
        result = fit_evidence(evidence, options, incumbents=incumbents, replaced=replaced, progress=request.progress)
    return Table(
        device=result.device,
        options=options,
        functions=result.functions,
        shared=result.shared,
        notes=result.notes,
        fit=result,
        evidence=used(evidence, options.operators, options.weights),
        source=source,
    )
