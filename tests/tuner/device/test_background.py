"""A device is opened in the background: binaries are compiled meanwhile, for the target that its driver names."""

from typing import ClassVar

import pytest

from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.tuner.compiling import binaries as module
from normtune.tuner.device.bench import Bench
from normtune.tuner.plan.plan import Task, candidates

pytestmark = pytest.mark.long

TARGET = TARGETS["sm_90"]  # of the engine
SPEC = operator("rms_norm_forward")
PROBLEM = SPEC.problem(64, 2048, "bfloat16")
TASK = Task(PROBLEM, tuple(candidates(SPEC, [RMSNormConfig("row", num_warps=4)], PROBLEM, TARGET)[0]))


class Pool:
    """A pool that compiles nothing and keeps what it is asked for."""

    made: ClassVar[list["Pool"]] = []

    def __init__(self, jobs, target, **options):
        self.target, self.jobs, self.closed = target, [], False
        self.made.append(self)

    def start(self):
        pass

    def add(self, jobs):
        self.jobs += jobs

    def close(self):
        self.closed = True


@pytest.fixture
def begun(monkeypatch, tmp_path):
    """Begins to open a device whose target is expected to be this one."""
    monkeypatch.setattr(module, "CompilePool", Pool)
    monkeypatch.setattr(Pool, "made", [])
    benches = []

    def make(expected):
        benches.append(Bench(("normtune.tests.tuner.compiling_engine", "CompilingEngine", ((), str(tmp_path)))))
        benches[-1].expect(expected)
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()
    assert all(pool.closed for pool in Pool.made)


def asked():
    return [(pool.target, [job.problem for job in pool.jobs]) for pool in Pool.made]


@pytest.mark.slow
def test_binaries_are_compiled_before_it_is_open(begun):
    bench = begun("sm_90")
    bench.prepare([TASK])
    assert bench._worker is None and asked() == [("sm_90", [PROBLEM])]
    bench.open()
    bench.prepare([TASK])
    assert bench.target.name == "sm_90" and asked() == [("sm_90", [PROBLEM])]


def test_another_target_than_expected_compiles_anew(begun):
    bench = begun("sm_80")
    bench.prepare([TASK])
    bench.open()
    assert [pool.closed for pool in Pool.made] == [True]
    bench.prepare([TASK])
    assert asked() == [("sm_80", [PROBLEM]), ("sm_90", [PROBLEM])]


@pytest.mark.slow
def test_without_an_expected_target_the_device_is_waited_for(begun):
    bench = begun("")
    bench.prepare([TASK])
    assert asked() == [("sm_90", [PROBLEM])]


def test_a_device_that_is_not_wanted_after_all_leaves_no_process(begun, tmp_path):
    bench = begun("sm_90")
    process = bench._starting._process
    bench.close()
    assert not process.is_alive() and bench.close() == {}
