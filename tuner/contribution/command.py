"""`normtune contribute`: measures a GPU, and writes what a pull request with its table has into one folder.

In: a device and a budget. Out: a folder with data, table, page and text. Each step is a function of another command,
and is skipped if its file stands, so that the same command goes on after an interrupt.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normtune.errors import NormtuneError
from normtune.results.terminal import note, tell

if TYPE_CHECKING:
    from normtune.results.records import Device
    from normtune.tuner.sweep.progress import Silent

_DTYPES = ("bfloat16", "float16", "float32")


def contribute(
    folder: Annotated[Path | None, typer.Argument(metavar="DIR", help="Default: normtune-GPU.")] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="GPU, cuda:N, or replay:NAME. Default: cuda:0.")
    ] = None,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Stop measuring within this time: 5m, 1h.")] = "15m",
) -> None:
    """Measure a GPU that has no table, for a pull request.

    The folder gets data, table, a page and the text of the pull request. After an interrupt the same command
    continues. Nothing is asked, and nothing is sent.
    """
    from normtune.results.parallel.interrupts import terminable
    from normtune.results.terminal import is_quiet
    from normtune.tuner.sweep.options import parse_budget
    from normtune.tuner.sweep.progress import choose_display

    seconds = parse_budget(budget)
    with terminable():
        text = contribution(folder, device, seconds, choose_display(is_quiet()))
    tell(f"wrote {text.parent}: open a pull request with its files; {text} is its text")


def contribution(folder: Path | None, device: str | None, seconds: float, display: "Silent", **swept: Any) -> Path:
    """Write the files of a contribution; `seconds`, `display` and the keywords `swept` are of the sweep.

    Returns:
        The file with the text of the pull request.

    Raises:
        UsageError: a value is invalid, or a file there is of another program.
        NormtuneError: `doctor` finds a problem, nothing could be timed, or the device or the disk fails.
    """
    from normtune.heuristics.api.fit import fit
    from normtune.heuristics.api.report import report
    from normtune.heuristics.writing.write import make_folder
    from normtune.kernels.tablefile.locate import slug
    from normtune.tuner.device.open import open_device

    bench = open_device(device)
    gpu = bench.device
    bench.close()
    name, folder = slug(gpu.name), folder or Path(f"normtune-{slug(gpu.label)}")
    make_folder(folder)
    store, text = folder / "measured.db", folder / "pull_request.md"
    table, data, page = (folder / f"{name}{suffix}" for suffix in (".py", ".parquet", ".html"))
    machine = _machine(gpu, store)
    if _sweep(device, seconds, store, display, swept):
        for older in (table, data, page, text):
            older.unlink(missing_ok=True)
    if not table.exists():
        note("fitting, some minutes at most")
        fit(store).save(table, evidence=data)
    if not page.exists():
        try:
            report(table).save(page)
        except NormtuneError as error:
            note(f"there is no page yet: {error}; then the same command draws it")
    if not text.exists():
        note("checking the table on the device, a minute at most")
        text.write_text(_text(gpu, machine, table, device), encoding="utf-8")
    return text


def _machine(gpu: "Device", store: Path) -> list[str]:
    """The lines of `doctor`, in which a GPU that is measured has no problem."""
    from normtune.results.records import REPLAY_PREFIX
    from normtune.tuner.doctor.checks import PROBLEM, doctor
    from normtune.tuner.doctor.command import lines

    findings = doctor(store)
    problem = next((one for one in findings if one.level == PROBLEM), None)
    if problem and not gpu.uuid.startswith(REPLAY_PREFIX):
        raise NormtuneError(f"{problem.topic}: {problem.found}; {problem.advice or '`normtune doctor` says more'}")
    return lines(findings, colour=False)


def _sweep(device: str | None, seconds: float, store: Path, display: "Silent", swept: dict[str, Any]) -> int:
    """Sweep one dtype after another; returns how many problems were measured now.

    Raises:
        NormtuneError: the store has no measurement then.
    """
    from normtune.tuner.sweep.api import run
    from normtune.tuner.sweep.request import Request

    end, measured, stored = time.monotonic() + seconds, 0, 0
    for dtype in _DTYPES:
        if (rest := end - time.monotonic()) > 0:
            summary = run(Request(device, dtypes=dtype, budget_seconds=rest, store=store, **swept), display).summary
            measured, stored = measured + summary.problems, stored + summary.known
    if not measured + stored:
        raise NormtuneError(f"nothing was measured in {seconds:g} s: give a larger --budget")
    return measured


def _text(gpu: "Device", machine: list[str], table: Path, device: str | None) -> str:
    """The text of the pull request: the table's decisions, its check, a comparison, and the machine."""
    from normtune.heuristics.api.diff import diff
    from normtune.kernels.tablefile.header import comment_of
    from normtune.tuner.checking.api import check_on_device
    from normtune.tuner.checking.report import counts_line, headline

    lines = table.read_text(encoding="utf-8").splitlines()
    decisions = "\n".join(line.removeprefix("# ") for line in lines[comment_of(lines)][2:])
    functions = check_on_device(table, device).functions
    return f"""# A table for {gpu.label}

Measured and fitted by `normtune contribute`.

```
{decisions}
```

Check on the device: {headline(functions)}; {counts_line(functions)}.

{diff(table, "portable").markdown()}

## Machine

```
{chr(10).join(machine)}
```
"""
