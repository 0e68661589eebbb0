"""Other libraries' tests of RMSNorm, on a GPU, with normtune in place of the library.

    python benchmarks/foreign_tests.py liger FILE      test/transformers/test_rms_norm.py of Liger-Kernel
    python benchmarks/foreign_tests.py aiter FILE      op_tests/triton_tests/normalization/test_rmsnorm.py of aiter
    python benchmarks/foreign_tests.py flashinfer FILE tests/utils/test_norm.py of FlashInfer
    python benchmarks/foreign_tests.py quack FILE REFERENCE   tests/test_rmsnorm.py and quack/rmsnorm.py of quack

FILE is the library's own, unchanged. Stand-ins replace the modules that it imports: their RMSNorm is normtune's, the
rest is missing. The tests of plain RMSNorm in each file run, with its shapes, dtypes, strides and tolerances. Further
arguments after `--` go to pytest.
"""

import argparse
import ast
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import normtune

# The tests of RMSNorm alone in each file: without residual, bias, quantized output or error texts of their own.
CHOSEN = {
    "liger": "test_correctness",
    "aiter": "test_rmsnorm and not quant",
    "flashinfer": "(test_norm or test_qknorm or test_gemma_norm or int64_stride or contiguous_overflow)"
    " and not quant and not add and not layernorm and not without_fp8",
    "quack": "forward_backward or weight_offset or noncontiguous_grad or strided_tensor or large_tensor",
}


def main() -> None:
    """Run the chosen tests of a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=CHOSEN)
    parser.add_argument("file", type=Path, help="the library's test file")
    parser.add_argument("reference", type=Path, nargs="?", help="quack: the file that holds its reference")
    parser.add_argument("pytest", nargs="*", help="after --: further arguments of pytest")
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:split])
    {"liger": liger, "aiter": aiter, "flashinfer": flashinfer, "quack": quack}[options.library](options.reference)
    # Ignores both normtune's settings of pytest and the library's.
    arguments = [
        "-c",
        os.devnull,
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        "-k",
        CHOSEN[options.library],
        str(options.file),
    ]
    sys.exit(pytest.main([*arguments, *sys.argv[split + 1 :]]))


def stand_in(name: str, **members: Any) -> None:
    """Install a module of that name with these members, and packages above it."""
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:depth]), ModuleType(".".join(parts[:depth])))
        if depth > 1:
            setattr(sys.modules[".".join(parts[: depth - 1])], parts[depth - 1], sys.modules[".".join(parts[:depth])])
    vars(sys.modules[name]).update(members)


def nothing(*arguments: Any, **named: Any) -> None:
    """Replacement of functions that no chosen test calls."""
    raise NotImplementedError


def liger(_: Path | None) -> None:
    """Liger-Kernel's names."""

    def function(x: Any, weight: Any, eps: float, offset: float = 0.0, casting_mode: str = "llama", *_: Any) -> Any:
        return normtune.rms_norm(x, weight, eps, offset)

    class Module(torch.nn.Module):
        def __init__(
            self, hidden_size: int, eps: float = 1e-6, offset: float = 0.0, elementwise_affine: bool = True, **_: Any
        ) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(hidden_size)) if elementwise_affine else None
            self.eps, self.offset = eps, offset

        def forward(self, x: Any) -> Any:
            return normtune.rms_norm(x, self.weight, self.eps, self.offset)

    def liger_rms_norm(X: Any, W: Any, eps: float, offset: float = 0.0, casting_mode: str = "llama") -> Any:
        return normtune.rms_norm(X, W, eps, offset)

    def close(one: Any, other: Any, atol: float, rtol: float, **_: Any) -> None:
        torch.testing.assert_close(one, other, atol=atol, rtol=rtol)

    stand_in("test.utils", assert_verbose_allclose=close, set_seed=torch.manual_seed, supports_bfloat16=lambda: True)
    stand_in("liger_kernel.ops", LigerRMSNormFunction=SimpleNamespace(apply=function))
    stand_in("liger_kernel.transformers.functional", liger_rms_norm=liger_rms_norm)
    stand_in("liger_kernel.transformers.rms_norm", LigerRMSNorm=Module)
    stand_in("liger_kernel.utils", infer_comm_backend=lambda: "nccl", infer_device=lambda: "cuda")


def aiter(_: Path | None) -> None:
    """Names of aiter."""
    names = ("fwd_with_add", "fwd_with_add_dynamicquant", "fwd_with_add_smoothquant")
    names += ("fwd_with_dynamicquant", "fwd_with_smoothquant")
    others = {f"rmsnorm2d_{name}": nothing for name in names}
    stand_in("aiter.ops.triton.normalization.rmsnorm", rms_norm=normtune.rms_norm, **others)
    dtypes = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    stand_in("aiter.ops.triton.utils.types", str_to_torch_dtype=dtypes)


def flashinfer(_: Path | None) -> None:
    """FlashInfer's names."""

    def norm(offset: float) -> Any:
        def rmsnorm(x: Any, weight: Any, eps: float = 1e-6, out: Any = None, enable_pdl: Any = None) -> Any:
            y = normtune.rms_norm(x, weight, eps, offset)
            return y if out is None else out.copy_(y)

        return rmsnorm

    stand_in("flashinfer.norm", rmsnorm=norm(0.0), gemma_rmsnorm=norm(1.0))
    stand_in("flashinfer.jit", env=SimpleNamespace())
    stand_in("flashinfer.jit.core", gen_jit_spec=nothing)
    stand_in("flashinfer.utils", device_support_pdl=lambda device: True)


def quack(reference: Path | None) -> None:
    """Names of quack; its reference comes from its own file, which imports a compiler."""
    if reference is None:
        sys.exit("quack: expected its quack/rmsnorm.py after FILE, for the reference that it compares with")
    wanted = ("rmsnorm_ref", "rmsnorm_bwd_ref")
    tree = ast.parse(reference.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in wanted]
    names: dict[str, Any] = {"torch": torch}
    exec(compile(tree, str(reference), "exec"), names)

    def rmsnorm(x: Any, weight: Any = None, eps: float = 1e-6, weight_offset: float = 0.0) -> Any:
        return normtune.rms_norm(x, weight, eps, weight_offset)

    others = ("_compile_rmsnorm_fwd", "rmsnorm_bwd", "rmsnorm_bwd_tuned", "rmsnorm_fwd", "rmsnorm_fwd_tuned")
    stand_in(
        "quack.rmsnorm", rmsnorm=rmsnorm, **dict.fromkeys(others, nothing), **{name: names[name] for name in wanted}
    )
    stand_in("quack.rmsnorm_config", RmsNormBwdConfig=nothing, RmsNormFwdConfig=nothing)
    stand_in("quack.cute_dsl_utils", get_device_capacity=lambda *_: torch.cuda.get_device_capability())


if __name__ == "__main__":
    main()
