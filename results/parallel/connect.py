"""Connects this process to a Ray cluster, or starts one on this machine.

In: the text of `--ray`. Out: a connection that prints nothing, leaves signals alone, and ends with the block.
"""

import logging
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from normtune.errors import NormtuneError, UsageError
from normtune.results.parallel.interrupts import shielded
from normtune.results.parallel.processes import cores

# Resource of a node that replays recordings: so many at once.
REPLAYS = "normtune_replay"
AUTO, LOCAL = "auto", "local"
_ADDRESS_SECONDS = 5.0
_FORM = "expected auto, local, or the HOST:PORT that `ray start --head` prints"


def check_address(text: str) -> None:
    """Raise UsageError if `--ray` has an unknown form."""
    host, _, port = text.rpartition(":")
    if text not in (AUTO, LOCAL) and not (host and port.isdecimal() and "/" not in host):
        raise UsageError(f"--ray is {text!r}: {_FORM}")


def check_installed() -> None:
    """Raise NormtuneError if Ray is not installed, before anything is read."""
    if sys.modules.get("ray") is None and find_spec("ray") is None:
        raise _without_ray("it is not installed")


@contextmanager
def connected(address: str) -> Iterator[ModuleType]:
    """Ray, without its statistics and warnings, connected to a cluster for the block.

    Args:
        address: as in `check_address`.

    Raises:
        NormtuneError: Ray is not installed, or there is no cluster that it can join.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with ExitStack() as stack:
        # Ray would store a token for a cluster of ours in the user's home, for all later ones.
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        is_read = "ray" in sys.modules  # when it is imported
        if address == LOCAL and not is_read and not any(map(os.environ.get, (*token, "RAY_AUTH_TOKEN_PATH"))):
            os.environ |= token
            for name in token:
                stack.callback(os.environ.pop, name, None)
        try:
            import ray
        except ImportError as error:
            raise _without_ray(error) from None
        if not ray.is_initialized():  # else by the caller, who will end it
            _check_reachable(address)
            stack.callback(ray.shutdown)
            _init(ray, address)
        yield ray


def _without_ray(reason: object) -> NormtuneError:
    return NormtuneError(f"--ray needs Ray ({reason}): pip install 'normtune[ray]'")


def in_one_line(error: BaseException) -> str:
    """The reason of an error of Ray."""
    lines = [line.strip(" .") for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if lines[0].startswith("Version mismatch"):  # both versions
        return " ".join(lines)[:300]
    return next((line for line in lines if "died because" in line or "is dead because" in line), lines[0])[:200]


def _init(ray: ModuleType, address: str) -> None:
    # Ray would print the end of its daemons' logs when a node is lost.
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    options: dict[str, Any] = {}
    if address == LOCAL:
        options = {"num_cpus": cores(), "resources": {REPLAYS: cores()}, "include_dashboard": False}
    try:
        # Ray would end this process at SIGTERM by itself, and crashes if an interrupt ends its start.
        with shielded():
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, **options)
    except (OSError, RuntimeError, ValueError) as error:
        raise NormtuneError(f"--ray {address}: no Ray cluster can be joined ({in_one_line(error)}): {_FORM}") from None


def _check_reachable(address: str) -> None:
    """Raise NormtuneError if nothing listens there: Ray itself would wait for a minute and end the process."""
    if address in (AUTO, LOCAL):
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ADDRESS_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise NormtuneError(f"--ray {address}: no Ray cluster is there ({error}): {_FORM}") from None
