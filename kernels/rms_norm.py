"""RMSNorm as people call it: a function with gradients and a module.

In: tensors. Out: y = x * rstd * (weight + offset), rstd = 1 / sqrt(mean(x^2) + eps) over the last dimension, computed
in float32. Checks arguments and allocates; what is launched how is for `dispatch`.

Most kernels take less time than Python takes to launch one, so a call of known arguments does little: everything that
its checks, its config and its binary depend on makes a key, under which the launch was kept the first time.

In the batch-invariant mode (`batch_invariant`) each row of y, rstd and dx has the bits that it has in any other batch.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from normtune.kernels.batch_invariant import is_batch_invariant, settled
from normtune.kernels.dispatch import Cache, prepared
from normtune.kernels.launcher import Prepared
from normtune.kernels.problem import ITEMSIZE, MAX_ROWS, Problem
from normtune.kernels.rms_norm_spec import MAX_HIDDEN, rms_norm_backward, rms_norm_forward

_DTYPES = {getattr(torch, name): name for name in ITEMSIZE}

_routes: "Cache[_Route]" = Cache()


def rms_norm(
    x: Tensor, weight: Tensor, eps: float = 1e-6, offset: float = 0.0, batch_invariant: bool | None = None
) -> Tensor:
    """RMSNorm over the last dimension, differentiable in x and weight.

    Args:
        x: (..., hidden), bfloat16, float16 or float32, on a CUDA GPU, last dimension contiguous, hidden 1 to 65536,
            any number of rows, 0 included.
        weight: (hidden,), contiguous, of x's dtype or float32, on the same GPU.
        eps: added to the mean square.
        offset: added to the weight, in float32: 1.0 for weights that are stored around zero.
        batch_invariant: whether each row of y, and of the gradient of x, has the same bits in every batch; None for
            what `normtune.batch_invariant` and `normtune.use_batch_invariant` say. The weight gradient sums over rows
            and always depends on the batch.

    Returns:
        y, of x's shape and dtype, contiguous.

    Raises:
        ValueError: an argument is not as above; the text names it and its value.
    """
    if torch.compiler.is_compiling():
        return _uncompiled(x, weight, eps, offset, batch_invariant)  # type: ignore[no-any-return]
    if batch_invariant is None:
        batch_invariant = is_batch_invariant()
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return _RMSNorm.apply(x, weight, eps, offset, batch_invariant)  # type: ignore[no-any-return, no-untyped-call]
    return _forward(x, weight, eps, offset, batch_invariant, store_rstd=False)[0]


_uncompiled = torch.compiler.disable(rms_norm)


class RMSNorm(torch.nn.Module):
    """RMSNorm over the last dimension with a learned weight.

    Args:
        hidden: length of the last dimension, 1 to 65536.
        eps: added to the mean square.
        offset: added to the weight; the weight starts at 1 - offset, so that the module starts as plain RMSNorm.
        device: where the weight is made.
        dtype: the weight's dtype.
        batch_invariant: as in `rms_norm`.
    """

    def __init__(
        self,
        hidden: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        batch_invariant: bool | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(hidden, int) or not 1 <= hidden <= MAX_HIDDEN:
            raise ValueError(f"hidden is {hidden!r}: expected an integer from 1 to {MAX_HIDDEN}")
        self.hidden, self.eps, self.offset, self.batch_invariant = hidden, eps, offset, batch_invariant
        self.weight = torch.nn.Parameter(torch.full((hidden,), 1.0 - offset, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize `x` (..., hidden); see `rms_norm`."""
        return rms_norm(x, self.weight, self.eps, self.offset, self.batch_invariant)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """What `print` shows."""
        mode = "" if self.batch_invariant is None else f", batch_invariant={self.batch_invariant}"
        return f"{self.hidden}, eps={self.eps}, offset={self.offset}{mode}"


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, offset: float, batch_invariant: bool) -> Tensor:
        y, read, rstd, route = _forward(x, weight, eps, offset, batch_invariant, store_rstd=True)
        ctx.save_for_backward(read, weight, rstd)
        ctx.route = route
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        if torch.is_grad_enabled():  # somebody asks for gradients of gradients
            return _once(ctx, dy)  # type: ignore[no-any-return]
        x, weight, rstd = ctx.saved_tensors
        needs_dx, needs_dweight = ctx.needs_input_grad[:2]
        dx, dweight = _backward(dy, x, weight, rstd, ctx.route, needs_dweight)
        return (dx if needs_dx else None), dweight, None, None, None


@once_differentiable  # type: ignore[untyped-decorator]
def _once(ctx: Any, dy: Tensor) -> Any:
    return _RMSNorm.backward(ctx, dy)


class _Route:
    """The launches of one kind of arguments.

    The backward finds its launch here and not by a key of its own: it runs in a thread of the autograd engine, on a
    core whose cache holds none of what a key is made of.

    Attributes:
        eps, offset, batch_invariant: arguments of the call.
        forward: None where there are no rows.
        backwards: by whether the weight gradient is wanted, and what is to be known of dy.
    """

    __slots__ = ("backwards", "batch_invariant", "eps", "forward", "offset")

    def __init__(self, eps: float, offset: float, batch_invariant: bool) -> None:
        self.eps = eps
        self.offset = offset
        self.batch_invariant = batch_invariant
        self.forward: Prepared | None = None
        self.backwards: dict[Any, Prepared] = {}


