"""`normtune doctor` on good, poor and broken machines; it never ends in a traceback."""

import os
import platform
import re
import shutil
import subprocess
import sysconfig
import threading
import tomllib
from collections import namedtuple
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from normtune.kernels.calling.probe import torch_facts
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile import locate
from normtune.results.database.store import Store
from normtune.results.records import Device, Measurement, Run
from normtune.tests.commands import PATIENCE, python
from normtune.tuner.doctor import checks, data
from normtune.tuner.doctor.checks import OK, PROBLEM, WARNING, Finding, Machine, examined
from normtune.tuner.doctor.command import lines
from normtune.tuner.machine.packages import PACKAGES

ROOT = Path(__file__).parents[3]
UUID = "5f3a2b10-0000-0000-0000-000000000001"
TORCH_GPU = {"name": "NVIDIA H200", "target": "sm_90", "sms": 132, "id": UUID}
SMI_GPU = {
    **{"name": "NVIDIA H200", "uuid": f"GPU-{UUID}", "id": UUID, "free_bytes": 139 << 30, "total_bytes": 140 << 30},
    **{"clock_mhz": 345, "most_mhz": 1980, "is_divided": False, "processes": []},
}
TORCH = {"version": "2.11.0+cu130", "cuda": "13.0", "hip": None, "error": "", "gpus": [TORCH_GPU]}
LIBRARY = {"library": "NVML", "package": "nvidia-ml-py"}
SMI = LIBRARY | {"driver": "580.82.07", "cuda": 13000, "gpus": [SMI_GPU]}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test, in which nothing of the user's is found."""
    for name in ("NORMTUNE_STORE", "NORMTUNE_TABLE", "CUDA_VISIBLE_DEVICES", "TRITON_INTERPRET", "CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def machine(place: Path) -> Machine:
    """One H200, with everything installed."""
    packages = {name: {"version": "1.0"} for name in PACKAGES}
    return Machine(packages, TORCH, {"version": "3.6.0", "cache": str(place / "cache")}, SMI, None)


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """A compiler and Python's headers, whatever this machine has."""
    (place / "include").mkdir()
    (place / "include" / "Python.h").touch()
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(place / "include")})


def about(topic: str, machine: Machine) -> list[Finding]:
    return [finding for finding in examined(machine) if finding.topic == topic]


@pytest.mark.long
def test_a_whole_machine_is_told_without_advice(machine: Machine, tools: None) -> None:
    findings = examined(machine)
    assert {finding.level for finding in findings} == {OK}
    assert [finding.advice for finding in findings if finding.advice] == []
    told = "\n".join(lines(findings, colour=False))
    for part in (
        *("2.11.0+cu130, built for CUDA 13.0", "triton    3.6.0", "compiler  /usr/bin/gcc", "numpy 1.0"),
        "cuda:0 is NVIDIA H200, sm_90, 132 SMs, 139.0 of 140.0 GiB free, SM clock 345 of 1980 MHz, "
        f"driver 580.82.07 (CUDA 13.0), undivided, GPU-{UUID}",
        *("normtune.db does not exist yet: `normtune sweep` creates it", "cuda:0 uses the table of NVIDIA H200"),
    ):
        assert part in told
    assert "\x1b" not in told
    assert "\x1b[32mok" in lines(findings, colour=True)[0]


