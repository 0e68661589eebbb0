"""Sweeps of the hostile operator as a user would start them; the operator comes from its entry point."""

import os
import subprocess
import sys
from pathlib import Path

OPERATOR = Path(__file__).parent / "hostile_operator"
# As `python -m normtune`, but patient for seconds only, so that the tests do not wait for a minute.
IMPATIENT = (
    "import normtune.tuner.device.bench as bench; bench.STEP_SECONDS = bench.STEPS_SECONDS = 6.0; "
    "import normtune.tuner.compiling.pool as pool; pool.COMPILE_SECONDS = 15.0; from normtune.cli import main; main()"
)


# Of configs that fail the default search leaves out those that are alike: all are timed here.
EVERY = (
    "from normtune.tuner.sweep.request import EFFORTS, Effort; "
    "EFFORTS['default'] = Effort('default', 'default', 'adaptive', None); "
)


def distribution(folder):
    """A folder from which Python finds the operator, as if it were installed."""
    info = folder / "hostile-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[normtune.operators]\nhostile = hostile_spec\n")
    return folder


def environment(folder):
    """The variables of a process that knows the operator and whose compiler cache is its own."""
    path = [str(distribution(folder)), str(OPERATOR), *sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "TRITON_CACHE_DIR": str(folder / "triton")}


def start(folder, *arguments, every=False):
    """A sweep of the operator into `folder/store.db`; `every` times all configs."""
    command = [
        sys.executable,
        "-c",
        EVERY * every + IMPATIENT,
        "sweep",
        "--operator",
        "hostile",
        "--dtype",
        "float32",
        *arguments,
    ]
    store = ["--store", f"{folder}/store.db"]
    return subprocess.Popen(
        [*command, *store], env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
