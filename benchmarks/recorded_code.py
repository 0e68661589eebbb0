"""The digests of the compiled code of recordings, which distinguish a refactoring of kernels from a change of code.

Run it with the kernels' sources of the recording and the Triton of constraints.txt; no GPU is needed:

    python benchmarks/recorded_code.py nvidia-h200

With other sources, after a refactoring, compare the code of all that was recorded, which takes two minutes. Operators
whose code is equal get the fingerprint of the present sources in the files of the recording. Tables are fitted anew
then. Ends with 1 if the code of an operator changed:

    python benchmarks/recorded_code.py nvidia-h200 --same

After a change, write the measurements of a recording in which those of unchanged code are of the present sources, so
that `sweep --stale` in a store with these measures the others alone:

    python benchmarks/recorded_code.py nvidia-h200 --unchanged h200.parquet
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import operator
from normtune.results.evidence import Evidence
from normtune.results.exchange import recording
from normtune.results.exchange.parquet_csv import read_parquet, write_parquet
from normtune.results.exchange.recording import load_recording, recordings
from normtune.tuner.staleness.recorded import (
    Cell,
    CodeChange,
    cell_of,
    difference,
    pairs_of,
    path_of,
    read,
    record,
    write,
)


def main(names: list[str], same: bool) -> None:
    """Write the digests of these recordings, or of all, beside them; or compare them with the present sources."""
    if same:
        if changes := [line for name in names or recordings() for line in convert(name)]:
            sys.exit("\n".join(changes))
        return
    for name in names or recordings():
        begun = time.monotonic()
        code = record(load_recording(name, None))
        write(code, path_of(name))
        seconds, size = time.monotonic() - begun, path_of(name).stat().st_size
        print(f"{path_of(name)}: {len(code.cells)} cells, {size} bytes, Triton {code.triton}, {seconds:.0f} s")


def compared(name: str) -> tuple[Evidence, set[Cell], CodeChange]:
    """A recording, its cells, and what changed since; the program ends if that cannot be told."""
    evidence = load_recording(name, None)
    cells = {cell_of(*pair) for pair in pairs_of(evidence)}
    found = difference(read(name, evidence), evidence, cells)
    if found.undecided:
        sys.exit(f"{name}: {found.undecided}")
    return evidence, cells, found


def unchanged(name: str, path: Path) -> None:
    """Write a recording's measurements, those of unchanged code with the fingerprint of the present sources."""
    evidence, _, found = compared(name)
    changed = set(found.changed)
    is_old = np.array([cell_of(one.problem, one.config) in changed for one in evidence.measurements()])
    present = evidence.frame["operator"].map(lambda one: fingerprint(operator(one)))
    marked = evidence.frame["fingerprint"].where(is_old, present)
    write_parquet(Evidence(evidence.frame.assign(fingerprint=marked), evidence.runs), path)
    print(f"{path}: {len(is_old)} measurements, {is_old.sum()} of changed code")


def convert(name: str) -> list[str]:
    """Write the present fingerprint of operators whose code is equal; returns a message about each of the others."""
    evidence, cells, found = compared(name)
    changes = Counter(cell.key.operator for cell in found.changed)
    suspects = Counter(cell.key.operator for cell in cells if cell.key.operator in found.suspects)
    equal = suspects.total() - sum(suspects[changed] for changed in changes)
    print(f"{name}: the code of {equal} cells is the recorded one, {len(cells) - suspects.total()} have its sources")
    before = evidence.fingerprints()
    present = {one: mark if one in changes else fingerprint(operator(one)) for one, mark in before.items()}
    code = read(name, evidence)
    if code and present != before:
        for path in sorted(recording.FOLDER.glob(f"{name}.*.parquet")):
            part = read_parquet(path)
            marked = part.frame.assign(fingerprint=part.frame["operator"].map(present))
            write_parquet(Evidence(marked, part.runs), path)
        write(code._replace(fingerprints=present), path_of(name))
    return [f"{name}: the code of {count} cells of {operator} changed" for operator, count in changes.items()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="RECORDING")
    parser.add_argument("--same", action="store_true", help="compare, and convert what has the same code")
    parser.add_argument(
        "--unchanged", type=Path, metavar="FILE", help="write measurements for a store, of one recording"
    )
    options = parser.parse_args()
    if options.unchanged and len(options.names) != 1:
        parser.error(f"--unchanged takes one recording, not {len(options.names)}")
    if options.unchanged:
        unchanged(options.names[0], options.unchanged)
    else:
        main(options.names, options.same)