@pytest.mark.slow
def test_libraries_and_the_store_are_loaded_beside_each_other_and_torch_after_the_driver(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {
        **{"package_facts": machine.packages, "triton_facts": machine.triton},
        **{"smi_facts": SMI, "torch_facts": TORCH},
    }
    together, read, answered = threading.Barrier(3, timeout=PATIENCE), threading.Event(), list[str]()
    examine_store = data.store

    def facts_in_child(facts_of: Callable[[], object]) -> dict[str, object]:
        if facts_of is torch_facts:
            assert read.wait(PATIENCE)
        else:
            together.wait()
        answered.append(facts_of.__name__)
        return facts[facts_of.__name__]

    def of_store(machine: Machine) -> Iterable[Finding]:
        read.set()
        return examine_store(machine)

    monkeypatch.setattr(checks, "facts_in_child", facts_in_child)
    monkeypatch.setattr(data, "store", of_store)
    found = checks.doctor()
    assert found == examined(machine)
    assert sorted(answered) == sorted(facts) and answered.index("smi_facts") < answered.index("torch_facts")


@pytest.mark.parametrize(
    ("change", "level", "says"),
    [
        ({"is_divided": True}, WARNING, "cuda:0 is divided (MIG, or compute partitions)"),
        ({"processes": [11, 12]}, WARNING, "cuda:0 has 2 other processes on it (pid 11, 12)"),
        ({"free_bytes": 100 << 30}, WARNING, "40.0 GiB of cuda:0 are held by processes that NVML does not show"),
        ({"processes": None, "is_divided": None, "clock_mhz": None}, OK, "free, driver 580.82.07 (CUDA 13.0), GPU-"),
    ],
)
def test_what_disturbs_a_gpu_is_a_warning(machine: Machine, change: dict[str, object], level: str, says: str) -> None:
    findings = about("gpu", machine._replace(smi=SMI | {"gpus": [SMI_GPU | change]}))
    assert findings[-1].level == level
    assert says in findings[-1].found
    assert bool(findings[-1].advice) == (level == WARNING)


def test_a_gpu_of_amd_is_found_by_its_address_and_what_is_not_told_is_named(machine: Machine) -> None:
    address = "0000:63:00.0"
    torch = TORCH | {"cuda": None, "hip": "6.4"}
    torch["gpus"] = [{"name": "AMD Instinct MI300X", "target": "gfx942", "sms": 304, "id": address}]
    gpu = dict.fromkeys(SMI_GPU) | {"name": "AMD Instinct MI300X OAM", "uuid": "abff", "id": address, "processes": [7]}
    smi = {"library": "amdsmi", "package": "amdsmi", "driver": "6.12.12", "cuda": None, "gpus": [gpu]}
    found, disturbed = about("gpu", machine._replace(torch=torch, smi=smi))
    assert found.found == (
        "cuda:0 is AMD Instinct MI300X, gfx942, 304 CUs, driver 6.12.12, abff, not told: clock_mhz, free_bytes"
    )
    assert (disturbed.level, disturbed.found) == (WARNING, "cuda:0 has 1 other process on it (pid 7)")
    (_, missing) = about(
        "gpu", machine._replace(torch=torch, smi={"library": "amdsmi", "missing": "x", "package": "amdsmi"})
    )
    assert missing.advice == "`pip install amdsmi`"


@pytest.mark.long
def test_a_slice_of_a_gpu_is_a_warning_too(machine: Machine) -> None:
    slice_of = TORCH_GPU | {"name": "NVIDIA H200 MIG 1g.18gb", "id": "MIG-1", "sms": 16}
    smi = SMI | {"gpus": [SMI_GPU | {"is_divided": True}]}
    seen, whole, warning = about("gpu", machine._replace(torch=TORCH | {"gpus": [slice_of]}, smi=smi))
    assert seen.found == "cuda:0 is NVIDIA H200 MIG 1g.18gb, sm_90, 16 SMs"
    assert (whole.level, "is not visible to torch" in whole.found) == (OK, True)
    assert (warning.level, warning.found) == (WARNING, "NVIDIA H200 is divided (MIG, or compute partitions)")


def test_a_gpu_that_torch_cannot_use_is_a_problem_and_none_at_all_a_warning(machine: Machine) -> None:
    old = TORCH | {"gpus": [], "error": "RuntimeError: The NVIDIA driver on your system is too old (found version 1204"}
    seen, reason = about("gpu", machine._replace(torch=old))
    assert (seen.level, seen.found.partition(",")[0]) == (OK, "NVIDIA H200 is there")
    assert (reason.level, "the NVIDIA driver is too old" in reason.found) == (PROBLEM, True)
    none = {"error": "NVMLError_LibraryNotFound: NVML Shared Library Not Found"}
    (reason, _) = about("gpu", machine._replace(torch=TORCH | {"gpus": [], "cuda": None}, smi=LIBRARY | none))
    assert reason.level == WARNING
    assert "normtune sweep --device replay:nvidia-h200" in reason.advice
    (_, silent) = about("gpu", machine._replace(smi=LIBRARY | none))
    assert (silent.level, "nvidia-smi" in silent.advice) == (WARNING, True)
    (_, missing) = about("gpu", machine._replace(smi=LIBRARY | {"missing": "ModuleNotFoundError: pynvml"}))
    assert (missing.level, missing.advice) == (WARNING, "`pip install nvidia-ml-py`")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch", "triton", "packages"])
def test_what_cannot_be_imported_is_a_problem(machine: Machine, name: str) -> None:
    why = f"ModuleNotFoundError: No module named '{name}'"
    findings = about(name, machine._replace(**{name: {"missing": why}}))
    assert [finding.level for finding in findings] == [PROBLEM]
    assert why in findings[0].found


@pytest.mark.long
def test_a_missing_package_is_named_and_the_store_says_that_it_needs_it(machine: Machine) -> None:
    broken = machine._replace(packages=machine.packages | {"sqlalchemy": {"missing": "ImportError: x"}})
    there, missing = about("packages", broken)
    assert ("sqlalchemy" in there.found, missing.level) == (False, PROBLEM)
    assert missing.advice == "`pip install --force-reinstall sqlalchemy`"
    assert [finding.level for finding in about("store", broken)] == [PROBLEM]


def test_an_interpreter_instead_of_a_compiler_is_a_problem(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert [finding.level for finding in about("triton", machine)] == [OK, PROBLEM]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compiler", "there", "level", "says"),
    [
        (None, ("gcc", "clang"), OK, "/usr/bin/gcc"),
        (None, ("clang",), OK, "/usr/bin/clang"),
        ("/opt/cc", ("/opt/cc",), OK, "/usr/bin//opt/cc"),
        ("icc", ("gcc",), PROBLEM, "CC='icc' is not an executable program"),
        (None, (), PROBLEM, "no gcc or clang"),
    ],
)
def test_the_compiler_is_the_one_that_triton_takes(
    machine: Machine, tools: None, monkeypatch: pytest.MonkeyPatch, compiler, there, level, says
) -> None:
    if compiler is not None:
        monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name in there else None)
    (finding,) = about("compiler", machine)
    assert (finding.level, bool(finding.advice)) == (level, level != OK)
    assert says in finding.found
    (without,) = about("compiler", machine._replace(torch=TORCH | {"gpus": []}, smi={"error": ""}))
    assert without.level == (WARNING if level == PROBLEM else OK)


