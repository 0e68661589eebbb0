"""The registered operators, measured by a made-up law: every config of their tables must be legal everywhere."""

import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.fitting.result import Fit
from normtune.heuristics.regret.legality import all_variants
from normtune.kernels.config import COPY
from normtune.kernels.operator import operator, operators
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.tablefile.tree import choose, regions
from normtune.kernels.target import TARGETS
from normtune.results.evidence import Evidence
from normtune.results.records import Device, Measurement, Run
from normtune.tuner.plan.plan import plan, problems

TARGET = TARGETS["sm_90"]
pytestmark = pytest.mark.long
SHAPES = [(rows, hidden) for rows in (1, 64, 4096, 65536) for hidden in (64, 512, 1000, 4096, 8192, 32768)]


@cache
def fitted() -> Fit:
    run = Run("r", Device("GPU", "sm_90", 132, 1, 1, "GPU-1", "1"), {}, "2026-01-01T00:00:00", {})
    cells = []
    rounds = np.arange(4, dtype=np.int32)
    for task in plan(problems([], ["bfloat16", "float32"], SHAPES[:-1]), "default", TARGET).tasks:
        for config in [candidate.config for candidate in task.candidates] + [COPY]:
            draw = random.Random(f"{task.problem} {config}")
            times = np.array([int(10_000 * (1 + draw.random())) for _ in rounds], np.int32)
            cells.append(Measurement(task.problem, config, "r", "f", "ok", "", rounds, times))
    return fit(Evidence.from_measurements(cells, [run]), FitOptions(leaves=16))


@pytest.mark.slow
def test_every_operator_and_dtype_is_served() -> None:
    served = {key for function in fitted().functions for key in function.served}
    assert served == {spec.key(dtype) for spec in operators().values() if spec.is_default for dtype in spec.dtypes}


@pytest.mark.slow
def test_every_region_is_legal_at_its_largest_shape() -> None:
    for function in fitted().functions:
        spec = operator(function.key.operator)
        found = list(regions(function.tree, spec.whole))
        assert len(found) == function.figures.leaves > 1
        for config, box in found:
            for dtype in function.dtypes:
                for variant in all_variants(spec):
                    problem = Problem.of(spec.name, box[0].most, box[1].most, dtype, variant)
                    assert spec.is_legal(config, problem, TARGET)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    rows=st.one_of(st.integers(1, MAX_ROWS), st.integers(1, 70_000)),
    hidden=st.one_of(st.integers(1, 65536), st.integers(1, 4200)),
    function=st.integers(0, 3),
)
def test_every_lookup_is_legal(rows: int, hidden: int, function: int) -> None:
    found = fitted().functions[function]
    spec = operator(found.key.operator)
    for dtype in found.dtypes:
        for variant in all_variants(spec):
            assert spec.is_legal(
                choose(found.tree, (rows, hidden)), Problem.of(spec.name, rows, hidden, dtype, variant), TARGET
            )
