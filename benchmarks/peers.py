"""RMSNorm of normtune beside that of its peers: torch's fused one, Inductor, Liger-Kernel and quack, kernel time, cold.

    python benchmarks/peers.py [--cases forward] [--peers torch,liger] [--shapes 4096x4096,1x8192] [--dtypes float32]
                               [--budget SECONDS]

Every installed peer takes part (`sides`); `liger_1238` is Liger with the rule of Liger-Kernel #1238, at shapes where it
differs from the shipped one; `liger_cute` is Liger's CuTe kernel, which nvidia-cutlass-dsl compiles, at rows of whole
16 bytes; Inductor compiles for seconds at each shape. For each problem all sides are checked against float64, then
timed in the same shuffled rounds, with a plain copy of as many bytes beside them; all get the same number of samples
(`beside`). Each problem is written at its end, and the same command resumes with the others. A problem is measured
again, with all sides, if a side is new or has another version, or if normtune has other kernels or another config
there. A failed side is not repeated. `benchmarks/peers_report.py` makes the tables.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from normtune.benchmarks.cases import CASES, RMS_NORM, SHAPES, installed
from normtune.benchmarks.peers_report import Key, key_of, read
from normtune.benchmarks.sides import OURS, Side

Cell = dict[str, Any]


def main(cases: Sequence[str], dtypes: str, file: str, about: str | None) -> None:
    """Measure the missing problems of cases and print.

    Args:
        cases: names in `CASES`.
        dtypes: the default of `--dtypes`.
        file: name of the file with the results of this GPU.
        about: text for `--help`.
    """
    start = time.monotonic()
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers = dict.fromkeys(side for name in cases for side in CASES[name].sides)
    parser.add_argument("--cases", default=",".join(cases))
    parser.add_argument("--peers", help=f"only these, beside those measured before: {','.join(peers)}")
    parser.add_argument("--shapes", help="only these, as 4096x4096,1x8192")
    parser.add_argument("--dtypes", default=dtypes)
    parser.add_argument("--budget", type=float, help="begin no problem after so many seconds")
    parser.add_argument("--out", type=Path, help=f"default: {file} in the results of this GPU")
    options = parser.parse_args()
    chosen, wanted = options.cases.split(","), options.peers.split(",") if options.peers else [*peers]
    for kind, names, known_names in (("case", chosen, cases), ("peer", wanted, peers)):
        if unknown := set(names) - {*known_names}:
            raise SystemExit(f"unknown {kind} {min(unknown)!r}: expected some of {', '.join(known_names)}")

    from normtune.benchmarks import beside, places
    from normtune.tuner.device.cuda import CudaEngine

    engine = CudaEngine(0)
    out = options.out or places.folder_of(engine.device.name) / file
    out.parent.mkdir(parents=True, exist_ok=True)
    known = {key_of(cell): cell for cell in read(out)}
    left = []
    for name in chosen:
        there = installed(CASES[name])
        measured = {side for cell in known.values() if cell["pass"] == name for side in cell["sides"]}
        if missing := measured - {*there, "copy"}:
            told = ", ".join(sorted(missing))
            print(f"measured before and not installed now: {told}; what is measured again loses them")
        shapes = [tuple(map(int, shape.split("x"))) for shape in (options.shapes or "").split(",") if shape]
        for dtype in options.dtypes.split(","):
            for rows, hidden in shapes or SHAPES[CASES[name].shapes]:
                key = (name, dtype, rows, hidden)
                sides = sides_of(known.get(key), {OURS, *wanted}, there)
                if not is_done(known.get(key), sides, beside.identity(engine.target, *key)):
                    left.append((key, sides))
    failed = run(left, out, options.budget, start, lambda key, sides: beside.measure(engine, key, sides))
    engine.close()
    keep_newest(out)
    if failed:
        raise SystemExit(f"normtune failed at {len(failed)} problems: {', '.join(failed)}")


def sides_of(cell: Cell | None, wanted: Iterable[str], there: dict[str, Side]) -> dict[str, Side]:
    """The sides to measure at a problem: the wanted ones, and those measured there before."""
    before = set(cell["sides"]) if cell else set()
    return {name: side for name, side in there.items() if name in wanted or name in before}


def is_done(cell: Cell | None, sides: dict[str, Side], identity: dict[str, Any]) -> bool:
    """Whether a cell holds these sides in these versions, with the present normtune; a failure is a result, too."""
    if cell is None:
        return False
    measured = cell["sides"]
    same = all(measured.get(name, {}).get("version") == side.version for name, side in sides.items())
    return same and identity.items() <= measured.get(OURS, {}).items()


def run(
    left: Iterable[tuple[Key, dict[str, Side]]], out: Path, budget: float | None, start: float, measure: Any
) -> list:
    """Measure one problem after another, write each at its end, and print.

    Args:
        left: problems to measure, with their sides.
        out: the file.
        budget: seconds after `start` (`time.monotonic`) in which problems may begin; None for no limit.
        start: of the script.
        measure: (key, sides) to a cell.

    Returns:
        Messages of the problems at which normtune itself failed; these are not written.
    """
    from normtune.benchmarks.beside import SideFailedError

    left = list(left)
    failed: list[str] = []
    for done, (key, sides) in enumerate(left):
        name, dtype, rows, hidden = key
        what = f"{name} {dtype} {rows} x {hidden}"
        if budget is not None and time.monotonic() - start >= budget:
            print(f"{len(left) - done} of {len(left)} problems left: the same command goes on")
            return failed
        try:
            cell = measure(key, sides)
        except SideFailedError as error:
            failed.append(what)
            print(f"{what}: {error}", file=sys.stderr, flush=True)
            continue
        append(out, cell)
        told = {side: found.get("median_us", found.get("failed")) for side, found in cell["sides"].items()}
        print(what, told, flush=True)
    print(f"all {len(left)} problems done" if left else "nothing left to measure")
    return failed


def append(path: Path, cell: Cell) -> None:
    """Append a line; a new one also after a line that was cut off by a kill."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(cell).encode() + b"\n")


def keep_newest(path: Path) -> None:
    from normtune.results.atomic import replaced

    cells = read(path)
    if cells:
        with replaced(path) as temporary:
            temporary.write_text("".join(json.dumps(cell) + "\n" for cell in cells), "utf-8")


if __name__ == "__main__":
    main(RMS_NORM, "bfloat16,float32", "peers.jsonl", __doc__)
