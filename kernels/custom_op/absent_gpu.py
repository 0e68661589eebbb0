"""Makes torch and Triton report a GPU that is not there: answers all that a function may ask of it around its launches.

In: a target, and the device of the tensors' memory: torch's `meta` to record launches, the CPU to interpret kernels.
Meanwhile functions of torch.cuda and torch.accelerator are replaced: only for processes that normtune starts, not for
those of users.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode

from normtune.kernels.calling.triton_inside import is_interpreting, target_named
from normtune.kernels.target import TARGETS, Target

META, CPU = torch.device("meta"), torch.device("cpu")
_GPU = torch.device("cuda", 0)
# Functions that read the values of a tensor.
_READS = {Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.__bool__, Tensor.__int__, Tensor.__float__}
_READS |= {Tensor.__index__, Tensor.nonzero, torch.nonzero, Tensor.equal, torch.equal}
# Bytes of memory; a target does not say how many there are.
_MEMORY = 16 << 30


class _Pretended(TorchFunctionMode):
    """Tensors in `memory` report a GPU as their device, and tensors created on a GPU are allocated in `memory`."""

    def __init__(self, memory: torch.device = META) -> None:
        super().__init__()
        self._memory = memory

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        getter = getattr(func, "__self__", None)
        if getter is Tensor.is_cuda:
            return True
        if getter is Tensor.is_meta:
            return func(*args)
        if getter is Tensor.device:
            return _GPU if func(*args) == self._memory else func(*args)
        if func is Tensor.get_device:
            return 0
        if func in (Tensor.cuda, Tensor.pin_memory):
            return args[0]
        if func is Tensor.record_stream:
            return None
        if func in _READS and any(isinstance(one, Tensor) and one.is_meta for one in args):
            raise TypeError(
                f"{func.__name__}() reads the values of a tensor: expected launches that depend on shapes alone"
            )
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = self._actual(kwargs["device"])
        if func is Tensor.to:
            args = tuple(self._actual(one) if isinstance(one, str | torch.device) else one for one in args)
        if (function := _function_of(func)) is not None:
            with self:
                return function(*args, **kwargs)
        return func(*args, **kwargs)

    def _actual(self, device: Any) -> Any:
        is_gpu = isinstance(device, int) or torch.device(device).type == "cuda"
        return self._memory if is_gpu else device


def _function_of(operation: Any) -> Callable[..., Any] | None:
    """The GPU's function of an operation of `torch.library.custom_op` or `triton_op`; None of any other operation."""
    if not isinstance(operation, OpOverload):
        return None
    functions = getattr(OPDEFS.get(operation.name().partition(".")[0]), "_backend_fns", {})
    return functions.get("cuda") or functions.get(None)


class _Nothing(torch.Stream):
    """In place of streams, events, and what makes a GPU or a stream the current one in a `with`."""

    cuda_stream = 0

    def __new__(cls, *_: object, **__: object) -> Self:
        """The same stream whatever is asked for: torch's functions take no other object in place of one."""
        return super().__new__(cls, stream_id=0, device_index=0, device_type=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def record(self, *_: object) -> Self:
        """Do nothing, as there is nothing to wait for."""
        return self

    wait = synchronize = wait_stream = wait_event = record_event = record  # type: ignore[assignment]

    def query(self) -> bool:
        """Everything is done."""
        return True


@contextmanager
def on_gpu(target: Target, memory: torch.device = META) -> Iterator[None]:
    """In a `with`, torch and Triton report a GPU of this target, and tensors in `memory` report to be on it."""
    with ExitStack() as stack:
        for module, values in _answers(target).items():
            stack.enter_context(_replaced(module, values))
        stack.enter_context(target_named(target))
        stack.enter_context(_Pretended(memory))
        yield


@cache
def _answers(target: Target) -> Mapping[ModuleType, Mapping[str, Any]]:
    """What functions of each module return for a GPU of this target, by name."""
    is_nvidia = target.name.startswith("sm_")
    version = divmod(int(target.name[3:]), 10) if is_nvidia else (9, 4)
    properties = SimpleNamespace(
        name=target.name,
        gcnArchName=target.name,
        major=version[0],
        minor=version[1],
        multi_processor_count=target.sms,
        warp_size=target.warp_size,
        L2_cache_size=target.l2_bytes,
        shared_memory_per_block=min(target.shared_bytes, 48 << 10 if is_nvidia else 64 << 10),
        shared_memory_per_block_optin=target.shared_bytes,
        regs_per_multiprocessor=65536,
        max_threads_per_block=target.max_threads,
        total_memory=_MEMORY,
    )
    of_cuda = _of_both() | {
        **{name: _returns(True) for name in ("is_initialized", "is_bf16_supported")},
        **{name: _returns(None) for name in ("set_device", "init")},
        **{name: _nothing(name) for name in ("device", "device_of", "stream", "default_stream", "Stream", "Event")},
        "current_device": _returns(0),
        "is_current_stream_capturing": _returns(False),
        "get_device_properties": _returns(properties),
        "get_device_capability": _returns(version),
        "get_device_name": _returns(target.name),
        "mem_get_info": _returns((_MEMORY, _MEMORY)),
    }
    of_accelerator = _of_both() | {
        **{name: _returns(0) for name in ("current_device_index", "current_device_idx")},
        **{name: _returns(None) for name in ("set_device_index", "set_device_idx")},
        "current_accelerator": _returns(_GPU),
        "device_index": _nothing("device_index"),
        "get_memory_info": _returns((_MEMORY, _MEMORY)),
    }
    of_nvtx = {name: _returns(0) for name in ("range_push", "range_pop", "mark")} | {"range": _nothing("range")}
    answers = {torch.cuda: of_cuda, torch.accelerator: of_accelerator, torch.cuda.nvtx: of_nvtx}
    return {
        module: {name: value for name, value in values.items() if hasattr(module, name)}
        for module, values in answers.items()
    }


def _of_both() -> dict[str, Any]:
    """What torch.cuda and torch.accelerator have. An object has one name, as torch.compile refuses others."""
    return {
        **{name: _returns(None) for name in ("synchronize", "empty_cache", "set_stream", "reset_peak_memory_stats")},
        **{f"{most}memory_{kind}": _returns(0) for most in ("", "max_") for kind in ("allocated", "reserved")},
        "is_available": _returns(True),
        "device_count": _returns(1),
        "current_stream": _nothing("current_stream"),
    }


def _returns(value: Any) -> Callable[..., Any]:
    """A new function that returns the value whatever it is called with."""
    return lambda *_, **__: value


def _nothing(name: str) -> type[_Nothing]:
    return type(name, (_Nothing,), {})


@contextmanager
def _replaced(module: ModuleType, values: Mapping[str, Any]) -> Iterator[None]:
    """In a `with`, replace attributes of a module; unittest.mock takes several times as long."""
    before = {name: getattr(module, name) for name in values}
    vars(module).update(values)
    try:
        yield
    finally:
        vars(module).update(before)


def while_imported() -> AbstractContextManager[None]:
    """A GPU for libraries that query one when they are imported, to choose numbers of stages or configs."""
    return on_gpu(TARGETS["sm_90"], CPU if is_interpreting() else META)
