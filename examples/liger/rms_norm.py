"""The RMSNorm kernels of an installed Liger-Kernel: which of its two, how many rows and warps, how many programs.

pip install liger-kernel==0.8.5
normtune sweep --load examples/liger/rms_norm.py --operator liger_rms_norm --operator liger_rms_norm_backward
normtune fit --load examples/liger/rms_norm.py --out liger_table.py
python examples/liger/change.py normtune.db --leaves 8 --out liger.diff
"""

from typing import Annotated, Any

import torch
import triton
from liger_kernel.ops import rms_norm as liger

from normtune import Config, kernel_operator
from normtune.kernels.rounding import Expected, unit_in_last_place

LLAMA = 0  # the casting mode: rstd in float32, the product with the weight in the dtype of x


class LigerConfig(Config):
    """How Liger-Kernel's forward kernels are launched."""

    block_row: Annotated[int, "rows a program of the block-row kernel; 0 for the row kernel."] = 0
    num_warps: Annotated[int, "warps a program."] = 4


class LigerBackwardConfig(Config):
    """How Liger-Kernel's backward kernels are launched."""

    block_row: Annotated[int, "rows that a program of the block-row kernel holds; 0 for the row kernel."] = 0
    num_warps: Annotated[int, "warps a program."] = 4
    programs: Annotated[int, "programs a multiprocessor, each with a row of partial sums of dW."] = 1


def _elements(config: Any, problem: Any, target: Any) -> float:
    """Elements per thread."""
    return max(1, config.block_row) * triton.next_power_of_2(problem.hidden) / (config.num_warps * target.warp_size)


def todays(config: Any) -> Any:
    """The rule of `rms_norm_forward` and `rms_norm_backward`, in configs of a class."""

    def rule(problem: Any, target: Any) -> Any:
        block_size, num_warps = liger.calculate_settings(problem.hidden)
        return config(block_row=0 if block_size > 256 or problem.rows < 4096 * 8 else 16, num_warps=num_warps)

    return rule


SPACE = {"block_row": (0, 2, 4, 8, 16, 32), "num_warps": (1, 2, 4, 8, 16, 32)}
RULES = {
    "legal": lambda *given: _elements(*given) <= 64,
    "leaves_out": lambda *given: _elements(*given) < 2,
    "max_hidden": 65536,
}


def forward_reference(X: Any, W: Any, eps: float) -> Any:
    """Y and rstd."""
    rstd = torch.rsqrt(X.square().mean(1) + eps)
    return X * rstd[:, None] * W, rstd


@kernel_operator(
    config=LigerConfig,
    space=SPACE,
    buffers={"X": "input", "W": "weight", "Y": "output", "RSTD": "output rows float32"},
    scalars={"eps": 1e-6},
    reference=forward_reference,
    tolerance={"Y": 2.0},
    default=todays(LigerConfig),
    **RULES,
)
def liger_rms_norm(X: Any, W: Any, Y: Any, RSTD: Any, eps: float, config: LigerConfig) -> None:
    """Launch one of Liger's forward kernels."""
    rows, hidden = X.shape
    options = {"BLOCK_SIZE": triton.next_power_of_2(hidden), "num_warps": config.num_warps}
    tensors = Y, Y.stride(0), X, X.stride(0), W, W.stride(0), RSTD, RSTD.stride(0)
    if config.block_row:
        grid, options["BLOCK_ROW"] = (triton.cdiv(rows, config.block_row),), config.block_row
        kernel, sizes = liger._block_rms_norm_forward_kernel, (rows, hidden)
    else:
        grid, kernel, sizes = (rows,), liger._rms_norm_forward_kernel, (hidden,)
    kernel[grid](*tensors, *sizes, eps, 0.0, LLAMA, elementwise_affine=True, **options)


def backward_inputs(problem: Any, generator: Any, device: Any) -> Any:
    """Normal values, and the rstd of X."""
    dtype, shape = getattr(torch, problem.dtype), (problem.rows, problem.hidden)
    dY, X = (torch.randn(shape, generator=generator, device=device).to(dtype) for _ in range(2))
    W = torch.randn(problem.hidden, generator=generator, device=device).to(dtype)
    return {"dY": dY, "X": X, "W": W, "RSTD": torch.rsqrt(X.float().square().mean(1) + 1e-6)}


def backward_reference(dY: Any, X: Any, W: Any, RSTD: Any, dtype: Any) -> Any:
    """The exact dX, and dW of products that are rounded as Liger rounds them."""
    rstd = RSTD[:, None]
    dX = rstd * (dY * W - rstd.square() * (dY * W * X).mean(1, keepdim=True) * X)
    terms = (dY * (X * rstd).to(dtype).double()).to(dtype).double()
    dW = terms.sum(0)
    flipped = 16 * unit_in_last_place(terms.abs().amax(0), dtype)  # ties of X * rstd, which the kernel has in float32
    return dX, Expected(dW, unit_in_last_place(dW, dtype) + flipped)


@kernel_operator(
    config=LigerBackwardConfig,
    space={**SPACE, "programs": (1, 2, 4)},
    buffers={
        **{"dY": "input", "X": "input", "W": "weight", "RSTD": "input rows float32"},
        **{"dX": "output", "dW": "output hidden"},
    },
    reference=backward_reference,
    inputs=backward_inputs,
    default=todays(LigerBackwardConfig),
    **RULES,
)
def liger_rms_norm_backward(dY: Any, X: Any, W: Any, RSTD: Any, config: LigerBackwardConfig, target: Any) -> Any:
    """Launch one of Liger's backward kernels, and sum the partial sums of dW as Liger does."""
    rows, hidden = X.shape
    programs = target.sms * config.programs
    dX, partials = torch.empty_like(X), torch.empty((programs, hidden), dtype=torch.float32, device=X.device)
    tensors = dY, dY.stride(0), dX, dX.stride(0), X, X.stride(0), liger.torch_to_triton_dtype[X.dtype]
    rest = W, W.stride(0), RSTD, RSTD.stride(0), partials, partials.stride(0), rows, hidden, 0.0
    options = {"BLOCK_SIZE": triton.next_power_of_2(hidden), "num_warps": config.num_warps}
    if config.block_row:
        kernel, options["BLOCK_ROW"] = liger._block_rms_norm_backward_kernel, config.block_row
        kernel[(programs,)](*tensors, *rest, LLAMA, elementwise_affine=True, **options)
    else:
        each = triton.cdiv(rows, programs)
        liger._rms_norm_backward_kernel[(programs,)](*tensors, *rest, each, LLAMA, elementwise_affine=True, **options)
    return dX, partials.sum(dim=0).to(W.dtype)
