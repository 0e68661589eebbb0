"""The race: who drops out when, when it ends, and what noise and drift of recorded times do to it."""

import math
import random
from pathlib import Path

import numpy as np
import pytest

from normtune.benchmarks.lib.simulation import Space, simulate
from normtune.benchmarks.lib.t4 import read_t4
from normtune.kernels.config import COPY
from normtune.kernels.operator import read_config
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.results.exchange.recording import load_recording
from normtune.tuner.plan.plan import Task
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.search.by_problem import ByProblem
from normtune.tuner.search.paired import PRECISION, holm, standing
from normtune.tuner.search.protocol import Samples
from normtune.tuner.search.race import LOOKS, race
from normtune.tuner.search.rounds import timed

HUB = Path(__file__).parent / "benchmark_hub"
CONFIGS = [RMSNormConfig("row", 1, 1 << power) for power in range(5)]


class Drawn:
    """A session of true times (ns) with noise of a block and of a sample, as shares."""

    def __init__(self, truth, noise, seed=0):
        self.truth, self.noise, self.random = truth, noise, random.Random(seed)

    def block(self, configs):
        return {
            config: [round(self.truth[config] * math.exp(self.random.gauss(0, self.noise))) for _ in range(2)]
            for config in configs
            if config in self.truth
        }


def rounds_of(truth, noise, seed=0):
    found = timed(Drawn(dict(zip(CONFIGS, truth, strict=False)), noise, seed), CONFIGS[: len(truth)], race(CONFIGS))
    return [len(found[config].rounds) for config in CONFIGS[: len(truth)]]


def test_what_is_clearly_slower_leaves_at_round_six_and_the_race_ends_when_one_is_left():
    assert rounds_of([10**6, 2 * 10**6, 10**7, 3 * 10**6], 0.001) == [6, 6, 6, 6]


def test_a_close_rival_is_timed_until_it_is_separated():
    one, other, slow = rounds_of([10**6, 1_015_000, 2 * 10**6], 0.01)
    assert slow == 6 and 8 <= one == other <= 2 * LOOKS[-1]


def test_the_race_ends_once_no_other_can_be_faster_by_more_than_the_precision():
    one, other, slow = rounds_of([10**6, 10**6, 2 * 10**6], 0.002)
    assert slow == 6 and one == other < 2 * LOOKS[-1]
    assert rounds_of([10**6, 10**6], 0.1) == [2 * LOOKS[-1]] * 2


def test_a_leader_by_chance_is_not_settled():
    one, other = [100, 100, 1000, 1040, 1000, 1040], [100, 100, 1041, 1001, 1041, 1001]  # blocks
    samples = {
        c: Samples(list(range(12)), np.repeat(t, 2).tolist()) for c, t in zip(CONFIGS, (one, other), strict=False)
    }
    assert standing(samples, CONFIGS[:2], 0.05) == (CONFIGS[0], frozenset(), False)
    steady = {config: Samples(range(12), [1000 + number] * 12) for number, config in enumerate(CONFIGS[:2])}
    assert standing(steady, CONFIGS[:2], 0.05) == (CONFIGS[0], frozenset(), True)


def test_failed_and_single_configs_end_it():
    assert rounds_of([10**6], 0.01) == [6]
    assert timed(Drawn({}, 0.0), CONFIGS, race(CONFIGS)) == {}


def test_standing_compares_only_blocks_that_both_have_and_leaves_out_the_first():
    slow, fast = CONFIGS[:2]
    # In the first block the leader is ten times slow; round 10 was timed for one of them only.
    samples = {slow: Samples(list(range(8)), [101] * 8), fast: Samples([*range(8), 10], [1000] * 2 + [100] * 6 + [1])}
    now = standing(samples, [slow, fast, CONFIGS[2]], 0.05)
    assert now == (fast, {slow}, True)
    assert standing({slow: Samples([0, 1, 2, 3], [1] * 4), fast: Samples([0, 1], [1, 1])}, [slow, fast], 0.05) is None
    assert standing({}, [slow], 0.05) is None


def test_holm_steps_down_and_stops_at_the_first_that_is_kept():
    assert holm(np.array([0.04, 0.001, 0.02]), 0.05) == [1, 2, 0]
    assert holm(np.array([0.04, 0.001, 0.03]), 0.05) == [1]
    assert holm(np.array([0.2, 0.1]), 0.05) == []


