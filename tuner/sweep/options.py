"""Options of a sweep, and parsers of their texts on the command line; `request` checks their values."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import product
from pathlib import Path

from normtune.errors import UsageError
from normtune.results.options import keyword, option
from normtune.results.regimes import COLD


def parse_budget(text: str) -> float:
    """Seconds of `90s`, `8m`, `1.5h` or a plain number of seconds.

    Raises:
        UsageError: the text has another form, or the time is not positive.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text.strip())
    seconds = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
    if seconds <= 0:
        raise UsageError(f"--budget is {text!r}: expected a positive time such as 90s, 8m or 1h")
    return seconds


def parse_shapes(text: str) -> list[tuple[int, ...]] | Path:
    """All shapes of the sizes in `1,64x768,4096`, a list for each axis; of another text, the path of a file.

    Raises:
        UsageError: it is neither.
    """
    if text.endswith(".csv") or os.path.exists(text):
        return Path(text)
    axes = [sizes.split(",") for sizes in text.split("x")]
    if len(axes) < 2 or not all(re.fullmatch(r" *0*[1-9][0-9]{0,17} *", size) for sizes in axes for size in sizes):
        raise UsageError(f"--shapes is {text!r}: expected positive sizes such as 1,64x768,4096, or a CSV file")
    return [*product(*(map(int, sizes) for sizes in axes))]


@dataclass(frozen=True, kw_only=True)
class ScopeOptions:
    """What a sweep measures, or compiles."""

    operators: str | Iterable[str] = option(
        "Only this operator, or variant (rms_norm_forward:no_rstd). Repeatable.",
        default=(),
        name="operator",
        doc="One or several operators or variants (rms_norm_forward:no_rstd). Default: all.",
    )
    dtypes: str | Iterable[str] = option(
        "bfloat16, float16 or float32. Default: bfloat16, or the first one of an operator without it. Repeatable.",
        default=(),
        name="dtype",
    )
    effort: str = option(
        "quick: 16 configs at each shape, those of the tables of other GPUs, stops after 60 s. default: those that are "
        "likely to be the best, predicted from times at all shapes. full: the same at the shapes of a shipped table.",
        default="default",
    )
    rows: Sequence[int] | None = keyword("Numbers of rows instead of those of the grid.")
    hidden: Sequence[int] | None = keyword("Hidden sizes instead of those of the grid.")
    shapes: Sequence[tuple[int, ...]] | str | os.PathLike[str] | None = option(
        "Shapes instead of those of --effort: rows x hidden sizes, 1,64x768,4096; or a CSV file with "
        "columns rows,hidden, or the operator's own axes, and optionally operator and dtype, as normtune.record_shapes "
        "writes it.",
        "SHAPES",
        read=parse_shapes,
        doc="Tuples of the operator's axes, (rows, hidden), instead of a grid; or a CSV file with these columns, and "
        "optionally operator and dtype.",
    )


@dataclass(frozen=True)
class SweepOptions(ScopeOptions):
    """Options of a sweep, for the command and the Python function."""

    device: str | None = option(
        "GPU to measure, cuda:N; several, which share the work, cuda:0,cuda:1 or all; or recording to replay, "
        "replay:NAME. Default: cuda:0 if present."
    )
    _: KW_ONLY
    ray: str | None = option(
        "Measure on the GPUs of a Ray cluster, and compile on its CPUs: auto for the cluster of this node, HOST:PORT, "
        "or local to start one here. --device is then all, or a replay for each node.",
        "ADDRESS",
    )
    grid: str | None = keyword("Shapes: `default`; `recording`, for a shipped table. Default: the grid of the effort.")
    space: str | None = keyword(
        "Configs: `full`, all; `default`, those that were the best at some shape on an H200; `portfolio`, 16 that "
        "tables of measured GPUs choose for shapes nearby. Default: full with `plane`, portfolio with the effort "
        "`quick`, what was recorded for a replay, else default."
    )
    strategy: str | None = keyword(
        "`plane`: only configs that are likely to be the best, predicted from times at all shapes; `adaptive`: 6 "
        "rounds for all configs, 16 for those within 10 % of the best; `exhaustive`: 16 for all; `optuna:SAMPLER`, "
        "such as optuna:TPESampler: some configs, proposed by this sampler of Optuna for each shape separately. "
        "Default: plane, but adaptive for a replay and with the effort `quick`, `stale`, `refine`, `out` and `cache`."
    )
    seed: int | None = keyword("Seed of the random draws of plane or optuna:SAMPLER. Default: 0.")
    baseline: str | os.PathLike[str] | None = option(
        "Also time this table's configs at each shape, for `fit --baseline`. The configs of the GPU's "
        "present tables, and each operator's default config, are always timed.",
        "TABLE",
        read=str,
        doc="A table's file, or the name of a shipped table, to compare a fit with: its configs are timed at each "
        "shape, like those of the GPU's present tables, and each operator's default config.",
    )
    regime: str = keyword(
        "cold: the cache is evicted before; warm: the same buffers every time, so that the L2 cache holds them as far "
        "as they fit; eager: cold, launched from Python without a CUDA graph, so that host time is included.",
        default=COLD,
    )
    budget_seconds: float | None = option(
        "Stop within this time, with everything stored: 90s, 8m, 1h.",
        *("TIME", "budget"),
        read=parse_budget,
        doc="Stop within this time, with everything stored. Default: the limit of --effort, if any.",
    )
    stale: bool = option(
        "Measure again only configs whose kernels changed, or that this Triton compiles to other code, those "
        "that nothing else compares with the others.",
        default=False,
    )
    refine: str | os.PathLike[str] | None = keyword(
        "A table's file, or the name of a shipped table: measure only its configs that have no time, and shapes at "
        "which its thresholds are least certain, also at new rows and hidden sizes. The store must have the "
        "measurements of the table.",
    )
    until_percent: float = keyword(
        "With `refine`: end when the expected loss of a function at unmeasured shapes is at most so many percent.",
        default=0.2,
    )
    retry_failed: bool = keyword("Measure again configs that are stored as crashed or timed out.", default=False)
    cache: str | os.PathLike[str] | None = option(
        "Use binaries that `normtune compile` wrote on another machine; DIR is not changed.",
        "DIR",
        read=Path,
        doc="Folder of binaries that were compiled on another machine; it is not changed. Default: Triton's cache.",
    )
    target: str | None = keyword("Architecture to compile for, with --out: `sm_90`, `gfx942`.")
    out: str | os.PathLike[str] | None = keyword(
        "Compile the binaries of this sweep for the target into this folder and stop. Needs no GPU."
    )
    dry_run: bool = option(
        "Print the plan (problems, configs, binaries, time, and problems left out) and stop.",
        default=False,
        doc="Plan (problems, configs, binaries, time, and problems left out) and stop.",
    )
    store: str | os.PathLike[str] | None = option(
        "File or URL of a store. Default: NORMTUNE_STORE, else ./normtune.db."
    )
