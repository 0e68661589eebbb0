"""Records the kernel launches of a function without running the kernels.

In: a function that launches Triton kernels as `kernel[grid](...)`, and a config. Out: its kernel calls in order, its
torch operations and its result. Its tensors have no memory (torch's device `meta`) and report to be on a GPU, so it may
do everything except reading their values. Meanwhile Triton's entry to a launch and some functions of torch.cuda are
replaced in this thread: only for processes that normtune starts, not for those of users.
"""

import inspect
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._library.triton import set_wrap_triton_enabled
from torch.utils._python_dispatch import TorchDispatchMode

from normtune.kernels.call import KernelCall
from normtune.kernels.calling.triton_inside import (
    compiler_options,
    is_pruned,
    launches_given_to,
    parameters,
    undecorated,
)
from normtune.kernels.custom_op.absent_gpu import on_gpu
from normtune.kernels.custom_op.declaration import Knobs
from normtune.kernels.fake_tensor import FakeTensor
from normtune.kernels.target import Target

_recording = threading.RLock()
_INT32 = range(-(2**31), 2**31)
# Operations that neither read nor write memory.
_ALLOCATIONS = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::empty_permuted", "aten::detach"}
_ALLOCATIONS |= {"aten::new_empty", "aten::new_empty_strided"}


class KernelName(NamedTuple):
    """A kernel: its module, and its qualified name there.

    Launches are stored by their `repr`, which leaves out the module, as its file may be renamed.
    """

    module: str
    name: str

    def __repr__(self) -> str:
        return repr(self.name)


class Recorded(NamedTuple):
    """A recorded call of a function.

    Attributes:
        calls: its kernel calls.
        operations: names of its torch operations that read or write memory.
        returned: its result.
        is_pruned: whether `early_config_prune` of a kernel removes the config.
    """

    calls: Sequence[KernelCall]
    operations: tuple[str, ...]
    returned: Any
    is_pruned: bool = False


def tensor_without_memory(dtype: str, shape: tuple[int, ...]) -> Tensor:
    """A contiguous tensor on torch's device `meta`."""
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


def recorded(function: Callable[[], object], knobs: Knobs, target: Target | None = None) -> Recorded:
    """Call a function and record its kernel launches and torch operations.

    Args:
        function: called once.
        knobs: the values of a config for its kernels.
        target: the GPU that tensors without memory report to be on; None if the tensors are real.

    Raises:
        TypeError: the function launches something other than a kernel, a kernel with a decorator that is not
            supported, or a kernel on a tensor in the memory of the CPU.
        Exception: the function's own.
    """
    calls: list[KernelCall] = []
    operations: list[str] = []
    pruned: list[bool] = []

    def take(kernel: Any, grid: Any) -> Callable[..., None]:
        def keep(*args: Any, **options: Any) -> None:
            inner, args, options = undecorated(kernel, args, options, *knobs)
            grids = _grid_of(inner, grid, args, options)
            calls.append(KernelCall(inner, grids, *_tensors_first(inner, args, options)))
            if target:
                _check(calls[-1])
                pruned.append(is_pruned(kernel, args, options, knobs.values))

        return keep

    with _recording, _kernels_given_to(take), ExitStack() as stack:
        if target:
            stack.enter_context(_Operations(operations))
            stack.enter_context(on_gpu(target))
        returned = function()
    return Recorded(calls, tuple(operations), returned, any(pruned))


def launched(function: Callable[[], object], knobs: Knobs) -> Any:
    """Call a function whose launches take these knobs, and return its result."""

    def take(kernel: Any, grid: Any) -> Callable[..., Any]:
        def launch(*args: Any, **options: Any) -> Any:
            inner, args, options = undecorated(kernel, args, options, *knobs)
            return inner.run(*args, grid=grid, warmup=False, **options)

        return launch

    with _kernels_given_to(take):
        return function()


@contextmanager
def _kernels_given_to(take: Callable[[Any, Any], Callable[..., Any]]) -> Iterator[None]:
    """`launches_given_to`, also for kernels in `torch.library.wrap_triton`."""
    with launches_given_to(take), set_wrap_triton_enabled(False):
        yield


def _grid_of(kernel: Any, grid: Any, args: Sequence[Any], options: Mapping[str, Any]) -> tuple[int, ...]:
    if callable(grid):
        grid = grid({**dict(zip(kernel.arg_names, args, strict=False)), **options})
    return (grid,) if isinstance(grid, int) else tuple(grid)


