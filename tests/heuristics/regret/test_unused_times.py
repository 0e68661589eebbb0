"""Incomparable times, and times that are not in nanoseconds, are reported; bounds of a mean's bias."""

import numpy as np
import pytest

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.regret.matrix import timing_matrix
from normtune.heuristics.writing.emit import module_text
from normtune.heuristics.writing.report import figures
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf
from normtune.kernels.target import TARGETS
from normtune.results.evidence import Evidence
from normtune.results.records import Measurement
from normtune.tests.heuristics.made_up import as_command

SHAPES = [(rows, hidden) for rows in (1, 64, 4096) for hidden in (64, 512, 1024)]


def apart(cells, late):
    """The same, where some configs were timed in later rounds than the others."""
    return [one._replace(rounds=one.rounds + 100) if one.config in late else one for one in cells]


def test_configs_that_share_no_round_are_told(measure, penalty, run, spec):
    cells = measure(penalty, SHAPES)
    late = {RMSNormConfig("row", 1, 16), RMSNormConfig("row", 1, 8)}
    count = sum(one.config in late for one in cells)
    found = fit(Evidence.from_measurements(apart(cells, late), [run]), FitOptions(leaves=3))
    (note,) = found.notes
    assert note.startswith(f"toy bfloat16: {count} of {len(cells)} measurements share no round with the others")


def test_where_most_times_would_go_there_is_no_function(measure, penalty, run, spec):
    cells = measure(penalty, SHAPES)
    each_apart = [
        one._replace(rounds=one.rounds + 100 * place)
        for place, one in enumerate(sorted(cells, key=lambda one: (one.problem, one.config)))
    ]
    with pytest.raises(NormtuneError, match=rf"left out toy bfloat16: \d+ of {len(cells)} measurements share no round"):
        fit(Evidence.from_measurements(each_apart, [run]), FitOptions(leaves=3))


def test_runs_that_share_no_config_are_told(measure, penalty, run, spec):
    later = run._replace(id="run2", started="2026-11-21T10:00:00")
    first, second = [RMSNormConfig("row", 1, warps) for warps in (1, 2, 4, 8)], [RMSNormConfig("row", 1, 16)]
    cells = measure(penalty, SHAPES, configs=first)
    others = measure(penalty, SHAPES, configs=second, run="run2")
    found = fit(Evidence.from_measurements(cells + others, [run, later]), FitOptions(leaves=3))
    assert f"{len(others)} of {len(cells + others)} measurements share no round" in found.notes[0]
    assert "or their run no config" in found.notes[0]
    shared = measure(penalty, SHAPES, configs=[*second, *first[2:]], run="run2")
    assert fit(Evidence.from_measurements(cells + shared, [run, later]), FitOptions(leaves=3)).notes == ()


def test_one_sample_moves_no_table(measure, penalty, run, spec):
    """Two runs share B and D; D was dropped in both, and one of its samples takes 80 times as long."""
    later = run._replace(id="run2", started="2026-11-21T10:00:00")
    a, b, c, d = (RMSNormConfig("row", 1, warps) for warps in (2, 4, 8, 1))

    def fitted(spike):
        cells = measure(penalty, SHAPES, configs=[a, b, d]) + measure(penalty, SHAPES, configs=[b, c, d], run="run2")
        cells = [
            one._replace(rounds=one.rounds[:6], samples=one.samples[:6]) if one.config == d else one for one in cells
        ]
        for one in cells:
            if one.run == "run2" and one.config == d:
                one.samples[3] *= spike
        return fit(Evidence.from_measurements(cells, [run, later]), FitOptions(leaves=3))

    calm, disturbed = fitted(1), fitted(80)
    assert calm.functions[0].tree == disturbed.functions[0].tree and disturbed.notes == ()
    # A median over other rounds: 0.1 % is a third of the noise of a sample.
    assert abs(calm.functions[0].figures.loss.worst - disturbed.functions[0].figures.loss.worst) < 1000


