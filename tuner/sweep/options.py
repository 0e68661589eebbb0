"""Options of a sweep, and how their values are typed.

In: values from Python or texts from the command line. Out: `SweepOptions`, which `request` checks.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path

from normtune.errors import UsageError
from normtune.results.options import option
from normtune.results.regimes import COLD


def parse_budget(text: str) -> float:
    """Seconds of `90s`, `8m`, `1.5h` or a plain number of seconds.

    Raises:
        UsageError: another form, or not positive.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    seconds = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
    if seconds <= 0:
        raise UsageError(f"--budget is {text!r}: expected a positive time such as 90s, 8m or 1h")
    return seconds


def parse_percent(name: str, text: str) -> float:
    """The number of `0.2%` or `0.2`.

    Raises:
        UsageError: it is no number.
    """
    if not re.fullmatch(r"\d+(\.\d+)?%?", text.strip(), re.ASCII):
        raise UsageError(f"--{name} is {text!r}: expected a loss in percent, as 0.2%")
    return float(text.strip().rstrip("%"))


def parse_sizes(name: str, text: str) -> list[int]:
    """The positive integers of `1,64,4096`.

    Raises:
        UsageError: the list is empty, or holds anything else.
    """
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"--{name} is {text!r}: expected positive integers, as 1,64,4096")
    return [int(part) for part in parts]


@dataclass(frozen=True)
class SweepOptions:
    """Options of a sweep. A new option is declared here, and used where it takes effect."""

    device: str | None = option(
        "GPU to measure, cuda:N, or recording to replay, replay:NAME. Default: cuda:0 if present."
    )
    _: KW_ONLY
    operators: str | Iterable[str] = option(
        "Only this operator, or variant (rms_norm_forward:no_rstd). Repeatable.",
        default=(),
        name="operator",
        doc="Only these, plain names or names with a variant (rms_norm_forward:no_rstd), one or several. Default: all.",
    )
    dtypes: str | Iterable[str] = option(
        "bfloat16, float16 or float32. Default: bfloat16. Repeatable.", default=("bfloat16",), name="dtype"
    )
    effort: str = option(
        "default, or quick: a third of the shapes, at most 12 configs each, stops after 60 s.", default="default"
    )
    grid: str | None = option(
        "Shapes: default; quick, a third of these; recording, for a table that ships; probe, corners, edges and "
        "middle. Default: that of --effort."
    )
    rows: Sequence[int] | None = option(
        "Numbers of rows in place of the grid's: 1,64,4096.", "LIST", read=partial(parse_sizes, "rows")
    )
    hidden: Sequence[int] | None = option(
        "Hidden sizes in place of the grid's: 768,4096.", "LIST", read=partial(parse_sizes, "hidden")
    )
    shapes: Sequence[tuple[int, int]] | str | os.PathLike[str] | None = option(
        "Shapes from a CSV file (columns rows,hidden) in place of a grid.",
        "FILE",
        read=Path,
        doc="Pairs (rows, hidden), or a CSV file with these columns, in place of a grid.",
    )
    space: str | None = option(
        "Configs: full, all; default, those that won somewhere on an H200; quick, at most 12, that of Liger-Kernel's "
        "rule included. Default: full with plane, quick with --effort quick, else default."
    )
    strategy: str | None = option(
        "plane: the configs that times at nearby shapes make likely to be the best; adaptive: 6 rounds for all, 16 for "
        "those within 10 % of the best; exhaustive: 16 for all; race: 6 to 64, until the best is known to 0.5 %; tpe, "
        "gp, random: some of the configs of each shape by itself. Default: plane; adaptive for a replay and with "
        "--effort quick, --stale, --refine, --compile-only and --cache."
    )
    studies: str | os.PathLike[str] | None = option(
        "Keep the studies of tpe, gp or random in this SQLite file of Optuna.", "FILE", read=Path
    )
    seed: int | None = option(
        "Draws of plane, tpe, gp or random: with another number the search is repeated by other draws. Default: 0.", "N"
    )
    baseline: str | os.PathLike[str] | None = option(
        "Time what this table answers, too, at each shape, for `normtune fit --baseline`. What the GPU's tables answer "
        "today, and each operator's default config, are always timed.",
        "TABLE",
        read=str,
        doc="A table's file, or the name of one that ships, that a fit is to be compared with: what it answers is "
        "timed at each shape, as is what the GPU's tables answer, and each operator's default config.",
    )
    regime: str = option(
        "cold: nothing in the cache; warm: the same buffers every time, so the L2 holds what fits; eager: cold, "
        "launched from Python without a CUDA graph, so host time shows.",
        default=COLD,
    )
    budget_seconds: float | None = option(
        "Stop within this time, with everything stored: 90s, 8m, 1h.",
        *("TIME", "budget"),
        read=parse_budget,
        doc="Stop within this time, with everything stored. Default: no limit, or that of --effort.",
    )
    stale: bool = option(
        "Measure again only what is stored under kernels that changed since, or that this Triton compiles to other "
        "instructions, and a control sample of the rest.",
        default=False,
    )
    refine: str | os.PathLike[str] | None = option(
        "Measure only where the thresholds of this table are least certain, new numbers of rows and hidden sizes "
        "included.",
        "TABLE",
        read=str,
        doc="A table's file, or the name of one that ships: only shapes are measured where its thresholds are least "
        "certain, new numbers of rows and hidden sizes among them; what it was fitted to must be in the store.",
    )
    until_percent: float | None = option(
        "End --refine when all thresholds of a function together can lose no more than this. Default: 0.2%.",
        *("LOSS", "until"),
        read=partial(parse_percent, "until"),
    )
    retry_failed: bool = option("Measure again configs that are stored as crashed or timed out.", default=False)
    cache: str | os.PathLike[str] | None = option(
        "Use binaries that --compile-only made on another machine; DIR stays as it is.",
        "DIR",
        read=Path,
        doc="Folder of binaries that --compile-only made on another machine; it stays as it is. Default: Triton's own.",
    )
    compile_only: bool = option(
        "Compile the binaries of this sweep for --target into --out and stop. Needs no GPU.", default=False
    )
    target: str | None = option("Architecture for --compile-only, as sm_90 for H100 and H200.")
    out: str | os.PathLike[str] | None = option("Folder for the binaries of --compile-only.", "DIR", read=Path)
    dry_run: bool = option(
        "Print the plan (problems, configs, what is left out, binaries, time) and stop.",
        default=False,
        doc="Make the plan (problems, configs, what is left out, binaries, time) and stop.",
    )
    store: str | os.PathLike[str] | None = option(
        "File or URL of a store. Default: that of the variable NORMTUNE_STORE, else ./normtune.db."
    )
