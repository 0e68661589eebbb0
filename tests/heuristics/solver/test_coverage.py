"""Any shapes and any part of a space give a table that is legal everywhere, with the default config as a fallback."""

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from normtune.errors import NormtuneError
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.regret.legality import Legality, all_variants
from normtune.heuristics.writing.emit import module_text
from normtune.kernels.operator import operator, operators
from normtune.kernels.problem import Problem
from normtune.kernels.tablefile.parse import trees
from normtune.kernels.tablefile.tree import choose, distinct
from normtune.kernels.target import TARGETS
from normtune.results.evidence import Evidence
from normtune.results.records import Device, Measurement, Run
from normtune.tests.heuristics.made_up import as_command

TARGET = TARGETS["sm_90"]
RUN = Run("r", Device("GPU", "sm_90", 132, 1, 1, "GPU-1", "1"), {}, "2026-01-01T00:00:00", {})
OPERATORS = tuple(name for name, spec in operators().items() if spec.is_default)
ROUNDS = np.arange(4, dtype=np.int32)
rows = st.one_of(st.integers(1, 70_000), st.integers(1, 40), st.just(1 << 22))
hidden = st.one_of(st.sampled_from([64, 768, 1000, 4096, 8192, 16384, 65536]), st.integers(1, 65536))


def cell(problem, config):
    draw = random.Random(f"{problem} {config}")
    times = np.array([int(10_000 * (1 + draw.random())) for _ in ROUNDS], np.int32)
    return Measurement(problem, config, "r", "f", "ok", "", ROUNDS, times)


def cells(shapes, names=OPERATORS, dtype="bfloat16", kept=lambda config: True):
    problems = [Problem.of(name, *shape, dtype) for name in names for shape in shapes]
    return [
        cell(problem, config)
        for problem in problems
        for config in operator(problem.operator).space("default", problem, TARGET)
        if kept(config) and operator(problem.operator).is_legal(config, problem, TARGET)
    ]


def assert_whole(found, measured):
    """Legal everywhere; at a shape at which a config that has a time is legal for all, one that was timed answers.

    It has a time there, or else counts as the slowest that has one.
    """
    timed = {
        (one.problem, operator(one.problem.operator).launch_of(one.config, one.problem, TARGET)) for one in measured
    }
    for function in found.functions:
        spec = operator(function.key.operator)
        legality = Legality(spec, TARGET, function.dtypes, all_variants(spec))
        assert not list(legality.breaches(function.tree))
        configs = {one.config for one in measured if one.problem.operator == spec.name}
        for one in measured if not function.key.modes else ():
            problem = one.problem
            if problem.operator == spec.name and legality.reaches(one.config, problem.shape):
                answer = choose(function.tree, problem.shape)
                assert (problem, spec.launch_of(answer, problem, TARGET)) in timed or answer in configs


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    shapes=st.lists(st.tuples(rows, hidden), min_size=1, max_size=6, unique=True),
    seed=st.integers(0, 1000),
    share=st.sampled_from([0.01, 0.05, 0.2]),
    invariant=st.booleans(),
)
def test_any_shapes_and_any_part_of_a_space_give_a_table(shapes, seed, share, invariant):
    measured = cells(shapes, kept=lambda config: random.Random(f"{seed} {config}").random() < share)
    if not measured:
        return
    found = fit(Evidence.from_measurements(measured, [RUN]), FitOptions(batch_invariant=invariant))
    assert {one.key.operator for one in found.functions} == {one.problem.operator for one in measured}
    assert_whole(found, measured)
    assert len(trees(module_text(found, as_command("normtune fit")))) >= len(found.functions)


SOME = [(rows, hidden) for rows in (1, 64, 4096) for hidden in (768, 4096)]


@pytest.mark.parametrize("shapes", [SOME, [(64, 4096)]])
def test_the_default_config_answers_beyond_and_the_header_says_so(shapes):
    measured = cells(shapes, ["rms_norm_backward"])
    found = fit(Evidence.from_measurements(measured, [RUN]), FitOptions())
    assert_whole(found, measured)
    tree = found.functions[0].tree
    default = operator("rms_norm_backward").default_config(
        Problem.of("rms_norm_backward", 1, 65536, "bfloat16"), TARGET
    )
    of_the_space = {one.config for one in measured}
    told = "1 leaf of the default config, unmeasured"
    text = " ".join(module_text(found, as_command("normtune fit")).replace("\n#", " ").split())
    assert choose(tree, (1 << 30, 65536)) == default and told in text
    assert distinct(tree) - of_the_space == {default}


def test_one_operator_without_a_table_costs_no_other_its_own():
    evidence = Evidence.from_measurements(cells(SOME), [RUN])
    found = fit(evidence, FitOptions(leaves=1))
    assert [one.key.operator for one in found.functions] == ["rms_norm_forward"]
    assert any("left out rms_norm_backward bfloat16: no table of at most 1 leaf" in note for note in found.notes)
    with pytest.raises(NormtuneError, match="there is no table: ") as caught:
        fit(evidence, FitOptions(leaves=1, operators=("rms_norm_backward",)))
    contradiction, left_out = str(caught.value).removeprefix("there is no table: ").split("; left out ")
    assert contradiction == (
        "rms_norm_backward bfloat16: at 1 shape a config is faster than the best by over 3 times its error: visits to "
        "the shape contradict one another (4096 x 768)"
    )
    assert left_out == (
        "rms_norm_backward bfloat16: no table of at most 1 leaf covers rms_norm_backward bfloat16: no config is legal "
        "or was measured in so large regions; allow more with --leaves, or sweep the default space"
    )
