"""The fast launcher makes the driver calls of Triton's own launcher; launches are kept and dropped."""

import sys
from contextlib import nullcontext
from functools import partial
from operator import itemgetter
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher
from triton.runtime import driver as drivers

import normtune
from normtune.kernels.call import KernelCall
from normtune.kernels.calling import dispatch, launcher, triton_inside


def test_the_fast_way_asks_the_driver_as_tritons_own_launcher_does(monkeypatch):
    monkeypatch.setattr(drivers, "_active", Driver())
    way = triton_inside._WAYS[".".join(triton.__version__.split(".")[:2])]
    asked = []
    own = object.__new__(CudaLauncher)
    vars(own).update(
        **{"launch": lambda *arguments: asked.append(arguments), "num_ctas": 1},
        **{"global_scratch_size": 0, "global_scratch_align": 1, "profile_scratch_size": 0, "profile_scratch_align": 1},
        **{"launch_cooperative_grid": "cooperative", "launch_pdl": "pdl"},
        **{"arg_annotations": "annotations", "kernel_signature": b"signature", "gsan_enabled": False},
    )
    compiled = SimpleNamespace(function="function", packed_metadata=("warps", "ctas", "shared"), run=own)
    own(5, 2, 1, "stream", compiled.function, compiled.packed_metadata, None, None, None, 16, 32, 1e-6, 128)
    way(compiled, own, (5, 2, 1), itemgetter(1, 0), (1e-6, 128))("stream", (32, 16))
    assert asked[0] == asked[1] and "pdl" in asked[0]


@triton.jit
def _shift_kernel(x_ptr, y_ptr, count, shift, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, offsets < count) + shift, offsets < count)


DEVICE = 7


class Driver:
    """A driver of Triton for a GPU that is not there.

    Attributes:
        launched: grid, stream, function and arguments of each launch, tensors by their pointers.
    """

    def __init__(self):
        self.utils, self.launcher_cls, self.launched = self, partial(Launcher, self), []

    def get_current_device(self):
        return DEVICE

    def get_current_stream(self, device):
        return 10 * device

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_device_properties(self, device):
        return {"max_shared_mem": 1 << 17}

    def load_binary(self, name, binary, shared, device):
        return "module", 99, 32, 0, 1024


class Launcher:
    """What launches a binary on it; that the fast way gives `launch` its arguments in order is tested above."""

    global_scratch_size = profile_scratch_size = 0
    launch_cooperative_grid, launch_pdl, arg_annotations, kernel_signature = False, False, (), b""
    gsan_enabled = False  # of Triton 3.8

    def __init__(self, driver, source, metadata):
        self.driver = driver

    def __call__(self, x, y, z, stream, function, packed, heard, enter, leave, *arguments):
        pointers = [one.data_ptr() if isinstance(one, torch.Tensor) else one for one in arguments]
        if x * y * z:
            self.driver.launched.append(((x, y, z), stream, function, pointers))

    def launch(self, x, y, z, stream, function, *given):
        arguments = given[-1] if isinstance(given[-1], tuple) else given[8:]
        self(x, y, z, stream, function, None, None, None, None, *arguments)


class View:
    """An object of Triton's as launches see it: without some attributes, noting which are read.

    Args:
        of: the object.
        kind: its name, as in `VIEWED`.
        read: takes the attributes that are read, with the kind of their object.
        gone: (kind, attribute) of what is missing.
    """

    def __init__(self, of, kind, read, gone):
        self._view = of, kind, read, gone

    def __getattr__(self, name):
        of, kind, read, gone = self._view
        if (kind, name) in gone:
            raise AttributeError(f"{kind} has no {name}")
        read[kind, name] = None
        value = getattr(of, name)
        if (kind, name) == ("kernel", "params"):
            return [View(one, "parameter", read, gone) for one in value]
        if (kind, name) == ("kernel", "warmup"):
            return lambda *arguments, **options: View(value(*arguments, **options), "binary", read, gone)
        return View(value, VIEWED[kind, name], read, gone) if (kind, name) in VIEWED else value

    def __getitem__(self, grid):
        return self._view[0][grid]


