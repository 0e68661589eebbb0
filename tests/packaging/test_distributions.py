"""The wheel and the sdist have the expected files and no others, and the wheel works without a checkout."""

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # seconds of builds; test_layout.py compares what pyproject.toml lists with the files

ROOT_MODULES = {"__init__.py", "__main__.py", "cli.py", "errors.py"}


def build(kind: str, source: Path, out: Path) -> Path:
    """The one distribution that setuptools of this environment makes of a tree, built outside of it."""
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=out)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def sdist(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", archive, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, as an installer without a wheel would."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as tar:
        tar.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    return build("wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(command, check=True, capture_output=True, cwd=target)
    return target


@pytest.fixture(scope="module")
def in_package(root: Path, committed: list[str]) -> set[str]:
    """Committed files that belong into the wheel, relative to the package."""
    packages = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {name.removeprefix("normtune").removeprefix(".").replace(".", "/") for name in packages} - {""}
    modules = {path for path in committed if path.endswith(".py") and str(Path(path).parent) in folders}
    recordings = {path for path in committed if path.startswith("results/recordings/")}
    page = {f"heuristics/report/page.{suffix}" for suffix in ("css", "html", "js")}
    return modules | recordings | page | ROOT_MODULES | {"py.typed"}


def test_wheel_holds_the_committed_modules_and_recordings_and_nothing_else(wheel: Path, in_package: set[str]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    files = {name.removeprefix("normtune/") for name in names if name.startswith("normtune/")}
    assert files == in_package
    others = {name.split("/")[0] for name in names} - {"normtune"}
    assert len(others) == 1 and next(iter(others)).endswith(".dist-info")
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_sdist_holds_all_that_is_committed_but_what_git_and_ci_alone_use(sdist: Path, committed: list[str]) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    made = {"PKG-INFO", "setup.cfg"} | {name for name in names if name.startswith("normtune.egg-info/")}
    assert names - made == set(committed) - {".gitignore", ".gitattributes"}


def test_every_module_of_the_wheel_imports_from_it_alone(installed: Path, in_package: set[str], run) -> None:
    modules = sorted(
        "normtune." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in in_package
        if path.endswith(".py") and path not in ("__init__.py", "__main__.py")
    )
    code = (
        "import importlib, sys, normtune\n"
        "for name in sys.argv[2:]:\n"
        "    module = importlib.import_module(name)\n"
        "    assert module.__file__.startswith(sys.argv[1]), (name, module.__file__)\n"
        "print(len(sys.argv) - 2)\n"
    )
    done = run(
        "-c", code, str(installed), *modules, cwd=installed.parent, PYTHONPATH=str(installed), PYTHONSAFEPATH="1"
    )
    assert (done.returncode, done.stdout) == (0, f"{len(modules)}\n"), done.stderr


def test_wheel_reads_its_recordings_and_tables_outside_the_checkout(installed: Path, tmp_path: Path, run) -> None:
    code = (
        "from normtune.kernels.tablefile import locate\n"
        "from normtune.results.exchange.recording import load_recording, recordings\n"
        "names = recordings()\n"
        "print(len(names), all(len(load_recording(name).frame) for name in names))\n"
        "print(locate.select('NVIDIA H200', 'sm_90', 132).exact)\n"
    )
    done = run("-c", code, cwd=tmp_path, PYTHONPATH=str(installed), PYTHONSAFEPATH="1")
    assert (done.returncode, done.stdout) == (0, "7 True\nTrue\n"), done.stderr


def test_version_is_one_and_needs_no_metadata(root: Path, wheel: Path, run, tmp_path: Path) -> None:
    (tmp_path / "normtune").symlink_to(root)
    done = run("-m", "normtune", "--version", cwd=tmp_path, PYTHONPATH=str(tmp_path), PYTHONSAFEPATH="1")
    assert done.stdout == f"normtune {wheel.name.split('-')[1]}\n"
