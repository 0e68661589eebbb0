"""Ahead-of-time compiles of kernels that transpose, within the limits of the targets; none was launched here."""

import re

import pytest

from normtune.kernels.operator import operator
from normtune.kernels.rms_norm_quantize_fp8.launch import TRANSPOSE, operator_name
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import compiled_within
from normtune.tuner.plan.plan import candidates

pytestmark = pytest.mark.long

NAME = operator_name(TRANSPOSE)


def pairs(name, target, rows, hidden, variant="", space="default"):
    spec = operator(name)
    problem = spec.problem(rows, hidden, "bfloat16", variant)
    kept, _ = candidates(spec, spec.space(space, problem, TARGETS[target]), problem, TARGETS[target])
    return [(problem, launch) for _, launch in kept]


def text_of(found):
    return "\n".join(text for one in found for _, text in one.binaries)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "variant"), [("sm_90", ""), ("sm_90", "e5m2+no_amax"), ("gfx942", "fnuz")])
def test_one_of_each_kind_compiles(target, variant):
    kinds = {}
    for rows, hidden in ((1024, 8192), (1000, 100)):
        for problem, launch in pairs(NAME, target, rows, hidden, variant):
            kind = (hidden, launch.norm.looped, launch.norm.chunks > 0)
            kinds[kind] = (problem, launch)
    found = compiled_within(target, kinds.values())
    assert all(len(one.binaries) == 2 + ("no_amax" not in variant) for one in found)


@pytest.mark.slow
def test_variants_compile():
    off = "rounded_norm+rounded_product+with_y+with_residual"
    for variant in (off, f"{off}+rounded_sum"):
        compiled_within("sm_90", pairs(NAME, "sm_90", 1024, 1000, variant, "default")[:2])


@pytest.mark.slow
@pytest.mark.parametrize(("target", "wide"), [("sm_90", r"st\.global\.v4\.b32"), ("gfx942", "global_store_dwordx4")])
def test_a_transposition_writes_16_bytes_at_once_where_rows_allow_it(target, wide):
    """Rows of 16 bytes and more a thread; of a number of rows that is odd, no access is wide."""
    spec = operator("transpose_fp8")
    for rows, is_wide in ((4096, True), (4095, False)):
        problem = spec.problem(rows, 4096, "bfloat16")
        launch = spec.launch(spec.default_config(problem, TARGETS[target]), problem, TARGETS[target])
        assert bool(re.search(wide, text_of(compiled_within(target, [(problem, launch)])))) == is_wide


@pytest.mark.parametrize(
    "target", ["sm_90", *(pytest.param(one, marks=pytest.mark.slow) for one in ("sm_80", "gfx942"))]
)
@pytest.mark.slow
def test_the_transposition_compiles(target):
    chosen = [
        pair for rows, hidden in ((1024, 4096), (1023, 100)) for pair in pairs("transpose_fp8", target, rows, hidden)
    ]
    compiled_within(target, chosen[::5])
