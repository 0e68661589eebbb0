"""Options of a sweep, and parsers of their texts on the command line; `request` checks their values."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path

from normtune.errors import UsageError
from normtune.results.options import LIST, number_of, option, parse_percent
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


def parse_sizes(name: str, texts: Sequence[str]) -> list[int]:
    """The positive integers of a list.

    Raises:
        UsageError: a text is not a positive integer.
    """
    sizes = [number_of(text.strip()) for text in texts]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise UsageError(f"--{name} is {','.join(texts)!r}: expected positive integers such as 1,64,4096")
    return [int(size) for size in sizes if size]


@dataclass(frozen=True)
class SweepOptions:
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
        "default, or portfolio: 16 configs at each shape, those of the tables of other GPUs, stops after 60 s.",
        default="default",
    )
    grid: str | None = option(
        "Shapes: default; quick, a third of these; recording, for a shipped table. Default: the grid of --effort."
    )
    rows: Sequence[int] | None = option(
        "Numbers of rows instead of those of the grid: 1,64,4096.", LIST, read=partial(parse_sizes, "rows")
    )
    hidden: Sequence[int] | None = option(
        "Hidden sizes instead of those of the grid: 768,4096.", LIST, read=partial(parse_sizes, "hidden")
    )
    shapes: Sequence[tuple[int, ...]] | str | os.PathLike[str] | None = option(
        "Shapes from a CSV file instead of a grid: columns rows,hidden, or the operator's own axes, and optionally "
        "operator and dtype, as normtune.record_shapes writes it.",
        "FILE",
        read=Path,
        doc="Tuples of the operator's axes, (rows, hidden), instead of a grid; or a CSV file with these columns, and "
        "optionally operator and dtype.",
    )
    space: str | None = option(
        "Configs: full, all; default, those that were the best at some shape on an H200; "
        "portfolio, 16 that tables of measured GPUs choose for shapes nearby. Default: full with plane, portfolio with "
        "--effort portfolio, what was recorded for a replay, else default."
    )
    strategy: str | None = option(
        "plane: only configs that are likely to be the best, predicted from times at all shapes; adaptive: 6 rounds "
        "for all configs, 16 for those within 10 % of the best; exhaustive: 16 for all; optuna:SAMPLER, such as "
        "optuna:TPESampler: some configs, proposed by this sampler of Optuna for each shape separately. Default: "
        "plane, but adaptive for a replay and with --effort portfolio, --stale, --refine, --compile-only and --cache."
    )
    studies: str | os.PathLike[str] | None = option(
        "Keep the studies of optuna:SAMPLER in this SQLite file.", "FILE", read=Path
    )
    seed: int | None = option("Seed of the random draws of plane or optuna:SAMPLER. Default: 0.", "N")
    baseline: str | os.PathLike[str] | None = option(
        "Also time this table's configs at each shape, for `fit --baseline`. The configs of the GPU's "
        "present tables, and each operator's default config, are always timed.",
        "TABLE",
        read=str,
        doc="A table's file, or the name of a shipped table, to compare a fit with: its configs are timed at each "
        "shape, like those of the GPU's present tables, and each operator's default config.",
    )
    regime: str = option(
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
        "Measure again only configs whose kernels changed, or that this Triton compiles to other machine code, those "
        "that nothing else compares with the others.",
        default=False,
    )
    refine: str | os.PathLike[str] | None = option(
        "Measure only configs of this table that have no time, and shapes at which its thresholds are least certain, "
        "also at new rows and hidden sizes.",
        "TABLE",
        read=str,
        doc="A table's file, or the name of a shipped table: measure only its configs that have no time, and shapes at "
        "which its thresholds are least certain, also at new rows and hidden sizes. The store must have the "
        "measurements of the table.",
    )
    most: int | None = option(
        "At most so many configs at a shape with plane or optuna:SAMPLER. Default of plane: as many as are worth their "
        "time.",
        "N",
    )
    until_percent: float | None = option(
        "With --refine: end when the expected loss of a function at unmeasured shapes is at most this, by default "
        "0.2%. With plane: end a shape when the expected gain of its untimed configs is less, instead of when no "
        "config is worth its time.",
        *("LOSS", "until"),
        read=partial(parse_percent, "until"),
    )
    retry_failed: bool = option("Measure again configs that are stored as crashed or timed out.", default=False)
    cache: str | os.PathLike[str] | None = option(
        "Use binaries that --compile-only compiled on another machine; DIR is not changed.",
        "DIR",
        read=Path,
        doc="Folder of binaries that --compile-only compiled on another machine; it is not changed. Default: Triton's "
        "cache.",
    )
    compile_only: bool = option(
        "Compile the binaries of this sweep for --target into --out and stop. Needs no GPU.", default=False
    )
    target: str | None = option(
        "Architecture for --compile-only: sm_90 for H100 and H200, gfx942 for MI300X, gfx950 for MI355X."
    )
    out: str | os.PathLike[str] | None = option("Folder for the binaries of --compile-only.", "DIR", read=Path)
    dry_run: bool = option(
        "Print the plan (problems, configs, binaries, time, and problems left out) and stop.",
        default=False,
        doc="Plan (problems, configs, binaries, time, and problems left out) and stop.",
    )
    store: str | os.PathLike[str] | None = option(
        "File or URL of a store. Default: NORMTUNE_STORE, else ./normtune.db."
    )
