"""The rooms at the repository root: what is listed is there, what is there is listed, and each keeps to its rules."""

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

ROOMS = ("heuristics", "kernels", "results", "tuner")
# Modules that describe operators to planning and fit, which run where there is no GPU and no torch.
SPECS = re.compile(r"kernels/(config|fingerprint|operator|problem|target|\w+_spec|\w+_launch)\.py")
GENERATED_OR_RULE = re.compile(r"heuristics/(tables|rules)/")


@pytest.fixture(scope="module")
def modules(root: Path, tracked: list[str]) -> dict[str, ast.Module]:
    """The syntax trees of the tracked modules of the rooms, by path."""
    found = [path for path in tracked if path.endswith(".py") and path.split("/")[0] in ROOMS]
    return {path: ast.parse((root / path).read_text(), path) for path in found if (root / path).exists()}


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
    folders = {str(Path(path).parent) for path in tracked if path.endswith(".py") and path.split("/")[0] in ROOMS}
    assert listed == sorted(["normtune", *("normtune." + folder.replace("/", ".") for folder in folders)])
    assert all((root / folder / "__init__.py").is_file() for folder in folders)


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
    assert {path.parts[1] for path in tests} == {*ROOMS, "packaging", "conftest.py"}


@pytest.mark.parametrize(
    ("where", "banned"),
    [
        (re.compile("heuristics/"), {"torch", "triton"}),
        (re.compile("results/"), {"torch", "triton"}),
        (SPECS, {"torch", "triton"}),
        (re.compile("kernels/"), {"normtune.tuner", "normtune.results"}),
        (re.compile("tuner/"), {"normtune.heuristics"}),
        (re.compile("results/"), {"normtune.tuner", "normtune.heuristics"}),
        (re.compile("heuristics/(?!commands/)"), {"normtune.tuner"}),
        (re.compile("heuristics/(tables|rules)/"), {"numpy", "pandas", "normtune.results", "normtune.tuner"}),
    ],
)
def test_rooms_import_only_what_lies_upstream(
    modules: dict[str, ast.Module], where: re.Pattern[str], banned: set[str]
) -> None:
    there = {path: tree for path, tree in modules.items() if where.match(path)}
    assert there
    found = {
        (path, name)
        for path, tree in there.items()
        for name in imports(tree)
        for bad in banned
        if name == bad or name.startswith(bad + ".")
    }
    assert not found


def test_commands_and_package_files_import_nothing_heavy_at_start(modules: dict[str, ast.Module]) -> None:
    heavy = {"numpy", "optuna", "pandas", "pyarrow", "pynvml", "rich", "scipy", "sqlalchemy", "torch", "triton"}
    is_light = re.compile(r"(.*/)?(commands|command|__init__)\.py|heuristics/commands/.*")
    light = {path: tree for path, tree in modules.items() if is_light.fullmatch(path)}
    assert {"heuristics/commands/fit.py", "results/commands.py", "tuner/commands.py"} < set(light)
    assert not {(path, name) for path, tree in light.items() for name in at_start(tree) if name.split(".")[0] in heavy}


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


def test_what_is_printed_goes_through_one_place(modules: dict[str, ast.Module], root: Path) -> None:
    """Where control characters of foreign texts end; these print colours, a live display and a child's answer."""
    own = {"results/terminal.py", "tuner/doctor/command.py", "tuner/progress.py", "tuner/doctor/probe.py"}
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


def test_modules_are_small_and_say_what_they_do(root: Path, modules: dict[str, ast.Module]) -> None:
    hand_written = {path: tree for path, tree in modules.items() if not path.startswith("heuristics/tables/")}
    assert not [path for path, tree in hand_written.items() if not ast.get_docstring(tree)]
    assert not [path for path in hand_written if path.endswith("utils.py")]
    lengths = {path: len((root / path).read_text().splitlines()) for path in hand_written}
    assert not {path: length for path, length in lengths.items() if length > 400}
