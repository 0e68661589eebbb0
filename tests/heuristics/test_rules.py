"""Rules of other libraries: their thresholds, edge by edge, for an H200, and that all they answer can be launched."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normtune.errors import UsageError
from normtune.heuristics.rules import RULES, find, liger
from normtune.heuristics.rules.te_rocm import _BACKWARD_LADDER, _FORWARD_LADDER, rows_per_program
from normtune.kernels.config import Config
from normtune.kernels.operator import operator
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.target import TARGETS

H200 = TARGETS["sm_90"]
FORWARD, BACKWARD = "rms_norm_forward", "rms_norm_backward"
# Where some rule changes, and one beside it.
EDGES = (1, 64, 128, 256, 264, 512, 528, 1024, 1056, 2048, 3072, 4096, 6144, 8192, 16384, 16896, 32768, 65536, 262144)
SIZES = sorted({size + step for size in EDGES for step in (-1, 0, 1)} - {0} | {MAX_ROWS})


def chosen(name: str, operator_name: str, rows: int, hidden: int, dtype: str = "bfloat16", variant: str = "") -> str:
    """The rule's config in one line; empty where it has none."""
    found = RULES[name].choose(Problem(operator_name, rows, hidden, dtype, variant), H200)
    return str(found) if found else ""


def test_each_rule_is_found_by_its_name_and_says_where_it_is_from() -> None:
    assert all(name == rule.name and find(name) is rule for name, rule in RULES.items())
    assert len({rule.title for rule in RULES.values()}) == len(RULES)
    assert [rule.source for rule in RULES.values() if "#" in rule.source] == [
        "Liger-Kernel #1238",
        "Transformer Engine (ROCm) #593 and #615",
        "ATOM #697 and #708",
        "vLLM #27931",
    ]


def test_an_unknown_name_is_refused_with_the_names_that_there_are() -> None:
    expected = "liger, liger_1238, te_rocm, aiter, tilegym, atom, vllm, vllm_gated, quack"
    with pytest.raises(UsageError, match=f"^unknown rule 'te': expected one of {expected}$"):
        find("te")


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("operator_name", [FORWARD, BACKWARD])
def test_every_answer_is_a_legal_launch(name: str, operator_name: str) -> None:
    spec = operator(operator_name)
    answers = set()
    for dtype in ("bfloat16", "float32"):
        for hidden in (size for size in SIZES if size <= spec.max_hidden):
            for rows in SIZES:
                for variant in spec.variants:
                    problem = Problem(operator_name, rows, hidden, dtype, variant)
                    config = RULES[name].choose(problem, H200)
                    if config:
                        spec.resolve(config, problem, H200, None)  # raises where it is not
                        answers.add(config)
    assert answers or (operator_name == BACKWARD and name in ("atom", "vllm", "vllm_gated"))


@pytest.mark.parametrize("name", RULES)
def test_no_rule_answers_for_another_operator(name: str) -> None:
    assert RULES[name].choose(Problem("toy", 4096, 128, "bfloat16"), H200) is None


@given(rows=st.integers(1, MAX_ROWS), hidden=st.integers(1, 65536), backward=st.booleans())
def test_the_proposal_differs_from_liger_only_between_the_two_switches(rows: int, hidden: int, backward: bool) -> None:
    problem = Problem(BACKWARD if backward else FORWARD, rows, hidden, "bfloat16")
    differs = RULES["liger"].choose(problem, H200) != RULES["liger_1238"].choose(problem, H200)
    assert differs == (hidden <= 512 and rows >= 4096 and not (hidden <= 256 and rows >= 32768))
    assert RULES["liger"].choose(problem, H200) == liger.choose(problem.operator, rows, hidden)


