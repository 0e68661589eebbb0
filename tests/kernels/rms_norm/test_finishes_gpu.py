"""Finishes of the weight gradient under stress: slow producers, streams, full GPUs, killed launches."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl

from normtune.kernels.call import run
from normtune.kernels.config import Config
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.tests.kernels.launching import nan_outputs
from normtune.tuner.timing.capture import capture
from normtune.tuner.timing.gate import compare
from normtune.tuner.timing.memory import mark_difference

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda", 0)
SPEC = operator("rms_norm_backward")
DEPENDENT = RMSNormConfig("persistent", 1, 4, 3, 2, "dependent")
SPLIT = RMSNormConfig("split", 1, 16, 2, 1, "dependent", 4096)
COLUMNS = RMSNormConfig("row", 1, 4, 1, 0, "columns", 32)
WAYS = [(DEPENDENT, 700, 1000), (SPLIT, 300, 12288), (COLUMNS, 300, 2048)]
IDS = ["dependent", "split", "columns"]


class Work:
    """One backward with tensors of its own, and what comes of it."""

    def __init__(self, config: Config, rows: int, hidden: int, seed: int = 0):
        from normtune.kernels.calling.device import describe

        self.problem = SPEC.problem(rows, hidden, "bfloat16")
        self.launch = SPEC.resolve(config, self.problem, describe(0), None)
        generator = torch.Generator(DEVICE).manual_seed(seed)
        self.inputs = SPEC.references().inputs(self.problem, generator, DEVICE, False)
        self.outputs = nan_outputs(SPEC, self.problem, DEVICE)
        self.workspace = torch.empty(max(1, self.launch.workspace), device=DEVICE)
        self.mark = torch.zeros(1, dtype=torch.int32, device=DEVICE)
        self.once()
        torch.cuda.synchronize()
        compare(self.outputs, SPEC.references().reference(self.problem, self.inputs, 1e-6, 0.25))
        self.right = {name: tensor.clone() for name, tensor in self.outputs.items()}

    def once(self) -> None:
        """Launch on poisoned outputs and partial sums."""
        for tensor in (*self.outputs.values(), self.workspace):
            tensor.fill_(float("nan"))
        tensors = self.inputs | self.outputs
        run(SPEC.calls_function()(self.launch, self.problem, tensors, self.workspace, 1e-6, 0.25))

    def check(self) -> None:
        """Mark what differs from the first, right result, bit by bit."""
        for name, tensor in self.outputs.items():
            mark_difference(tensor, self.right[name], self.mark)


def behind_a_slow_producer(work: Work) -> Callable[[], None]:
    """The launch reads what a kernel that takes long has written just before, in place of nonsense."""
    x, dy = work.inputs["x"], work.inputs["dy"]
    kept = x.clone(), dy.clone()

    def once() -> None:
        x.fill_(1e30)
        dy.fill_(1e30)
        torch.cuda._sleep(20_000)  # cycles: 10 us or more
        x.copy_(kept[0])
        dy.copy_(kept[1])
        work.once()
        work.check()

    return once


@pytest.mark.parametrize(("config", "rows", "hidden"), WAYS, ids=IDS)
@pytest.mark.parametrize("how", ["eager", "graph"])
def test_a_thousand_runs_behind_a_slow_producer_give_equal_bits(config, rows, hidden, how):
    work = Work(config, rows, hidden)
    once = behind_a_slow_producer(work)
    once()
    torch.cuda.synchronize()
    if how == "graph":
        graph = capture(torch.cuda.Stream(DEVICE), once)
        once = graph.replay
    for _ in range(1000):
        once()
    torch.cuda.synchronize()
    assert work.mark.item() == 0


@pytest.mark.parametrize(("config", "rows", "hidden"), WAYS, ids=IDS)
def test_two_streams_at_once(config, rows, hidden):
    works = [Work(config, rows, hidden, seed) for seed in (1, 2)]
    streams = [torch.cuda.Stream(DEVICE) for _ in works]
    torch.cuda.synchronize()
    for _ in range(300):
        for work, stream in zip(works, streams, strict=True):
            with torch.cuda.stream(stream):
                work.once()
                work.check()
    torch.cuda.synchronize()
    assert [work.mark.item() for work in works] == [0, 0]


@triton.jit
def _hold(sink_ptr, turns):
    b_value = tl.arange(0, 4096).to(tl.float32)
    for _ in range(turns):
        b_value = b_value * 1.0001 + 0.5
    tl.store(sink_ptr + tl.arange(0, 4096), b_value)


@pytest.mark.parametrize(("config", "rows", "hidden"), WAYS, ids=IDS)
def test_beside_a_kernel_that_holds_all_multiprocessors(config, rows, hidden):
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    work = Work(config, rows, hidden)
    sink = torch.empty(4096, device=DEVICE)
    ours, theirs = torch.cuda.Stream(DEVICE), torch.cuda.Stream(DEVICE)
    _hold[(1,)](sink, 1, num_warps=32)
    torch.cuda.synchronize()
    held = 0
    for _ in range(20):
        with torch.cuda.stream(theirs):
            # Two programs of 1024 threads fill a multiprocessor, so ours start when these end, some before others.
            _hold[(2 * sms,)](sink, 400_000, num_warps=32)
            done = torch.cuda.Event()
            done.record()
        with torch.cuda.stream(ours):
            for _ in range(20):
                work.once()
                work.check()
        held += not done.query()
        torch.cuda.synchronize()
    assert held >= 10, "the other kernel was too short to be in the way"
    assert work.mark.item() == 0


KILLED = """
import sys
from normtune.kernels.rms_norm.operator import RMSNormConfig
sys.path.insert(0, sys.argv[1])
from test_finishes_gpu import Work
work = Work(RMSNormConfig(*eval(sys.argv[2])), int(sys.argv[3]), int(sys.argv[4]))
print("ready", flush=True)
while True:
    work.once()
