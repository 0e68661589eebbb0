"""Imports: the modules that each entry loads, and their names."""

import ast
import os
import pkgutil
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer.main

from normtune import cli
from normtune.tests.commands import python

HEAVY = ("numpy", "optuna", "pandas", "pyarrow", "pynvml", "rich", "scipy", "sqlalchemy", "torch", "triton")


@pytest.fixture
def scratch(root: Path, tmp_path: Path) -> Path:
    """A folder in which `normtune` is a symbolic link to the checkout: how it runs without being installed."""
    (tmp_path / "normtune").symlink_to(root)
    return tmp_path


def loaded(run, scratch: Path, code: str) -> list[str]:
    """Which of `HEAVY` are loaded once `code` has run."""
    done = run(
        "-c",
        f"import sys\n{code}\nprint('loaded:', *[name for name in {HEAVY} if name in sys.modules])",
        cwd=scratch,
        PYTHONPATH=str(scratch),
        PYTHONSAFEPATH="1",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()[1:]


def commands() -> list[list[str]]:
    """The words of each command and each group of commands."""

    def walk(words: list[str], command: Any) -> Iterator[list[str]]:
        yield words
        for name, child in getattr(command, "commands", {}).items():
            yield from walk([*words, name], child)

    return list(walk([], typer.main.get_command(cli.app)))


@pytest.mark.slow
def test_help_loads_nothing_heavy(run, scratch: Path) -> None:
    """One process asks for all of it: what a command loads is there when the next one is asked."""
    calls = [["--version"], *([*words, "--help"] for words in commands())]
    code = (
        "import normtune.cli\n"
        f"for words in {calls}:\n"
        "    sys.argv = ['normtune', *words]\n"
        "    try: normtune.cli.main()\n"
        "    except SystemExit as end: assert not end.code, (words, end.code)\n"
        f"    found = [name for name in {HEAVY} if name in sys.modules]\n"
        "    assert not found, (words, found)\n"
    )
    assert loaded(run, scratch, code) == []


def test_import_loads_nothing_heavy_until_a_name_is_used(run, scratch: Path) -> None:
    assert loaded(run, scratch, "import normtune; dir(normtune); normtune.NormtuneError") == []
    assert "sqlalchemy" in loaded(run, scratch, "import normtune; normtune.Store")


def test_a_table_is_found_without_numpy_or_torch(run, scratch: Path) -> None:
    code = "from normtune.kernels.tablefile import locate; locate.select('NVIDIA H200', 'sm_90', 132)"
    assert loaded(run, scratch, code) == []


def test_the_package_lists_its_public_names_and_no_other() -> None:
    import normtune

    for public in normtune._HOMES:
        home = f"normtune.{normtune._HOMES[public]}:{public}"
        assert getattr(normtune, public) is pkgutil.resolve_name(home)
    assert dir(normtune) == sorted(normtune.__all__) == sorted({*normtune._HOMES, "__version__"})
    with pytest.raises(AttributeError, match="module 'normtune' has no attribute 'rms_norn'"):
        normtune.rms_norn  # noqa: B018  (the access is what is tested)


def test_names_of_functions_win_over_those_of_modules() -> None:
    """`normtune.sweep` is a function, whatever modules of that name were imported."""
    import normtune.tuner.doctor
    import normtune.tuner.sweep.loop

    functions = normtune.sweep, normtune.doctor, normtune.fit, normtune.check, normtune.show, normtune.diff
    assert [function.__name__ for function in functions] == ["sweep", "doctor", "fit", "check", "show", "diff"]


def test_rooms_are_no_top_level_modules_in_the_checkout(run, root: Path) -> None:
    names = ("cli", "errors", "heuristics", "kernels", "results", "tuner")
    code = f"import importlib.util as u; print([name for name in {names} if u.find_spec(name)])"
    assert run("-c", code, cwd=root, PYTHONSAFEPATH="1").stdout == "[]\n"
    # Without the variable they are: that is what Makefile and CI guard against.
    assert run("-c", code, cwd=root).stdout == f"{list(names)}\n"


# What a stranger's folder may hold; each file says that it ran.
PLANTED = {*sys.stdlib_module_names, *HEAVY, "pebble", "threadpoolctl", "typer", "cli", "errors", "kernels", "results"}
CALLED = """
import sys
from normtune import cli, doctor
if __name__ == "__main__":
    cli.main() if sys.argv[1:] else print(doctor("none.db"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("sweep --device replay:nvidia-h200 --shapes 4096x1024 --effort quick", "complete: "),
        ("compile sm_90 out --shapes 1x64 --effort quick", "failures: none"),
        pytest.param("sweep --device cuda:99", "device 'cuda:99'", marks=pytest.mark.slow),
        pytest.param("", "topic='table'", marks=pytest.mark.slow),  # the doctor's probes
    ],
)
def test_processes_that_normtune_starts_run_no_module_of_the_current_folder(
    run, scratch: Path, tmp_path: Path, words: str, told: str
) -> None:
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    for name in PLANTED:
        (hostile / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write(__name__ + '\\n')")
    (tmp_path / "called.py").write_text(CALLED)
    done = run(str(tmp_path / "called.py"), *words.split(), cwd=hostile, PYTHONPATH=str(scratch))
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    assert told in done.stdout + done.stderr


@pytest.mark.slow
def test_a_python_that_ignores_the_environment_starts_no_process_without_a_safe_path(run, scratch: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(scratch)!r})\n"
        "from normtune.tuner.machine.processes import start_tracker\n"
        "start_tracker()"
    )
    refused = run("-E", "-c", code, cwd=scratch)
    assert refused.stderr.splitlines()[-1] == (
        "normtune.errors.NormtuneError: python -E lets child processes import modules of the current folder: start "
        "Python with -P as well, or -I"
    )
    for flags in ("-EP", "-I", "-P"):
        assert run(flags, "-c", code, cwd=scratch).returncode == 0


def test_make_and_ci_set_safe_path_and_ci_runs_make_test_alone(root: Path) -> None:
    assert "\nexport PYTHONSAFEPATH := 1\n" in (root / "Makefile").read_text()
    script = root / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    assert commands == ['cd "$(dirname "$0")/.." && exec make test']


@pytest.mark.slow
def test_a_sweep_runs_from_a_symbolic_link_alone(run, scratch: Path) -> None:
    done = run(
        *("-m", "normtune", "sweep", "--device", "replay:nvidia-h200", "--shapes", "4096x1024,4096"),
        cwd=scratch,
        PYTHONPATH=str(scratch),
        PYTHONSAFEPATH="1",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("replay of the recorded sweep of NVIDIA H200")
    assert (scratch / "normtune.db").is_file()


@pytest.mark.slow
def test_this_environment_is_whole() -> None:
    done = python("-m", "pip", "check")
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_every_name_that_is_imported_of_normtune_exists(root: Path, tracked: list[str]) -> None:
    # Scripts and tests for a GPU import what no other test does.
    missing = set()
    for path in (path for path in tracked if path.endswith(".py") and (root / path).exists()):
        for node in ast.walk(ast.parse((root / path).read_text(), path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "normtune":
                module = import_module(node.module or "")
                for alias in node.names:
                    if not hasattr(module, alias.name) and find_spec(f"{node.module}.{alias.name}") is None:
                        missing.add(f"{path}:{node.lineno} {node.module}.{alias.name}")
    assert not missing
