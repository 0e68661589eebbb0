"""The transposition's arguments, legality and bytes; other devices are composed."""

import pytest
import torch

import normtune
from normtune.kernels.operator import IllegalConfigError, operator
from normtune.kernels.problem import MAX_ROWS
from normtune.kernels.spec_faults import faults
from normtune.kernels.target import TARGETS
from normtune.kernels.transpose_fp8.operator import TransposeConfig
from normtune.tuner.plan.plan import candidates

SPEC = operator("transpose_fp8")
BYTES = torch.zeros(4, 6, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("x", "error", "text"),
    [
        ([[1]], TypeError, "x is [[1]]: expected a tensor"),
        (torch.ones(2, 3), ValueError, "x is torch.float32: expected a dtype of 8 bits, such as torch.float8_e4m3fn"),
        (torch.ones(2, 3, dtype=torch.bool), ValueError, "x is torch.bool: expected a dtype of 8 bits"),
        (BYTES[0], ValueError, "x has shape (6,): expected (rows, columns)"),
        (BYTES[None], ValueError, "x has shape (1, 4, 6): expected (rows, columns)"),
        (BYTES.to_sparse(), ValueError, "x has the layout torch.sparse_coo: expected a dense tensor"),
    ],
)
def test_bad_arguments_are_named(x, error, text):
    with pytest.raises(error) as caught:
        normtune.transpose_fp8(x)
    assert text in str(caught.value)


def test_a_cpu_and_a_tensor_without_memory_are_served():
    x = torch.randint(0, 256, (300, 70), dtype=torch.uint8)
    assert torch.equal(normtune.transpose_fp8(x), x.t())
    found = normtune.transpose_fp8(torch.empty(4, 6, dtype=torch.float8_e5m2, device="meta"))
    assert (found.shape, found.dtype, found.is_meta) == ((6, 4), torch.float8_e5m2, True)


def test_the_operator_of_the_dispatcher_takes_one_dtype():
    with pytest.raises(ValueError, match=r"x is torch.uint8: expected torch.float8_e5m2"):
        torch.ops.normtune.transpose_fp8(BYTES, None)


def test_bytes_are_read_and_written_once():
    problem = SPEC.problem(10, 300, "bfloat16")
    assert SPEC.bytes_moved(problem) == 2 * 10 * 300 and not list(faults(SPEC)) and not SPEC.is_default


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (TransposeConfig(16, 64), "block_row is 16: expected a power of two of at least 32"),
        (TransposeConfig(64, 96), "block_col is 96: expected a power of two of at least 32"),
        (TransposeConfig(256, 1024, 4), "2048 elements a thread exceed 256"),
        (TransposeConfig(512, 512, 32), "a tile of 262144 bytes exceeds"),
        (TransposeConfig(64, 64, 64), "2048 threads exceed 1024"),
    ],
)
def test_what_cannot_run_is_refused_with_a_reason(config, reason):
    with pytest.raises(IllegalConfigError, match=reason):
        SPEC.launch(config, SPEC.problem(4096, 4096, "bfloat16"), TARGETS["sm_90"])


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_spaces_are_legal_at_the_largest_problem(target):
    largest = SPEC.problem(MAX_ROWS, SPEC.max_hidden, "bfloat16")
    sizes = []
    for space in ("default", "full"):
        configs = SPEC.space(space, largest, target)
        kept, _ = candidates(SPEC, configs, largest, target)
        assert SPEC.default_config(largest, target) in configs and kept
        sizes.append(len(kept))
    assert sizes == sorted(sizes)
    assert SPEC.is_legal(SPEC.default_config(largest, target), largest, target)
