"""Ahead-of-time compiles of the default space, within the limits of the targets; no such binary was launched here."""

import pytest

from normtune.kernels.operator import IllegalConfigError, operator
from normtune.kernels.rms_norm_quantize_fp8.launch import SCALINGS, Amax, QuantizedDtype, operator_name
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import compiled_within
from normtune.tuner.plan.plan import candidates

# Triton's PTX for a conversion of two values to each dtype; CDNA 3's instructions know only the fnuz dtypes.
CONVERSIONS = {
    ("sm_90", ""): "cvt.rn.satfinite.e4m3x2.f32",
    ("sm_90", "e5m2"): "cvt.rn.satfinite.e5m2x2.f32",
    ("gfx942", "fnuz"): "v_cvt_pk_fp8_f32",
    ("gfx942", "e5m2+fnuz"): "v_cvt_pk_bf8_f32",
}
HIDDEN = (100, 1024, 8192)


def jobs(target, variant, space="default", scalings=SCALINGS, dtypes=("bfloat16",), hidden=HIDDEN):
    for scaling in scalings:
        spec = operator(operator_name(scaling))
        for dtype in dtypes:
            for columns in hidden:
                problem = spec.problem(1024, columns, dtype, variant)
                kept, _ = candidates(spec, spec.space(space, problem, TARGETS[target]), problem, TARGETS[target])
                yield from ((problem, launch) for _, launch in kept)


def compiled(pairs, target):
    found = compiled_within(target, pairs)
    for one in found:
        problem = one.job.problem
        is_cleared = problem.operator == operator_name("static") and Amax.of(problem) is Amax.NEW
        assert len(one.binaries) == (3 if problem.operator == operator_name("tensor") else 1 + is_cleared)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("target", "variant"), CONVERSIONS)
def test_one_of_each_kind_compiles_to_the_conversions_of_the_target(target, variant):
    kinds = {}
    for problem, launch in jobs(target, variant):
        kinds[problem.operator, problem.hidden == 100, launch.looped, launch.chunks > 0] = (
            problem,
            launch,
        )
    for one in compiled(kinds.values(), target):
        texts = dict(one.binaries)
        assert any(CONVERSIONS[target, variant] in text for text in texts.values()), texts.keys()


@pytest.mark.slow
@pytest.mark.parametrize(("target", "variant"), CONVERSIONS)
def test_the_default_space_compiles(target, variant):
    compiled(jobs(target, variant), target)


@pytest.mark.long
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.slow
def test_all_variants_compile(scaling):
    words = [word for word in operator(operator_name(scaling)).variants[1:] if word not in ("fnuz", "e5m2")]
    pairs = [
        next(iter(jobs("sm_90", variant, "default", (scaling,), (dtype,), (1000,))))
        for dtype, variant in zip(3 * ("bfloat16", "float16", "float32"), (*words, "+".join(words)), strict=False)
    ]
    compiled(pairs, "sm_90")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("hidden", [8192, 65536])
def test_rows_of_sums_in_chunks_compile_held_and_read_again(hidden):
    for variant in ("with_residual", "with_residual+rounded_sum"):
        pairs = [pair for pair in jobs("sm_90", variant, "default", ("row",), hidden=(hidden,)) if pair[1].chunks]
        compiled(pairs[:1], "sm_90")


def test_dtypes_are_legal_where_instructions_exist():
    legal = set()
    for name, target in TARGETS.items():
        for variant in ("", "e5m2", "fnuz", "e5m2+fnuz"):
            spec = operator(operator_name("row"))
            problem = spec.problem(8, 64, "bfloat16", variant)
            try:
                spec.launch(spec.default_config(problem, target), problem, target)
            except IllegalConfigError as error:
                assert target.name in str(error) and QuantizedDtype.of(problem).dtype in str(error)
            else:
                legal.add((name, variant))
    ocp = {(name, variant) for name in TARGETS for variant in ("", "e5m2")} - {
        (name, variant) for name in ("sm_80", "sm_86") for variant in ("", "e5m2")
    }
    assert legal == ocp | {("gfx942", "fnuz"), ("gfx942", "e5m2+fnuz")}


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("hidden", [1, 100, 128, 4096, 20000, 65536])
def test_default_configs_are_legal_and_in_each_space(scaling, hidden):
    spec = operator(operator_name(scaling))
    for target in (TARGETS["sm_89"], TARGETS["sm_90"], TARGETS["gfx942"]):
        for dtype in spec.dtypes:
            problem = spec.problem(1 << 30, hidden, dtype)
            config = spec.default_config(problem, target)
            assert spec.is_legal(config, problem, target)
            assert all(config in spec.space(space, problem, target) for space in ("default", "full"))
