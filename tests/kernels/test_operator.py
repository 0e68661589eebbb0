"""Guarantees of a spec to planning, fit and dispatch."""

import random
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normtune.errors import UsageError
from normtune.heuristics.regret.legality import all_variants
from normtune.kernels.config import check_values
from normtune.kernels.mode import Dweight, Mode, Rstd, names_of
from normtune.kernels.operator import IllegalConfigError, operator, operators, register
from normtune.kernels.problem import INPUT, ITEMSIZE, MAX_ROWS, Buffer, Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import TARGETS, target_for
from normtune.tests.commands import printed_by
from normtune.tests.kernels.problems import changed

# Of operators on rows that run on every target: FP8 needs sm_89.
SPECS = [spec for spec in operators().values() if spec.config is RMSNormConfig]
specs = st.sampled_from(SPECS)
targets = st.sampled_from(list(TARGETS.values()))
hidden_sizes = st.integers(1, 65536)
row_counts = st.integers(1, MAX_ROWS)
dtypes = st.sampled_from(["bfloat16", "float16", "float32"])


def lengths(spec):
    """Hidden sizes of an operator, half of them short."""
    return st.integers(1, 65536) | st.integers(1, spec.max_hidden)


@st.composite
def any_config(draw, spec):
    problem = Problem.of(spec.name, 1, draw(lengths(spec)), "bfloat16")
    space = spec.space("full", problem, TARGETS["sm_90"]) + spec.space("default", problem, TARGETS["sm_90"])
    return draw(st.sampled_from(space))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", [spec.name for spec in operators().values() if spec.modes])
def test_legality_and_the_order_of_sums_depend_on_the_limiting_modes_and_the_size_of_the_dtype_alone(name):
    spec, draw = operator(name), random.Random(0)
    for target in ("sm_90", "gfx942"):
        for rows, hidden, *dtypes in (
            (1, 64, "bfloat16", "float16"),
            (4096, 4096, "float16"),
            (1 << 20, 12288, "float32"),
        ):
            problem = Problem.of(spec.name, rows, hidden, dtypes[0])
            space = spec.space("full", problem, TARGETS[target])
            for config in draw.sample(space, min(8, len(space))):
                known = {}
                every = all_variants(spec)
                for variant in draw.sample(every, min(60, len(every))):
                    for dtype in dtypes:
                        asked = changed(problem, variant=variant, dtype=dtype)
                        launch = spec.launch_of(config, asked, TARGETS[target])
                        found = launch and getattr(launch, "row_sum", None)
                        assert known.setdefault(spec.limiting_part(variant), found) == found


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(data=st.data(), spec=specs, target=targets, dtype=dtypes)
def test_legality_never_returns_as_shapes_grow(data, spec, target, dtype):
    config = data.draw(any_config(spec))
    variant = data.draw(st.sampled_from(spec.variants))
    rows = sorted(data.draw(st.tuples(row_counts, row_counts)))
    hidden = sorted(data.draw(st.tuples(lengths(spec), lengths(spec))))
    if spec.is_legal(config, Problem.of(spec.name, rows[1], hidden[1], dtype, variant), target):
        assert spec.is_legal(config, Problem.of(spec.name, rows[0], hidden[0], dtype, variant), target)


@pytest.mark.slow
@given(data=st.data(), spec=specs, target=targets, dtype=dtypes, rows=row_counts)
def test_every_shape_has_legal_configs(data, spec, target, dtype, rows):
    problem = spec.problem(rows, data.draw(lengths(spec)), dtype)
    assert spec.is_legal(spec.default_config(problem, target), problem, target)
    assert any(spec.is_legal(config, problem, target) for config in spec.space("default", problem, target))


