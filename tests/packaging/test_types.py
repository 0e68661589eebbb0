"""mypy accepts every module of the package, and the benchmarks."""

import re
import subprocess
import sys
from pathlib import Path

ROOMS = ("benchmarks", "heuristics", "kernels", "results", "tuner")
SOURCES = ("__init__.py", "__main__.py", "cli.py", "errors.py", *ROOMS)

# An `ignore` that is not needed is an error, so a public name without types is, too.
CONSUMER = """
import pandas as pd
from typing import Any, assert_type

import normtune
from normtune import FitOptions, NormtuneError, Store, Table
from normtune import export_data, export_recording, merge_data, list_data
from normtune import fit, load_table, register, show, show_map, sweep, uninstall
from normtune.heuristics.writing.installing import Installed, Removed
from normtune.tuner.checking.offline import CheckedTable
from normtune.results.api import Exported
from normtune.results.merge import Merged
from normtune.tuner.sweep.report import SweepResult

def checked(frame: pd.DataFrame, store: Store) -> None:
    assert_type(sweep("cuda:0", rows=[1, 64], budget_seconds=60), SweepResult)
    assert_type(fit(frame, name="GPU", target="sm_90", leaves=4), Table)
    assert_type(fit(store, operators=["rms_norm_forward"]).figures(), pd.DataFrame)
    assert_type(fit(store, replaces="table.py"), Table)
    assert_type(fit(store).install(force=True), Installed)
    assert_type(uninstall(store), tuple[Removed, ...])
    assert_type(fit(store, portable=True).lookup("a", "float16", 1, 64), normtune.Config)
    fit(store, all_devices=True)  # type: ignore[call-arg]
    assert_type(sweep(dry_run=True).to_plain(), dict[str, Any])
    assert_type(normtune.diff("a.py", "liger", store).markdown(), str)
    assert_type(normtune.check("table.py", begin=print), CheckedTable)
    assert_type(show(store), pd.DataFrame)
    assert_type(list_data(store), pd.DataFrame)
    assert_type(export_data("all.csv", store, regime=None), Exported)
    assert_type(export_recording("nvidia-x", "folder", store), Exported)
    assert_type(merge_data(["one.parquet", "two.parquet"], store), tuple[Merged, ...])
    assert_type(merge_data("one.parquet")[0].added, int)
    export_data(store)  # type: ignore[arg-type]
    assert_type(show_map(store, table="table.py"), pd.DataFrame)
    assert_type(FitOptions().max_slowdown, float | None)
    sweep(rows="1,64")  # type: ignore[arg-type]
    fit(frame, leaves="4")  # type: ignore[arg-type]
    fit(frame, leafs=4)  # type: ignore[call-arg]
    register("rms_norm")  # type: ignore[arg-type]
    normtune.sweeep()  # type: ignore[attr-defined]
    load_table(3)  # type: ignore[arg-type]
"""


def block_of(root: Path) -> str:
    """The example of docs/python.md that measures."""
    found = re.search(
        r"^```python\n(import normtune\n\nif .*?)^```", (root / "docs/python.md").read_text(), re.M | re.S
    )
    assert found
    return found[1]


def test_mypy_checks_every_module_and_finds_nothing(root: Path, tmp_path: Path) -> None:
    # Through a link named normtune and with explicit paths: named by the checkout's folder, modules get wrong names.
    (tmp_path / "normtune").symlink_to(root)
    (tmp_path / "consumer.py").write_text(CONSUMER + block_of(root))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file", str(root / "pyproject.toml")),
            *(
                "--cache-dir",
                str(root / ".cache" / "mypy"),
                *(f"normtune/{source}" for source in SOURCES),
                "consumer.py",
            ),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    modules = 1 + len(SOURCES) - len(ROOMS) + sum(1 for room in ROOMS for _ in (root / room).rglob("*.py"))
    assert re.search(rf"no issues found in {modules} source files", done.stdout), done.stdout
