"""Scores of searches: the calculated baseline, its ends, and the tables that are kept."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from normtune.benchmarks import disturbed, landscapes, racing, strategies, table_after
from normtune.benchmarks.lib import kernel_tuner
from normtune.benchmarks.lib.simulation import Moment, Space
from normtune.benchmarks.recorded_spaces import task_of
from normtune.benchmarks.scores import expected_best, scale, score
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig

pytestmark = pytest.mark.slow  # a benchmark, or what documents say of it

RESULTS = Path("benchmarks/results/strategies")
BOWL = range(1, 9), range(1, 9), range(1, 9)
CONFIGS = [RMSNormConfig("row", 1, warps) for warps in range(1, 41)]
PROBLEM = Problem.of("made_up", 1, 1, "float32")
VALUES = {PROBLEM: {config: float(number + 1) for number, config in enumerate(CONFIGS)}}
# A config costs a second, samples included, of which none takes over 40 us.
BLOCKS = {config: np.full((16, 2), int(1000 * value)) for config, value in VALUES[PROBLEM].items()}
SPACE = Space(task_of(PROBLEM, CONFIGS), BLOCKS, {c: 1 - 1e-9 * float(one.sum()) for c, one in BLOCKS.items()})


def test_the_baseline_is_the_mean_over_all_draws_without_repetition():
    values = [5.0, 1.0, 3.0, 2.0, 2.0, 9.0]
    wanted = [np.mean([min(drawn) for drawn in itertools.combinations(values, k)]) for k in range(1, 7)]
    assert expected_best(values) == pytest.approx(wanted)


def test_the_times_end_where_random_search_has_come_95_percent_of_the_way():
    of = scale([SPACE], VALUES)
    assert (of.optimum, of.median) == (1.0, 20.5)
    assert of.baseline[-1] == pytest.approx(20.5 - 0.95 * 19.5, abs=0.1)
    assert of.times[-1] == pytest.approx(of.evaluations)


def test_the_optimum_at_once_scores_one_and_nothing_scores_below_zero():
    of = scale([SPACE], VALUES)
    assert score([Moment(0.0, PROBLEM, CONFIGS[0])], VALUES, of) == pytest.approx(1.0)
    assert score([], VALUES, of) < -1
    assert score([Moment(of.times[-1] + 1, PROBLEM, CONFIGS[0])], VALUES, of) == score([], VALUES, of)


def test_random_search_scores_about_zero():
    scenario = strategies.Scenario("made up", [SPACE], VALUES)
    of = scale([SPACE], VALUES)
    scores = [score(strategies.plain_random(scenario, seed, of.times[-1]).moments, VALUES, of) for seed in range(200)]
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


def test_problems_of_searches_that_know_one_each_take_turns():
    other = Problem.of("made_up", 2, 1, "float32")
    slow = SPACE._replace(task=task_of(other, CONFIGS), overhead={c: 1 + one for c, one in SPACE.overhead.items()})
    problems = [strategies.OneByOne(space, None, 9.0) for space in (SPACE, slow)]
    times = [[problem.time(config) for config in CONFIGS[:3]] for problem in problems]
    assert times == [[1e-3, 2e-3, 3e-3]] * 2
    assert [problem.seconds for problem in problems] == pytest.approx([3.0, 6.0])
    played = strategies.in_turns(problems, [SPACE, slow], 3.5)
    # The first of both takes 1 s and 2 s; the second config of the first begins before the end and ends after it.
    assert [(moment.problem, moment.best) for moment in played.moments] == [(PROBLEM, CONFIGS[0]), (other, CONFIGS[0])]
    assert [moment.seconds for moment in played.moments] == pytest.approx([1.0, 3.0])
    assert played.configs == 3


def test_few_samples_are_charged_where_all_are_seen_and_a_failure_only_what_it_took_to_compile():
    blocks = {CONFIGS[0]: np.arange(1, 33).reshape(16, 2) * 10**6}
    space = SPACE._replace(blocks=blocks, overhead=dict.fromkeys(CONFIGS, 0.968))
    few = strategies.OneByOne(space, 6, 9.0)
    mean = few.time(CONFIGS[0])
    seconds, device, seen = few.steps[CONFIGS[0]]
    assert seen == mean == 16.5
    assert (seconds, device) == (pytest.approx(0.968 + 6e-3 * mean), pytest.approx(6e-3 * mean))
    assert few.time(CONFIGS[1]) == np.inf
    assert few.steps[CONFIGS[1]][:2] == (0.968, 0.0)


@pytest.mark.parametrize("name", [f"kernel_tuner {name}, 6 samples" for name in kernel_tuner.STRATEGIES])
def test_strategies_of_kernel_tuner_beat_random_search_on_a_bowl(name):
    pytest.importorskip("kernel_tuner")
    configs = [RMSNormConfig("row", rows, warps, stages) for rows, warps, stages in itertools.product(*BOWL)]
    values = {
        config: 1 + sum(abs(at - 4) for at in (config.block_row, config.num_warps, config.num_stages))
        for config in configs
    }
    blocks = {config: np.full((16, 2), int(1e6 * value)) for config, value in values.items()}
    space = Space(task_of(PROBLEM, configs), blocks, dict.fromkeys(configs, 1.0))
    scenario = strategies.Scenario("bowl", [space], {PROBLEM: values})
    of = scale(scenario.spaces, scenario.values)
    scores = [
        score(strategies.players(scenario)[name](scenario, seed, of.times[-1]).moments, scenario.values, of)
        for seed in range(5)
    ]
    again = strategies.players(scenario)[name](scenario, 0, of.times[-1])
    assert score(again.moments, scenario.values, of) == scores[0]
    assert np.mean(scores) > 0.1


def test_strategies_of_kernel_tuner_are_left_out_where_their_populations_do_not_fit():
    pytest.importorskip("kernel_tuner")
    names = strategies.players(strategies.Scenario("made up", [SPACE], VALUES))
    assert "plane" in names and not any("kernel_tuner" in name for name in names)


@pytest.mark.parametrize("script", [disturbed, landscapes, racing, strategies, table_after])
def test_the_markdown_that_is_kept_is_that_of_the_results(root: Path, script) -> None:
    path = root / RESULTS / f"{script.__name__.rpartition('.')[2]}.json"
    assert path.with_suffix(".md").read_text() == script.markdown(json.loads(path.read_text())) + "\n"


def test_no_table_of_a_disturbed_sweep_loses_much_more_than_of_an_undisturbed_one(root: Path) -> None:
    tables = json.loads((root / RESULTS / "disturbed.json").read_text())["tables"]
    for name in disturbed.SEARCHES:
        voided = {one["disturbances"]: one for one in tables if one["voids"] and one["search"] == name}
        assert set(voided) == set(disturbed.CASES) and voided["undisturbed"]["told"] == []
        assert max(one["more_percent"] for one in voided.values()) <= disturbed.ALLOWED
        others = [one for one in tables if not one["voids"] and one["search"] == name]
        assert all(one["best_loses_percent"] > 3 * voided[one["disturbances"]]["best_loses_percent"] for one in others)
