"""Searches of tests go through sweep, store, resume and fit; one line registers a search by name."""

import re
from collections import Counter

import pytest

from normtune.kernels.config import COPY
from normtune.results.database.store import Store
from normtune.tests.commands import printed_sweep, succeed
from normtune.tests.tuner.benches import sweep
from normtune.tests.tuner.made_up_recording import ABSENT, BROKEN, recorded_plan
from normtune.tests.tuner.search import pairs, random_configs
from normtune.tuner.search.registry import SEARCHES, search


def test_searches_know_their_names():
    assert {search(name).name: name for name in SEARCHES} == {name: name for name in SEARCHES}


@pytest.mark.slow
def test_a_search_of_one_file_and_one_line_goes_through_sweep_resume_and_fit(tmp_path, monkeypatch):
    monkeypatch.setitem(SEARCHES, "random", "normtune.tests.tuner.search.random_configs:RandomConfigs")
    store = tmp_path / "store.db"
    asked = {"device": "replay:nvidia-h200", "strategy": "random", "operators": "rms_norm_forward", "store": store}
    asked["hidden"] = [512, 1024, 2048, 4096]
    assert "complete: " in printed_sweep(**asked, rows=[1, 64, 4096])
    assert "nothing to do: all 12 problems are measured" in printed_sweep(**asked, rows=[1, 64, 4096])
    told = printed_sweep(**asked, rows=[1, 8, 64, 512, 4096])
    assert re.search(r"8 problems measured in \S+ s, 12 were stored before", told)
    with Store.open(f"sqlite:///{store}") as opened:
        evidence = opened.load()
    assert {one.protocol["strategy"] for one in evidence.runs} == {"random"}
    configs = Counter(one.problem for one in evidence.measurements() if one.config != COPY)
    assert len(configs) == 20 and set(configs.values()) == {random_configs.CONFIGS}
    assert {len(one.samples) for one in evidence.measurements()} == {16}
    assert "rms_norm_forward" in succeed("fit", "--store", store, "--out", tmp_path / "table.py")
    assert "def rms_norm_forward" in (tmp_path / "table.py").read_text()


@pytest.mark.slow
def test_a_search_of_pairs_comes_back_to_problems_and_resumes(opened, tmp_path):
    whole = recorded_plan()
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        first = sweep(opened(), store, whole._replace(tasks=whole.tasks[:30]), pairs.Pairs)
        assert (first.problems, first.known, first.left, len(store.runs())) == (30, 0, 0, 1)
        second = sweep(opened(), store, whole, pairs.Pairs)
        assert (second.problems, second.known, second.left) == (10, 30, 0)
        found = list(store.load().measurements())
    times = {}
    for one in found:
        times.setdefault((one.problem, one.run, one.config), []).append(one)
    for (_, _, config), parts in times.items():
        rounds = [number for part in parts for number in part.rounds.tolist()]
        assert len(rounds) == len(set(rounds)) and (len(parts) == 1 or config not in (BROKEN, ABSENT))
    configs = Counter(problem for problem, _, config in times if config != COPY)
    assert len(configs) == 40 and set(configs.values()) == {pairs.CONFIGS}
    # The best so far is timed again beside each new config, in rounds of their own.
    assert max(len(parts) for (_, _, config), parts in times.items() if config != COPY) > 1


@pytest.mark.slow
def test_a_budget_ends_a_search_between_its_tasks(opened, tmp_path):
    seconds = iter(range(10_000))
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        summary = sweep(opened(), store, recorded_plan(), pairs.Pairs, 60.0, clock=lambda: float(next(seconds)))
        assert 0 < summary.problems < summary.left <= 40
        assert sweep(opened(), store, recorded_plan(), pairs.Pairs).left == 0
