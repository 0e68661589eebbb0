"""Repeats launches on other tensors without Triton's binder, which takes at least 10 us a call.

In: kernel calls with real tensors. Out: a `BoundLaunch`, which launches the same binaries on tensors with equal shapes,
strides, dtypes and pointer alignment. It keeps numbers and binaries, never a tensor. Launches that need the same binary
share it, whatever their grid and number of rows.

The fast way depends on Triton's version (`triton_inside`). With other versions and vendors, and while one of Triton's
hooks has a listener, kernels are launched by the public `kernel[grid]`.
"""

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from normtune.kernels.call import AnyLaunch, KernelCall
from normtune.kernels.calling.triton_inside import (
    OTHER,
    Pick,
    StreamLaunch,
    bind,
    is_heard,
    parameters,
    stream_of_device,
)
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem

# Triton specialises pointers on multiples of this many bytes.
_POINTER_BYTES = 16
_INT32 = range(-(2**31), 2**31)
_binaries: dict[tuple[Any, ...], Any] = {}
# Triton exposes a kernel to other threads while its binary is still being loaded.
_loading = threading.Lock()


class BoundLaunch:
    """Repeatable kernel calls.

    Args:
        calls: the kernel calls; their tensors are among `tensors`.
        tensors: all different objects (`distinct_views`), None for one that is left out; not kept.
        workspace: float32 elements that each launch allocates; the tensor for them is then the last of `tensors`.
        device: CUDA's number of the GPU; None if kernels are interpreted.
        reuses_dy: whether this launch of a backward may write dx into the memory of dy.
        problem: that the launch was resolved for; None if it is of no operator.

    Raises:
        ValueError: in a kernel call, a tensor comes after an argument that is not a tensor.
    """

    __slots__ = (
        "_device",
        "_hooks",
        "_launches",
        "_one_device",
        "_public",
        "_stream_of",
        "_workspace",
        "problem",
        "reuses_dy",
    )

    def __init__(
        self,
        calls: Sequence[KernelCall],
        tensors: Sequence[Tensor | None],
        workspace: int,
        device: int | None,
        reuses_dy: bool = False,
        problem: Problem | None = None,
    ) -> None:
        self.reuses_dy, self.problem = reuses_dy, problem
        self._device = device
        self._workspace = workspace
        self._public = [_PublicLaunch(call, tensors) for call in calls]
        self._hooks = [getattr(call.kernel, "pre_run_hooks", ()) for call in calls]
        self._one_device = device is not None and torch.cuda.device_count() == 1
        self._launches: list[StreamLaunch] = []
        if device is not None:
            pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
            with torch.cuda.device(device):
                self._launches, self._stream_of = _stream_launches(calls, self._public, device, pointers)

    @property
    def is_fast(self) -> bool:
        """Whether launches avoid Triton's binder while its hooks have no listener."""
        return bool(self._launches)

    @property
    def options(self) -> list[dict[str, Any]]:
        """The keyword arguments of each kernel call: constexprs and compiler options."""
        return [public.options for public in self._public]

    def __call__(self, *tensors: Any) -> None:
        """Launch on the device's current stream, on tensors like those of the construction, without the workspace."""
        self.at([None if tensor is None else tensor.data_ptr() for tensor in tensors], *tensors)

    def at(self, pointers: Sequence[int | None], *tensors: Any) -> None:
        """As `__call__`, for a caller that has the pointers of the tensors, None for a missing one: 0.3 us less."""
        if self._workspace:
            workspace = tensors[0].new_empty(self._workspace, dtype=torch.float32)
            tensors, pointers = (*tensors, workspace), (*pointers, workspace.data_ptr())
        if not self._launches or any(self._hooks) or is_heard():
            self._launch_publicly(tensors)
            return
        if self._one_device or torch.cuda.current_device() == self._device:
            stream = self._stream_of(self._device)
            for launch in self._launches:
                launch(stream, pointers)
        else:
            with torch.cuda.device(self._device):
                stream = self._stream_of(self._device)
                for launch in self._launches:
                    launch(stream, pointers)

    def _launch_publicly(self, tensors: tuple[Tensor | None, ...]) -> None:
        if self._device is None:
            for call in self._public:
                call(tensors)
            return
        with torch.cuda.device(self._device):
            for call in self._public:
                call(tensors)


def bind_launch(
    spec: OperatorSpec,
    launch: AnyLaunch,
    problem: Problem,
    tensors: Mapping[str, Tensor | None],
    scalars: Mapping[str, float],
    options: Mapping[str, Any] | None = None,
    reuses_dy: bool = False,
    workspace: Tensor | None = None,
) -> BoundLaunch:
    """A launch of an operator, repeatable on tensors like these.

    Args:
        spec: the operator.
        launch: resolved for `problem`.
        problem: of at least one row.
        tensors: by name, in the order of the operator's `buffers`; None for one that the variant leaves out.
        scalars: a value for each of the operator's `scalars`.
        options: further compiler options.
        reuses_dy: as in `BoundLaunch`.
        workspace: which the caller passes to each launch as the last tensor; None if each launch allocates its own.
    """
    there = distinct_views(tensors)
    first = next(iter(there.values()))
    allocated = launch.workspace if workspace is None else 0
    if allocated:
        workspace = torch.empty(allocated, dtype=torch.float32, device=first.device)
    calls = calls_of(spec, launch, problem, there, workspace, scalars, options)
    arguments = [*map(there.get, tensors), *([] if workspace is None else [workspace])]
    device = first.device.index if first.is_cuda else None
    return BoundLaunch(calls, arguments, allocated, device, reuses_dy, problem)


