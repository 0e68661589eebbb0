"""Ahead-of-time compiles within the limits of absent GPUs; no such binary was launched here."""

import re

import pytest

from normtune.kernels.operator import operator
from normtune.kernels.qk_norm.launch import BACKWARD, FAMILY
from normtune.kernels.qk_norm.operator import QKNormConfig, qk_norm, qk_norm_backward
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import compiled_within
from normtune.tests.kernels.qk_norm.heads import operator_name
from normtune.tuner.plan.plan import candidates

pytestmark = pytest.mark.long

SIZES = {128: (32, 8, 48, 128), 100: (3, 1, 5, 40), 256: (8, 4, 16, 64)}
VARIANTS = (*qk_norm.variants, "+".join(word for word in qk_norm.variants[1:] if word != "no_rotary"))


def compiled(pairs, target):
    found = compiled_within(target, pairs)
    for one in found:
        main = "_qk_norm_backward_kernel" if one.job.problem.operator.startswith(BACKWARD) else "_qk_norm_kernel"
        assert [name for name, _ in one.binaries][:1] == [main]
        assert len(one.binaries) == 1 + (one.job.launch.workspace > 0)
    return found


def chosen(target, hidden, variant, space="default", dtype="bfloat16", family=FAMILY):
    spec = operator(operator_name(*SIZES[hidden], family))
    problem = spec.problem(4096, hidden, dtype, variant)
    kept, _ = candidates(spec, spec.space(space, problem, TARGETS[target]), problem, TARGETS[target])
    return [(problem, launch) for _, launch in kept]


@pytest.mark.slow
@pytest.mark.parametrize("hidden", SIZES)
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_the_widest_of_each_kind_compiles_in_each_variant(target, hidden):
    pairs = []
    for variant in VARIANTS:
        kinds = {}
        for problem, launch in sorted(chosen(target, hidden, variant), key=lambda pair: pair[1].block_row):
            kinds[launch.looped, launch.num_stages] = problem, launch
        flat, *looped = [kinds[kind] for kind in sorted(kinds)]
        pairs += [flat, looped[-1]] if variant == "" else [flat]
    compiled(pairs, target)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("hidden", SIZES)
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.slow
def test_gradients_compile(target, hidden):
    pairs = []
    for variant in qk_norm_backward.variants:
        found = sorted(chosen(target, hidden, variant, family=BACKWARD), key=lambda pair: pair[1].block_row)
        pairs += found[-1:] if variant else [found[0], found[-1]]
    compiled(pairs, target)


@pytest.mark.slow
@pytest.mark.parametrize("family", [FAMILY, BACKWARD])
@pytest.mark.parametrize("hidden", SIZES)
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_the_default_space_compiles(target, hidden, family):
    for variant in ("", "gptj"):
        compiled(chosen(target, hidden, variant, family=family), target)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_other_dtypes_compile(dtype):
    compiled(chosen("sm_90", 128, "", dtype=dtype)[::16], "sm_90")


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["", "gptj", "no_rotary"])
def test_a_warp_a_head_reads_wide_and_needs_no_barrier(variant):
    spec = operator(operator_name(*SIZES[128]))
    problem = spec.problem(4096, 128, "bfloat16", variant)
    pairs = [(problem, spec.launch(QKNormConfig(rows, 4), problem, TARGETS["sm_90"])) for rows in (4, 16)]
    narrow, wide = sorted(compiled(pairs, "sm_90"), key=lambda one: one.job.launch.block_row)
    assert narrow.shared_bytes == 0 and "bar.sync" not in narrow.binaries[0][1]
    text = wide.binaries[0][1]
    assert re.search(r"ld\.global\.v4\.b32", text) and re.search(r"st\.global\.v4\.b32", text)


@pytest.mark.slow
def test_rounded_products_of_a_rotation_are_not_fused_with_their_sum():
    spec = operator(operator_name(*SIZES[128]))
    for variant, is_fused in (("", True), ("rounded_rotation", False), ("no_rotary+rounded_rotation", True)):
        problem = spec.problem(4096, 128, "bfloat16", variant)
        (binary,) = compiled([(problem, spec.launch(QKNormConfig(4, 4), problem, TARGETS["sm_90"]))], "sm_90")
        assert bool(re.search(r"\bfma\.", binary.binaries[0][1])) == is_fused