@given(data=st.data(), spec=specs, target=targets, dtype=dtypes, hidden=hidden_sizes, rows=row_counts)
@settings(deadline=None)
def test_launch_covers_the_problem_within_limits(data, spec, target, dtype, hidden, rows):
    config = data.draw(any_config(spec))
    try:
        launch = spec.resolve(config, Problem.of(spec.name, rows, hidden, dtype), target, None)
    except IllegalConfigError as error:
        assert str(error)
        return
    threads = launch.num_warps * target.warp_size
    covered = launch.parts * launch.block_col * max(1, launch.chunks)
    assert (
        (covered - launch.block_col < hidden or launch.parts > 1)
        and hidden <= covered
        and launch.block_col & (launch.block_col - 1) == 0
    )
    assert launch.column_mask == (covered > hidden)
    assert 1 <= launch.block_row <= max(1, config.block_row)
    assert launch.num_ctas in (1, launch.parts) and 1 <= launch.tile_parts <= launch.parts
    assert threads <= target.max_threads
    assert 4 * launch.workspace <= 64 << 20
    slices = -(-hidden // (launch.num_ctas * launch.slice_col)) if launch.slice_row else 0
    if launch.looped:
        assert launch.grid <= max(1, config.programs_per_sm) * target.sms
    else:
        assert (launch.grid - slices) * launch.block_row >= rows
    assert 1 <= launch.grid - slices <= rows
    assert (launch.finish in ("reduce", "dependent")) == (launch.workspace > 0)
    assert launch.finish != "dependent" or target.has_dependent_launch
    assert (launch.finish == "columns") == (launch.slice_row > 0)
    assert (launch.slice_col > 0) == (launch.slice_row > 0)
    assert (launch.part_col > 0) == (launch.in_place != launch)
    if launch.in_place != launch:
        assert config.schedule == "parts" and launch.row_sum == launch.in_place.row_sum
        assert max(512, threads) <= launch.part_col < launch.block_col and launch.block_col % launch.part_col == 0
        assert rows * (launch.block_col // launch.part_col) <= config.programs_per_sm * target.sms
    assert hidden % launch.alignment == 0


def test_average_size_of_the_default_spaces():
    from normtune.tuner.plan.grids import shapes
    from normtune.tuner.plan.plan import plan, problems

    for name, most in (("rms_norm_forward", 17), ("rms_norm_backward", 25)):
        chosen = plan(problems([name], ["bfloat16"], shapes("default")), "default", TARGETS["sm_90"])
        assert chosen.cells() <= most * len(chosen.tasks)


@pytest.mark.parametrize("spec", SPECS[:2], ids=lambda spec: spec.name)
def test_what_the_rule_of_liger_maps_to_is_in_every_space(spec):
    for hidden, warps in ((64, 4), (1024, 4), (2048, 8), (8192, 16), (32768, 32)):
        problem = spec.problem(1 << 15, hidden, "bfloat16")
        for name in ("default", "full"):
            space = spec.space(name, problem, TARGETS["sm_90"])
            if spec.name.endswith("forward"):
                assert RMSNormConfig("row", 1, warps) in space and RMSNormConfig("block_row", 16, 4) in space
            else:
                assert RMSNormConfig("persistent", 1, warps, 1, 1, "reduce") in space
                assert RMSNormConfig("persistent", 16, 4, 1, 1, "reduce") in space


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 64, "bfloat16"), "rows is 0: expected a positive integer"),
        ((1, -3, "bfloat16"), "hidden is -3"),
        ((1, 1.5, "bfloat16"), "hidden is 1.5"),
        ((True, 64, "bfloat16"), "rows is True"),
        ((1, 65537, "bfloat16"), "hidden is 65537: rms_norm_forward takes 1 to 65536"),
        ((2**30 + 1, 64, "bfloat16"), "rows is 1073741825"),
        ((1, 64, "int8"), "unknown dtype 'int8'"),
        ((1, 64, "bfloat16", "no_dweight"), "unknown variant 'no_dweight'"),
    ],
)
def test_bad_problems_are_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        operator("rms_norm_forward").problem(*arguments)


def test_unknown_names():
    with pytest.raises(UsageError, match="unknown operator 'layer_norm': expected one of rms_norm_forward"):
        operator("layer_norm")
    with pytest.raises(ValueError, match="rms_norm_forward has no mode Dweight: expected one of Rstd, Product"):
        operator("rms_norm_forward").variant(Dweight.NONE)
    for name in ("sm_1", "sm_x", "90", "gfx1"):
        with pytest.raises(UsageError, match=f"unknown target '{name}'"):
            target_for(name, 1)


