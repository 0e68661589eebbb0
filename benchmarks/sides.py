"""The sides of a comparison, and the peers of RMSNorm.

Out: `Side`s, each with its version, a function with gradients for a shape, and a witness of the code that must have
run. `cases` has the sides of each case; `beside` checks and times them.
"""

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple
from unittest.mock import patch

OURS = "normtune"
EPS = 1e-6

Tensors = Mapping[str, Any]
# Tensors by name to results, differentiable.
Function = Callable[[Tensors], tuple[Any, ...]]


class Side(NamedTuple):
    """One side of the comparison.

    Attributes:
        version: of its distribution.
        make: (rows, hidden) to its function; raises the reason if it takes no part at that shape.
        witness: context of a checked call; raises if other code ran.
    """

    version: str
    make: Callable[[int, int], Function]
    witness: Callable[[], AbstractContextManager[None]] = nullcontext


def _of_norm(version: str, make: Callable[[int, int], Any], witness: Any = nullcontext) -> Side:
    """A side whose `make` returns RMSNorm as a function of x and weight."""

    def of_tensors(rows: int, hidden: int) -> Function:
        norm = make(rows, hidden)
        return lambda given: (norm(given["x"], given["weight"]),)

    return Side(version, of_tensors, witness)


def _torch() -> Side:
    import torch
    from torch.nn.functional import rms_norm

    return _of_norm(torch.__version__, lambda rows, hidden: lambda x, weight: rms_norm(x, (hidden,), weight, EPS))


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled by Inductor, for one shape only."""
    import torch
    from torch._functorch import config as functorch_config

    # By default a backward frees saved tensors while it runs, but a captured one runs more than once.
    functorch_config.donated_buffer = False
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def _inductor() -> Side:
    import torch

    def plain(x: Any, weight: Any) -> Any:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * weight.float()).to(x.dtype)

    return _of_norm(torch.__version__, lambda rows, hidden: compiled(plain), triton_ran)


@contextmanager
def triton_ran() -> Iterator[None]:
    """Raise unless a Triton kernel of Inductor is launched in the block, in any thread.

    Raises:
        RuntimeError: no such launch.
    """
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    launched = []
    run = CachingAutotuner.run

    def counted(kernel: Any, *arguments: Any, **named: Any) -> Any:
        launched.append(kernel)
        return run(kernel, *arguments, **named)

    CachingAutotuner.run = counted
    try:
        yield
    finally:
        CachingAutotuner.run = run
    if not launched:
        raise RuntimeError("Inductor ran no Triton kernel")


def _liger() -> Side:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    # In place, as its module does by default: the gradient of x replaces that of y.
    return _of_norm(
        version("liger-kernel"), lambda rows, hidden: lambda x, weight: LigerRMSNormFunction.apply(x, weight, EPS)
    )


# The rule of Liger-Kernel #1238 in place of the shipped one: the block-row kernels run at blocks of columns of at most
# 512 and from 4096 rows, not at most 256 and from 32768.
LIGER_1238 = {256: 512, 32768: 4096}


def _liger_1238() -> Side:
    # A second copy of its module: the first one keeps the shipped rule.
    module_spec = importlib.util.find_spec("liger_kernel.ops.rms_norm")
    if module_spec is None or module_spec.loader is None:
        raise ImportError("no module liger_kernel.ops.rms_norm")
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    try:
        for function in (module.rms_norm_forward, module.rms_norm_backward):
            with_constants(function, LIGER_1238)
    except ValueError as error:
        raise ImportError(f"its rule cannot be changed: {error}") from None
    function = module.LigerRMSNormFunction

    def make(rows: int, hidden: int) -> Any:
        if is_block_row(rows, hidden, 512, 4096) == is_block_row(rows, hidden, 256, 32768):
            raise ValueError("the same as liger at this shape")
        return lambda x, weight: function.apply(x, weight, EPS)

    return _of_norm(f"{version('liger-kernel')} with the rule of #1238", make)


def is_block_row(rows: int, hidden: int, block: int, least: int) -> bool:
    """Whether Liger's rule with these two constants takes the block-row kernels."""
    return hidden <= block and rows >= least


def with_constants(function: Any, changes: Mapping[int, int]) -> None:
    """Replace constants in the code of a function.

    Raises:
        ValueError: a constant is not in it.
    """
    constants = function.__code__.co_consts
    for value in changes:
        if value not in constants:
            raise ValueError(f"{function.__name__} has no constant {value}")
    changed = tuple(changes.get(value, value) if type(value) is int else value for value in constants)
    function.__code__ = function.__code__.replace(co_consts=changed)


def liger_cute(name: str) -> tuple[str, Callable[..., Any]]:
    """Version and function of an operator of Liger-Kernel by its CuTe kernels; ImportError without CuTe's compiler."""
    import cutlass.cute  # noqa: F401 - Liger itself would only say that nothing is registered
    from liger_kernel import functional

    told = f"{version('liger-kernel')} with nvidia-cutlass-dsl {version('nvidia-cutlass-dsl')}"
    return told, partial(getattr(functional, name), eps=EPS, impl="nvidia-cutedsl")


def liger_is_strict() -> AbstractContextManager[Any]:
    """In the block Liger-Kernel raises where it would take Triton kernels in place of those asked for."""
    return patch.dict(os.environ, LIGER_KERNEL_STRICT="1")


def _liger_cute() -> Side:
    told, norm = liger_cute("rms_norm")
    return _of_norm(told, lambda rows, hidden: norm, liger_is_strict)


def _quack() -> Side:
    from quack import rmsnorm

    return _of_norm(version("quack-kernels"), lambda rows, hidden: lambda x, weight: rmsnorm(x, weight, eps=EPS))


PEERS: dict[str, Callable[[], Side]] = {
    "torch": _torch,
    "inductor": _inductor,
    "liger": _liger,
    "liger_1238": _liger_1238,
    "liger_cute": _liger_cute,
    "quack": _quack,
}
