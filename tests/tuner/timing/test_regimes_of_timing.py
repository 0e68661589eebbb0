"""Replays of each regime: its slices, their order, its cache; without a GPU."""

import gc
from types import SimpleNamespace

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from normtune.kernels.config import COPY
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.tuner.plan.plan import candidates
from normtune.tuner.timing import batch as batches
from normtune.tuner.timing import memory, timing
from normtune.tuner.timing.arena import Arena
from normtune.tuner.timing.protocol import timed_launches

SPEC = operator("rms_norm_forward")
PROBLEM = SPEC.problem(64, 128, "float32")
ROW = RMSNormConfig("row", 1, 4)


class Kept:
    """In place of what is replayed: keeps how it was made."""

    def __init__(self, timer, launch, slices, lead_in, restore=None, *, evicted=True):
        self.slices, self.lead_in, self.evicted = slices, lead_in, evicted


class Stream(Kept):
    pass


@pytest.fixture
def made(monkeypatch):
    """Blocks of a session in a regime, as what is made for each label."""
    monkeypatch.setattr(timing, "Captured", Kept)
    monkeypatch.setattr(timing, "Streamed", Stream)
    monkeypatch.setattr(timing, "BoundLaunch", lambda *arguments: ())
    monkeypatch.setattr(timing, "bind_launch", lambda *arguments, **options: ())
    timer = SimpleNamespace(
        device=torch.device("cpu"),
        arena=Arena(torch.device("cpu"), 0),
        workspace=lambda elements: None,
        rounds=SimpleNamespace(of=lambda graphs, count, repeatable: graphs),
    )

    def block(regime, slow=()):
        (candidate,), _ = candidates(SPEC, [ROW], PROBLEM, TARGETS["sm_90"])
        session = timing.CudaSession(timer, SPEC, PROBLEM, {ROW: candidate.launch}, regime)
        session._slow = set(slow)
        return session.block([ROW, COPY])

    return block


def places(timed):
    return [tuple(tensor.data_ptr() for tensor in tensors.values()) for tensors in timed.slices]


def test_cold_launches_are_on_slices_of_their_own_behind_the_evicting_read(made):
    for label, timed in made("cold").items():
        assert type(timed) is Kept and timed.evicted, label
        assert (timed.lead_in, len(timed.slices)) == (1, 1 + timed_launches(SPEC.bytes_moved(PROBLEM)))
        assert len(set(places(timed))) == len(timed.slices)


def test_the_evicting_read_takes_the_place_of_lines_that_kernels_keep():
    arguments = {"source_ptr": "*i32", "sink_ptr": "*i32", "length": "i32", "BLOCK": "constexpr"}
    source = ASTSource(memory._read_kernel, arguments, {(3,): memory.READ_WORDS})
    for architecture in (80, 90):
        ptx = triton.compile(source, target=GPUTarget("cuda", architecture, 32)).asm["ptx"]
        loads = [line for line in ptx.splitlines() if "ld.global" in line]
        assert loads and all("L2::cache_hint" in line for line in loads)
        assert "createpolicy.fractional.L2::evict_last" in ptx


def test_warm_launches_are_on_one_slice_and_nothing_is_evicted(made):
    for label, timed in made("warm").items():
        assert type(timed) is Kept and not timed.evicted, label
        assert (timed.lead_in, len(timed.slices)) == (2, 2 + timed_launches(SPEC.bytes_moved(PROBLEM)))
        assert len(set(places(timed))) == 1
    first, second = (places(made("warm")[ROW])[0] for _ in range(2))
    assert first != second  # each block draws anew


def test_eager_launches_are_cold_and_in_no_graph(made):
    for label, timed in made("eager").items():
        assert type(timed) is Stream, label
        assert (timed.lead_in, len(timed.slices)) == (1, 1 + timed_launches(SPEC.bytes_moved(PROBLEM)))
        assert len(set(places(timed))) == len(timed.slices)


def test_slow_launches_are_timed_alone_and_warm_ones_behind_their_like(made):
    for regime, expected in {"cold": (0, 1), "eager": (0, 1), "warm": (2, 3)}.items():
        found = made(regime, slow=[ROW])
        assert (found[ROW].lead_in, len(found[ROW].slices)) == expected, regime
        assert len(found[COPY].slices) > 3


@pytest.fixture
def stream(monkeypatch):
    """Notes of what is done in order, by events, the timer and launches."""
    notes = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            notes.append("event")

        def elapsed_time(self, end):
            return 0.012  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: notes.append("drained"))
    return notes


def test_an_eager_batch_begins_on_a_drained_stream_and_its_lead_in_is_not_timed(stream):
    timer = SimpleNamespace(device=None, evict=lambda: stream.append("evict"))
    batch = batches.Streamed(timer, lambda tensors: stream.append((tensors, gc.isenabled())), ["a", "b", "c", "d"], 1)
    stream.clear()
    batch.replay()
    launches = [(name, False) for name in "abcd"]
    assert stream == ["evict", "drained", launches[0], "event", *launches[1:], "event"]
    assert gc.isenabled()
    assert batch.nanoseconds() == 4000


def test_a_launch_that_fails_leaves_the_collector_as_it_was(stream):
    def fail(tensors):
        raise ValueError("no")

    batch = batches.Streamed(SimpleNamespace(device=None, evict=lambda: None), fail, ["a", "b"], 1)
    with pytest.raises(ValueError, match="no"):
        batch.replay()
    assert gc.isenabled()
    gc.disable()
    try:
        with pytest.raises(ValueError, match="no"):
            batch.replay()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("hip", [None, "6.4"])
def test_events_are_nodes_of_the_graph_and_with_rocm_between_two_graphs(monkeypatch, stream, hip):
    """Torch for ROCm refuses events in graphs."""
    graphs = []

    class Noted:
        def __init__(self, enable_timing, external=False):
            assert external is (hip is None)

        def record(self):
            stream.append("event")

        def elapsed_time(self, end):
            return 0.012

    def capture(on, *steps):
        graphs.append(steps)
        return SimpleNamespace(replay=lambda: [step() for step in steps])

    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "Event", Noted)
    monkeypatch.setattr(batches, "capture", capture)
    timer = SimpleNamespace(stream=None, evict=lambda: stream.append("evict"))
    batch = batches.Captured(timer, stream.append, ["a", "b", "c", "d"], 1)
    assert len(graphs) == (1 if hip is None else 2)
    batch.replay()
    assert stream == ["evict", "a", "event", "b", "c", "d", "event"]
    assert batch.nanoseconds() == 4000