def _forward(
    x: Tensor, weight: Tensor, eps: float, offset: float, batch_invariant: bool, store_rstd: bool
) -> tuple[Tensor, Tensor, Tensor | None, _Route]:
    """Y of x's shape, x as it was read (x itself, or its rows), rstd (rows,) float32 if it is stored, and the route."""
    key = (_traits(x), _traits(weight), eps, offset, store_rstd, batch_invariant)
    route = _routes.get(key)
    if route is None:
        _check(x, weight)
    # `empty_like` is the faster one, and keeps strides, which a contiguous output must not.
    if x.is_contiguous():
        read, y = x, torch.empty_like(x)
    else:
        read, y = x.reshape(-1, x.shape[-1]), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if batch_invariant:
        read = settled(read)
    rstd = x.new_empty(x.numel() // x.shape[-1], dtype=torch.float32) if store_rstd else None
    if route is None:
        route = _Route(float(eps), float(offset), batch_invariant)
        if x.numel():
            route.forward = _new_forward(read, weight, y, rstd, route)
        _routes.keep(key, route)
    if route.forward:
        route.forward(read, weight, y, rstd)
    return y, read, rstd, route


def _new_forward(x: Tensor, weight: Tensor, y: Tensor, rstd: Tensor | None, route: _Route) -> Prepared:
    rows, hidden = x.numel() // x.shape[-1], x.shape[-1]
    problem = Problem(rms_norm_forward.name, rows, hidden, _DTYPES[x.dtype], "" if rstd is not None else "no_rstd")
    tensors = {"x": _matrix(x, rows), "weight": weight, "y": _matrix(y, rows), "rstd": rstd}
    return prepared(rms_norm_forward, problem, tensors, route.eps, route.offset, route.batch_invariant)


def _backward(
    dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, route: _Route, needs_dweight: bool
) -> tuple[Tensor, Tensor | None]:
    """Dx of dy's shape and, if wanted, dweight (hidden,) in the weight's dtype; x and rstd as `_forward` gave them."""
    if dy.is_contiguous():
        read, dx, strides = dy, torch.empty_like(dy), None
    else:
        read, dx = dy.reshape(-1, dy.shape[-1]), torch.empty(dy.shape, dtype=dy.dtype, device=dy.device)
        if read.stride(1) != 1:
            read = read.contiguous()
        strides = read.stride()
    if route.batch_invariant:
        read = settled(read)
        strides = None if read.is_contiguous() else read.stride()
    dweight = torch.empty_like(weight) if needs_dweight else None
    key = (needs_dweight, strides, read.data_ptr() % 16)
    launch = route.backwards.get(key)
    if launch is None:
        if not x.numel():
            return dx, None if dweight is None else dweight.zero_()
        launch = route.backwards[key] = _new_backward(read, x, weight, rstd, dx, dweight, route)
    launch(read, x, weight, rstd, dx, dweight)
    return dx, dweight


def _new_backward(
    dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, dx: Tensor, dweight: Tensor | None, route: _Route
) -> Prepared:
    rows, hidden = rstd.numel(), x.shape[-1]
    variant = "" if dweight is not None else "no_dweight"
    problem = Problem(rms_norm_backward.name, rows, hidden, _DTYPES[x.dtype], variant)
    tensors = {
        **{"dy": _matrix(dy, rows), "x": _matrix(x, rows), "weight": weight, "rstd": rstd},
        **{"dx": _matrix(dx, rows), "dweight": dweight},
    }
    return prepared(rms_norm_backward, problem, tensors, route.eps, route.offset, route.batch_invariant)


def _matrix(tensor: Tensor, rows: int) -> Tensor:
    """(rows, hidden); a contiguous single row gets the stride of any other, whatever it was cut from."""
    if tensor.is_contiguous():
        return tensor.view(-1).view(rows, -1)
    return tensor


def _traits(tensor: Tensor) -> tuple[Any, ...]:
    """What launches and checks depend on: binaries are specialised on pointers that are multiples of 16 bytes."""
    strides = None if tensor.is_contiguous() else tensor.stride()
    return (tensor.shape, strides, tensor.dtype, tensor.device, tensor.data_ptr() % 16)


def _check(x: Tensor, weight: Tensor) -> None:
    """Raise ValueError for what the kernels cannot take."""
    if x.dtype not in _DTYPES:
        raise ValueError(f"x is {x.dtype}: expected bfloat16, float16 or float32")
    if not x.is_cuda and not triton.knobs.runtime.interpret:
        raise ValueError(f"x is on {x.device}: normtune's kernels run on CUDA GPUs, move it with x.cuda()")
    if x.dim() == 0:
        raise ValueError("x has no dimension: expected (..., hidden)")
    hidden = x.shape[-1]
    if not 1 <= hidden <= MAX_HIDDEN:
        raise ValueError(f"x has shape {tuple(x.shape)}: expected a last dimension of 1 to {MAX_HIDDEN}")
    if x.stride(-1) != 1 and hidden > 1 and x.numel():
        raise ValueError(f"x has strides {x.stride()}: expected a contiguous last dimension, call x.contiguous()")
    if x.numel() // hidden > MAX_ROWS:
        raise ValueError(f"x has {x.numel() // hidden} rows: expected at most {MAX_ROWS}")
    if weight.shape != (hidden,):
        raise ValueError(f"weight has shape {tuple(weight.shape)}: expected ({hidden},), the last dimension of x")
    if weight.dtype not in (x.dtype, torch.float32):
        raise ValueError(f"weight is {weight.dtype}: expected {x.dtype}, as x, or torch.float32")
    if weight.device != x.device:
        raise ValueError(f"weight is on {weight.device} and x on {x.device}: expected one device")
    if not weight.is_contiguous():
        raise ValueError(f"weight has strides {weight.stride()}: expected a contiguous tensor")
