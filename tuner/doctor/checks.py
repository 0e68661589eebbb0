"""State of this machine, with advice for each fault.

In: the store's name. Out: `Finding`s, in the order of `_CHECKS`. Nothing is measured or written; a check that fails is
also a finding. `data` checks store and tables, `command` prints.
"""

import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import normtune
from normtune.kernels.arguments import checked
from normtune.kernels.calling.probe import Facts, facts_in_child, torch_facts
from normtune.results.paths import unwritable
from normtune.tuner.machine.no_gpu import without_gpu, without_torch, without_triton
from normtune.tuner.machine.packages import package_facts, triton_facts
from normtune.tuner.machine.vendor import smi_facts

OK, WARNING, PROBLEM = "ok", "warning", "problem"
# The most memory that driver and display hold on an unused GPU.
_HELD_BYTES = 2 << 30
# What a reader misses in the line of a GPU if its vendor's library does not tell it.
_GPU_DETAILS = ("clock_mhz", "free_bytes", "processes")
_REPLAY = "without a GPU, `normtune sweep --device replay:nvidia-h200` runs the whole tool on the recorded H200"


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        level: `ok`; `warning` for a fact that a user should know; `problem` if it prevents a sweep or the kernels.
        topic: one word.
        found: the state.
        advice: for the user; empty if nothing is to be done, or if `found` ends with it.
    """

    level: str
    topic: str
    found: str
    advice: str = ""


class Machine(NamedTuple):
    """Facts for the checks.

    Attributes:
        packages, torch, triton: facts of `probe`.
        smi: facts of `vendor`.
        store: value of `--store`.
    """

    packages: Facts
    torch: Facts
    triton: Facts
    smi: Facts
    store: str | None

    @property
    def has_gpu(self) -> bool:
        """Whether torch or the driver sees a GPU."""
        return bool(self.torch.get("gpus") or self.smi.get("gpus"))


@checked
def doctor(store: str | os.PathLike[str] | None = None) -> list[Finding]:
    """Report the state of this machine and advice for each fault, as `normtune doctor` does.

    Args:
        store: file or URL of a store; None for NORMTUNE_STORE, else `normtune.db` in the current folder.
    """
    machine = Machine({}, {}, {}, {}, None if store is None else os.fspath(store))
    # In parallel: each child process needs seconds to load a library.
    with ThreadPoolExecutor() as threads:
        packages, triton = (threads.submit(facts_in_child, facts_of) for facts_of in (package_facts, triton_facts))
        # The driver before torch: otherwise torch's CUDA context would be among the processes on the GPU.
        drivers = threads.submit(lambda: (facts_in_child(smi_facts), facts_in_child(torch_facts)))
        machine = machine._replace(packages=packages.result())
        stored = _of_store(machine)
        smi, torch = drivers.result()
    return examined(machine._replace(torch=torch, triton=triton.result(), smi=smi), stored)


def examined(machine: Machine, stored: Sequence[Finding] | None = None) -> list[Finding]:
    """All findings from the facts of a machine; `stored` are those about the store, None to compute them."""
    from normtune.tuner.doctor import data

    table_checks = ("table", data.tables), ("installed", data.installed)
    return [
        *_run(_CHECKS, machine),
        *(_of_store(machine) if stored is None else stored),
        *_run(table_checks, machine),
    ]


def _of_store(machine: Machine) -> list[Finding]:
    """Findings about the store and its disk, which need only the facts about packages."""
    from normtune.tuner.doctor import data

    return _run((("store", data.store), ("disk", data.disk)), machine)


def _run(checks: Iterable[tuple[str, Callable[[Machine], Iterable[Finding]]]], machine: Machine) -> list[Finding]:
    return [finding for topic, check in checks for finding in _guarded(topic, check, machine)]


def _guarded(topic: str, check: Callable[[Machine], Iterable[Finding]], machine: Machine) -> list[Finding]:
    try:
        return list(check(machine))
    except Exception as error:  # the other checks go on
        message = " ".join(f"{type(error).__name__}: {error}".split())
        return [Finding(PROBLEM, topic, f"cannot be checked ({message})", "report it with these lines")]


def _python(_: Machine) -> Iterable[Finding]:
    yield Finding(OK, "python", f"{platform.python_version()}, {sys.executable}, {platform.platform()}")
    yield Finding(OK, "normtune", f"{normtune.__version__}, {Path(normtune.__file__).resolve().parent}")


def _packages(machine: Machine) -> Iterable[Finding]:
    if "missing" in machine.packages:
        yield Finding(PROBLEM, "packages", machine.packages["missing"], "install normtune again in a new environment")
        return
    versions = [f"{name} {facts['version']}" for name, facts in machine.packages.items() if "version" in facts]
    yield Finding(OK, "packages", ", ".join(versions) or "none")
    for name, facts in machine.packages.items():
        if "missing" in facts:
            advice = f"`pip install --force-reinstall {name}`"
            yield Finding(PROBLEM, "packages", f"{name} cannot be imported ({facts['missing']})", advice)


def _torch(machine: Machine) -> Iterable[Finding]:
    if reason := without_torch(machine.torch):
        yield Finding(PROBLEM, "torch", reason)
        return
    cuda, hip = machine.torch["cuda"], machine.torch["hip"]
    built = f"built for CUDA {cuda}" if cuda else f"built for ROCm {hip}" if hip else "built without CUDA"
    yield Finding(OK, "torch", f"{machine.torch['version']}, {built}")


def _triton(machine: Machine) -> Iterable[Finding]:
    if reason := without_triton(machine.triton):
        yield Finding(PROBLEM, "triton", reason)
        return
    yield Finding(OK, "triton", machine.triton["version"])
    value = os.environ.get("TRITON_INTERPRET", "0")
    if value.lower() in ("1", "true", "on", "yes", "y"):
        state = f"TRITON_INTERPRET={value} makes it interpret kernels on the CPU"
        yield Finding(PROBLEM, "triton", state, "unset the variable to compile and measure")


def _compiler(machine: Machine) -> Iterable[Finding]:
    """The compiler that Triton builds launchers with (CC, else gcc, else clang), and Python's headers."""
    level = PROBLEM if machine.has_gpu else WARNING
    named = os.environ.get("CC")
    path = shutil.which(named) if named is not None else shutil.which("gcc") or shutil.which("clang")
    if path:
        yield Finding(OK, "compiler", path)
    elif named is not None:
        yield Finding(level, "compiler", f"CC={named!r} is not an executable program", "unset CC, or name a C compiler")
    else:
        state = "there is no gcc or clang, with which Triton builds the launcher of a kernel"
        yield Finding(level, "compiler", state, "install one, for example `apt-get install gcc`, or name one with CC")
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        state = f"{header} is missing, which the launcher of a kernel includes"
        yield Finding(level, "compiler", state, "install Python's headers, for example `apt-get install python3-dev`")


