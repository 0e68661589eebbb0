"""Launching the same binary again on other tensors, without Triton's binder, which takes 10 us and more a call.

In: kernel calls with real tensors. Out: `Prepared`, which launches them on tensors that are alike: same shapes, strides
and dtypes, pointers of the same alignment, as binaries are specialised on these. What is private to Triton is used here
alone, one way a version; what no way is known for is launched by the public `kernel[grid]`, and so is everything while
somebody listens by one of Triton's hooks.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime.driver import driver

from normtune.kernels.call import KernelCall
from normtune.kernels.operator import Launch
from normtune.kernels.problem import Problem

# Launches on a stream: (stream, pointers of the tensors).
Bound = Callable[[int, tuple[int | None, ...]], object]

_runtime = triton.knobs.runtime


class Prepared:
    """Kernel calls that can be made again.

    Args:
        calls: as an operator's kernel file makes them, of `tensors` and nothing else that has a pointer.
        tensors: each tensor of the calls, None for one that is left out.
        workspace: float32 elements that each launch allocates; its tensor is then the last of `tensors`.
        device: CUDA's number of the GPU, None where kernels are interpreted.
    """

    def __init__(
        self, calls: Sequence[KernelCall], tensors: Sequence[Tensor | None], workspace: int, device: int | None
    ) -> None:
        self._device = device
        self._workspace = workspace
        self._public = [_Public(call, tensors) for call in calls]
        self._hooks = [getattr(call.kernel, "pre_run_hooks", ()) for call in calls]
        self._bound: list[Bound] = []
        if device is not None:
            with torch.cuda.device(device):
                found = [_bind(call, public) for call, public in zip(calls, self._public, strict=True)]
            self._bound = [bound for bound in found if bound]
        # All of them or none: what is launched in two ways would have two meanings of the current device.
        self._fast = len(self._bound) == len(self._public)
        self._one_device = device is not None and torch.cuda.device_count() == 1

    def __call__(self, *tensors: Any) -> None:
        """Launch on the current stream of the device.

        Args:
            tensors: as those it was made of, the workspace left out; the first one is there.
        """
        if self._workspace:
            tensors = (*tensors, tensors[0].new_empty(self._workspace, dtype=torch.float32))
        if not self._fast or self._is_heard():
            self._launch_publicly(tensors)
        elif self._one_device or torch.cuda.current_device() == self._device:
            self._launch(tensors)
        else:
            with torch.cuda.device(self._device):
                self._launch(tensors)

    def _launch(self, tensors: tuple[Tensor | None, ...]) -> None:
        pointers = tuple([None if tensor is None else tensor.data_ptr() for tensor in tensors])
        stream = driver.active.get_current_stream(self._device)
        for launch in self._bound:
            launch(stream, pointers)

    def _launch_publicly(self, tensors: tuple[Tensor | None, ...]) -> None:
        if self._device is None:
            for call in self._public:
                call(tensors)
            return
        with torch.cuda.device(self._device):
            for call in self._public:
                call(tensors)

    def _is_heard(self) -> bool:
        """Whether somebody listens to launches, as profilers do."""
        enter, leave = _runtime.launch_enter_hook, _runtime.launch_exit_hook
        # A chain of hooks, or in its place a hook or None.
        return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave) or any(self._hooks))


def prepare(
    kernels: Any,
    launch: Launch,
    problem: Problem,
    tensors: Mapping[str, Tensor | None],
    eps: float,
    offset: float,
) -> Prepared:
    """A launch of an operator, to be made on these tensors and on others that are alike.

    Args:
        kernels: the operator's kernel module.
        launch: what `problem` resolved to.
        problem: of at least one row.
        tensors: by name, as the operator's `buffers` lists them; None stands for one that the variant leaves out.
        eps: added to the mean square.
        offset: added to the weight.
    """
    there = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    first = next(iter(there.values()))
    workspace = None
    if launch.workspace:
        workspace = torch.empty(launch.workspace, dtype=torch.float32, device=first.device)
    calls = kernels.calls(launch, problem, there, workspace, eps, offset)
    arguments = [*tensors.values(), *([workspace] if launch.workspace else [])]
    return Prepared(calls, arguments, launch.workspace, first.device.index if first.is_cuda else None)


class _Public:
    """A kernel call by Triton's public way, on other tensors.

    Attributes:
        slots: for each leading argument that is a tensor or None, its place among the tensors.
        rest: the other positional arguments.

    Raises:
        ValueError: a tensor stands behind an argument that is none.
    """

    def __init__(self, call: KernelCall, tensors: Sequence[Tensor | None]) -> None:
        self._call = call
        places = {id(tensor): place for place, tensor in enumerate(tensors)}
        slots = []
        for argument in call.args:
            if id(argument) not in places:
                break
            slots.append(places[id(argument)])
        self.slots = tuple(slots)
        self.rest = call.args[len(slots) :]
        if any(isinstance(argument, Tensor) for argument in self.rest):
            raise ValueError(f"{call.kernel}: its tensors do not come before its other arguments")

    def __call__(self, tensors: Sequence[Tensor | None]) -> None:
        call = self._call
        call.kernel[call.grid](*(tensors[slot] for slot in self.slots), *self.rest, **call.options)


def _bind(call: KernelCall, public: _Public) -> Bound | None:
    """The fast way to make a call again; None where this Triton or this binary has none."""
    way = _WAYS.get(".".join(triton.__version__.split(".")[:2]))
    if way is None or len(public.slots) < 2:
        return None
    compiled = call.kernel.warmup(*call.args, grid=call.grid, **call.options)
    launcher = compiled.run
    if launcher.global_scratch_size or launcher.profile_scratch_size:
        return None
    # All parameters in the order of the signature; the launcher leaves constants out by itself.
    constants = tuple(call.options[name] for name in call.kernel.arg_names[len(call.args) :])
    x, y, z = (*call.grid, 1, 1)[:3]
    return way(compiled, launcher, (x, y, z), itemgetter(*public.slots), (*public.rest, *constants))


def _triton_3_6(
    compiled: Any, launcher: Any, grid: tuple[int, int, int], pick: Callable[..., Any], rest: tuple[Any, ...]
) -> Bound:
    """Triton 3.6, `triton/backends/nvidia/driver.py`: launch(grid, stream, function, ..., *arguments)."""
    launch, (x, y, z) = launcher.launch, grid
    fixed = (
        *(compiled.function, launcher.launch_cooperative_grid, launcher.launch_pdl, None, None),
        *(compiled.packed_metadata, None, None, None),
    )
    return lambda stream, pointers: launch(x, y, z, stream, *fixed, *pick(pointers), *rest)


def _triton_3_7(
    compiled: Any, launcher: Any, grid: tuple[int, int, int], pick: Callable[..., Any], rest: tuple[Any, ...]
) -> Bound:
    """Triton 3.7, `triton/backends/nvidia/driver.py`: launch(grid, stream, function, ..., arguments)."""
    launch, (x, y, z) = launcher.launch, grid
    fixed = (
        *(compiled.function, launcher.launch_cooperative_grid, launcher.launch_pdl, compiled.packed_metadata),
        *(None, None, None, None, None, launcher.arg_annotations, launcher.kernel_signature),
    )
    return lambda stream, pointers: launch(x, y, z, stream, *fixed, (*pick(pointers), *rest))


_WAYS = {"3.6": _triton_3_6, "3.7": _triton_3_7}
