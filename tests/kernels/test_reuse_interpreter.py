"""Launches of backwards whose dx is dy's memory: the same bits, and no element that another program reads."""

import random

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

from normtune.kernels.call import ImplementationLaunch, run
from normtune.kernels.operator import operator, operators
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import calls_of, nan_outputs
from normtune.tuner.plan.plan import candidates

pytestmark = [pytest.mark.interpreter, pytest.mark.usefixtures("counted_loops", "rounded_bfloat16")]

# Three multiprocessors, so that a fixed grid loops over few rows.
TARGET = TARGETS["sm_80"]._replace(sms=3)
NAMES = ("rms_norm_backward", "fused_add_rms_norm_backward", "rms_norm_gated_backward")
# With two passes over a row that is held, over one that is not, and over one of several programs.
SHAPES = [(7, 64), (33, 100), (13, 1000), pytest.param(4, 24000, marks=pytest.mark.slow), (3, 66000)]
GATED = ("", "gate_first", "no_gate", "no_dweight+gate_first")


def launches_of(spec, problem):
    """One of the full space's for each schedule, way to end sums, and way to hold rows."""
    kept, _ = candidates(spec, spec.space("full", problem, TARGET), problem, TARGET)
    random.Random(problem.hidden).shuffle(kept)
    kept = [(config, launch) for config, launch in kept if spec.reuses_dy(launch, TARGET) or launch.finish == "columns"]
    return {
        (config.schedule, launch.finish, launch.held, launch.num_stages > 1): (config, launch)
        for config, launch in kept
    }


def is_read_alone_before_written(monkeypatch, calls, dy, dx):
    """Run the calls: whether each element of dy is read for the last time before that of dx is written.

    In the kernel that writes it no other program may read it, whatever their order.
    """
    builder = interpreter.interpreter_builder
    load, store = builder.create_masked_load, builder.create_masked_store
    kernel, conflicts = 0, 0
    reader = np.full(dy.numel(), -1)  # kernel and program, as one number
    is_shared, is_written = np.zeros(dy.numel(), bool), np.zeros(dy.numel(), bool)

    def elements(tensor, pointers, mask):
        """Of the tensor, those that are accessed; and the program, as one number with the kernel."""
        found = (pointers.data[mask.data.astype(bool)].astype(np.int64) - tensor.data_ptr()) // tensor.itemsize
        first, second, _ = builder.grid_idx
        return found[(found >= 0) & (found < tensor.numel())], (kernel * 4096 + first) * 4096 + second

    def loading(pointers, mask, *rest):
        nonlocal conflicts
        read, program = elements(dy, pointers, mask)
        conflicts += is_written[read].sum()
        is_same_kernel = reader[read] // 4096**2 == kernel
        is_shared[read] = is_same_kernel & (is_shared[read] | (reader[read] != program))
        reader[read] = program
        return load(pointers, mask, *rest)

    def storing(pointers, value, mask, *rest):
        nonlocal conflicts
        written, program = elements(dx, pointers, mask)
        is_same_kernel = reader[written] // 4096**2 == kernel
        conflicts += (is_same_kernel & (is_shared[written] | (reader[written] != program))).sum()
        assert not is_written[written].any()
        is_written[written] = True
        return store(pointers, value, mask, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(builder, "create_masked_load", loading)
        patch.setattr(builder, "create_masked_store", storing)
        for kernel, call in enumerate(calls):  # noqa: B007  (read by the accesses)
            run([call])
    assert is_written.all() and (reader >= 0).all()
    return conflicts == 0


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "hidden"), SHAPES)
@pytest.mark.parametrize(
    "key", [(name, variant) for name in NAMES for variant in (GATED if "gated" in name else operator(name).variants)]
)
def test_dx_in_the_memory_of_dy_has_the_same_bits(monkeypatch, key, rows, hidden):
    spec = operator(key[0])
    if hidden > spec.max_hidden:
        pytest.skip("longer than its rows")
    problem = spec.problem(rows, hidden, "float16", key[1])
    inputs = spec.references().inputs(problem, torch.Generator().manual_seed(rows), torch.device("cpu"), False)
    seen = set()
    for (schedule, finish, *_), (config, launch) in launches_of(spec, problem).items():
        plain, aliased = nan_outputs(spec, problem), nan_outputs(spec, problem)
        dy = aliased["dx"] = inputs["dy"].clone()
        calls = calls_of(spec, problem, launch, inputs | plain)
        is_safe = is_read_alone_before_written(monkeypatch, calls, inputs["dy"], plain["dx"])
        assert is_safe == spec.reuses_dy(launch, TARGET) == (finish != "columns"), config
        if is_safe:
            run(calls_of(spec, problem, launch, inputs | aliased | {"dy": dy}))
            for name, wanted in plain.items():
                assert torch.equal(aliased[name], wanted), (config, name)
        seen.add((schedule, finish))
    flat = {finish for schedule, finish in seen if schedule in ("row", "block_row")}
    assert {schedule for schedule, _ in seen} & {"persistent", "split"}
    if "gated" not in spec.name and hidden < 5000:
        assert flat == {"none" if "no_dweight" in key[1] else "columns"}


@pytest.mark.parametrize("name", NAMES)
def test_tiles_of_fewer_elements_than_threads_keep_dy(name):
    spec = operator(name)
    problem = spec.problem(8, 64, "float16")
    for warps, is_reused in ((1, True), (2, True), (4, False), (8, False)):
        launch = spec.launch(
            spec.default_config(problem, TARGET)._replace(
                schedule="persistent", num_warps=warps, block_row=1, finish="reduce", programs_per_sm=1, num_stages=1
            ),
            problem,
            TARGET,
        )
        assert spec.reuses_dy(launch, TARGET) == is_reused


def test_other_operators_and_implementations_keep_dy():
    assert [name for name, spec in operators().items() if spec.may_reuse_dy] == list(NAMES)
    assert not operator("rms_norm_backward").reuses_dy(ImplementationLaunch("torch"), TARGET)