def _gpus(machine: Machine) -> Iterable[Finding]:
    smi = machine.smi
    library = smi.get("library", "the driver's library")
    usable = machine.torch.get("gpus", [])
    by_id = {gpu["id"]: gpu for gpu in smi.get("gpus", [])}
    for index, gpu in enumerate(usable):
        facts = by_id.pop(gpu["id"], {})
        size = f"{gpu['target']}, {gpu['sms']} {'SMs' if gpu['target'].startswith('sm_') else 'CUs'}"
        yield Finding(OK, "gpu", f"cuda:{index} is {gpu['name']}, {size}{_by_driver(facts, smi)}")
        yield from _disturbed(f"cuda:{index}", facts, library)
    for facts in by_id.values():
        state = "is not visible to torch" if usable else "is there"
        yield Finding(OK, "gpu", f"{facts['name']} {state}{_by_driver(facts, smi)}")
        if facts["is_divided"]:  # torch sees its slices, under other names
            yield _divided(facts["name"])
    if not usable and "missing" not in machine.torch:
        reason = without_gpu(machine.torch)
        # A user with a GPU wants to measure it; without a GPU everything else still works.
        level = PROBLEM if by_id or "too old" in reason else WARNING
        yield Finding(level, "gpu", f"torch sees none: {reason}", _REPLAY)
    if "missing" in smi:
        state = f"{library} is missing ({smi['missing']}), so sweeps do not notice low clocks and other processes"
        yield Finding(WARNING, "gpu", state, f"`pip install {smi.get('package', 'nvidia-ml-py')}`")
    elif "error" in smi:
        state = f"the driver does not answer {library} ({smi['error']})"
        tool = "amd-smi" if library == "amdsmi" else "nvidia-smi"
        advice = f"`{tool}` shows whether it works; after an update of the driver, restart" if usable else ""
        yield Finding(WARNING if usable else OK, "gpu", state, advice)


