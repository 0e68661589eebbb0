"""The public function `rms_norm`, called as `torch.nn.functional.rms_norm` or with fewer arguments, and the module.

In: arguments. Out: y = x * rstd * (weight + offset), rstd = 1 / sqrt(mean(x^2) + eps), computed in float32. There is an
`Operation` for each casting mode; `normalizing` has what they share with those of other norms. `RMSNormDecomposition`
is the same in torch's operations: for inputs that the kernels do not take, and for higher derivatives.
"""

from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from inspect import signature
from numbers import Integral
from typing import Any, Literal, NamedTuple, get_overloads, overload

import torch
from torch import Tensor, is_grad_enabled
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function, has_torch_function_variadic

from normtune.kernels.calling.arguments import check_choice, check_flag, check_module
from normtune.kernels.calling.autograd import apply
from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.calling.cached import forward_of_two
from normtune.kernels.calling.fallback import compute_dtype, keeps_subnormal, machine_epsilon, sum_of_rows
from normtune.kernels.calling.layout import PLAIN_TYPES
from normtune.kernels.calling.op import BackwardOp, is_compiling, is_proxy, is_traced, modes, transforms
from normtune.kernels.calling.operation import Operation, Way
from normtune.kernels.mode import Product, Statistics
from normtune.kernels.rms_norm.operator import rms_norm_backward, rms_norm_forward