"""


@pytest.mark.parametrize(("config", "rows", "hidden"), WAYS, ids=IDS)
def test_after_a_killed_launch(config, rows, hidden, request):
    work = Work(config, rows, hidden)
    folder = str(request.path.parent)
    arguments = [sys.executable, "-c", KILLED, folder, repr(tuple(config)), str(rows), str(hidden)]
    for _ in range(2):
        child = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.2)
        for _ in range(100):
            work.once()
            work.check()
        child.send_signal(signal.SIGKILL)
        child.wait()
        for _ in range(100):
            work.once()
            work.check()
    torch.cuda.synchronize()
    assert work.mark.item() == 0


def test_fetching_ahead_reads_nothing_beyond_the_tensors():
    """Rows that end at the end of an allocation, of sizes and addresses that are no multiples of 16 bytes."""
    for hidden in (8193, 12289):
        work = Work(SPLIT, 301, hidden)
        for _ in range(50):
            work.once()
            work.check()
        torch.cuda.synchronize()
        assert work.mark.item() == 0


def test_gradients_of_modules_on_two_streams():
    import normtune

    torch.manual_seed(0)
    norms = [normtune.RMSNorm(4096, device=DEVICE, dtype=torch.bfloat16) for _ in range(2)]
    inputs = [torch.randn(64, 4096, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in norms]
    wanted = [torch.autograd.grad(norm(x).sum(), (x, norm.weight)) for norm, x in zip(norms, inputs, strict=True)]
    streams = [torch.cuda.Stream(DEVICE) for _ in norms]
    torch.cuda.synchronize()
    found = [[], []]
    for _ in range(50):
        for place, (norm, x, stream) in enumerate(zip(norms, inputs, streams, strict=True)):
            with torch.cuda.stream(stream):
                found[place].append(torch.autograd.grad(norm(x).sum(), (x, norm.weight)))
    torch.cuda.synchronize()
    for once, often in zip(wanted, found, strict=True):
        assert all(torch.equal(a, b) for pair in often for a, b in zip(pair, once, strict=True))
