"""Flips of the winner between regimes: by the law, against noise, and in the terminal."""

import random

import numpy as np
import pytest

from normtune.heuristics.regret.matrix import timing_matrix
from normtune.heuristics.showing.flips import both_ways, flips
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.results.evidence import Evidence
from normtune.tests.commands import refused, succeed
from normtune.tests.results.stores import merge

SHAPES = [(rows, hidden) for rows in (1, 64, 1024, 4096) for hidden in (64, 128, 256, 512)]
FEW, SOME, MANY = (RMSNormConfig("row", 1, warps) for warps in (1, 4, 16))
CONFIGS = (FEW, SOME, MANY)


def cold_law(config, problem):
    """Few warps are best; many lose 30 %, but where rows are many, 0.4 %."""
    return {FEW: 0.0, SOME: 0.005, MANY: 0.004 if problem.rows == 4096 else 0.3}[config]


def warm_law(config, problem):
    """As cold; of short rows few warps lose 20 %, and of rows of 128, in the middle, many are the only good ones."""
    if problem.hidden > 128 or problem.rows == 1:
        return cold_law(config, problem)
    return {FEW: 0.2, SOME: 0.1 if problem.hidden == 128 else 0.0, MANY: 0.0 if problem.hidden == 128 else 0.3}[config]


@pytest.fixture
def of_law(measure, run, spec):
    """Evidence of a law, in a run of a regime."""

    def build(law, regime, shapes=SHAPES, configs=CONFIGS, number="a"):
        taken = run._replace(id=f"{regime}{number}", protocol={"regime": regime})
        items = measure(law, shapes, configs=configs, run=taken.id, fingerprint=fingerprint(spec))
        return Evidence.from_measurements(items, [taken])

    return build


def matrix_of(evidence, spec):
    return timing_matrix(evidence, spec, spec.key("bfloat16"), TARGETS["sm_90"])


@pytest.fixture
def matrices(of_law, spec):
    return matrix_of(of_law(cold_law, "cold"), spec), matrix_of(of_law(warm_law, "warm"), spec)


def test_the_shapes_whose_winner_loses_are_found_with_what_they_lose(matrices):
    found = flips(*matrices)
    assert found.compared == tuple(sorted(SHAPES)) and found.unknown == ()
    changed = {(rows, hidden) for rows in (64, 1024, 4096) for hidden in (64, 128)}
    assert {flip.shape for flip in found.losing} == changed
    for flip in found.losing:
        assert flip.config == FEW and flip.best == (MANY if flip.shape[1] == 128 else SOME)
        assert flip.loss == pytest.approx(1e6 * np.log(1.2), rel=0.02)
        # 4096 rows of 128: many warps are 0.4 % behind cold and best warm; else those are 30 % behind cold.
        assert flip.reconcilable == (flip.shape[1] == 64 or flip.shape == (4096, 128))
    assert [flip.loss for flip in found.losing] == sorted((flip.loss for flip in found.losing), reverse=True)


def test_the_way_back_is_another_question(matrices):
    found = flips(*reversed(matrices))
    # Some warps, best warm in short rows, are half a percent behind cold: that is no flip.
    assert {flip.shape for flip in found.losing} == {(64, 128), (1024, 128)}
    assert {(flip.config, flip.best) for flip in found.losing} == {(MANY, FEW)}


def test_two_sweeps_of_one_law_do_not_flip(of_law, spec):
    first = matrix_of(of_law(cold_law, "cold"), spec)
    again = first.__class__(**{**vars_of(first), "regret": first.regret[:, ::-1].copy()})
    assert flips(first, first).losing == ()
    # With another winner by name alone: what is compared are the rounds of the other regime.
    assert {flip.config for flip in flips(again, first).losing} == {MANY}


def vars_of(matrix):
    return {name: getattr(matrix, name) for name in matrix.__dataclass_fields__}


def noisy(measure, run, spec, regime, configs, seed):
    """Configs of one speed with 3 % of noise a block: the fastest of them is luck."""
    taken = run._replace(id=f"{regime}{seed}", protocol={"regime": regime})
    draw = random.Random(f"{regime}{seed}")
    items = []
    for item in measure(lambda config, problem: 0.0, SHAPES, configs=configs, run=taken.id):
        luck = np.repeat([1 + 0.03 * draw.gauss(0, 1) for _ in range(8)], 2)
        items.append(item._replace(samples=(item.samples * luck).astype(np.int32)))
    return matrix_of(Evidence.from_measurements(items, [taken]), spec)


def test_luck_is_no_flip(measure, run, spec):
    configs = [RMSNormConfig("row", 1, warps) for warps in (1, 2, 4, 8, 16)]
    told = 0
    for seed in range(6):
        pair = [noisy(measure, run, spec, regime, configs, seed) for regime in ("cold", "warm")]
        # By regret alone, many of these winners lose over 1 % in the other.
        naive = [
            loss
            for place in range(len(SHAPES))
            if (loss := pair[1].loss(place, pair[0].configs[int(pair[0].regret[place].argmin())])) is not None
        ]
        assert sum(loss > 9_950 for loss in naive) >= 3
        told += len(flips(*pair).losing)
    assert told <= 2  # of 96


