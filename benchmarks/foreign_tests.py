"""Other libraries' tests of RMSNorm and its relatives, on a GPU, with normtune in place of the library.

    python benchmarks/foreign_tests.py liger FILE      test/transformers/test_rms_norm.py of Liger-Kernel, or
                                                       test/transformers/test_fused_add_rms_norm.py
    python benchmarks/foreign_tests.py aiter FILE      op_tests/triton_tests/normalization/test_rmsnorm.py of aiter
    python benchmarks/foreign_tests.py flashinfer FILE tests/utils/test_norm.py of FlashInfer
    python benchmarks/foreign_tests.py vllm FILE       tests/kernels/core/test_layernorm.py of vLLM, or
                                                       tests/kernels/core/test_fused_quant_layernorm.py
    python benchmarks/foreign_tests.py fla FILE        tests/modules/test_layernorm_gated.py of flash-linear-attention
    python benchmarks/foreign_tests.py mamba FILE REFERENCE   tests/ops/triton/test_layernorm_gated.py and
                                                       mamba_ssm/ops/triton/layernorm_gated.py of Mamba
    python benchmarks/foreign_tests.py quack FILE REFERENCE   tests/test_rmsnorm.py and quack/rmsnorm.py of quack

FILE is the library's own, unchanged. Stand-ins (`foreign_names`) replace the modules that it imports: their RMSNorm
is normtune's, and what normtune does not have (bias, other norms, int8, groups of 64) is skipped. The rest runs
with the file's shapes, dtypes, strides and tolerances. Further arguments after `--` go to pytest, as `-n 3`.
"""

import argparse
import os
import sys
from pathlib import Path

import pytest

# The tests of what normtune has in each file: without bias, LayerNorm, int8 or error texts of their own.
CHOSEN = {
    "liger": "test_correctness",
    "aiter": "(test_rmsnorm and not quant) or test_fused_add_rmsnorm",
    "flashinfer": "not layernorm and not without_fp8",
    "fla": "gated",
    "mamba": "gated",
    "quack": "forward_backward or weight_offset or noncontiguous_grad or strided_tensor or large_tensor"
    " or with_residual or prenorm_false",
    "vllm": "",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=CHOSEN)
    parser.add_argument("file", type=Path, help="the library's test file")
    parser.add_argument("reference", type=Path, nargs="?", help="quack, mamba: the file that holds its reference")
    parser.add_argument("pytest", nargs="*", help="after --: further arguments of pytest")
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:split])
    arguments = [
        # Ignores both normtune's settings of pytest and the library's.
        "-c",
        os.devnull,
        "-q",
        "-p",
        "no:cacheprovider",
        # By its name, with its options: workers of pytest-xdist are processes of their own and load it too.
        "-p",
        "normtune.benchmarks.foreign_names",
        f"--library={options.library}",
        *([f"--reference={options.reference}"] if options.reference else []),
        "-W",
        "ignore",
        "-k",
        CHOSEN[options.library],
        str(options.file),
    ]
    sys.exit(pytest.main([*arguments, *sys.argv[split + 1 :]]))


if __name__ == "__main__":
    main()
