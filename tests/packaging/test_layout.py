"""The rooms at the repository root: every listed one exists, every existing one is listed, and each keeps its rules."""

import ast
import re
import sys
import tomllib
from collections import defaultdict
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

TOPS = ("heuristics", "kernels", "results", "tuner")


class Room(NamedTuple):
    """A room: its modules by path, the rooms that they may import, all of them above here, and other distributions."""

    modules: str
    rooms: str = ""
    packages: str = ""


# What describes operators to planning and fit, which run where there is no GPU and no torch.
LIGHT = (
    r"kernels/((__init__|alignment|arguments|box|call|config|config_space|definitions|fingerprint|key|load_file|mode|operator|problem|random_trial|sizes|spec_faults|syntax"
    r"|target|undeclared|(?!tablefile)\w+/(__init__|launch|modes|operator|trial))\.py)"
)
# From the lowest to the highest: arrows point down, so each row names rows above it only.
ROOMS = {
    "light": Room(LIGHT),
    "kernels/tablefile": Room("kernels/tablefile/", "light"),
    "kernels": Room(rf"(?!{LIGHT}|kernels/(warmup|patch|call_counts))kernels/\w+\.py", "", "torch triton"),
    "kernels/tiles": Room(rf"(?!{LIGHT})kernels/tiles/", "light", "triton"),
    "kernels/calling": Room(rf"(?!{LIGHT})kernels/calling/", "light kernels/tablefile", "torch triton"),
    "kernels/rms_norm": Room(
        rf"(?!{LIGHT})kernels/rms_norm/",
        "light kernels kernels/tiles kernels/calling",
        "torch triton",
    ),
    "kernels/fused_add_rms_norm": Room(
        rf"(?!{LIGHT})kernels/fused_add_rms_norm/",
        "light kernels kernels/calling kernels/rms_norm",
        "torch",
    ),
    "kernels/rms_norm_gated": Room(
        rf"(?!{LIGHT})kernels/rms_norm_gated/",
        "light kernels kernels/tiles kernels/calling kernels/rms_norm",
        "torch triton",
    ),
    "kernels/transpose_fp8": Room(
        rf"(?!{LIGHT})kernels/transpose_fp8/",
        "light kernels kernels/tiles kernels/calling",
        "torch triton",
    ),
    "kernels/rms_norm_quantize_fp8": Room(
        rf"(?!{LIGHT})kernels/rms_norm_quantize_fp8/",
        "light kernels kernels/tiles kernels/calling kernels/rms_norm kernels/fused_add_rms_norm kernels/transpose_fp8",
        "torch triton",
    ),
    "kernels/qk_norm": Room(
        rf"(?!{LIGHT})kernels/qk_norm/",
        "light kernels kernels/tiles kernels/calling kernels/rms_norm",
        "torch triton",
    ),
    "kernels/warmup": Room(r"kernels/warmup\.py", "light kernels/calling kernels/rms_norm", "torch"),
    "kernels/patch": Room(r"kernels/patch\.py", "light kernels/calling kernels/rms_norm", "torch"),
    "kernels/custom_op": Room(rf"(?!{LIGHT})kernels/custom_op/", "light kernels kernels/calling", "torch"),
    "kernels/call_counts": Room(r"kernels/call_counts\.py", "light kernels/calling kernels/custom_op", "torch"),
    "results": Room(r"results/(?!source|api|commands|merge)\w+\.py", "light kernels/tablefile", "numpy pandas rich"),
    "results/parallel": Room("results/parallel/", "light", "ray"),
    "results/exchange": Room("results/exchange/", "light results", "numpy pandas pyarrow"),
    "results/database": Room("results/database/", "light results", "numpy sqlalchemy"),
    "results/source": Room(
        r"results/(source|api|commands|merge)\.py",
        "light kernels/tablefile results results/exchange results/database",
        "pandas rich typer",
    ),
    "heuristics/tables": Room("heuristics/tables/"),
    "heuristics/rules": Room("heuristics/rules/", "light"),
    "heuristics/regret": Room("heuristics/regret/", "light kernels/tablefile results results/exchange", "numpy scipy"),
    "heuristics/solver": Room(
        "heuristics/solver/", "light kernels/tablefile results/parallel heuristics/regret", "numpy scipy"
    ),
    "heuristics/fitting": Room(
        "heuristics/fitting/",
        "light kernels/tablefile results results/parallel heuristics/rules heuristics/regret heuristics/solver",
        "numpy",
    ),
    "heuristics/showing": Room(
        "heuristics/showing/",
        "light results heuristics/regret heuristics/fitting",
        "numpy pandas rich",
    ),
    "heuristics/comparing": Room(
        "heuristics/comparing/",
        "light kernels/tablefile results results/source heuristics/rules heuristics/regret heuristics/fitting "
        "heuristics/showing",
        "numpy scipy",
    ),
    "heuristics/writing": Room(
        "heuristics/writing/",
        "light kernels/tablefile kernels/calling results results/exchange results/database results/source "
        "heuristics/regret heuristics/solver heuristics/fitting",
    ),
    "heuristics/report": Room(
        "heuristics/report/",
        "light kernels/tablefile results heuristics/regret heuristics/comparing heuristics/writing heuristics/showing",
        "altair numpy pandas vl_convert",
    ),
    "heuristics/api": Room(
        "heuristics/api/",
        "light kernels/tablefile results results/parallel results/exchange results/database results/source "
        "heuristics/regret heuristics/rules heuristics/fitting heuristics/writing heuristics/report "
        "heuristics/showing heuristics/comparing",
        "numpy pandas",
    ),
    "heuristics/commands": Room(
        "heuristics/commands/",
        "light kernels/tablefile results results/source heuristics/regret "
        "heuristics/fitting heuristics/writing heuristics/report "
        "heuristics/showing heuristics/comparing heuristics/api",
        "rich typer",
    ),
    "heuristics": Room(r"heuristics/__init__\.py"),
    "tuner/machine": Room("tuner/machine/", "kernels/calling", "amdsmi pynvml triton"),
    "tuner/timing": Room("tuner/timing/", "light kernels/calling results tuner/machine", "torch triton"),
    "tuner/plan": Room(
        "tuner/plan/",
        "light kernels/tablefile kernels/call_counts results results/exchange tuner/timing",
        "numpy pandas",
    ),
    "tuner/search": Room(
        r"tuner/search/(?!sampler)\w+\.py",
        "light kernels/tablefile results tuner/timing tuner/plan",
        "numpy scipy",
    ),
    "tuner/search/plane": Room(
        "tuner/search/plane/",
        "light results tuner/timing tuner/plan tuner/search",
        "numpy scipy threadpoolctl",
    ),
    "tuner/search/sampler": Room(
        r"tuner/search/sampler\.py",
        "light results tuner/plan tuner/search",
        "optuna",
    ),
    "tuner/staleness/code": Room(r"tuner/staleness/(__init__|code)\.py", "light kernels/calling", "triton"),
    "tuner/compiling": Room(
        "tuner/compiling/",
        "light kernels kernels/calling kernels/tablefile results results/parallel tuner/machine tuner/timing "
        "tuner/plan "
        "tuner/staleness/code",
        "pebble triton",
    ),
    "tuner/staleness": Room(
        r"tuner/staleness/(stored|recorded|table)\.py",
        "light kernels/tablefile results results/exchange tuner/plan tuner/compiling tuner/staleness/code",
    ),
    "tuner/staleness/links": Room(
        r"tuner/staleness/links\.py", "light results heuristics/regret tuner/plan tuner/staleness", "numpy"
    ),
    "tuner/device": Room(
        "tuner/device/",
        "light kernels/calling results results/parallel results/exchange tuner/machine tuner/timing "
        "tuner/plan tuner/search "
        "tuner/compiling",
        "torch triton",
    ),
    "tuner/cluster": Room(
        "tuner/cluster/",
        "light results/parallel tuner/compiling tuner/device",
        "pebble ray",
    ),
    "tuner/sweep": Room(
        "tuner/sweep/",
        "light kernels/tablefile results results/parallel results/exchange results/database results/source "
        "heuristics/report tuner/timing tuner/plan tuner/search tuner/compiling "
        "tuner/staleness tuner/staleness/links tuner/device tuner/cluster",
        "numpy rich typer",
    ),
    "tuner/doctor": Room(
        "tuner/doctor/",
        "light kernels/tablefile kernels/calling results results/database tuner/machine tuner/staleness",
        "typer",
    ),
    "tuner/inspection": Room(
        "tuner/inspection/",
        "light kernels/custom_op results tuner/timing tuner/plan tuner/compiling",
        "numpy torch triton typer",
    ),
    "tuner/checking": Room(
        "tuner/checking/",
        "light kernels/tablefile results results/parallel results/exchange results/database results/source "
        "heuristics/regret heuristics/solver heuristics/fitting heuristics/writing "
        "tuner/plan tuner/search tuner/staleness tuner/device tuner/sweep",
        "numpy scipy typer",
    ),
    "tuner/contribution": Room(
        "tuner/contribution/",
        "kernels/tablefile results results/parallel heuristics/api heuristics/writing tuner/device tuner/sweep "
        "tuner/doctor tuner/checking",
        "typer",
    ),
    "tuner": Room(r"tuner/__init__\.py"),
}
# Tables, and rules of other libraries.
GENERATED_OR_RULE = re.compile(r"heuristics/(tables/|rules/)")


