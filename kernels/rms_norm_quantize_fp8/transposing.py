"""Quantized RMSNorm in both layouts, (rows, hidden) and transposed (hidden, rows).

In: a `TransposingLaunch` and tensors. Out: the kernel calls of `kernels`, and the launch that transposes their output.

Traffic of a perfect kernel: read rows x hidden of x and hidden of weight, write 2 x rows x hidden bytes. The second
launch reads rows x hidden bytes again, from the cache if they fit there.
"""

from collections.abc import Mapping
from typing import Any

from normtune.kernels.call import KernelCall
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm_quantize_fp8 import kernels
from normtune.kernels.rms_norm_quantize_fp8.launch import TransposingLaunch
from normtune.kernels.transpose_fp8 import kernel as transposition


def calls(
    launch: TransposingLaunch,
    problem: Problem,
    tensors: Mapping[str, Any],
    workspace: Any,
    eps: float,
    offset: float,
) -> tuple[KernelCall, ...]:
    """The kernel calls of one problem: those of `kernels.calls` and a transposition.

    Arguments are those of `kernels.calls`, with a launch from `resolve_transposing` and a contiguous `q_t`.
    """
    quantizing = kernels.calls(launch.norm, problem, tensors, workspace, eps, offset)
    return (*quantizing, transposition.call(launch.transpose, problem, tensors["q"], tensors["q_t"]))