@pytest.fixture(scope="module")
def recorded():
    """Blocks of the bfloat16 problems of the H200 recording, ns: (configs that were timed to the end, 8, 2) each."""
    frame = load_recording("nvidia-h200-fused-add-rms-norm").frame
    frame = frame[(frame.status == "ok") & (frame.variant == "") & (frame.dtype == "bfloat16")]
    frame = frame[frame["samples"].map(len) == 16]
    problems = {}
    for (name, rows, hidden), part in frame.groupby(["operator", "rows", "hidden"]):
        configs = [read_config(name, text) for text in part["config"]]
        blocks = {c: s.reshape(8, 2) for c, s in zip(configs, part["samples"], strict=True) if c != COPY}
        if len(blocks) > 3:
            problems[Problem.of(name, rows, hidden, "bfloat16")] = blocks
    return problems


class Twin:
    """Blocks of a recorded problem; the best config a second time, with draws of its own."""

    def __init__(self, blocks, seed):
        self.random = random.Random(seed)
        self.best = min(blocks, key=lambda config: np.log(blocks[config]).mean())
        self.twin = self.best._replace(num_warps=3)
        self.blocks = {**blocks, self.twin: blocks[self.best]}

    def block(self, configs):
        rounds, own = ([self.random.randrange(16) for _ in range(2)] for _ in range(2))
        return {
            config: self.blocks[config].reshape(-1)[own if config == self.twin else rounds].tolist()
            for config in configs
            if config in self.blocks
        }


@pytest.mark.slow
@pytest.mark.parametrize("alone", [True, False])
def test_one_config_entered_twice_is_separated_in_under_five_of_a_hundred_races(recorded, alone):
    separated = 0
    for seed, problem in enumerate(random.Random(5).sample(sorted(recorded), 200)):
        session = Twin(recorded[problem], seed)
        configs = [session.best, session.twin] if alone else sorted(session.blocks)
        found = timed(session, configs, race(configs))
        separated += len(found[session.best].rounds) != len(found[session.twin].rounds) or (
            alone and standing(found, configs, 0.05 / len(LOOKS)).slower != frozenset()
        )
    assert separated < 10


@pytest.mark.long
def test_the_race_spends_a_quarter_of_as_many_rounds_for_all_and_stays_within_precision(recorded):
    samples = blocks = 0
    losses = []
    for seed, problem in enumerate(random.Random(6).sample(sorted(recorded), 40)):
        session = Twin(recorded[problem], seed)
        configs = sorted(recorded[problem])
        found = timed(session, configs, race(configs))
        truth = {config: np.log(recorded[problem][config]).mean() for config in configs}
        finalists = [c for c in configs if len(found[c].rounds) == max(len(one.rounds) for one in found.values())]
        winner = min(finalists, key=lambda config: np.log(found[config].nanoseconds).mean())
        losses.append(truth[winner] - min(truth.values()))
        samples += sum(len(found[config].rounds) for config in configs)
        blocks += 2 * LOOKS[-1] * len(configs)
    assert samples < 0.25 * blocks
    assert np.mean(losses) < PRECISION / 5 and np.mean(np.array(losses) > PRECISION) <= 0.05


class Racing(ByProblem):
    """A race at each problem."""

    name, least_blocks = "race", LOOKS[0]

    def batches(self, task):
        yield from race(task.configs)


@pytest.mark.long
def test_first_samples_that_drift_mislead_a_fixed_rule_and_not_the_race():
    """A GPU whose first samples are up to four times slow, replayed in the order they were taken."""
    recorded = read_t4(HUB / "convolution_milo-W6600_T4.json.gz")
    truth = {config: np.median(one.nanoseconds[16:]) for config, one in recorded.timed.items()}
    draw, losses = random.Random(0), {"race": [], "fixed": []}
    for number in range(40):
        configs = sorted(draw.sample(recorded.configs, 40))
        task = Task(Problem.of("convolution", 1, number + 1, "float32"), tuple(Candidate(c, None) for c in configs))
        blocks = {config: recorded.timed[config].nanoseconds.reshape(-1, 2) for config in configs}
        space = Space(task, blocks, dict.fromkeys(configs, 0.0))
        chosen = simulate(Racing, [space], 0, math.inf, in_order=True).moments[-1].best
        medians = {c: np.median(blocks[c].reshape(-1)[:6]) for c in configs}
        close = [c for c in configs if medians[c] <= 1.1 * min(medians.values())]
        fixed = min(close, key=lambda config: np.median(blocks[config].reshape(-1)[:16]))
        for name, config in (("race", chosen), ("fixed", fixed)):
            losses[name].append(math.log(truth[config] / min(truth[other] for other in configs)))
    assert np.mean(losses["fixed"]) > 0.03 and max(losses["fixed"]) > 0.15
    assert np.mean(losses["race"]) < PRECISION