def test_missing_headers_of_python_are_named(machine: Machine, tools: None, place: Path) -> None:
    (place / "include" / "Python.h").unlink()
    _, finding = about("compiler", machine)
    assert (finding.level, "Python.h is missing" in finding.found) == (PROBLEM, True)
    assert "python3-dev" in finding.advice


@pytest.mark.long
def test_a_cache_that_cannot_be_written_is_a_problem(machine: Machine, place: Path) -> None:
    (place / "file").touch()
    (finding,) = about("cache", machine._replace(triton={"version": "3.6.0", "cache": str(place / "file" / "cache")}))
    assert finding == Finding(
        PROBLEM,
        "cache",
        f"Triton's cache {place}/file/cache cannot be written ({place}/file is no folder)",
        "name another folder with TRITON_CACHE_DIR",
    )


def measured(path: Path, *, stale: int, uuid: str = "GPU-1") -> None:
    """A store with two measurements, so many of them of kernels that changed."""
    device = Device("NVIDIA H200", "sm_90", 132, 60 << 20, 140 << 30, uuid, "580")
    run = Run("r1", device, {"torch": "2.11.0"}, "2026-11-21T10:00:00+00:00", {})
    present = fingerprint(operator("rms_norm_forward"))
    with Store.open(f"sqlite:///{path}") as store:
        store.begin_run(run)
        for number in range(2):
            problem = Problem.of("rms_norm_forward", 1 + number, 64, "bfloat16")
            of = "sha256:old" if number < stale else present
            store.add([Measurement(problem, RMSNormConfig("row"), run.id, of, "crashed", "signal 11", (), ())])


@pytest.mark.long
def test_a_store_is_counted_and_its_stale_measurements_are_told(machine: Machine, place: Path) -> None:
    measured(place / "whole.db", stale=0, uuid="replay:nvidia-h200")
    (held,) = about("store", machine._replace(store="whole.db"))
    assert (held.level, held.found) == (OK, "whole.db holds 2 measurements: 2 of NVIDIA H200 (replay)")
    measured(place / "old.db", stale=1)
    _, stale = about("store", machine._replace(store="old.db"))
    assert (stale.level, stale.found) == (WARNING, "1 of its measurements are of kernels that changed since")
    assert "`normtune sweep --stale --store old.db`" in stale.advice


@pytest.mark.slow
def test_a_store_that_cannot_be_used_is_a_problem(machine: Machine, place: Path) -> None:
    (place / "notes.txt").write_text("no database, but longer than the header of one" * 20)
    for store, says in (
        ("notes.txt", "is not a SQLite database"),
        ("none/new.db", "the folder of the store none/new.db does not exist"),
        ("redis://host/0", "URL of 'redis'"),
        (str(place), "is a folder"),
    ):
        (finding,) = about("store", machine._replace(store=store))
        assert (finding.level, says in finding.found) == (PROBLEM, True), finding
    assert about("disk", machine._replace(store="redis://host/0")) == []


@pytest.mark.long
@pytest.mark.parametrize(("free", "level"), [(5 << 30, OK), (50 << 20, WARNING), (1 << 20, PROBLEM)])
def test_a_disk_that_fills_up_is_told_in_time(machine: Machine, monkeypatch, free: int, level: str) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10 << 30, 0, free))
    (finding,) = about("disk", machine)
    assert (finding.level, bool(finding.advice)) == (level, level != OK)
    assert finding.found.startswith(("5.0 GiB free", "50 MiB free", "1 MiB free"))