@pytest.mark.parametrize(
    ("name", "rows", "hidden", "expected"),
    [
        ("liger_1238", 4095, 512, "row warps=4"),
        ("liger_1238", 4096, 512, "block_row block_row=16 warps=4"),
        ("liger_1238", 4096, 513, "row warps=4"),
        # 16 rows a program leave 1056 programs from 16896 rows on, of which they must be a divisor.
        ("te_rocm", 16896, 128, "block_row block_row=16 warps=8"),
        ("te_rocm", 16880, 128, "block_row block_row=8 warps=8"),
        ("te_rocm", 16904, 128, "block_row block_row=8 warps=8"),
        ("te_rocm", 16897, 128, "row warps=8"),
        ("te_rocm", 16896, 129, "block_row block_row=4 warps=8"),
        ("te_rocm", 4, 128, "block_row block_row=4 warps=8"),
        ("te_rocm", 2, 128, "block_row block_row=2 warps=8"),
        ("te_rocm", 4224, 256, "block_row block_row=4 warps=8"),
        ("te_rocm", 4220, 256, "block_row block_row=2 warps=8"),
        ("te_rocm", 4224, 257, "block_row block_row=2 warps=8"),
        ("te_rocm", 4224, 512, "block_row block_row=2 warps=8"),
        ("te_rocm", 4224, 513, "row warps=8"),
        ("te_rocm", 4224, 2048, "row warps=8"),
        ("te_rocm", 4224, 2049, "persistent warps=8 stages=2 programs_per_sm=1"),
        ("te_rocm", 4224, 8192, "persistent warps=8 stages=2 programs_per_sm=1"),
        ("te_rocm", 4224, 8193, "split warps=8 block_col=16384"),
        ("te_rocm", 4224, 16385, ""),
        ("aiter", 1, 512, "block_row block_row=32 warps=8"),
        ("aiter", 8192, 513, ""),
        ("aiter", 8193, 513, "block_row block_row=16 warps=8"),
        ("aiter", 8193, 2048, "block_row block_row=8 warps=8"),
        ("aiter", 8193, 2049, ""),
        ("tilegym", 264, 4096, "split warps=4 block_col=2048"),
        ("tilegym", 264, 1000, "split warps=4 block_col=1024"),
        ("tilegym", 264, 32768, "split warps=8 block_col=2048"),
        ("tilegym", 264, 32769, ""),
        ("tilegym", 265, 1024, "persistent block_row=16 warps=16 programs_per_sm=1"),
        ("tilegym", 265, 1025, "persistent block_row=4 warps=8 programs_per_sm=1"),
        ("tilegym", 265, 8192, "persistent block_row=4 warps=32 programs_per_sm=1"),
        ("tilegym", 265, 8193, "persistent block_row=2 warps=32 programs_per_sm=1"),
        ("atom", 65535, 128, "row warps=1"),
        ("atom", 65536, 128, "block_row block_row=32 warps=4"),
        ("atom", 65536, 129, "row warps=1"),
        ("atom", 1, 512, "row warps=1"),
        ("atom", 1, 513, "row warps=4"),
        ("atom", 1, 4096, "row warps=4"),
        ("atom", 1, 4097, "row warps=8"),
        ("atom", 1, 32768, "row warps=8"),
        ("atom", 1, 32769, ""),
        ("vllm", 255, 8192, "row warps=32"),
        ("vllm", 256, 8192, "row warps=8"),
        ("vllm", 255, 2048, "row warps=8"),
        ("vllm", 255, 768, "row warps=4"),  # 96 threads
        ("vllm", 255, 255, "row warps=8"),  # vectors of one element
        ("vllm", 256, 32768, "row warps=8"),
        ("vllm", 256, 32769, ""),
        ("vllm", 255, 65536, "row warps=32"),
        ("vllm_gated", 264, 128, "row warps=1"),
        ("vllm_gated", 265, 128, "block_row block_row=2 warps=1"),
        ("vllm_gated", 528, 128, "block_row block_row=2 warps=1"),
        ("vllm_gated", 529, 128, "block_row block_row=4 warps=1"),
        ("vllm_gated", 262144, 128, "block_row block_row=4 warps=1"),
        ("vllm_gated", 1, 512, "row warps=2"),
        ("vllm_gated", 1, 513, "row warps=4"),
        ("vllm_gated", 1, 32768, "row warps=8"),
        ("vllm_gated", 1, 32769, ""),
        ("quack", 1, 64, "block_row block_row=16 warps=4"),
        ("quack", 1, 65, "block_row block_row=8 warps=4"),
        ("quack", 1, 128, "block_row block_row=8 warps=4"),
        ("quack", 1, 129, "block_row block_row=4 warps=4"),
        ("quack", 1, 3072, "block_row block_row=4 warps=4"),
        ("quack", 1, 3073, "block_row block_row=2 warps=4"),
        ("quack", 1, 6144, "block_row block_row=2 warps=4"),
        ("quack", 1, 6145, "row warps=4"),
        ("quack", 1, 16384, "row warps=4"),
        ("quack", 1, 16385, ""),
    ],
)
def test_the_forward_in_bfloat16(name: str, rows: int, hidden: int, expected: str) -> None:
    assert chosen(name, FORWARD, rows, hidden) == expected