def test_a_newer_architecture_has_the_limits_of_the_nearest_older_one():
    assert target_for("sm_103", 160) == TARGETS["sm_100"]._replace(name="sm_103", sms=160)
    assert target_for("sm_121", 48) == TARGETS["sm_120"]._replace(name="sm_121", sms=48)
    assert target_for("sm_87", 16).shared_bytes == TARGETS["sm_86"].shared_bytes


def test_operators_of_other_distributions_are_found(tmp_path):
    (tmp_path / "elsewhere.py").write_text(
        "import dataclasses\n"
        "from normtune.kernels.operator import register\n"
        "from normtune.kernels.rms_norm.operator import rms_norm_forward\n"
        "register(dataclasses.replace(rms_norm_forward, name='norm_of_elsewhere'))\n"
    )
    info = tmp_path / "elsewhere-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[normtune.operators]\nelsewhere = elsewhere\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from normtune.kernels.operator import operators\n"
        "print(*operators())\n"
    )
    assert printed_by(code).split() == [*operators(), "norm_of_elsewhere"]


def test_variants():
    spec = operator("rms_norm_forward")
    assert spec.variant(Rstd.NONE) == "no_rstd"
    assert spec.variant(Rstd.STORED) == spec.variant() == ""
    assert spec.problem(1, 2, "float32", "no_rstd").key.text == "rms_norm_forward:no_rstd"


@pytest.mark.parametrize("name", [spec.name for spec in operators().values() if spec.modes])
def test_modes_come_back_from_the_text_of_a_variant_whatever_their_order(name):
    spec, draw = operator(name), random.Random(0)
    every = [*product(*spec.modes)]
    for members in draw.sample(every, min(300, len(every))):
        variant = spec.variant(*draw.sample(members, len(members)))
        problem = spec.problem(1, 64, "float32", variant)
        assert tuple(mode.of(problem) for mode in spec.modes) == members
        assert names_of(spec.modes, problem.variant) == tuple(member.name for member in members)
        assert variant == "+".join(word for member in members for word in member.words)


class Shade(Mode):
    DARK = "dark"
    LIGHT = "no rstd"


class OtherRstd(Mode):
    STORED = ""
    NONE = "no_rstd"


def test_kernels_read_modes_by_their_names_in_snake_case():
    assert names_of((Rstd, OtherRstd), "no_rstd")._asdict() == {"rstd": "NONE", "other_rstd": "NONE"}


def test_faults_of_modes_are_a_line_each():
    spec = replace(operator("rms_norm_forward"), name="shaded", modes=(Rstd, Shade, OtherRstd))
    with pytest.raises(UsageError) as caught:
        register(spec)
    assert [line.partition(": ")[2] for line in str(caught.value).splitlines()] == [
        "'no rstd' names a mode, scalar or integer: expected letters, digits and _",
        "two modes have one word: no_rstd, dark, no rstd, no_rstd",
        "Shade has no default: expected a member of the value ''",
    ]


def test_a_name_is_registered_once():
    spec = operator("rms_norm_forward")
    assert register(spec) is spec
    other = type(spec)(**{**spec.__dict__, "max_hidden": 1})
    with pytest.raises(ValueError, match="registered already"):
        register(other)


def test_bytes_of_a_perfect_kernel():
    forward, backward = operator("rms_norm_forward"), operator("rms_norm_backward")
    assert forward.bytes_moved(forward.problem(64, 128, "bfloat16")) == 2 * 64 * 128 * 2 + 128 * 2 + 64 * 4
    assert backward.bytes_moved(backward.problem(64, 128, "bfloat16")) == 3 * 64 * 128 * 2 + 64 * 4 + 2 * 128 * 2


def test_what_a_target_has_since_hopper():
    assert [TARGETS[name].has_dependent_launch for name in ("sm_80", "sm_89", "sm_90", "sm_120", "gfx942")] == [
        *(False, False, True, True, False)
    ]


def test_an_older_target_reduces_and_fetches_nothing():
    spec = operator("rms_norm_backward")
    config = RMSNormConfig("split", 1, 16, 2, 1, "dependent", 4096)
    problem = spec.problem(4096, 16384, "bfloat16")
    new, old = (spec.resolve(config, problem, TARGETS[name], None) for name in ("sm_90", "sm_80"))
    assert (new.finish, new.num_stages) == ("dependent", 2) and (old.finish, old.num_stages) == ("reduce", 1)