def test_runs_that_contradict_one_another_are_told(measure, penalty, run, spec):
    """In half of the blocks of the second run the config that both share takes 1.3 times as long as it should."""
    later = run._replace(id="run2", started="2026-11-21T10:00:00")
    first, second = [RMSNormConfig("row", 1, warps) for warps in (1, 2, 4)], [RMSNormConfig("row", 1, 8)]
    cells = measure(penalty, SHAPES, configs=first)
    others = measure(penalty, SHAPES, configs=[first[-1], *second], run="run2")
    assert fit(Evidence.from_measurements(cells + others, [run, later]), FitOptions(leaves=3)).notes == ()
    for one in others:
        if one.config == first[-1] and one.problem.rows == 64:
            one.samples[one.rounds % 4 > 1] = one.samples[one.rounds % 4 > 1] * 13 // 10
    doubtful, impossible = fit(Evidence.from_measurements(cells + others, [run, later]), FitOptions(leaves=3)).notes
    assert doubtful.startswith("toy bfloat16: 3 of 9 alignments of two visits to a shape disagree")
    assert impossible.startswith("toy bfloat16: at 2 shapes a config is faster than the best by over 3 times its error")
    assert impossible.endswith("contradict one another (64 x 64, 64 x 512)")


@pytest.mark.parametrize(
    ("converted", "message"),
    [
        (lambda times: times // 100_000, r"are 1[0-9] ns, shorter than any kernel's: expected nanoseconds, were micro"),
        (lambda times: times // 2_000_000 * 1000 + 3000, "are the same for all configs in 144 of 144 rounds: expected"),
    ],
)
def test_microseconds_are_noticed(measure, penalty, run, spec, converted, message):
    cells = [one._replace(samples=converted(one.samples)) for one in measure(penalty, SHAPES)]
    with pytest.raises(UsageError, match=message):
        fit(Evidence.from_measurements(cells, [run]), FitOptions(leaves=3))


def test_aliases_are_no_equal_times(measure, penalty, run, spec):
    """At hidden 1024 and more blocks of rows with one warp are lowered to one row: two configs share each other's time.

    Only times of two launches could say that they are microseconds, and these differ.
    """
    shapes = [(rows, hidden) for rows in (1, 64, 4096) for hidden in (2048, 1024)]
    block = [RMSNormConfig("block_row", rows, 1) for rows in (4, 16)]
    few = [cell for cell in measure(penalty, shapes, configs=[RMSNormConfig("row", 1, 1)])]
    few += measure(penalty, [(8, 64)], configs=[*block, RMSNormConfig("row", 1, 1)])
    found = fit(Evidence.from_measurements(few, [run]), FitOptions(leaves=2))
    matrix = timing_matrix(Evidence.from_measurements(few, [run]), spec, spec.key("bfloat16"), TARGETS["sm_90"])
    assert (matrix.usable.sum(axis=1) == 3).sum() > len(matrix.problems) / 2
    assert found.functions


def test_a_mean_that_is_too_low_is_bounded(spec, run):
    """Ten configs that are equal but for noise: whatever is chosen, the true loss is 0."""
    draw = np.random.default_rng(0)
    rounds = np.arange(16, dtype=np.int32)
    configs = [RMSNormConfig("row", 1, warps) for warps in (1, 2, 4, 8, 16)]
    cells = [
        Measurement(
            Problem.of("toy", rows, hidden, "bfloat16"),
            *(config, run.id, "f", "ok", "", rounds),
            (100_000 * np.exp(draw.normal(0, 0.1, len(rounds)))).astype(np.int32),
        )
        for rows in range(1, 30)
        for hidden in (64,)
        for config in configs
    ]
    evidence = Evidence.from_measurements(cells, [run])
    matrix = timing_matrix(evidence, spec, spec.key("bfloat16"), TARGETS["sm_90"])
    means = matrix.regret.mean(axis=0)
    assert (matrix.luck >= 0).all()
    # The one config that serves all loses nothing in truth, and its figure with the bound holds that.
    assert (means <= 30_000).all() and (means + matrix.luck.mean() >= 0).all()
    found = fit(evidence, FitOptions(leaves=1))
    assert isinstance(found.functions[0].tree, Leaf)
    loss = found.functions[0].figures.loss
    assert loss.mean <= 0 <= loss.mean + loss.luck
    assert f'"luck": {loss.luck}' in module_text(found, as_command("normtune fit"))
    assert any("a mean below 0 is about 0" in line for line in figures(found))