@pytest.fixture(scope="module")
def modules(root: Path, tracked: list[str]) -> dict[str, ast.Module]:
    """The syntax trees of the tracked modules of the rooms, by path."""
    return {path: parsed(root, path) for path in listed(root, tracked)}


def listed(root: Path, tracked: list[str]) -> list[str]:
    """The paths of the tracked modules of the rooms."""
    found = [path for path in tracked if path.endswith(".py") and path.split("/")[0] in TOPS]
    return [path for path in found if (root / path).exists()]


def parsed(root: Path, path: str) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse((root / path).read_text(), path)


def imports(tree: ast.AST) -> set[str]:
    """Dotted names that a module imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def at_start(tree: ast.Module) -> set[str]:
    """Dotted names that are imported as soon as the module is."""
    found: set[str] = set()
    for node in tree.body:
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not for_types and not isinstance(node, ast.FunctionDef | ast.ClassDef):
            found |= imports(node)
    return found


def test_packages_are_the_folders_with_modules(root: Path, tracked: list[str]) -> None:
    listed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {str(Path(path).parent) for path in tracked if path.endswith(".py") and path.split("/")[0] in TOPS}
    assert listed == sorted(["normtune", *("normtune." + folder.replace("/", ".") for folder in folders)])
    assert all((root / folder / "__init__.py").is_file() for folder in folders)


def test_package_data_are_the_other_files_of_the_packages(root: Path, tracked: list[str]) -> None:
    listed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    folders = {
        name.removeprefix("normtune").removeprefix(".").replace(".", "/"): found for name, found in listed.items()
    }
    data = {path for folder, found in folders.items() for one in found for path in (root / folder).glob(one)}
    others = {root / path for path in tracked if path.split("/")[0] in TOPS and not path.endswith(".py")}
    assert data == others | {root / "py.typed"}


def test_no_other_python_file_stands_at_the_root(tracked: list[str]) -> None:
    at_root = {path for path in tracked if "/" not in path and path.endswith(".py")}
    assert at_root == {"__init__.py", "__main__.py", "cli.py", "errors.py", "setup.py"}


def test_tests_are_found_by_path_and_never_as_a_package(tracked: list[str]) -> None:
    tests = [Path(path) for path in tracked if path.startswith("tests/") and path.endswith(".py")]
    assert not [path for path in tests if path.name == "__init__.py"]
    names = defaultdict(list)
    for path in tests:
        if path.name != "conftest.py":
            names[path.name].append(str(path))
    assert not [paths for paths in names.values() if len(paths) > 1]
    assert {path.parts[1] for path in tests} == {*TOPS, "packaging", "commands.py", "conftest.py"}


def room_of(path: str) -> str:
    """The one room that a module is in."""
    (name,) = (name for name, room in ROOMS.items() if re.match(room.modules, path))
    return name


def home_of(name: str, modules: dict[str, ast.Module]) -> str | None:
    """The path of the module that a dotted name is, or is in; None for what stands at the root."""
    parts = name.removeprefix("normtune.").split(".")
    for end in range(len(parts), 0, -1):
        stem = "/".join(parts[:end])
        for path in (f"{stem}.py", f"{stem}/__init__.py"):
            if path in modules:
                return path
    return None


def arrows(tree: ast.Module, modules: dict[str, ast.Module]) -> tuple[set[str], set[str]]:
    """The rooms and the other distributions that a module imports anything of, anywhere in it."""
    names = imports(tree)
    own = {name for name in names if name.split(".")[0] == "normtune"}
    homes = {home for name in own if (home := home_of(name, modules))}
    packages = {name.split(".")[0] for name in names - own} - sys.stdlib_module_names
    return {room_of(home) for home in homes}, packages


def test_arrows_between_rooms_point_down() -> None:
    """The table of rooms itself: kernels, results, heuristics, tuner."""
    tops = [name.split("/")[0] for name in ROOMS if name != "light"]
    assert [top for top, _ in groupby(tops)] == ["kernels", "results", "heuristics", "tuner"]
    below: set[str] = set()
    for name, room in ROOMS.items():
        assert set(room.rooms.split()) <= below, name
        below.add(name)


@pytest.mark.slow
def test_each_room_imports_what_its_row_says_and_no_less(modules: dict[str, ast.Module]) -> None:
    rooms: dict[str, set[str]] = {name: {name} for name in ROOMS}
    packages: dict[str, set[str]] = {name: set() for name in ROOMS}
    for path, tree in modules.items():
        name = room_of(path)
        reached, others = arrows(tree, modules)
        rooms[name] |= reached
        packages[name] |= others
    for name, room in ROOMS.items():
        assert (name, rooms[name] - {name}) == (name, set(room.rooms.split()))
        assert (name, packages[name]) == (name, set(room.packages.split()))


def test_commands_and_package_files_import_nothing_heavy_at_start(root: Path, tracked: list[str]) -> None:
    heavy = {
        "altair",
        "numpy",
        "optuna",
        "pandas",
        "pyarrow",
        "pynvml",
        "rich",
        "scipy",
        "sqlalchemy",
        "torch",
        "triton",
    }
    is_light = re.compile(r"(.*/)?(commands|command|__init__)\.py|heuristics/commands/.*")
    light = {path: parsed(root, path) for path in listed(root, tracked) if is_light.fullmatch(path)}
    assert {"heuristics/commands/fit.py", "results/commands.py", "tuner/sweep/command.py"} < set(light)
    assert not {(path, name) for path, tree in light.items() for name in at_start(tree) if name.split(".")[0] in heavy}


@pytest.mark.slow
def test_only_kernels_tables_and_rules_name_an_operator(modules: dict[str, ast.Module]) -> None:
    """In code; prose may give one as an example."""
    naming = set()
    for path, tree in modules.items():
        if path.startswith("kernels/") or GENERATED_OR_RULE.match(path):
            continue
        words = {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        words |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        words |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        naming |= {(path, word) for word in words | imports(tree) if "rms_norm" in word and not re.search(r"\s", word)}
    assert not naming


@pytest.mark.slow
def test_what_is_printed_goes_through_one_place(modules: dict[str, ast.Module], root: Path) -> None:
    """Where control characters of foreign texts end; these print colours, a live display and a child's answer."""
    own = {"results/terminal.py", "tuner/doctor/command.py", "tuner/sweep/progress.py", "kernels/calling/probe.py"}
    prints = set()
    for path, tree in {**modules, "cli.py": ast.parse((root / "cli.py").read_text())}.items():
        if path in own:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "typer.echo", "Console"):
                prints.add((path, node.lineno))
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.stdout.write", "sys.stderr.write"):
                prints.add((path, node.lineno))
    assert not prints


