"""Facts about this machine, each queried in a process of its own, and those of torch.

In: a function that returns facts. Out: the facts, as a JSON dictionary. A broken library may raise anything, end its
process or hang; the caller is safe from all three. `tuner.machine` has the facts of other packages and of drivers.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

# torch loads in 2 to 20 s, from a slow disk in up to a minute.
TIMEOUT_SECONDS = 120.0

Facts = dict[str, Any]


def torch_facts() -> Facts:
    """Version of torch and the GPUs that it can use; starts CUDA in this process.

    Returns:
        `missing` (reason why the import fails, with the error's name), or `version`, `cuda` (version of the build, None
        for a build without CUDA), `hip`, `error` (reason why CUDA does not start; empty if it does) and `gpus`, each
        with `name`, `target`, `sms` and `id`, by which its vendor's library finds it.
    """
    try:
        import torch

        from normtune.kernels.calling.device import describe, hardware_id
    except (Exception, SystemExit) as error:
        return {"missing": message(error)}
    facts: Facts = {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
    try:
        # The vendor's library also counts GPUs whose driver is too old for torch's CUDA.
        torch.cuda.init()
        gpus = []
        for index in range(torch.cuda.device_count()):
            properties, target = torch.cuda.get_device_properties(index), describe(index)
            named = {"name": properties.name, "id": hardware_id(properties)}
            gpus.append(named | {"target": target.name, "sms": target.sms})
    # A build without CUDA raises AssertionError.
    except Exception as error:
        return facts | {"error": message(error), "gpus": []}
    return facts | {"error": "", "gpus": gpus}


def facts_in_child(facts_of: Callable[[], Facts], timeout: float = TIMEOUT_SECONDS) -> Facts:
    """Facts that a function of a module returns, such as `torch_facts`, collected in a child process.

    Returns:
        Result of the function; `missing` if the process died, hung or printed nothing.
    """
    # The child gets the import path of this process.
    names = facts_of.__module__, facts_of.__name__
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import answer; answer{names!r}"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return {"missing": f"loading it takes over {timeout:g} s"}
    except OSError as error:
        return {"missing": f"no process can be started ({error.strerror or error})"}
    with contextlib.suppress(ValueError, IndexError):
        facts = json.loads(done.stdout.decode("utf-8", "replace").splitlines()[-1])
        if isinstance(facts, dict):
            return facts
    errors = [line.strip() for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return {"missing": f"loading it ended its process with {ended}" + (f": {errors[-1]}" if errors else "")}


def answer(module: str, name: str) -> None:
    """Print the facts that a function of a module returns as the last line of stdout; runs in the child."""
    facts = getattr(import_module(module), name)()
    sys.stdout.write("\n" + json.dumps(facts) + "\n")
    sys.stdout.flush()
    # Skips the unloading of libraries: a broken one may crash there.
    os._exit(0)


def message(error: BaseException) -> str:
    """Message of an error in one line, with its name."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