def calls_of(
    spec: OperatorSpec,
    launch: AnyLaunch,
    problem: Problem,
    tensors: Mapping[str, Tensor],
    workspace: Tensor | None,
    scalars: Mapping[str, float],
    options: Mapping[str, Any] | None,
) -> Sequence[KernelCall]:
    """The kernel calls of a launch, with further compiler options."""
    calls = spec.calls(launch, problem, tensors, workspace, scalars)
    return [call._replace(options={**call.options, **options}) for call in calls] if options else calls


def distinct_views(tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    """New views of the tensors, without None.

    `BoundLaunch` finds the tensors among a call's arguments by identity. So a tensor that is passed twice, or is both
    input and output, must be two objects: later launches may have different tensors there.
    """
    return {name: tensor.view(tensor.shape) for name, tensor in tensors.items() if tensor is not None}


class _PublicLaunch:
    """A kernel call on other tensors through Triton's public interface.

    Attributes:
        slots: for each leading argument that is a tensor or None, its index among the tensors; `count` for a None that
            is not among them.
        rest: the other positional arguments.
        options: constexprs and compiler options.
        count: number of tensors.

    Raises:
        ValueError: a tensor comes after an argument that is not a tensor.
    """

    __slots__ = ("_grid", "_kernel", "count", "options", "rest", "slots")

    def __init__(self, call: KernelCall, tensors: Sequence[Tensor | None]) -> None:
        self._kernel, self._grid, self.options, self.count = call.kernel, call.grid, call.options, len(tensors)
        indices = {id(tensor): index for index, tensor in enumerate(tensors)}
        slots = []
        indices.setdefault(id(None), self.count)
        for argument in call.args:
            if id(argument) not in indices:
                break
            slots.append(indices[id(argument)])
        while slots and slots[-1] == self.count:
            slots.pop()
        # One of several missing tensors at the end suffices: `rest` has the other Nones, and the order is kept.
        while len(slots) > 1 and slots[-1] == slots[-2] and tensors[slots[-1]] is None:
            slots.pop()
        self.slots = tuple(slots)
        self.rest = call.args[len(slots) :]
        if any(isinstance(argument, Tensor) for argument in self.rest):
            raise ValueError(f"{call.kernel}: expected its tensors before its other arguments")

    def __call__(self, tensors: Sequence[Tensor | None]) -> None:
        every = (*tensors, None)
        self._kernel[self._grid](*(every[slot] for slot in self.slots), *self.rest, **self.options)


def _stream_launches(
    calls: Sequence[KernelCall], publics: Sequence[_PublicLaunch], device: int, pointers: Sequence[int | None]
) -> tuple[list[StreamLaunch], Any]:
    """The fast launches of kernel calls on `device`, the current one, and the function that returns its current stream.

    No launches unless each call has one: the two ways of launching treat the current device differently.
    """
    try:
        stream_of = stream_of_device()
        if stream_of is None or not all(public.slots for public in publics):
            return [], None
        bound = []
        for call, public in zip(calls, publics, strict=True):
            picked = _pick_of(public), public.rest
            launch = bind(call, _loaded(call, device), *picked, stream_of(device), pointers)
            if launch is None:
                return [], None
            bound.append(launch)
        return bound, stream_of
    except OTHER:
        return [], None


def _pick_of(public: _PublicLaunch) -> Pick:
    if len(public.slots) == 1:  # for one index, itemgetter returns no tuple
        return itemgetter(slice(public.slots[0], public.slots[0] + 1))
    if public.slots == tuple(range(public.count)):
        return tuple
    pick: Pick = itemgetter(*public.slots)
    return partial(_with_none, pick) if public.count in public.slots else pick


def _with_none(pick: Pick, pointers: Sequence[int | None]) -> Sequence[int | None]:
    return pick((*pointers, None))


def _loaded(call: KernelCall, device: int) -> Any:
    """The compiled kernel of a call, loaded on `device`, the current one."""
    key = (device, *binary_of(call))
    compiled = _binaries.get(key)
    if compiled is None:
        with _loading:
            compiled = call.kernel.warmup(*call.args, grid=call.grid, **call.options)
            getattr(compiled, "run", None)  # loads the binary
            _binaries[key] = compiled
    return compiled


def load(call: KernelCall, device: int | None) -> None:
    """Compile the binary of a call and load it on a GPU; nothing if kernels are interpreted."""
    if device is not None:
        with torch.cuda.device(device):
            _loaded(call, device)


def binary_of(call: KernelCall) -> tuple[Any, ...]:
    """A key of everything on which the binary of a call depends."""
    kinds = tuple(map(_kind, call.args, parameters(call.kernel)))
    return call.kernel, kinds, tuple(call.options.items())


def _kind(argument: Any, parameter: Any) -> Any:
    """The properties of a positional argument on which a binary is specialised."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % _POINTER_BYTES == 0
    if isinstance(argument, float):
        return float
    if isinstance(argument, int) and not isinstance(argument, bool) and getattr(parameter, "do_not_specialize", True):
        return argument in _INT32
    return argument