@pytest.mark.slow
def test_processes_are_started_in_few_places(modules: dict[str, ast.Module]) -> None:
    """A Python that is started in another way would run modules of the current folder."""
    known = {
        "results/parallel/maps.py",
        "results/parallel/processes.py",
        "tuner/compiling/resources.py",
        "tuner/device/worker.py",
    }
    known |= {"kernels/calling/probe.py", "tuner/machine/processes.py", "tuner/inspection/gate.py"}
    starting = re.compile(r"(multiprocessing|subprocess|concurrent\.futures\.ProcessPoolExecutor)\b")
    assert {path for path, tree in modules.items() if any(map(starting.match, imports(tree)))} == known


def test_modules_are_small_and_say_what_they_do(root: Path, tracked: list[str]) -> None:
    """Their docstrings are ruff's rule D100."""
    hand_written = [path for path in listed(root, tracked) if not path.startswith("heuristics/tables/")]
    assert not [path for path in hand_written if path.endswith("utils.py")]
    lengths = {path: len((root / path).read_text().splitlines()) for path in hand_written}
    # An operator is read top to bottom, in few files.
    of_operator = re.compile(r"kernels/\w+/(kernels|launch|operator|function|reference)\.py")
    assert not {path: of for path, of in lengths.items() if of > (1000 if of_operator.fullmatch(path) else 400)}