VIEWED = {
    ("driver", "active"): "active",
    ("binary", "run"): "launcher",
    ("runtime", "launch_enter_hook"): "hook",
    ("runtime", "launch_exit_hook"): "hook",
}
# One for all tests: Triton keeps a kernel with the launcher of the driver that loaded it.
DRIVER = Driver()


@pytest.fixture
def driver(monkeypatch):
    """The driver of a GPU that is not there, which Triton and torch take for the only one."""
    monkeypatch.setattr(drivers, "_active", DRIVER)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    return DRIVER


@pytest.fixture
def launches(driver, monkeypatch):
    """Launches a kernel as users' calls do, on a GPU that is not there; what was read of Triton, what was launched."""
    x, y, others = torch.zeros(64), torch.zeros(64), (torch.ones(64), torch.ones(64))

    def launch(gone=()):
        read = {}
        monkeypatch.setattr(triton_inside, "_runtime", View(triton.knobs.runtime, "runtime", read, gone))
        monkeypatch.setattr(sys.modules["triton.runtime.driver"], "driver", View(drivers, "driver", read, gone))
        call = KernelCall(View(_shift_kernel, "kernel", read, gone), (4, 2), (x, y, 50, 1.5), {"BLOCK": 16})
        prepared = launcher.BoundLaunch([call, call], [x, y], 0, DEVICE)
        driver.launched.clear()
        prepared(*others)
        return prepared.is_fast, read, list(driver.launched)

    return launch


@pytest.mark.long
def test_a_private_interface_that_is_gone_leads_to_the_public_way(launches):
    is_fast, read, wanted = launches()
    assert is_fast and len(wanted) == 2 and wanted[0][0] == (4, 2, 1)
    private = set(read) - {("kernel", "pre_run_hooks")}  # a kernel without them has none
    assert {kind for kind, _ in private} == {*VIEWED.values(), "kernel", "parameter", "binary", "runtime", "driver"}
    for gone in private:
        is_fast, _, launched = launches({gone})
        assert (is_fast, launched) == (False, wanted), gone


@pytest.mark.parametrize("changed", ["launch", "get_current_stream"])
def test_a_private_interface_that_takes_other_arguments_leads_to_the_public_way(launches, monkeypatch, changed):
    is_fast, _, wanted = launches()
    assert is_fast
    real = launcher._stream_launches

    def other(*arguments):
        """The fast way while what it calls takes other arguments."""
        of = Launcher if changed == "launch" else Driver
        with monkeypatch.context() as patch:
            patch.setattr(of, changed, lambda self: None)
            return real(*arguments)

    monkeypatch.setattr(launcher, "_stream_launches", other)
    is_fast, _, launched = launches()
    assert (is_fast, launched) == (False, wanted)


@pytest.mark.parametrize("hook", [None, lambda metadata: None])
def test_a_hook_in_place_of_the_chain_is_launched_for_publicly(launches, monkeypatch, hook):
    is_fast, _, wanted = launches()
    assert is_fast
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", hook)
    is_fast, _, launched = launches()
    assert (is_fast, launched) == (False, wanted)


class Recorder:
    """A kernel that notes how it is launched."""

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.launches.append((grid, arguments, options))


def test_other_tensors_take_the_places_of_those_that_were_prepared():
    kernel, (x, weight, y) = Recorder(), (torch.zeros(1) for _ in range(3))
    call = KernelCall(kernel, (7,), (x, weight, y, None, 5, 1e-6), {"BLOCK": 8})
    prepared = launcher.BoundLaunch([call], [x, weight, y, None], 0, None)
    others = [torch.ones(1) for _ in range(3)]
    prepared(*others, None)
    ((grid, arguments, options),) = kernel.launches
    assert (grid, options) == ((7,), {"BLOCK": 8})
    assert all(one is other for one, other in zip(arguments, [*others, None, 5, 1e-6], strict=True))


