"""An engine whose configs hang, crash and lie on demand; opened by workers in tests.

In: the fault of each step for each config. Out: made-up times; more warps, slower.
"""

import ctypes
import os
import signal
import time
from pathlib import Path

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.config import COPY
from normtune.kernels.target import TARGETS
from normtune.results.records import ROUNDS_PER_BLOCK, Outcome
from normtune.tests.tuner.benches import DEVICE
from normtune.tuner.device.engine import Block, DeviceLostError, Identity, NoMemoryError
from normtune.tuner.timing.rounds import RoundCounts


def hang():
    time.sleep(3600)


def segfault():
    ctypes.string_at(0)


def exit_at_once():
    os._exit(3)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def lose_device():
    raise DeviceLostError("an illegal memory access was encountered")


def run_out_of_memory():
    raise NoMemoryError("CUDA out of memory: tried to allocate 16.00 GiB")


def fail():
    raise NormtuneError("the driver says no: say yes")


def refuse():
    raise UsageError("there is no such engine")


def bug():
    return 1 // 0


def warps(config):
    return getattr(config, "num_warps", 32)  # an implementation has none


class HostileEngine:
    """Faults are (step, number of warps, name of a function above); `once` limits each to its first time.

    Args:
        faults: what happens when a step is asked of configs of so many warps; 0 for a step of no config.
        folder: notes are kept there of the processes that ran and of faults that happened.
        once: whether a fault happens only the first time, over all processes.
    """

    def __init__(self, faults, folder, once=False):
        self.faults, self.folder, self.once = faults, Path(folder), once
        with (self.folder / "processes").open("a") as file:
            file.write(f"{os.getpid()}\n")
        self.act("open", [])

    def act(self, step, configs):
        for place, warps, name in self.faults:
            if place == step and ((not configs and not warps) or warps in [config.num_warps for config in configs]):
                mark = self.folder / f"{place}-{warps}-{name}"
                if self.once and mark.exists():
                    continue
                mark.touch()
                globals()[name]()

    def identify(self):
        return Identity(DEVICE, TARGETS["sm_90"], {"triton": "0.0"}, 1 << 36, False, "cold")

    def try_copy(self):
        self.act("try_copy", [])

    def prove(self, problem, candidate):
        self.act("prove", [])

    def make_calls(self, problem, candidates):
        self.act("make_calls", [])

    def gate(self, problem, candidate):
        self.act("gate", [candidate.config])
        return None

    def begin(self, problem, candidates):
        self.act("begin", [])

    def warm_up(self, configs):
        self.act("warm_up", configs)
        return {}

    def block(self, configs):
        self.act("block", configs)
        times = {config: [500 if config == COPY else 1000 * warps(config)] * ROUNDS_PER_BLOCK for config in configs}
        return Block(times, RoundCounts(ROUNDS_PER_BLOCK + 1, 1))

    def compare(self, configs, often):
        self.act("compare", configs)
        return {
            config: Outcome("wrong_result", "off") for config in configs if ("lie", warps(config), "") in self.faults
        }

    def close(self):
        return {"sm_clock_mhz": [1, 2, 3]}
