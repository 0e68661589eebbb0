"""The public warmup: loads every binary that calls may launch, ahead of the first one.

In: an example of a call; or hidden size, dtype and GPU of `rms_norm`. Out: the binaries, compiled and loaded.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, overload

import torch

from normtune.errors import NormtuneError
from normtune.kernels.calling.warmup import load_all, with_gradients
from normtune.kernels.rms_norm.function import CALLS, rms_norm


@overload
def warmup(
    hidden: int,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str | int = "cuda",
    *,
    weight_dtype: torch.dtype | None = None,
    batch_invariant: bool | None = None,
    gradients: bool = True,
) -> int: ...


@overload
def warmup(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> int: ...


def warmup(*arguments: Any, **named: Any) -> int:  # noqa: D417  (of the overloads)
    """Compile and load all that a call may launch with any number of rows.

    `warmup(normtune.rms_norm_gated, x, weight, z, group_size=64)` makes this call, then loads what the table can return
    for any other number of rows (or tokens): of each launch that the call makes, so that `warmup(model, inputs)` serves
    a whole model. The call is made without gradients, and once more with them if an argument, or a parameter of a
    module, needs one; its gradients are dropped. Give gradients to the tensors that will have them: a backward without
    that of the weight is another binary. `warmup(4096, torch.bfloat16)` is the same for `rms_norm` on contiguous rows
    of this length, with every choice of gradients.

    Later calls like the example compile and load nothing, so they may come first in a CUDA graph capture or in a
    server's first request. Alike are all arguments but the number of rows: the other sizes, dtypes, whether pointers
    are multiples of 16 bytes, by which powers of two up to 16 strides between rows are divisible, and options, of which
    eps counts only if it is subnormal. Call it again after `normtune.use_table`, for it also drops kept launches.

    Args:
        function: one of this package, a module, or any function that calls them, with tensors on a GPU.
        arguments, named: of the example, with a row or more, or two if rows are not contiguous. What the function
            writes in place is written.
        hidden: length of a row, 1 to 1048576.
        dtype: of x: bfloat16, float16 or float32.
        device: a CUDA GPU.
        weight_dtype: of the weight; by default x's.
        batch_invariant: as in `rms_norm`.
        gradients: include the backward.

    Returns:
        Number of distinct kernel calls that are ready.

    Raises:
        TypeError: as the function, for the example.
        ValueError: an argument is wrong, or the example launched no kernel of this package.
        NormtuneError: torch sees no GPU.
    """
    if not arguments or not callable(arguments[0]):
        return _of_rms_norm(*arguments, **named)
    ready = load_all(partial(with_gradients, *arguments, **named))
    if not ready:
        name = getattr(arguments[0], "__name__", type(arguments[0]).__name__)
        raise ValueError(f"{name} launched no kernel of normtune: expected tensors on a GPU that its kernels take")
    return ready


def _of_rms_norm(
    hidden: int,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str | int = "cuda",
    *,
    weight_dtype: torch.dtype | None = None,
    batch_invariant: bool | None = None,
    gradients: bool = True,
) -> int:
    most, dtypes = CALLS["gemma"].operation.forward.max_hidden, CALLS["gemma"].operation.dtypes
    if not isinstance(hidden, int) or not 1 <= hidden <= most:
        raise ValueError(f"hidden is {hidden!r}: expected an integer from 1 to {most}, or the function of an example")
    if dtype not in dtypes:
        raise ValueError(f"dtype is {dtype!r}: expected {', '.join(map(str, dtypes))}")
    if weight_dtype not in (None, dtype, torch.float32):
        raise ValueError(f"weight_dtype is {weight_dtype!r}: expected {dtype} or torch.float32")
    gpu = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if gpu.type != "cuda":
        raise ValueError(f"device is {gpu}: expected a CUDA GPU")
    if not torch.cuda.is_available():
        raise NormtuneError(f"device is {gpu}, but torch sees no GPU here: `normtune doctor` says why")

    def calls() -> None:
        for needs in ((True, False), (True, True), (False, True)) if gradients else ((False, False),):
            x = torch.ones(1, hidden, dtype=dtype, device=gpu, requires_grad=needs[0])
            weight = torch.ones(hidden, dtype=weight_dtype or dtype, device=gpu, requires_grad=needs[1])
            with torch.set_grad_enabled(gradients):
                with_gradients(rms_norm, x, weight, batch_invariant=batch_invariant)

    return load_all(calls)
