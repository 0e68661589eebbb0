"""The digests of the compiled code of recordings, which distinguish a refactoring of kernels from a change of code.

Run it with the kernels' sources of the recording and the Triton of constraints.txt; no GPU is needed:

    python benchmarks/recorded_code.py nvidia-h200
"""

import sys
import time

from normtune.results.recorded_code import path_of, write
from normtune.results.recording import load_recording, recordings
from normtune.tuner.device.recorded import record


def main(names: list[str]) -> None:
    """Write the digests of these recordings, or of all, beside them."""
    for name in names or recordings():
        begun = time.monotonic()
        code = record(load_recording(name, None))
        write(code, path_of(name))
        seconds, size = time.monotonic() - begun, path_of(name).stat().st_size
        print(f"{path_of(name)}: {len(code.cells)} cells, {size} bytes, Triton {code.triton}, {seconds:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
