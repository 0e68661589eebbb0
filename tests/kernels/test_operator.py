"""What a spec promises to planning, fit and dispatch."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normtune.errors import UsageError
from normtune.kernels.config import Config
from normtune.kernels.operator import IllegalConfigError, operator, operators, register
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.target import TARGETS, target_for

SPECS = list(operators().values())
specs = st.sampled_from(SPECS)
targets = st.sampled_from(list(TARGETS.values()))
hidden_sizes = st.integers(1, 65536)
row_counts = st.integers(1, MAX_ROWS)
dtypes = st.sampled_from(["bfloat16", "float16", "float32"])


@st.composite
def any_config(draw, spec):
    problem = Problem(spec.name, 1, draw(hidden_sizes), "bfloat16")
    space = spec.space("full", problem, TARGETS["sm_90"]) + spec.space("default", problem, TARGETS["sm_90"])
    return draw(st.sampled_from(space))


@settings(max_examples=300, deadline=None)
@given(data=st.data(), spec=specs, target=targets, dtype=dtypes)
def test_legality_never_returns_as_shapes_grow(data, spec, target, dtype):
    config = data.draw(any_config(spec))
    variant = data.draw(st.sampled_from(spec.variants))
    rows = sorted(data.draw(st.tuples(row_counts, row_counts)))
    hidden = sorted(data.draw(st.tuples(hidden_sizes, hidden_sizes)))
    if spec.is_legal(config, Problem(spec.name, rows[1], hidden[1], dtype, variant), target):
        assert spec.is_legal(config, Problem(spec.name, rows[0], hidden[0], dtype, variant), target)


@given(spec=specs, target=targets, dtype=dtypes, hidden=hidden_sizes, rows=row_counts)
def test_every_shape_has_legal_configs(spec, target, dtype, hidden, rows):
    problem = spec.problem(rows, hidden, dtype)
    assert spec.is_legal(spec.default_config(problem, target), problem, target)
    assert any(spec.is_legal(config, problem, target) for config in spec.space("default", problem, target))


@given(data=st.data(), spec=specs, target=targets, dtype=dtypes, hidden=hidden_sizes, rows=row_counts)
@settings(deadline=None)
def test_launch_covers_the_problem_within_limits(data, spec, target, dtype, hidden, rows):
    config = data.draw(any_config(spec))
    try:
        launch = spec.resolve(config, Problem(spec.name, rows, hidden, dtype), target, None)
    except IllegalConfigError as error:
        assert str(error)
        return
    assert launch.block_col >= hidden and launch.block_col & (launch.block_col - 1) == 0
    assert launch.column_mask == (launch.block_col > hidden)
    assert 1 <= launch.block_row <= max(1, config.block_row)
    assert launch.num_warps * target.warp_size <= target.max_threads
    assert 4 * launch.workspace <= 64 << 20
    if launch.looped:
        assert launch.grid <= config.programs_per_sm * target.sms
    else:
        assert launch.grid * launch.block_row >= rows
    assert 1 <= launch.grid <= rows
    assert hidden % launch.alignment == 0


def test_average_size_of_the_default_spaces():
    from normtune.tuner.grids import shapes
    from normtune.tuner.planning import plan, problems

    for name, most in (("rms_norm_forward", 20), ("rms_norm_backward", 35)):
        chosen = plan(problems([name], ["bfloat16"], shapes("default")), "default", TARGETS["sm_90"])
        assert chosen.cells() <= most * len(chosen.tasks)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_what_the_rule_of_liger_maps_to_is_in_every_space(spec):
    for hidden, warps in ((64, 4), (1024, 4), (2048, 8), (8192, 16), (32768, 32)):
        problem = spec.problem(1 << 15, hidden, "bfloat16")
        for name in ("default", "full"):
            space = spec.space(name, problem, TARGETS["sm_90"])
            if spec.name.endswith("forward"):
                assert Config("row", 1, warps) in space and Config("block_row", 16, 4) in space
            else:
                assert Config("persistent", 1, warps, 1, 1, "reduce") in space
                assert Config("persistent", 16, 4, 1, 1, "reduce") in space


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 64, "bfloat16"), "rows is 0: expected a positive integer"),
        ((1, -3, "bfloat16"), "hidden is -3"),
        ((1, 1.5, "bfloat16"), "hidden is 1.5"),
        ((True, 64, "bfloat16"), "rows is True"),
        ((1, 65537, "bfloat16"), "hidden is 65537: rms_norm_forward takes 1 to 65536"),
        ((2**31, 64, "bfloat16"), "rows is 2147483648"),
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
    with pytest.raises(ValueError, match="unknown flag 'bias'"):
        operator("rms_norm_forward").variant(bias=True)
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
        "from normtune.kernels.rms_norm_spec import rms_norm_forward\n"
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["rms_norm_forward", "rms_norm_backward", "norm_of_elsewhere"]


def test_variants():
    spec = operator("rms_norm_forward")
    assert spec.variant(store_rstd=False) == "no_rstd"
    assert spec.variant(store_rstd=True) == spec.variant() == ""
    assert spec.problem(1, 2, "float32", "no_rstd").key == "rms_norm_forward:no_rstd"


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
