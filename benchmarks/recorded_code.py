"""The digests of the compiled code of recordings, which distinguish a refactoring of kernels from a change of code.

Run it with the kernels' sources of the recording and the Triton of constraints.txt; no GPU is needed. It computes the
digests of the configs of the committed tables:

    python benchmarks/recorded_code.py nvidia-h200

With `--all` it goes on with all recorded configs, from the first without a digest, until it is interrupted:

    python benchmarks/recorded_code.py nvidia-h200 --all

With other sources, after a refactoring, compare the code of all that has a digest. Operators whose code is equal get
the fingerprint of the present sources in the files of the recording. Tables are fitted anew then. Ends with 1 if the
code of an operator changed, or is not known:

    python benchmarks/recorded_code.py nvidia-h200 --same

After a change, write the measurements of a recording in which those of unchanged code are of the present sources, so
that `sweep --stale` in a store with these measures the others alone:

    python benchmarks/recorded_code.py nvidia-h200 --unchanged h200.parquet
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import numpy as np

from normtune.heuristics.writing.regenerate import command_of
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import operator
from normtune.kernels.tablefile import locate
from normtune.results.evidence import Evidence
from normtune.results.exchange.parquet_csv import write_parquet
from normtune.results.exchange.recorded_code import Cell, RecordedCode, cell_of, pairs_of
from normtune.results.exchange.recording import files_of, load_recording, recorded_code, recordings, write_code
from normtune.tuner.staleness.code import triton_version
from normtune.tuner.staleness.recorded import CodeChange, difference, record
from normtune.tuner.staleness.table import cells_of

TABLES = Path(locate.__file__).parents[2] / "heuristics" / "tables"
# Cells whose digests are computed before they are written: one to two minutes of CPU.
BATCH = 500


def of_tables(name: str, evidence: Evidence) -> set[Cell]:
    """The cells of the committed tables that are fitted to a recording."""
    cells: set[Cell] = set()
    for path in sorted(TABLES.glob("[a-z]*.py")):
        if command_of(locate.load(path).header).store == name:
            cells |= cells_of(path.read_text("utf-8"), evidence)
    return cells


def add(name: str, evidence: Evidence, wanted: Collection[Cell]) -> None:
    """Add the digests of these cells to a recording, batch by batch, unless it has them by this Triton."""
    code = recorded_code(name)
    cells = {**code.cells} if code.triton == triton_version() else {}
    pending = sorted({*wanted} - cells.keys())
    begin = time.monotonic()
    for start in range(0, len(pending), BATCH):
        new = record(evidence, {*pending[start : start + BATCH]})
        cells |= new.cells
        write_code(RecordedCode(new.triton, cells), name, {})
        print(f"{name}: {len(cells)} cells, Triton {new.triton}, {time.monotonic() - begin:.0f} s", flush=True)
    print(f"{name}: {len(cells)} cells, {sum(path.stat().st_size for path in files_of(name))} bytes")


def compared(name: str) -> tuple[Evidence, set[Cell], CodeChange]:
    """A recording, its cells without a digest, and what changed of the others; ends if that cannot be told."""
    evidence, code = load_recording(name, None), recorded_code(name)
    change = difference(code, evidence, code.cells)
    if change.undecided:
        sys.exit(f"{name}: {change.undecided}")
    return evidence, {cell_of(*pair) for pair in pairs_of(evidence)} - code.cells.keys(), change


def unchanged(name: str, path: Path) -> None:
    """Write a recording's measurements, those of unchanged code with the fingerprint of the present sources."""
    evidence, undigested, change = compared(name)
    stale = undigested.union(change.changed)
    is_old = np.array([cell_of(one.problem, one.config) in stale for one in evidence.measurements()])
    present = evidence.frame["operator"].map(lambda one: fingerprint(operator(one)))
    marked = evidence.frame["fingerprint"].where(is_old, present)
    write_parquet(Evidence(evidence.frame.assign(fingerprint=marked), evidence.runs), path)
    print(f"{path}: {len(is_old)} measurements, {is_old.sum()} of changed or unknown code")


def convert(name: str) -> list[str]:
    """Write the present fingerprint of operators whose code is equal; returns a message about each of the others."""
    _, undigested, change = compared(name)
    messages = []
    for reason, cells in (("changed", change.changed), ("has no digest", undigested)):
        counts = Counter(cell.key.operator for cell in cells if cell.key.operator in change.suspects)
        messages += [f"{name}: the code of {count} cells of {one} {reason}" for one, count in counts.items()]
    others = {cell.key.operator for cell in undigested.union(change.changed)}
    equal = [one for one in change.suspects if one not in others]
    print(f"{name}: the code of {', '.join(equal) or 'no operator'} is the recorded one, with other sources")
    if equal:
        write_code(recorded_code(name), name, {one: fingerprint(operator(one)) for one in equal})
    return messages


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="RECORDING", default=recordings())
    parser.add_argument("--all", action="store_true", help="the digests of all configs, not those of tables alone")
    parser.add_argument("--same", action="store_true", help="compare, and convert what has the same code")
    parser.add_argument(
        "--unchanged", type=Path, metavar="FILE", help="write measurements for a store, of one recording"
    )
    options = parser.parse_args()
    if options.unchanged and len(options.names) != 1:
        parser.error(f"--unchanged takes one recording, not {len(options.names)}")
    if options.unchanged:
        unchanged(options.names[0], options.unchanged)
    elif options.same:
        if changes := [line for name in options.names for line in convert(name)]:
            sys.exit("\n".join(changes))
    else:
        for name in options.names:
            evidence = load_recording(name, None)
            add(name, evidence, of_tables(name, evidence))
            if options.all:
                add(name, evidence, {cell_of(*pair) for pair in pairs_of(evidence)})