def test_rows_stay_in_registers_where_they_fit():
    spec = operator("rms_norm_backward")
    config = RMSNormConfig("split", 1, 32, 1, 1, "reduce", 4096)
    held = {
        (hidden, dtype): spec.resolve(config, spec.problem(99, hidden, dtype), TARGETS["sm_90"], None).held
        for hidden in (12288, 16384, 32768)
        for dtype in ("bfloat16", "float32")
    }
    assert {shape for shape, stays in held.items() if stays} == {
        *((12288, "bfloat16"), (12288, "float32"), (16384, "bfloat16"))
    }


@pytest.mark.parametrize(
    ("config", "rows", "reason"),
    [
        (RMSNormConfig("row", 1, 4), 8, "finish 'none' needs a grid of fixed size"),
        (RMSNormConfig("row", 1, 4, 1, 0, "columns", 32), 5000, "5000 rows exceed 4096"),
        (RMSNormConfig("row", 1, 4, 1, 0, "columns"), 8, "without block_col"),
        (RMSNormConfig("split", 1, 4, 1, 1, "reduce"), 8, "split with block_col 0"),
        (RMSNormConfig("split", 1, 8, 1, 1, "columns", 1024), 8, "cannot end partial sums"),
        (RMSNormConfig("split", 1, 32, 1, 1, "reduce", 128), 8, "chunks exceed 16"),
        (RMSNormConfig("split", 1, 1, 1, 1, "reduce", 4096), 8, "128 elements a thread exceed 64"),
        (RMSNormConfig("split", 1, 1, 1, 1, "reduce", 2048), 8, "256 elements a thread exceed 128"),
    ],
)
def test_illegal_ways_say_why(config, rows, reason):
    spec = operator("rms_norm_backward")
    with pytest.raises(IllegalConfigError, match=reason):
        spec.resolve(config, spec.problem(rows, 8192, "bfloat16"), TARGETS["sm_90"], None)


@pytest.mark.long
@pytest.mark.slow
@settings(max_examples=300)
@given(st.data())
@pytest.mark.parametrize("name", sorted(operators()))
def test_whatever_a_table_names_is_a_launch_or_illegal(name, data):
    spec = operator(name)
    words = st.sampled_from(
        ["row", "block_row", "persistent", "split", "tile", "none", "reduce", "dependent", "columns", "x"]
    )
    numbers = st.sampled_from([1, 2, 3, 4, 8, 31, 64, 100, 1024, 65536, 1 << 20])
    values = [data.draw(words if knob.kind is str else numbers | st.just(0)) for knob in spec.config.knobs]
    config = spec.config(*values)
    try:
        check_values(config)
    except ValueError:
        return
    problem = Problem.of(name, data.draw(numbers), data.draw(numbers), data.draw(st.sampled_from(sorted(ITEMSIZE))))
    target = TARGETS[data.draw(st.sampled_from(sorted(TARGETS)))]
    launch = spec.launch_of(config, problem, target, data.draw(st.sampled_from([None, 1, 16])))
    assert launch is None or launch.grid >= 1


def test_the_order_of_operators_does_not_depend_on_what_was_imported_first():
    code = "import {}; from normtune.kernels.operator import operators; print(*operators())"
    modules = ("sys", "normtune.kernels.qk_norm.operator", "normtune.kernels.rms_norm_quantize_fp8.operator")
    told = [printed_by(code.format(module)) for module in modules]
    assert len(set(told)) == 1 and told[0].startswith("rms_norm_forward rms_norm_backward ")


def test_the_members_of_a_family_are_known_before_anything_else_is_asked():
    code = "from normtune.kernels.operator import members; print(*members('qk_norm_backward'))"
    assert printed_by(code).split() == [name for name in operators() if name.startswith("qk_norm_backward.")]


def test_a_buffer_is_made_of_its_axes():
    problem = Problem.of("norm.group=4", 3, 5, "float16")
    assert problem.buffer("x", "rows,group", INPUT) == Buffer("x", (3, 4), "float16", INPUT, "rows,group")
    assert problem.buffer("y", "hidden,rows", INPUT, "float32")[1:3] == ((5, 3), "float32")