def _tensors_first(
    kernel: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with tensors passed by name moved to their positions, where `BoundLaunch` expects them."""
    if not any(isinstance(value, Tensor) for value in options.values()):
        return args, options
    options, moved = dict(options), list(args)
    for name in kernel.arg_names[len(args) :]:
        if name not in options:
            break
        moved.append(options.pop(name))
    return tuple(moved), options


def _check(call: KernelCall) -> None:
    """Refuse missing and unknown arguments of a kernel, and tensors in the memory of the CPU."""
    name, named = call.kernel.__name__, dict(_named(call))
    takes = _parameters(call.kernel.fn)
    if absent := [one for one, is_needed in takes.items() if is_needed and one not in named]:
        raise TypeError(f"{name} is given no {', '.join(absent)}")
    if unknown := sorted(call.options.keys() - takes.keys() - compiler_options()):
        raise TypeError(f"{name} takes no {', '.join(unknown)}, nor does the compiler")
    if len(call.args) > len(takes):
        raise TypeError(f"{name} takes {len(takes)} arguments and is given {len(call.args)}")
    for argument, value in named.items():
        base = value.base if is_descriptor(value) else value
        if isinstance(base, Tensor) and not base.is_meta:
            raise TypeError(f"the tensor {argument} of {name} is on the CPU: expected device=x.device")


@cache
def _parameters(function: Callable[..., Any]) -> dict[str, bool]:
    """The parameters of a kernel, and whether each is required."""
    return {one.name: one.default is one.empty for one in inspect.signature(function).parameters.values()}


class _Operations(TorchDispatchMode):
    def __init__(self, names: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition(".")[0]
        if not func.is_view and name not in _ALLOCATIONS:
            self._names.append(name)
        return func(*args, **(kwargs or {}))


def with_fake_tensors(calls: Sequence[KernelCall]) -> list[KernelCall]:
    """The calls with fake tensors, which Triton's warm-up takes without torch."""

    def value(argument: Any) -> Any:
        if isinstance(argument, Tensor):
            return FakeTensor(
                _name(argument.dtype), tuple(argument.shape), int(argument.storage_offset()) * argument.element_size()
            )
        if is_descriptor(argument):
            return replace(argument, base=value(argument.base))
        return tuple(map(value, argument)) if type(argument) is tuple else argument

    return [
        call._replace(args=tuple(map(value, call.args)), options={name: value(v) for name, v in call.options.items()})
        for call in calls
    ]


def is_descriptor(value: Any) -> bool:
    """Whether an argument of a kernel is a tensor descriptor that the host makes, of Triton or Gluon."""
    return hasattr(value, "base") and hasattr(value, "block_shape")


def _blocks(descriptor: Any) -> str:
    """What a binary depends on besides the dtype."""
    besides = vars(descriptor).keys() - {"base", "shape", "strides", "block_shape"}
    options = "".join(f", {name}={getattr(descriptor, name)}" for name in sorted(besides))
    return f"in blocks of {[*descriptor.block_shape]}{options}"


def launch_of(call: KernelCall, tensors: Mapping[str, Any]) -> Hashable:
    """The launch of a call: kernel, grid and arguments in order; of tensors the name and dtype.

    Calls with different launches may share a binary, which is not specialised on the value of every integer.
    """
    names = {id(tensor): name for name, tensor in tensors.items()}
    arguments = tuple((name, _value(value, names)) for name, value in _named(call))
    return _name_of(call.kernel), call.grid, arguments


def _name_of(kernel: Any) -> KernelName:
    return KernelName(kernel.__module__, kernel.fn.__qualname__)


def binary_of(call: KernelCall) -> Hashable:
    """Identifies the machine code of a call: kernel, constants and specialisation.

    Triton specialises on whether an integer is 1 or a multiple of 16, on whether it fits 32 bits, and on whether a
    tensor begins at a multiple of 16 bytes.
    """
    kernel = call.kernel
    named = {one.name: one for one in parameters(kernel)}
    kinds = tuple((name, _kind(value, named.get(name))) for name, value in sorted(_named(call), key=itemgetter(0)))
    return _name_of(kernel), kinds


def _named(call: KernelCall) -> list[tuple[str, Any]]:
    """The arguments of a call with their names, positional ones first."""
    return [*zip(call.kernel.arg_names, call.args, strict=False), *sorted(call.options.items())]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).rpartition(".")[2]


@cache
def _triton_name(dtype: torch.dtype) -> str:
    """Triton's name of a dtype, such as `bf16`."""
    return str(FakeTensor(_name(dtype), ()).dtype)


def _value(value: Any, names: Mapping[int, str]) -> Hashable:
    if isinstance(value, Tensor):
        name = names.get(id(value))
        if name is not None:
            return name, _triton_name(value.dtype)
        whole = names.get(id(value._base), "")
        return whole, _triton_name(value.dtype), tuple(value.shape), value.stride(), value.storage_offset()
    if is_descriptor(value):
        base = _value(value.base, names)
        assert isinstance(base, tuple)
        return (*base, _blocks(value), repr(value.shape), repr(value.strides))
    if isinstance(value, tuple):
        return tuple(_value(part, names) for part in value)
    # 1, 1.0 and True are equal in Python, but compile to different kernels.
    return type(value).__name__, repr(value)


def _kind(value: Any, parameter: Any) -> Hashable:
    if isinstance(value, Tensor):
        offset = value.storage_offset() * value.element_size()
        return (_triton_name(value.dtype), "unaligned") if offset % 16 else _triton_name(value.dtype)
    if is_descriptor(value):
        return _triton_name(value.base.dtype), _blocks(value)
    if parameter is None or parameter.is_constexpr or value is None or isinstance(value, bool):
        return (type(value).__name__, repr(value) if isinstance(value, torch.dtype) else value)
    if isinstance(value, int):
        if parameter.do_not_specialize:
            return value in _INT32
        return value in _INT32, value == 1, value % 16 == 0
    return type(value).__name__
