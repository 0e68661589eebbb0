"""The fit of a table for any GPU from Python.

In: measurements of any number of GPUs. Out: `AnyGpuTable`, with lookup, text and save. `any_gpu.pipeline` does the
fit.
"""

import math
import os
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass

import pandas as pd

from normtune.errors import UsageError
from normtune.heuristics.any_gpu import emit
from normtune.heuristics.any_gpu.pipeline import fit_all
from normtune.heuristics.any_gpu.result import AnyGpuFit, AnyGpuFunction, AnyGpuShared
from normtune.heuristics.api.fitted_table import FittedTable, function_of, source_of
from normtune.heuristics.fitting.options import FitKeywords, FitOptions
from normtune.heuristics.fitting.pipeline import used
from normtune.heuristics.regret.fixed_log import fraction
from normtune.heuristics.writing.regenerate import Command, Source
from normtune.kernels.arguments import checked
from normtune.kernels.config import Config
from normtune.kernels.tablefile.relative_tree import choose_on
from normtune.results.evidence import Evidence
from normtune.results.exchange.recording import ALL, load_recordings
from normtune.results.options import keywords_of, option, option_of
from normtune.results.records import Device
from normtune.results.regimes import check_regime
from normtune.results.source import Measured, Warn, taken


@dataclass(frozen=True, kw_only=True)
class AnyGpuTable(FittedTable):
    """A fitted table for any GPU, with thresholds in rows per multiprocessor.

    Attributes:
        devices: the GPUs that it was fitted to.
        options: of the fit.
        functions: the fitted functions, each with `tree`, `figures` on each GPU (losses in log_ppm),
            and the `dtypes` that use it.
        shared: measured variants and dtypes that use the function of another, and their loss by sharing.
        notes: why data was left out.
        fit: the complete result of the fit.
        evidence: the measurements that were used.
        source: where the header says that these are; None if they are in no store and no recording.
    """

    devices: tuple[Device, ...]
    functions: tuple[AnyGpuFunction, ...]
    shared: tuple[AnyGpuShared, ...]
    fit: AnyGpuFit

    @checked
    def lookup(self, operator: str, dtype: str, rows: int, hidden: int, *, sms: int, l2_bytes: int) -> Config:
        """The config for `rows` rows of `hidden` elements on a GPU with these multiprocessors and bytes of L2 cache.

        A variant without a function uses the function of its plain operator.

        Raises:
            UsageError: the table has no function for that operator and dtype, or a number is not positive.
        """
        if min(rows, hidden, sms, l2_bytes) < 1:
            raise UsageError(
                f"{rows} rows of {hidden} with {sms} multiprocessors and {l2_bytes} bytes of L2 cache: expected "
                "positive integers"
            )
        return choose_on(function_of(self.functions, operator, dtype).tree, (rows, hidden), sms, l2_bytes)

    def figures(self) -> pd.DataFrame:
        """The figures of each measured operator and dtype on each GPU.

        Returns:
            A row for each measured operator (with its variant), dtype and GPU; columns operator, dtype, device, leaves,
            mean and worst, and left_out_mean and left_out_worst: the losses of the function fitted without this GPU,
            nan if it is the only GPU. Losses are fractions of the best config's time, 0.0123 for 1.23 %.
        """
        leaves = {function.key: function.leaves for function in self.functions}
        measured = [(one.key, one.leaves, one.figures) for one in self.functions]
        measured += [(one.key, leaves[one.donor], one.figures) for one in self.shared]
        rows = []
        for key, count, figures in measured:
            for on in figures:
                left_out = (math.nan, math.nan) if on.left_out is None else map(fraction, on.left_out)
                rows.append((key.text, key.dtype, on.device, count, *map(fraction, on.lost), *left_out))
        columns = ("operator", "dtype", "device", "leaves", "mean", "worst", "left_out_mean", "left_out_worst")
        return pd.DataFrame(rows, columns=list(columns))

    def _module(self, command: Command) -> str:
        return emit.module_text(self.fit, command._replace(all_devices=True))


@dataclass(frozen=True)
class AnyGpuRequest:
    """Arguments of `fit_any_gpu`."""

    data: Measured = option("A store, open or by its file or URL, or evidence. Default: the default store.")
    _: KW_ONLY
    recording: str | None = option(
        "Recording that ships with normtune, by its name, or `all` for all of these, in place of data."
    )
    leaves: int | None = option_of(
        *(FitKeywords, "leaves"),
        doc="At most so many leaves per function. Default: chosen by the loss on GPUs left out of the fit.",
    )
    operators: str | Iterable[str] = option_of(FitKeywords, "operators")
    weights: str | os.PathLike[str] = option_of(FitKeywords, "weights")
    regime: str = option_of(FitKeywords, "regime")


@keywords_of(AnyGpuRequest)
def fit_any_gpu(request: AnyGpuRequest) -> AnyGpuTable:
    """Fit one table for any GPU to the measurements of all GPUs, as `normtune fit --all-devices` does.

    Raises:
        UsageError: a value of an option is out of range, or an operator was not measured.
        NormtuneError: there is nothing to fit, no table of so few leaves, or the store cannot be read.
    """
    data, recording, options = request.data, request.recording, FitOptions.of(request)
    evidence = everywhere(data, recording, options.regime)
    return fitted_everywhere(evidence, options, source_of(data, recording))


def everywhere(data: Measured, recording: str | None, regime: str, warn: Warn | None = None) -> Evidence:
    """The measurements of all shipped recordings if the recording is `all`, else as `taken`, whose errors it raises."""
    if data is not None or recording != ALL:
        return taken(data, recording, regime, warn)
    check_regime(regime)
    return load_recordings(regime)


def fitted_everywhere(evidence: Evidence, options: FitOptions, source: Source | None) -> AnyGpuTable:
    """The same as `fit_any_gpu`, of loaded measurements; other options than its own are refused."""
    result = fit_all(evidence, options)
    return AnyGpuTable(
        devices=result.devices,
        options=options,
        functions=result.functions,
        shared=result.shared,
        notes=result.notes,
        fit=result,
        evidence=used(evidence, options.operators),
        source=source,
    )
