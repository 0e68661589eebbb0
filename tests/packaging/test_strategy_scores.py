"""Scores of searches: the calculated baseline, its ends, and the tables that are kept."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from normtune.benchmarks import racing, strategies, table_after
from normtune.benchmarks.lib.simulation import Moment, Space
from normtune.benchmarks.recorded_spaces import task_of
from normtune.benchmarks.scores import expected_best, scale, score
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.config import RMSNormConfig

RESULTS = Path("benchmarks/results/strategies")
CONFIGS = [RMSNormConfig("row", 1, warps) for warps in range(1, 41)]
PROBLEM = Problem.of("made_up", 1, 1, "float32")
VALUES = {PROBLEM: {config: float(number + 1) for number, config in enumerate(CONFIGS)}}
BLOCKS = {config: np.full((16, 2), 10**6) for config in CONFIGS}
SPACE = Space(task_of(PROBLEM, CONFIGS), BLOCKS, dict.fromkeys(CONFIGS, 0.968))


def test_the_baseline_is_the_mean_over_all_draws_without_repetition():
    values = [5.0, 1.0, 3.0, 2.0, 2.0, 9.0]
    wanted = [np.mean([min(drawn) for drawn in itertools.combinations(values, k)]) for k in range(1, 7)]
    assert expected_best(values) == pytest.approx(wanted)


def test_the_times_end_where_random_search_has_come_95_percent_of_the_way():
    of = scale([SPACE], VALUES)
    assert (of.optimum, of.median) == (1.0, 20.5)
    assert of.baseline[-1] == pytest.approx(20.5 - 0.95 * 19.5, abs=0.1)
    # A config costs 0.968 s and 32 samples of 1 ms: a second.
    assert of.times[-1] == pytest.approx(of.evaluations)


def test_the_optimum_at_once_scores_one_and_nothing_scores_below_zero():
    of = scale([SPACE], VALUES)
    assert score([Moment(0.0, PROBLEM, CONFIGS[0])], VALUES, of) == pytest.approx(1.0)
    assert score([], VALUES, of) < -1
    assert score([Moment(of.times[-1] + 1, PROBLEM, CONFIGS[0])], VALUES, of) == score([], VALUES, of)


def test_random_search_scores_about_zero():
    scenario = strategies.Scenario("made up", [SPACE], VALUES)
    of = scale([SPACE], VALUES)
    scores = [score(strategies.plain_random(scenario, seed, of.times[-1]), VALUES, of) for seed in range(200)]
    assert abs(np.mean(scores)) < 4 * np.std(scores) / np.sqrt(200)


def test_a_search_is_scored_and_written():
    scenario = strategies.Scenario("made up", [SPACE], VALUES)
    of = scale([SPACE], VALUES)
    line = strategies.run(scenario, of, "random", 3, 60.0)
    # Six samples where the baseline takes 32: more configs in the same time, but for those beside the best.
    assert line["repeats"] == 3 and line["configs"] >= of.evaluations - 4
    told = strategies.markdown(
        {"scenarios": [{"name": "made up", "configs": 40, "seconds": 1.0, "evaluations": 2.0}], "runs": [line]}
    )
    assert "| random | " in told


@pytest.mark.parametrize("script", [racing, strategies, table_after])
def test_the_markdown_that_is_kept_is_that_of_the_results(root: Path, script) -> None:
    path = root / RESULTS / f"{script.__name__.rpartition('.')[2]}.json"
    assert path.with_suffix(".md").read_text() == script.markdown(json.loads(path.read_text())) + "\n"