@pytest.mark.parametrize(
    ("name", "rows", "hidden", "expected"),
    [
        ("liger_1238", 4095, 512, "persistent warps=4 programs_per_sm=1"),
        ("liger_1238", 4096, 512, "persistent block_row=16 warps=4 programs_per_sm=1"),
        ("liger_1238", 4096, 513, "persistent warps=4 programs_per_sm=1"),
        ("te_rocm", 16896, 128, "persistent block_row=4 warps=8 stages=2 programs_per_sm=16"),
        ("te_rocm", 16896, 129, "persistent block_row=2 warps=8 stages=2 programs_per_sm=16"),
        ("te_rocm", 16897, 128, "persistent warps=8 stages=2 programs_per_sm=1"),
        ("te_rocm", 16896, 513, "persistent warps=8 stages=2 programs_per_sm=1"),
        ("te_rocm", 16896, 8192, "persistent warps=8 stages=2 programs_per_sm=1"),
        ("te_rocm", 16896, 8193, "split warps=8 programs_per_sm=1 block_col=8192"),
        ("te_rocm", 16896, 32769, ""),
        ("aiter", 1, 128, "persistent block_row=128 warps=8 programs_per_sm=2"),
        ("aiter", 1, 129, "persistent block_row=64 warps=8 programs_per_sm=2"),
        ("aiter", 1, 512, "persistent block_row=32 warps=8 programs_per_sm=2"),
        ("aiter", 8192, 513, "persistent warps=8 programs_per_sm=1"),
        ("aiter", 8193, 1024, "persistent block_row=16 warps=8 programs_per_sm=4"),  # 513 tiles
        ("aiter", 8193, 2048, "persistent block_row=8 warps=8 programs_per_sm=8"),  # 1025 tiles
        ("aiter", 8193, 2049, "persistent warps=8 programs_per_sm=1"),
        ("aiter", 1, 16384, "persistent warps=8 programs_per_sm=1"),
        ("aiter", 1, 16385, ""),
        ("tilegym", 1, 2048, "persistent block_row=4 warps=8 programs_per_sm=1"),
        ("tilegym", 8191, 2049, "persistent warps=4 programs_per_sm=1"),
        ("tilegym", 8192, 2049, "persistent block_row=4 warps=16 programs_per_sm=1"),
        ("tilegym", 8192, 4096, "persistent block_row=4 warps=16 programs_per_sm=1"),
        ("tilegym", 8192, 4097, "persistent warps=8 programs_per_sm=1"),
        ("quack", 1, 64, "persistent block_row=16 warps=4 programs_per_sm=16"),
        ("quack", 1, 65, "persistent block_row=8 warps=4 programs_per_sm=16"),
        ("quack", 1, 256, "persistent block_row=4 warps=4 programs_per_sm=16"),
        ("quack", 1, 257, "persistent block_row=2 warps=4 programs_per_sm=8"),
        ("quack", 1, 512, "persistent block_row=2 warps=4 programs_per_sm=8"),
        ("quack", 1, 513, "persistent warps=4 programs_per_sm=8"),
        ("quack", 1, 1024, "persistent warps=4 programs_per_sm=8"),
        ("quack", 1, 1025, "persistent warps=4 programs_per_sm=4"),
        ("quack", 1, 2049, "persistent warps=4 programs_per_sm=2"),
        ("quack", 1, 4096, "persistent warps=4 programs_per_sm=2"),
        ("quack", 1, 4097, "persistent warps=8 programs_per_sm=1"),
        ("quack", 1, 8192, "persistent warps=8 programs_per_sm=1"),
        ("quack", 1, 8193, ""),
        ("atom", 4096, 128, ""),
        ("vllm", 4096, 128, ""),
        ("vllm_gated", 4096, 128, ""),
    ],
)
def test_the_backward_in_bfloat16(name: str, rows: int, hidden: int, expected: str) -> None:
    told = chosen(name, BACKWARD, rows, hidden)
    assert told.replace(" finish=reduce", "") == expected
    assert ("finish=reduce" in told) == bool(expected)


