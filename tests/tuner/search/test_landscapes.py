"""Made-up operators with a known optimum, and the simple searches over them."""

import numpy as np
import pytest

from normtune.benchmarks.lib.landscapes import KINDS, MOST_LOSS, NOISE, Landscape, tiles
from normtune.benchmarks.lib.rivals import RIVALS
from normtune.errors import UsageError


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
def test_times_scatter_around_the_logs_by_which_choices_are_judged(kind):
    landscape = Landscape(kind, 300, 4, 1)
    for space in landscape.spaces():
        problem = space.task.problem
        assert space.task.configs == landscape.tiles
        assert [*space.blocks] == [tile for tile, works in zip(landscape.tiles, landscape.works, strict=True) if works]
        true = landscape.logs(problem)
        assert np.isinf(true[~landscape.works]).all()
        found = np.array([np.log(space.blocks[config]).mean() for config in space.blocks])
        assert np.abs(found - true[landscape.works] - np.log(1e5)).max() < 5 * NOISE / 4
        best = {problem: landscape.tiles[int(true.argmin())]}
        losses = landscape.losses(best)
        assert losses[landscape.problems.index(problem)] == 0
        assert (np.delete(losses, landscape.problems.index(problem)) == MOST_LOSS).all()


def test_only_what_is_asked_for_is_made_and_it_is_the_same_in_any_order():
    one, other = Landscape("rough", 5000, 60, 3), Landscape("rough", 5000, 60, 3)
    last, first = one.spaces()[-1], other.spaces()[0]
    assert not one._logs and not last.blocks._kept
    configs = one.tiles[17], one.tiles[4000]
    for space in (last, other.spaces()[-1]):
        times = [space.blocks[config] for config in configs]
        assert len(space.blocks._kept) == 2
        configs = configs[::-1]
        assert np.array_equal(times[0], space.blocks[configs[1]])
    assert np.array_equal(last.blocks[configs[0]], other.spaces()[-1].blocks[configs[0]])
    assert not np.array_equal(last.blocks[configs[0]], first.blocks[configs[0]])
    assert len(one._logs) == 1
    assert last.task.candidates[-1].config == one.tiles[-1]
    assert [candidate.config for candidate in last.task.candidates[10:12]] == one.tiles[10:12]


def test_kinds_differ_as_they_are_described():
    made = {kind: Landscape(kind, 5000, 5, 2) for kind in KINDS}
    assert 0.65 < 1 - made["failing"].works.mean() < 0.8
    assert all(made[kind].works.all() for kind in KINDS if kind != "failing")
    first, *_, last = made["smooth"].problems
    by_kind = {}
    for kind, landscape in made.items():
        logs, others = (np.minimum(landscape.logs(one), 9.0) for one in (first, last))
        # Log ratio to the best of the best one percent, and at one shape of the best config of the other.
        by_kind[kind] = np.quantile(logs, 0.01) - logs.min(), logs[others.argmin()] - logs.min()
    assert by_kind["smooth"][0] < by_kind["rough"][0]
    assert by_kind["needle"][0] > 0.4 and made["needle"].logs(first).std() < 0.05
    assert all(moved > 0.03 for _, moved in by_kind.values())


def test_what_cannot_be_made_up_is_refused_by_name():
    with pytest.raises(UsageError, match=r"'steep'.*smooth, rough"):
        Landscape("steep", 10, 1, 0)
    with pytest.raises(UsageError, match=r"1000000 configs.*at most"):
        tiles(1_000_000)
    assert len(tiles(20_000)) == 20_000


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", RIVALS)
def test_simple_searches_find_the_best_of_few_configs_and_lose_less_with_more_timings(name):
    few = Landscape("rough", 20, 4, 1, noise=0.0)
    found = RIVALS[name](few, 60, 0)
    assert found.chosen == {one: few.tiles[int(few.logs(one).argmin())] for one in few.problems}
    assert found.timed == 4 * 20
    many = [Landscape("failing", 600, 9, seed) for seed in range(3)]
    losses = []
    for timings in (5, 30, 200):
        founds = [RIVALS[name](one, timings, 1) for one in many]
        assert founds[0] == RIVALS[name](many[0], timings, 1)
        assert all(0.9 * 9 * timings < found.timed <= 9 * timings for found in founds)
        losses.append(np.mean([one.losses(found.chosen) for one, found in zip(many, founds, strict=True)]))
    assert losses[0] > losses[1] > losses[2] > 0
