"""Makes torch and Triton report a GPU that is not there, for functions that query it before they launch.

In: a target, and the device of the tensors' memory: torch's `meta` to record launches, the CPU to interpret kernels.
Meanwhile functions of torch.cuda are replaced: only for processes that normtune starts, not for those of users.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
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
        if func is Tensor.cuda:
            return args[0]
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


class _Nothing:
    """In place of `torch.cuda.device` and streams."""

    cuda_stream = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@contextmanager
def on_gpu(target: Target, memory: torch.device = META) -> Iterator[None]:
    """In a `with`, torch and Triton report a GPU of this target, and tensors in `memory` report to be on it."""
    major, minor = divmod(int(target.name[3:]), 10) if target.name.startswith("sm_") else (9, 4)
    properties = SimpleNamespace(
        name=target.name,
        major=major,
        minor=minor,
        multi_processor_count=target.sms,
        warp_size=target.warp_size,
        L2_cache_size=target.l2_bytes,
        shared_memory_per_block_optin=target.shared_bytes,
    )
    of_cuda = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: (major, minor),
        "get_device_name": lambda *_: target.name,
        "set_device": lambda *_: None,
        "synchronize": lambda *_: None,
        "current_stream": _Nothing,
        "device": _Nothing,
    }
    of_accelerator = {"current_accelerator": lambda *_, **__: _GPU}
    with (
        _replaced(torch.cuda, of_cuda),
        _replaced(torch.accelerator, of_accelerator),
        target_named(target),
        _Pretended(memory),
    ):
        yield


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