class RMSNormDecomposition(NamedTuple):
    """The formula, with a choice of what is rounded to the dtype of x on the way.

    Attributes:
        rounds_product: round the normalized row, and the terms of the weight gradient.
        rounds_statistics: round squares, eps, weight + offset and rstd.
    """

    rounds_product: bool = False
    rounds_statistics: bool = False

    def forward(self, x: Tensor, weight: Tensor | None, eps: float, offset: float) -> tuple[Tensor, Tensor]:
        """Normalized rows, and the factor of each row.

        Args:
            x: (..., hidden).
            weight: (hidden,); None for rows that are only normalized.
            eps: added to the mean square.
            offset: added to the weight.

        Returns:
            y = x * rstd * (weight + offset), of x's shape and dtype, and rstd = 1 / sqrt(mean(x^2) + eps), (...,).
        """
        y, rstd = self.normalized(x.to(compute_dtype(x)), weight, eps, offset, x.dtype)
        return y, _rounded(rstd, x.dtype) if self.rounds_statistics else rstd

    def normalized(
        self, wide: Tensor, weight: Tensor | None, eps: float, offset: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """The rows y in `dtype`, and rstd before it is rounded, given rows in the compute dtype."""
        rstd = self._rstd(wide, eps, dtype)
        xhat = wide * rstd.unsqueeze(-1)
        if self.rounds_product:
            xhat = _rounded(xhat, dtype)
        if weight is not None:
            xhat = xhat * self._scale(weight.to(wide.dtype), offset, dtype)
        return xhat.to(dtype), rstd

    def factors(self, x: Tensor, weight: Tensor | None, eps: float, offset: float) -> tuple[Tensor]:
        """The rstd of `forward`, from the same arguments."""
        rstd = self._rstd(x.to(compute_dtype(x)), eps, x.dtype)
        return (_rounded(rstd, x.dtype) if self.rounds_statistics else rstd,)

    def backward(
        self, dy: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor, eps: float, offset: float
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients of x and of the weight.

        With g = dy * (weight + offset), xhat = x * rstd and m = mean(g * xhat) over a row:
            dx = rstd * (g - xhat * m)          dweight = sum over rows of dy * xhat

        Args:
            dy: (..., hidden), the gradient of y.
            x: (..., hidden), of the forward.
            weight: (hidden,) or None, of the forward.
            rstd: (...,), from `forward`.
            eps: of the forward; not read, as rstd includes it.
            offset: added to the weight.

        Returns:
            dx, of x's shape and dtype, and dweight, of the weight's; None without a weight.
        """
        wide = x.to(compute_dtype(x))
        rstd = rstd.unsqueeze(-1)
        wide_dy, xhat = dy.to(wide.dtype), wide * rstd
        gradient = wide_dy if weight is None else wide_dy * (weight.to(wide.dtype) + offset)
        dx = rstd * (gradient - xhat * (gradient * xhat).mean(-1, keepdim=True))
        dweight = None
        if weight is not None:
            terms = wide_dy * xhat
            if self.rounds_product:
                terms = _rounded(wide_dy * _rounded(xhat, dy.dtype), dy.dtype)
            dweight = sum_of_rows(terms, 1).to(weight.dtype)
        return dx.to(x.dtype), dweight

    def _rstd(self, wide: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        if self.rounds_statistics:
            return torch.rsqrt(_rounded(wide.square(), dtype).mean(-1) + _rounded(wide.new_tensor(eps), dtype))
        return torch.rsqrt(wide.square().mean(-1) + eps)

    def _scale(self, wide: Tensor, offset: float, dtype: torch.dtype) -> Tensor:
        if self.rounds_statistics:
            return _rounded(wide + _rounded(wide.new_tensor(offset), dtype), dtype)
        return wide + offset


def _rounded(wide: Tensor, dtype: torch.dtype) -> Tensor:
    return wide.to(dtype).to(wide.dtype)


Casting = Literal["gemma", "llama", "none"]


def without_offset(tensors: Sequence[Tensor | None], scalars: tuple[float, ...]) -> tuple[float, ...]:
    """Eps and offset; without a weight, the last input, the kernels read ones, to which no offset is added."""
    eps, _ = scalars
    return scalars if tensors[-1] is not None else (eps, 0.0)


# Longest rows of which Inductor makes the backward one kernel. It is then the faster one beside a residual: 99 us
# against 106 at 8192 x 2048 in bfloat16 on an H200, and 218 against 202 at 4096 x 8192 (benchmarks/compiled.py).
_MOST_FUSED_COLUMNS = 4096


def _compiled(hidden: int, needs_gradients: bool) -> Way:
    return "backward" if needs_gradients and hidden > _MOST_FUSED_COLUMNS else "formula"


# What the operations of norms share: the scalars, and an optional weight.
normalizing = partial(
    Operation,
    defaults={"eps": 1e-6, "offset": 0.0},
    optional=("weight",),
    derived={"eps": machine_epsilon},
    scalars_of=without_offset,
    compiler_options=keeps_subnormal,
)
_operation = partial(normalizing, forward=rms_norm_forward, backward=rms_norm_backward, compiled=_compiled)
_op = partial(BackwardOp, forward=forward_of_two)
# By the name of the casting mode, as in Liger-Kernel.
CALLS = {
    "gemma": _op(_operation(name="rms_norm", formula=RMSNormDecomposition())),
    "llama": _op(
        _operation(
            name="rms_norm_llama",
            modes=(Product.ROUNDED,),
            formula=RMSNormDecomposition(rounds_product=True),
        )
    ),
    "none": _op(
        _operation(
            name="rms_norm_none",
            modes=(Statistics.ROUNDED,),
            formula=RMSNormDecomposition(rounds_statistics=True),
        )
    ),
}


def _form(op: BackwardOp) -> Callable[..., Tensor]:
    """The call without `normalized_shape`: `Op.call`, written out by hand for the usual arguments."""
    operation = op.operation

    def rms_norm(
        x: Any,
        weight: Any = None,
        eps: Any = 1e-6,
        offset: Any = 0.0,
        batch_invariant: Any = None,
        reuse_dy: Any = False,
    ) -> Tensor:
        if (
            is_compiling()
            or type(x) not in PLAIN_TYPES
            or (weight is not None and type(weight) not in PLAIN_TYPES)
            or (type(eps) is not float and eps is not None)
            or type(offset) is not float
            or reuse_dy is not False
            or (batch_invariant is not None and batch_invariant is not True and batch_invariant is not False)
            or has_torch_function_variadic(x, weight)
            or modes()
            or transforms()
            or forward_ad._current_level >= 0
            or is_traced()
        ):
            return op.call((x, weight), (eps, offset), batch_invariant, reuse_dy)  # type: ignore[no-any-return]
        if eps is None:
            eps = machine_epsilon(x)
        mode = is_batch_invariant() if batch_invariant is None else batch_invariant
        if is_grad_enabled() and (x.requires_grad or (weight is not None and weight.requires_grad)):
            return apply(op, (eps, offset), mode, False, x, weight)  # type: ignore[no-any-return]
        return forward_of_two(operation, (x, weight), (eps, offset), mode, False)[0]  # type: ignore[no-any-return]

    return rms_norm


FORMS = {casting: _form(op) for casting, op in CALLS.items()}
_rms_norm = FORMS["gemma"]
_INTEGERS = (Integral, torch.SymInt)


@overload
def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = 1e-6,
    offset: float = 0.0,
    batch_invariant: bool | None = None,
    *,
    casting: Casting = "gemma",
    reuse_dy: bool = False,
) -> Tensor: ...


@overload
def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    offset: float = 0.0,
    batch_invariant: bool | None = None,
    *,
    casting: Casting = "gemma",
    reuse_dy: bool = False,
) -> Tensor: ...


def rms_norm(*arguments: Any, **named: Any) -> Tensor:  # noqa: D417  (of the overloads)
    """RMSNorm over the last dimension, or over the last dimensions, differentiable in x and weight.

    Call it as `rms_norm(x, weight, eps=1e-6)`, or in place of `torch.nn.functional.rms_norm`:
    `rms_norm(input, normalized_shape, weight=None, eps=None)`.

    The kernels take bfloat16, float16 and float32 on a GPU, rows of 1 to 65536 elements and up to 2^30 rows. Rows
    without a single stride or with elements out of order are copied first, and so is a weight that is not contiguous or
    of a third dtype. All other inputs of torch's function are composed of torch's operations, in several passes:
    float64, tensors on a CPU, longer rows, forward-mode derivatives, transforms of `torch.func`, second derivatives.

    Args:
        x: (..., hidden), a dense floating-point tensor of 16 to 64 bits; also `input`.
        weight: (hidden,), or of `normalized_shape`, of any such dtype, on x's device; None for y = x * rstd.
        eps: added to the mean square; None for the machine epsilon of float32, or of float64 if x is float64.
        offset: added to the weight, in float32: 1.0 for weights that are stored around zero.
        batch_invariant: give each row of y, and of the gradient of x, the same bits in every batch; None for the
            setting of `normtune.batch_invariant` and `normtune.use_batch_invariant`. The weight gradient sums over rows
            and always depends on the batch.
        casting: what is rounded to x's dtype on the way, where Liger-Kernel's casting modes of these names round:
            `gemma`, nothing; `llama`, the normalized row before its multiplication by the weight, as in Hugging Face's
            Llama and Qwen, and the terms of the weight gradient; `none`, squares, eps, weight + offset, and rstd for
            the backward. Sums are in float32 in all of them; those of Liger's `none` are in x's dtype.
        reuse_dy: let the backward write the gradient of x into the memory of y's gradient, which saves a tensor of y's
            size. For a y that one operation alone reads, and one backward: whatever else reads y's gradient afterwards
            reads other values, without an error, as the other operand of `residual + y`, hooks, `y.retain_grad()`, and
            the owner of a gradient that was given to `backward`. Not done, silently, where that gradient is strided,
            expanded, unaligned, of another dtype or needs a gradient itself (`create_graph`), where compilers, modes or
            function transforms intercept the call, where no kernel is launched, and for launches in which other
            programs read it (finish `columns`).
        normalized_shape: x's last dimensions, over which it is normalized; the last one without it.

    Returns:
        y, of x's shape and dtype, contiguous. Autocast changes nothing: all arithmetic is in float32 anyway.

    Raises:
        TypeError: x or weight is not a tensor, eps or offset not a number, or reuse_dy not a bool.
        ValueError: another argument is wrong; the message names it and its value. Nothing was launched.
    """
    if not named and len(arguments) > 1 and type(arguments[1]) in PLAIN_TYPES:
        return _rms_norm(*arguments)
    call = _rms_norm
    if not named and len(arguments) > 2 and type(arguments[1]) is tuple and type(arguments[2]) in PLAIN_TYPES:
        input, shape, weight, *options = arguments
        # Other shapes of the weight, of several dimensions or wrong, are for `_over_shape`.
        if type(input) in PLAIN_TYPES and list(map(type, shape)) == [int] and weight.shape == shape == input.shape[-1:]:
            return call(input, weight, *(options or (None,)))
    if "casting" in named:
        casting = named["casting"]
        check_choice("casting", casting, CALLS)
        call = FORMS[casting]
    values = (*arguments, *named.values())
    if has_torch_function(values) and any(map(is_proxy, values)):
        return handle_torch_function(rms_norm, values, *arguments, **named)  # type: ignore[no-any-return]
    named.pop("casting", None)
    second = arguments[1] if len(arguments) > 1 else None
    if (second is None or isinstance(second, Tensor)) and "input" not in named and "normalized_shape" not in named:
        return call(*arguments, **named)  # type: ignore[no-any-return]
    return _over_shape(*arguments, **named, call=call)


def _over_shape(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    offset: float = 0.0,
    batch_invariant: bool | None = None,
    *,
    reuse_dy: bool = False,
    call: Callable[..., Tensor],
) -> Tensor:
    """`rms_norm` with the arguments of torch's own function."""
    if isinstance(input, Tensor):
        shape = shape_of(normalized_shape)
        dims = len(shape)
        if tuple(input.shape[input.dim() - dims :]) != shape or dims > input.dim():
            raise ValueError(
                f"normalized_shape is {shape} and x has shape {tuple(input.shape)}: expected its last sizes"
            )
        if isinstance(weight, Tensor) and tuple(weight.shape) != shape:
            raise ValueError(f"weight has shape {tuple(weight.shape)}: expected {shape}, as normalized_shape")
        if dims > 1:
            rows = input.flatten(input.dim() - dims)
            columns = weight.flatten() if isinstance(weight, Tensor) else weight
            return call(rows, columns, eps, offset, batch_invariant, reuse_dy).view(input.shape)
    return call(input, weight, eps, offset, batch_invariant, reuse_dy)


def shape_of(normalized_shape: Any) -> tuple[int, ...]:
    """`normalized_shape` as a tuple of sizes.

    Raises:
        TypeError: neither an integer nor a sequence of integers.
        ValueError: empty, or with a negative size.
    """
    sizes = (normalized_shape,) if isinstance(normalized_shape, _INTEGERS) else normalized_shape
    integers = isinstance(sizes, Sequence) and all(isinstance(size, _INTEGERS) for size in sizes)
    if not integers or any(isinstance(size, bool) for size in sizes):
        raise TypeError(f"normalized_shape is {normalized_shape!r}: expected an integer or a sequence of integers")
    if not sizes or min(sizes) < 0:
        raise ValueError(f"normalized_shape is {normalized_shape!r}: expected one size or more, none negative")
    return tuple(sizes)


# `help` shows the first form, and the docstring the other.
rms_norm.__signature__ = signature(get_overloads(rms_norm)[0])  # type: ignore[attr-defined]
# So that a TypeError about the arguments names the public function.
for _function in (_over_shape, *FORMS.values()):
    _function.__name__ = _function.__qualname__ = "rms_norm"
for _casting, _calls in CALLS.items():
    _calls.public = update_wrapper(partial(rms_norm, casting=_casting), rms_norm) if _casting != "gemma" else rms_norm


class RMSNorm(torch.nn.RMSNorm):
    """RMSNorm over the last dimensions with a learned weight: a `torch.nn.RMSNorm` that launches normtune's kernels.

    State dicts are those of torch's module and interchangeable with it. `torch.compile`, `torch.export`,
    `torch.jit.trace` and `torch.fx` take it; `torch.jit.script` does not.

    Args:
        normalized_shape: the last dimensions, an integer for the last one alone.
        eps: added to the mean square; None for the machine epsilon, as in torch's module.
        elementwise_affine: have a weight.
        device: of the weight.
        dtype: the weight's dtype.
        offset: added to the weight; the weight starts at 1 - offset, so that the module starts as plain RMSNorm.
        batch_invariant: as in `rms_norm`.
        casting, reuse_dy: as in `rms_norm`.

    Raises:
        TypeError: `normalized_shape` is neither an integer nor a sequence of integers, or another argument is none of
            its type.
        ValueError: `normalized_shape` is empty, or has a negative size; `casting` is unknown; or another argument is
            one that calls refuse.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        offset: float = 0.0,
        batch_invariant: bool | None = None,
        casting: Casting = "gemma",
        reuse_dy: bool = False,
    ) -> None:
        check_choice("casting", casting, CALLS)
        check_flag("elementwise_affine", elementwise_affine)
        check_module(eps, offset, batch_invariant, reuse_dy, device, dtype)
        self.offset, self.batch_invariant, self.casting, self.reuse_dy = offset, batch_invariant, casting, reuse_dy
        super().__init__(list(shape_of(normalized_shape)), eps, elementwise_affine, device, dtype)

    def reset_parameters(self) -> None:
        """Set the weight to 1 - offset, which makes the module plain RMSNorm."""
        if self.elementwise_affine:
            torch.nn.init.constant_(self.weight, 1.0 - self.offset)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize `x`, whose last dimensions are `normalized_shape`; see `rms_norm`."""
        # Faster than the attribute. A parametrized weight is not there; of several dimensions it needs the shape.
        weight = self._parameters.get("weight")
        if weight is not None and len(self.normalized_shape) == 1:
            return FORMS[self.casting](x, weight, self.eps, self.offset, self.batch_invariant, self.reuse_dy)
        return rms_norm(
            *(x, self.normalized_shape, self.weight, self.eps, self.offset, self.batch_invariant),
            casting=self.casting,
            reuse_dy=self.reuse_dy,
        )

    def extra_repr(self) -> str:
        """Text for `print`."""
        parts = [super().extra_repr()]
        if self.offset:
            parts.append(f"offset={self.offset}")
        if self.casting != "gemma":
            parts.append(f"casting={self.casting!r}")
        if self.batch_invariant is not None:
            parts.append(f"batch_invariant={self.batch_invariant}")
        if self.reuse_dy:
            parts.append("reuse_dy=True")
        return ", ".join(parts)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Also accept the state of a pickled module of torch."""
        defaults = {"offset": 0.0, "batch_invariant": None, "casting": "gemma", "reuse_dy": False}
        super().__setstate__(defaults | state)  # type: ignore[no-untyped-call]