def test_a_winner_without_times_in_the_other_is_unknown_and_shapes_of_one_are_left_out(of_law, spec):
    cold = matrix_of(of_law(cold_law, "cold"), spec)
    warm = matrix_of(of_law(warm_law, "warm", [*SHAPES[:6], (2, 64)], (SOME, MANY)), spec)
    found = flips(cold, warm)
    assert (found.compared, found.losing) == ((), ()) and set(found.unknown) == set(SHAPES[:6])
    assert set(flips(warm, cold).compared) == set(SHAPES[:6])


def test_a_config_that_left_the_race_early_is_compared_on_the_rounds_it_had(of_law, spec):
    cold, warm = of_law(cold_law, "cold"), of_law(warm_law, "warm")
    cut = [
        item._replace(rounds=item.rounds[:6], samples=item.samples[:6]) if item.config == FEW else item
        for item in warm.measurements()
    ]
    early = matrix_of(Evidence.from_measurements(cut, warm.runs), spec)
    found = flips(matrix_of(cold, spec), early)
    assert {flip.shape for flip in found.losing} == {(r, h) for r in (64, 1024, 4096) for h in (64, 128)}


@pytest.mark.slow
def test_the_table_of_one_regime_loses_in_the_other_what_the_law_says(of_law):
    cold, warm = of_law(cold_law, "cold"), of_law(warm_law, "warm")
    ((key, (there, back)),) = both_ways(cold, warm, cold.devices()[0])
    assert str(key) == "toy bfloat16" and (there.one, there.other, back.one, back.other) == (
        "cold",
        "warm",
        "warm",
        "cold",
    )
    # Few warps everywhere: log(1.2) at 6 of 16 shapes.
    assert there.table.mean == pytest.approx(6 / 16 * 1e6 * np.log(1.2), rel=0.03)
    assert there.table.problems == there.own.problems == 16
    assert there.own.mean < 3000 and back.own.mean < 3000
    assert there.own.worst < 9_950 < there.table.worst


@pytest.fixture
def both(of_law, tmp_path):
    """A store of both regimes, with warm times of further shapes."""
    merge(f"sqlite:///{tmp_path}/both.db", of_law(cold_law, "cold", SHAPES[:-1]), of_law(warm_law, "warm"))
    return f"{tmp_path}/both.db"


@pytest.mark.slow
def test_the_map_of_the_flips(both):
    lines = [line.rstrip() for line in succeed("show", "--store", both, "--flips", "warm").splitlines()]
    assert lines[:2] == ["Test GPU, sm_90, 132 SMs", "toy bfloat16: 15 shapes measured cold and warm"]
    assert lines[2] == (
        "  the best config cold loses over 1 % warm at 6 of 15 shapes (40 %), at most 5 % of them by chance"
    )
    assert lines[3] == "    at 2 of these no config is within 1 % of the best of both"
    assert lines[4].startswith("    the table fitted cold loses ") and "; the one fitted warm 0." in lines[4]
    assert lines[5].startswith("  the best config warm loses over 1 % cold at 2 of 15 shapes (13 %)")
    at = lines.index("       rows")
    assert lines[at : at + 6] == [
        "       rows",
        "hidden 1 64 1k 4k",
        "    64 =  C  C  C",
        "   128 =  B  B  C",
        "   256 =  =  =  =",
        "   512 =  =  =  .",
    ]
    assert lines[at + 6 : at + 10] == [
        " C the best config cold loses over 1 % warm",
        " B both",
        " = neither",
        " . not measured in both",
    ]
    worst = [line for line in lines if " rows of " in line]
    assert len(worst) == 5 + 2 and all(line.lstrip().startswith(("19.", "20.", "29.", "30.")) for line in worst)
    assert "warm at " in worst[0] and "best cold is row warps=1, best warm row warps=" in worst[0]
    assert worst[-1].endswith("best cold row warps=1; no config is within 1 % of the best of both")


def test_maps_and_lists_are_of_one_regime(both):
    cold, warm = (succeed("show", "--store", both, *more).splitlines() for more in ((), ("--regime", "warm")))
    assert cold[0] == "Test GPU, sm_90, 132 SMs: 45 measurements"
    assert warm[0] == "Test GPU, sm_90, 132 SMs: 48 measurements, warm"
    listed = succeed("show", "--store", both, "--regime", "warm", "--sort", "median_us", "--limit", "500")
    rows = [line.split() for line in listed.splitlines() if line.split()[:2] == ["64", "128"]]
    assert [row[3] for row in rows] == ["warps=16", "warps=4", "warps=1"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--flips", "cold"), "--flips is 'cold', and so is --regime: name two regimes"),
        (("--flips", "hot"), "unknown regime 'hot'"),
        (("--flips", "eager"), "the store has no times of regime eager, but of cold, warm"),
        (("--flips", "warm", "--limit", "3"), "--flips draws its own map"),
        (("--regime", "hot"), "unknown regime 'hot'"),
        (("--regime", "eager"), "the store has no times of regime eager, but of cold, warm"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(both, arguments, told):
    assert told in refused("show", "--store", both, *arguments)


def test_regimes_of_different_shapes_have_nothing_in_common(of_law, tmp_path):
    merge(f"sqlite:///{tmp_path}/both.db", of_law(cold_law, "cold", SHAPES[:8]), of_law(warm_law, "warm", SHAPES[8:]))
    told = succeed("show", "--store", f"{tmp_path}/both.db", "--flips", "warm")
    assert "no shape was measured both cold and warm on one device" in told
