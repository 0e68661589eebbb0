"""Ahead-of-time compiles within the limits of absent GPUs; no such binary was launched here."""

import re

import pytest

from normtune.kernels.operator import operator
from normtune.kernels.qk_norm.config import QKNormConfig
from normtune.kernels.qk_norm.variants import FLAGS, operator_name
from normtune.kernels.target import TARGETS
from normtune.tuner.device.compiling import compile_all
from normtune.tuner.plan.binaries import jobs_of
from normtune.tuner.plan.plan import candidates

NAMES = {128: operator_name(32, 8, 48, 128), 100: operator_name(3, 1, 5, 40), 256: operator_name(8, 4, 16, 64)}
VARIANTS = ("", *(flag.off for flag in FLAGS), "+".join(flag.off for flag in FLAGS if flag.off != "no_rotary"))


def compiled(pairs, target):
    found = list(compile_all(jobs_of(pairs), target, workers=1, keep_assembly=True))
    assert found
    for one in found:
        assert one.status == "ok", one
        assert 0 <= one.shared_bytes <= TARGETS[target].shared_bytes
        assert 0 < one.threads <= TARGETS[target].max_threads
        assert [name for name, _ in one.binaries] == ["_qk_norm_kernel"]
    return found


def chosen(target, hidden, variant, space="default", dtype="bfloat16"):
    spec = operator(NAMES[hidden])
    problem = spec.problem(4096, hidden, dtype, variant)
    kept, _ = candidates(spec, spec.space(space, problem, TARGETS[target]), problem, TARGETS[target])
    return [(problem, launch) for _, launch in kept]


@pytest.mark.long
@pytest.mark.parametrize("hidden", NAMES)
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


@pytest.mark.slow
@pytest.mark.parametrize("hidden", NAMES)
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_the_default_space_compiles(target, hidden):
    for variant in ("", "gptj"):
        compiled(chosen(target, hidden, variant), target)


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_other_dtypes_compile(dtype):
    compiled(chosen("sm_90", 128, "", "quick", dtype)[::4], "sm_90")


@pytest.mark.long
@pytest.mark.parametrize("variant", ["", "gptj", "no_rotary"])
def test_a_warp_a_head_reads_wide_and_needs_no_barrier(variant):
    spec = operator(NAMES[128])
    problem = spec.problem(4096, 128, "bfloat16", variant)
    pairs = [(problem, spec.launch(QKNormConfig(rows, 4), problem, TARGETS["sm_90"])) for rows in (4, 16)]
    narrow, wide = sorted(compiled(pairs, "sm_90"), key=lambda one: one.job.launch.block_row)
    assert narrow.shared_bytes == 0 and "bar.sync" not in narrow.binaries[0][1]
    text = wide.binaries[0][1]
    assert re.search(r"ld\.global\.v4\.b32", text) and re.search(r"st\.global\.v4\.b32", text)