def _by_driver(facts: Facts, smi: Facts) -> str:
    """State of a GPU by its vendor's library, as the end of a sentence."""
    if not facts:
        return ""
    parts = []
    if facts["total_bytes"] is not None and facts["free_bytes"] is not None:
        parts.append(f"{facts['free_bytes'] / 2**30:.1f} of {facts['total_bytes'] / 2**30:.1f} GiB free")
    if facts["clock_mhz"] is not None:
        parts.append(f"SM clock {facts['clock_mhz']} of {facts['most_mhz'] or '?'} MHz")
    cuda = f" (CUDA {smi['cuda'] // 1000}.{smi['cuda'] % 1000 // 10})" if smi["cuda"] else ""
    divided = {True: "divided", False: "undivided", None: ""}[facts["is_divided"]]
    unknown = ", ".join(name for name in _GPU_DETAILS if facts.get(name) is None)
    parts += [f"driver {smi['driver']}{cuda}", divided, facts["uuid"], f"not told: {unknown}" if unknown else ""]
    return ", " + ", ".join(filter(None, parts))


def _disturbed(name: str, facts: Facts, library: str) -> Iterable[Finding]:
    """Findings about conditions that distort the times of a GPU."""
    if not facts:
        return
    if facts["is_divided"]:
        yield _divided(name)
    held = (facts["total_bytes"] or 0) - (facts["free_bytes"] or 0)
    processes = facts["processes"] or []
    if processes:
        pids = ", ".join(map(str, processes[:8])) + (", ..." if len(processes) > 8 else "")
        count = f"{len(processes)} other process{'es' * (len(processes) > 1)}"
        advice = "end them or wait: they distort all times"
        yield Finding(WARNING, "gpu", f"{name} has {count} on it (pid {pids})", advice)
    elif held > _HELD_BYTES:
        state = f"{held / 2**30:.1f} GiB of {name} are held by processes that {library} does not show here"
        yield Finding(WARNING, "gpu", state, "look for them outside of this container: they may distort all times")


def _divided(name: str) -> Finding:
    advice = "a table is for one size of slice; measure on the slice that will run the kernels"
    return Finding(WARNING, "gpu", f"{name} is divided (MIG, or compute partitions)", advice)


def _cache(machine: Machine) -> Iterable[Finding]:
    if "cache" not in machine.triton:
        return
    folder = Path(machine.triton["cache"])
    if reason := unwritable(folder):
        state = f"Triton's cache {folder} cannot be written ({reason})"
        yield Finding(PROBLEM, "cache", state, "name another folder with TRITON_CACHE_DIR")
    else:
        yield Finding(OK, "cache", f"Triton's cache {folder} can be written")


_CHECKS: tuple[tuple[str, Callable[[Machine], Iterable[Finding]]], ...] = (
    ("python", _python),
    ("packages", _packages),
    ("torch", _torch),
    ("triton", _triton),
    ("compiler", _compiler),
    ("gpu", _gpus),
    ("cache", _cache),
)