@pytest.mark.slow
def test_the_table_of_each_gpu_and_a_broken_one(machine: Machine, place: Path, monkeypatch) -> None:
    other = TORCH | {"gpus": [TORCH_GPU, TORCH_GPU | {"name": "NVIDIA B200", "target": "sm_100", "sms": 148}]}
    own, borrowed = about("table", machine._replace(torch=other))
    assert (own.level, borrowed.level) == (OK, WARNING)
    assert borrowed.found.startswith("cuda:1 uses the portable table of NVIDIA H200, which is unmeasured there")
    assert borrowed.found.endswith("as there is no table for it")
    assert "fit --install" in borrowed.advice

    monkeypatch.setenv("NORMTUNE_TABLE", str(place / "mine.py"))
    for found in (machine, machine._replace(torch=TORCH | {"gpus": []})):
        (finding,) = about("table", found)
        assert (finding.level, "NORMTUNE_TABLE cannot be used" in finding.found) == (PROBLEM, True)
    shutil.copy(locate.SHIPPED / "nvidia_h200.py", place / "mine.py")
    assert "mine.py (NORMTUNE_TABLE)" in about("table", machine)[0].found
    (finding,) = about("table", machine._replace(torch=TORCH | {"gpus": []}))
    assert (finding.level, "mine.py (NORMTUNE_TABLE) waits for one" in finding.found) == (OK, True)


@pytest.mark.long
def test_the_installed_tables_are_listed_with_their_paths(machine: Machine, place: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(place))
    assert about("installed", machine) == []
    path = locate.installed_path("NVIDIA H200")
    path.parent.mkdir(parents=True)
    shutil.copy(locate.SHIPPED / "nvidia_h200.py", path)
    broken = locate.installed_path("NVIDIA Z")
    broken.write_text("x = 1\n")
    whole, fault = about("installed", machine)
    assert whole == Finding(OK, "installed", f"{path} for NVIDIA H200, 132 SMs")
    assert (fault.level, fault.found.startswith(f"{broken} cannot be used: ")) == (WARNING, True)
    assert fault.advice.startswith(f"delete {broken}")


def test_a_check_that_fails_is_a_finding_and_the_others_go_on(machine: Machine, monkeypatch) -> None:
    def divide() -> str:
        return str(1 / 0)

    monkeypatch.setattr(platform, "python_version", divide)
    first, *others = examined(machine)
    assert first == Finding(
        PROBLEM, "python", "cannot be checked (ZeroDivisionError: division by zero)", "report it with these lines"
    )
    assert len(others) > 8


def test_the_packages_that_are_asked_for_are_the_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=]", line)[0] for line in project["dependencies"]}
    assert names == {*PACKAGES, "nvidia-ml-py", "torch", "triton"}


# Each a package that stands first on the path, and what is said of it.
BROKEN = {
    "torch": ("raise OSError('libcudart.so.13: cannot open shared object file')", "torch is broken (OSError: libcud"),
    "triton": ("import os; os.abort()", "triton is broken (loading it ended its process with signal 6)"),
    "pynvml": ("raise RuntimeError('libnvidia-ml is mad')", "NVML is missing (RuntimeError: libnvidia-ml is mad)"),
    "pandas": ("raise SystemExit(0)", "pandas cannot be imported (SystemExit: 0)"),
    "pyarrow": ("raise ImportError('numpy.core')", "pyarrow cannot be imported (ImportError: numpy.core)"),
    "rich": ("raise ValueError", "rich cannot be imported (ValueError)"),
    "sqlalchemy": ("raise ImportError('a\\nb')", "sqlalchemy cannot be imported (ImportError: a)"),
}


def run_doctor(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    return python("-m", "normtune", "doctor", *options, cwd=folder, env=env)


@pytest.mark.slow
@pytest.mark.parametrize("names", [("torch", "triton", "pynvml", "pandas", "pyarrow", "sqlalchemy"), ("rich", "torch")])
def test_doctor_survives_whatever_is_broken(place: Path, names: tuple[str, ...]) -> None:
    (place / "normtune").symlink_to(ROOT)
    for name in names:
        (place / f"{name}.py").write_text(BROKEN[name][0])
    done = run_doctor(place)
    assert (done.returncode, done.stderr.removeprefix("normtune: looking at this machine, a few seconds ...\n")) == (
        1,
        "",
    )
    assert [name for name in names if BROKEN[name][1] not in done.stdout] == []
    assert "\x1b" not in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.endswith("sweeps or kernels will not work before that is fixed")


def test_what_a_file_says_reaches_the_terminal_without_control_characters() -> None:
    (told, advice) = lines([Finding(WARNING, "store", "of \x1b]0;evil\x07GPU", "see\x1b[2J")], colour=False)
    assert "\x1b" not in told + advice and "\x07" not in told and "of \N{REPLACEMENT CHARACTER}]0;evil" in told