@pytest.mark.parametrize(
    ("name", "operator_name", "rows", "hidden", "expected"),
    [
        ("te_rocm", FORWARD, 4224, 4096, "persistent warps=8 stages=2 programs_per_sm=1"),
        ("te_rocm", FORWARD, 4224, 4097, "split warps=8 block_col=8192"),
        ("te_rocm", FORWARD, 4224, 32768, "split warps=8 block_col=16384"),
        ("te_rocm", FORWARD, 4224, 32769, ""),
        ("te_rocm", BACKWARD, 4224, 4097, "split warps=8 programs_per_sm=1 finish=reduce block_col=4096"),
        ("tilegym", FORWARD, 264, 4096, "split warps=4 block_col=1024"),
        ("tilegym", FORWARD, 264, 16385, ""),
        ("vllm", FORWARD, 255, 2048, "row warps=16"),
        ("vllm_gated", FORWARD, 1, 16384, "row warps=8"),
        ("vllm_gated", FORWARD, 1, 16385, ""),
        ("quack", FORWARD, 1, 16385, "row warps=8"),
        ("quack", FORWARD, 1, 32768, "row warps=8"),
        ("quack", FORWARD, 1, 32769, ""),
    ],
)
def test_where_float32_moves_an_edge(name: str, operator_name: str, rows: int, hidden: int, expected: str) -> None:
    assert chosen(name, operator_name, rows, hidden, "float32") == expected


def test_aiter_tiles_short_rows_in_training_only() -> None:
    assert chosen("aiter", FORWARD, 8192, 512, variant="no_rstd") == ""
    assert chosen("aiter", FORWARD, 8193, 512, variant="no_rstd") == "block_row block_row=32 warps=8"


@given(rows=st.integers(1, 1 << 20), hidden=st.integers(1, 1024), backward=st.booleans())
def test_rows_packed_by_transformer_engine_divide_the_rows(rows: int, hidden: int, backward: bool) -> None:
    packed = rows_per_program(rows, hidden, H200.sms, _BACKWARD_LADDER if backward else _FORWARD_LADDER)
    assert rows % packed == 0
    assert packed <= (1 if hidden > 512 else 16)
    assert packed <= 4 or rows // packed >= 8 * H200.sms


def test_grids_follow_the_number_of_multiprocessors() -> None:
    wide = H200._replace(sms=148)
    problem = Problem(FORWARD, 265, 128, "bfloat16")
    assert RULES["vllm_gated"].choose(problem, wide) == Config("row", 1, 1)
    assert RULES["tilegym"].choose(problem, wide) == Config("split", 1, 4, block_col=128)
