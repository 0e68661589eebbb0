"""The operator at the door: named integers, honest bytes, spaces, legality, launches beyond any tensor."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normtune.kernels.calling import dispatch
from normtune.kernels.key import Key
from normtune.kernels.operator import IllegalConfigError, operator, operators, read_config
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.qk_norm.launch import BACKWARD, FAMILY, heads_of, resolve, resolve_backward, trial
from normtune.kernels.qk_norm.operator import QKNormConfig, qk_norm, qk_norm_backward
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.qk_norm.heads import operator_name
from normtune.tuner.plan.plan import candidates, plan, problems

H200 = TARGETS["sm_90"]
NAME = operator_name(32, 8, 48, 128)
SPEC = operator(NAME)
BACKWARD_VARIANTS = qk_norm_backward.variants
VARIANTS = [*SPEC.variants, "+".join(SPEC.variants[1:])]
targets = st.sampled_from(list(TARGETS.values()))
sizes = st.tuples(st.integers(1, 64), st.integers(1, 16), st.integers(1, 128), st.integers(1, 512))


def test_sweeps_take_it_by_name_alone_and_at_any_named_integers():
    assert {NAME, operator_name(32, 8, 48, 128, BACKWARD)} <= set(operators())
    assert NAME not in {problem.operator for problem in problems([], ["bfloat16"], [(8, 64)])}
    other = operator_name(16, 2, 20, 64)
    wanted = problems(["qk_norm", other, f"{NAME}:gptj"], ["bfloat16"], [(64, 128)])
    assert [problem.key.text for problem in wanted] == [NAME, other, f"{NAME}:gptj"]
    assert len(plan(wanted, "portfolio", H200).tasks) == 3


def test_bytes_are_those_of_a_perfect_kernel():
    def moved(variant, of=SPEC):
        return of.bytes_moved(of.problem(10, 128, "bfloat16", variant))

    backward = operator(operator_name(32, 8, 48, 128, BACKWARD))
    weights, positions, tables = 2 * 128 * 2, 10 * 8, 2 * 10 * 64 * 2
    in_place = 2 * 10 * 40 * 128 * 2
    assert moved("no_rotary") == in_place + weights
    assert moved("") == in_place + weights + positions + tables
    assert moved("in_order+whole_tables") == in_place + weights + 2 * tables
    assert moved("out_of_place+no_rotary") == 2 * 10 * 48 * 128 * 2 + weights
    assert moved("", backward) == 3 * 10 * 48 * 128 * 2 + weights + positions + tables + 2 * 128 * 4
    assert moved("no_dweight+no_rotary", backward) == 3 * 10 * 48 * 128 * 2 + weights
    assert moved("", operator(operator_name(32, 8, 48, 64))) == in_place + weights + positions + tables // 2


def test_a_head_is_rotated_as_far_as_it_goes():
    rotary = [heads_of(SPEC.problem(1, hidden, "float32")).rotary for hidden in (1, 2, 127, 128, 300)]
    assert rotary == [0, 2, 126, 128, 128]
    assert heads_of(SPEC.problem(1, 128, "float32", "no_rotary+rounded_rotation+whole_tables")) == heads_of(
        SPEC.problem(1, 128, "float32", "no_rotary")
    )


def test_spaces_grow_and_their_configs_are_stored_and_named():
    for hidden in (64, 96, 128, 256, 1000):
        problem = SPEC.problem(4096, hidden, "bfloat16")
        counts = []
        for space in ("default", "full"):
            kept, _ = candidates(SPEC, SPEC.space(space, problem, H200), problem, H200)
            counts.append(len(kept))
        assert 0 < counts[0] <= counts[1]
        configs = SPEC.space("default", problem, H200)
        assert SPEC.default_config(problem, H200) in configs
        assert len({config.constant_name() for config in configs}) == len(configs)
        assert all(type(read_config(NAME, config.to_json())) is QKNormConfig for config in configs)


@given(
    sizes=sizes,
    hidden=st.integers(1, SPEC.max_hidden),
    rows=st.integers(1, MAX_ROWS),
    target=targets,
    dtype=st.sampled_from(SPEC.dtypes),
    kind=st.sampled_from([(FAMILY, off) for off in VARIANTS] + [(BACKWARD, off) for off in BACKWARD_VARIANTS]),
)
@settings(deadline=None)
def test_every_shape_has_a_legal_default(sizes, hidden, rows, target, dtype, kind):
    family, variant = kind
    spec = operator(operator_name(*sizes, family))
    problem = spec.problem(rows, hidden, dtype, variant)
    config = spec.default_config(problem, target)
    launch = spec.launch(config, problem, target)
    if launch.looped:
        assert launch.grid <= config.programs_per_sm * target.sms and 4 * launch.workspace <= 64 << 20
        assert launch.workspace in (0, 2 * launch.grid * hidden)
    else:
        assert launch.grid * launch.block_row >= rows * heads_of(problem).written
    assert all(config in spec.space(space, problem, target) for space in ("default", "full"))


@pytest.mark.slow
@given(data=st.data(), sizes=sizes, target=targets, dtype=st.sampled_from(SPEC.dtypes))
@settings(deadline=None, max_examples=300)
def test_legality_never_returns_as_shapes_grow(data, sizes, target, dtype):
    name, variant = operator_name(*sizes), data.draw(st.sampled_from(VARIANTS))
    rows = sorted(data.draw(st.tuples(st.integers(1, MAX_ROWS), st.integers(1, MAX_ROWS))))
    hidden = sorted(data.draw(st.tuples(st.integers(1, 4096), st.integers(1, 4096))))
    problem = Problem.of(name, rows[1], hidden[1], dtype, variant)
    config = data.draw(st.sampled_from(SPEC.space("full", problem, target)))
    if SPEC.is_legal(config, problem, target):
        assert SPEC.is_legal(config, Problem.of(name, rows[0], hidden[0], dtype, variant), target)


@given(data=st.data(), sizes=sizes, hidden=st.integers(1, 600), variant=st.sampled_from(VARIANTS))
def test_tiles_hold_a_head_and_no_more_than_a_thread_may(data, sizes, hidden, variant):
    problem = Problem.of(operator_name(*sizes), 77, hidden, "bfloat16", variant)
    config = data.draw(st.sampled_from(SPEC.space("full", problem, H200)))
    try:
        launch = resolve(config, problem, H200)
    except IllegalConfigError as error:
        assert "exceed" in str(error)
        return
    rest = hidden - launch.rotary
    assert launch.rotary <= 2 * launch.block_pair < max(1, 2 * launch.rotary)
    assert rest <= launch.block_rest < max(1, 2 * rest) and launch.has_rest_mask == (launch.block_rest > rest)
    # One element of an odd head is not counted.
    assert launch.block_row * (2 * launch.block_pair + launch.block_rest - 1) <= 64 * 32 * launch.num_warps
    assert 1 <= launch.block_row <= config.block_row and launch.workspace == 0


@given(data=st.data(), sizes=sizes, hidden=st.integers(1, 2000), variant=st.sampled_from(BACKWARD_VARIANTS))
def test_tiles_of_the_backward_are_equally_wide_and_hold_a_head(data, sizes, hidden, variant):
    spec = operator(operator_name(*sizes, BACKWARD))
    problem = spec.problem(77, hidden, "bfloat16", variant)
    launch = spec.launch_of(data.draw(st.sampled_from(spec.space("full", problem, H200))), problem, H200)
    if launch is None:
        return
    rest = hidden - launch.rotary
    assert launch.rotary <= 2 * launch.block_pair and 0 <= launch.rests <= 8
    assert (launch.rests - 1) * launch.block_rest < max(1, rest) <= max(1, launch.rests * launch.block_rest)
    assert not (launch.rotary and rest) or launch.block_pair == launch.block_rest
    # Neither half of the pairs' tiles is needless, nor would half as many elements in the others' have been enough.
    assert launch.rotary > launch.block_pair or rest > 4 * launch.block_rest or not launch.rotary


def test_illegal_configs_say_why():
    problem = SPEC.problem(8, 8192, "bfloat16", "no_rotary")
    with pytest.raises(IllegalConfigError, match="256 elements a thread exceed 64"):
        resolve(QKNormConfig(1, 1), problem, H200)
    with pytest.raises(IllegalConfigError, match="bytes of pipeline buffers exceed"):
        resolve(QKNormConfig(1, 4, 4, 4), problem, H200)
    with pytest.raises(IllegalConfigError, match="a backward without a fixed grid"):
        resolve_backward(QKNormConfig(1, 8), problem, H200)
    with pytest.raises(IllegalConfigError, match="2048 threads exceed 1024"):
        resolve(QKNormConfig(1, 32), problem, TARGETS["gfx942"])


def test_programs_beyond_one_dimension_of_a_grid_make_a_second():
    class Strided:
        def stride(self, _):
            return 128

    problem = SPEC.problem(MAX_ROWS, 128, "bfloat16", "no_rotary")
    launch = SPEC.launch(QKNormConfig(1, 1), problem, H200)
    tensors = dict.fromkeys(("qkv", "weight_q", "weight_k"), Strided())
    (call,) = SPEC.calls(launch, problem, tensors, None, SPEC.scalars)
    assert launch.grid == 40 * MAX_ROWS and call.grid == (2**30, 40)


@pytest.mark.parametrize("block_row", [1, 4, 16, 32])
@pytest.mark.parametrize("programs", [0, 4])
@pytest.mark.parametrize("variant", ["", "out_of_place"])
def test_the_gate_tries_the_same_binary_with_a_cut_block(block_row, programs, variant):
    for heads_q in (7, 32):
        problem = operator(operator_name(heads_q, 8, 48, 64)).problem(1 << 20, 128, "bfloat16", variant)
        launch = resolve(QKNormConfig(block_row, 4, 1, programs), problem, H200)
        tried, small = trial(QKNormConfig(block_row, 4, 1, programs), launch, problem, H200)
        assert small.binary == launch.binary and tried.rows * 48 < 10000
        heads = tried.rows * heads_of(tried).written
        assert heads >= 5 * 6 * launch.block_row and small.grid <= (5 if programs else heads)
        assert heads % launch.block_row or heads_of(tried).written % launch.block_row == 0


def test_a_table_answers_for_other_heads_with_the_nearest_function():
    known = [Key.parse(name, "bfloat16") for name in (NAME, operator_name(8, 1, 10, 128))]
    assert Key.parse(operator_name(28, 4, 36, 128), "bfloat16").nearest(known) == known[0]
    assert Key.parse(operator_name(8, 2, 12, 64), "bfloat16").nearest(known) == known[1]


def test_inputs_have_positions_within_the_tables():
    problem = SPEC.problem(9, 128, "float16")
    inputs = SPEC.references().inputs(problem, torch.Generator().manual_seed(0), torch.device("cpu"), True)
    assert {buffer.name: (buffer.shape, buffer.dtype) for buffer in SPEC.buffers(problem)} == {
        name: (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in inputs.items()
    }
    assert inputs["positions"].min() >= 0 and inputs["positions"].max() < 9


def test_the_distance_between_tokens_narrows_accesses_to_what_it_aligns():
    """A promise of 16 elements for tokens 4 apart would be read at addresses that no GPU takes."""
    spec = qk_norm.at(heads_q=4, heads_k=2, heads=8, rotary_dim=128)
    problem = spec.problem(16, 128, "bfloat16", "in_order")
    tensors = {
        one.name: torch.empty(one.shape, dtype=getattr(torch, one.dtype), device="meta")
        for one in spec.buffers(problem)
    }
    assert dispatch.alignment_in(spec, problem, tensors) == 16
    padded = torch.empty(16, 1028, dtype=torch.bfloat16, device="meta")[:, :1024]
    assert dispatch.alignment_in(spec, problem, {**tensors, "qkv": padded}) == 4
    table = torch.empty(16, 66, dtype=torch.bfloat16, device="meta")[:, :64]
    assert dispatch.alignment_in(spec, problem, {**tensors, "cos": table}) == 2