def test_arguments_that_no_tensor_stands_for_stay_missing_between_tensors():
    kernel, (x, y) = Recorder(), (torch.zeros(1) for _ in range(2))
    call = KernelCall(kernel, (1,), (x, None, y, None, 5), {})
    assert launcher._PublicLaunch(call, [x, y]).slots == (0, 2, 1)
    launcher.BoundLaunch([call], [x, y], 0, None)(y, x)
    ((_, arguments, _),) = kernel.launches
    assert arguments[0] is y and arguments[2] is x and (arguments[1], *arguments[3:]) == (None, None, 5)
    pick = launcher._with_none
    assert pick(itemgetter(0, 2, 1), (16, 32)) == (16, None, 32)


def test_missing_tensors_at_the_end_leave_the_others_in_their_order():
    kernel, (x, y) = Recorder(), (torch.zeros(1) for _ in range(2))
    call = KernelCall(kernel, (1,), (x, y, None, None, None, 5), {})
    assert launcher._PublicLaunch(call, [x, y, None]).slots == (0, 1, 2)
    launcher.BoundLaunch([call], [x, y, None], 0, None)(y, x, None)
    ((_, arguments, _),) = kernel.launches
    assert arguments[0] is y and arguments[1] is x and arguments[2:] == (None, None, None, 5)
    twice = KernelCall(kernel, (1,), (x, y, y, 5), {})
    assert launcher._PublicLaunch(twice, [x, y]).slots == (0, 1, 1)


def test_a_workspace_is_new_at_each_launch_and_serves_all_kernels():
    kernel, dy, dweight, workspace = Recorder(), torch.zeros(2), torch.zeros(3), torch.zeros(64)
    calls = [KernelCall(kernel, (1,), (dy, workspace, 2), {}), KernelCall(kernel, (1,), (workspace, dweight, 2), {})]
    prepared = launcher.BoundLaunch(calls, [dy, dweight, workspace], 64, None)
    prepared(dy, dweight)
    first, second = (arguments for _, arguments, _ in kernel.launches)
    assert first[1] is second[0] and first[1] is not workspace
    assert (first[1].numel(), first[1].dtype) == (64, torch.float32)


@triton.jit
def _sum_kernel(x_ptr, y_ptr, workspace_ptr):
    tl.store(workspace_ptr, tl.load(x_ptr) + tl.load(y_ptr))


def test_bound_launches_get_the_pointers_and_that_of_the_workspace(driver):
    x, y, workspace = torch.zeros(2), torch.zeros(2), torch.zeros(64)
    call = KernelCall(_sum_kernel, (1,), (x, y, workspace), {})
    prepared = launcher.BoundLaunch([call], [x, y, workspace], 64, DEVICE)
    assert prepared.is_fast
    driver.launched.clear()
    prepared(x, y)
    prepared.at((16, None), x, None)
    (_, _, _, (*given, first)), (_, stream, _, (*last, _)) = driver.launched
    assert given == [x.data_ptr(), y.data_ptr()] and first not in (0, *given)
    assert stream == 10 * DEVICE and last == [16, None]


def test_a_tensor_behind_a_number_is_refused():
    x, y = torch.zeros(1), torch.zeros(1)
    with pytest.raises(ValueError, match="expected its tensors before its other arguments"):
        launcher.BoundLaunch([KernelCall(Recorder(), (1,), (x, 5, y), {})], [x, y], 0, None)


def test_launches_are_forgotten_with_the_table_and_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(dispatch, "MOST_KEPT", 3)
    cache = dispatch.Cache()
    for number in range(5):
        assert cache.keep(number, str(number)) == str(number)
        assert 1 <= len(cache) <= 3 and cache[number] == str(number)
    normtune.use_table(None)
    assert not cache
    normtune.use_table()
