"""`fit` and `check` on one core and on several: what they print, and what an interrupt or an error leaves."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from normtune.cli import INTERRUPTED
from normtune.kernels.tablefile.locate import by_name
from normtune.tests.commands import python, wait_until

pytestmark = pytest.mark.slow

TABLES = "nvidia-h200-qk-norm", "nowhere.py", "nvidia-h200-fused-add-rms-norm", "nowhere.py"


def on_cores(count: int, *arguments: object) -> tuple[int, str, list[str]]:
    """Exit code, output, and lines on stderr, whose order may differ, of a command that has so many cores."""
    code = (
        f"import os; os.sched_getaffinity = lambda _: {{*range({count})}}\n"
        "from normtune.cli import main; from normtune.results.parallel import maps; maps.LEAST_SECONDS = 0; main()"
    )
    done = python("-c", code, *arguments)
    return done.returncode, done.stdout, sorted(done.stderr.splitlines())


def test_a_check_of_several_tables_prints_the_same_on_any_number_of_cores() -> None:
    assert {*TABLES} - {"nowhere.py"} <= by_name().keys()
    code, told, errors = on_cores(1, "check", *TABLES)
    assert code == 2 and told.count(": OK\n") == 2
    assert [sum(text in line for line in errors) for text in ("nowhere.py", "again to compare")] == [2, 2]
    assert on_cores(3, "check", *TABLES) == (code, told, errors)


@pytest.mark.parametrize("choice", [["--max-configs", 3], ["--portable"]])
def test_a_fit_prints_and_writes_the_same_on_any_number_of_cores(choice, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    fit = "fit", "--store", "nvidia-h200-rms-norm-quantize-fp8", "--operator", "transpose_fp8", *choice
    fit = *fit, "--out", "table.py"
    alone = on_cores(1, *fit)
    assert alone[0] == 0
    text = Path("table.py").read_bytes()
    Path("table.py").unlink()
    assert on_cores(4, *fit) == alone
    assert Path("table.py").read_bytes() == text


def test_an_interrupt_ends_a_fit_with_one_line_and_all_its_processes() -> None:
    code = "import os; os.sched_getaffinity = lambda _: {0, 1, 2}; from normtune.cli import main; main()"
    command = [sys.executable, "-c", code, "fit", "--store", "nvidia-h200"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as fit:

        def processes() -> list[str]:
            return [
                entry.name
                for entry in Path("/proc").iterdir()
                if entry.name.isdecimal() and _session(entry) == str(fit.pid)
            ]

        wait_until(lambda: len(processes()) > 3)
        os.killpg(fit.pid, signal.SIGINT)  # as a terminal does
        _, told = fit.communicate()
        assert fit.returncode == 130
        assert told.split("\n")[-3:] == ["", INTERRUPTED, ""]
        assert not any(word in told for word in ("Traceback", "Process"))
        wait_until(lambda: not processes())


def _session(entry: Path) -> str:
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()[3]
    except OSError:
        return ""
