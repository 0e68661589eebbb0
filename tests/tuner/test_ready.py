"""What is left to measure is found before a device is opened."""

import json
from dataclasses import replace
from functools import partial

import pytest

from normtune.kernels.operator import operator
from normtune.kernels.target import TARGETS
from normtune.results.database.store import Store
from normtune.tests.commands import printed_by
from normtune.tests.kernels.registry import registered
from normtune.tests.results.stores import alter
from normtune.tests.tuner.benches import Heard
from normtune.tuner.sweep import api, devices
from normtune.tuner.sweep.request import Request, Scope

# The default space, as on a GPU: that of a replay is read from its recording.
SMALL = {
    "device": "replay:nvidia-h200-fused-add-rms-norm",
    "operators": ("fused_add_rms_norm_forward", "fused_add_rms_norm_backward"),
    "rows": [1, 256],
    "hidden": [256, 4096],
    "space": "default",
}
HEAVY = ("torch", "triton", "pandas", "pyarrow", "optuna", "scipy", "rich")


@pytest.fixture
def store(tmp_path):
    """A store that has all of `SMALL`."""
    path = tmp_path / "store.db"
    assert api.sweep(**SMALL, store=path).summary.problems == 8
    return path


def swept(**options):
    heard = Heard()
    return api.run(Request(**{**SMALL, **options}), heard), heard.lines


@pytest.mark.slow
def test_a_sweep_with_nothing_to_do_opens_no_device(store, monkeypatch):
    monkeypatch.setattr(devices, "Bench", None)
    done, lines = swept(store=store, budget_seconds=60)
    assert (done.summary.known, done.summary.problems, done.backlog) == (8, 0, None)
    assert lines == [
        "replay of the recorded sweep of NVIDIA H200: no GPU is measured (replay:nvidia-h200-fused-add-rms-norm)",
        f"nothing to do: all 8 problems are measured; `normtune fit --store {store}` makes their table",
    ]
    plain = done.to_plain()["sweep"]
    assert (plain["problems_known"], plain["problems_left"]) == (8, 0)
    assert plain["protocol"] == {"regime": "cold", "rounds": 0, "void_rounds": 0, "worker_restarts": 0}
    assert swept(store=store, stale=True)[1][-1].startswith("nothing is stale")


@pytest.mark.slow
def test_a_dry_run_of_what_is_stale_tells_that_nothing_is(store):
    *_, told, end = swept(store=store, stale=True, dry_run=True)[1]
    assert told.startswith("nothing is stale") and end == "a dry run: nothing is measured"


@pytest.mark.slow
def test_a_device_is_opened_for_what_is_left_and_the_store_is_read_once(store, monkeypatch):
    read, opened = [], []
    coverage, bench = Store.coverage, devices.Bench
    monkeypatch.setattr(Store, "coverage", lambda *given: read.append(1) or coverage(*given))
    monkeypatch.setattr(devices, "Bench", lambda *given: opened.append(1) or bench(*given))
    done, lines = swept(store=store, rows=[1, 16, 256])
    assert (done.summary.known, done.summary.problems, done.summary.left) == (8, 4, 0)
    assert (read, opened) == ([1], [1])
    assert lines[1].startswith("4 problems, ")


SCRIPT = """
import json, sys
from normtune import cli
from normtune.tests.commands import printed_sweep
told = printed_sweep(**json.loads(sys.argv[2]), store=sys.argv[3])
print(json.dumps([told, [name for name in sys.argv[1].split(",") if name in sys.modules]]))
"""


@pytest.mark.long
def test_nothing_to_do_is_found_without_heavy_libraries(store):
    text, loaded = json.loads(printed_by(SCRIPT, ",".join(HEAVY), json.dumps(SMALL), store))
    assert ("nothing to do: all 8 problems" in text, loaded) == (True, [])


@pytest.mark.slow
def test_a_search_that_leaves_configs_out_ends_once(tmp_path, monkeypatch):
    asked = {"store": tmp_path / "store.db", "strategy": "plane", "space": "default"}
    done, _ = swept(**asked)
    assert done.summary.problems == 8
    monkeypatch.setattr(Scope, "plan", None)  # of a large space it takes seconds
    assert swept(**asked)[1][-1].startswith("nothing to do: all 8 problems are measured")
    for other in ({"rows": [1, 16, 256]}, {"space": "full"}, {"retry_failed": True}, {"strategy": "exhaustive"}):
        with pytest.raises(TypeError, match="not callable"):
            swept(**asked | other)


@pytest.mark.slow
def test_a_search_that_leaves_configs_out_goes_on_where_the_code_of_a_kernel_changed(tmp_path):
    asked = {"store": tmp_path / "store.db", "strategy": "plane", "space": "default"}
    first, _ = swept(**asked)
    with Store.open(asked["store"]) as store:
        (run,) = store.runs()
        chosen = next(problem for problem, _ in store.coverage(run.device))
    place = f"(SELECT id FROM problem WHERE rows = {chosen.rows} AND hidden = {chosen.hidden})"
    # Of the least problem of one operator, as if its launches were those of another rule.
    statement = f"UPDATE measurement SET launch = x'00', assembly = x'00' WHERE problem_id IN {place}"
    alter(asked["store"], statement)
    done, _ = swept(**asked)
    # What it now knows of one problem may be worth a config at others; it does not begin anew.
    assert chosen in done.summary.measured and done.summary.problems < 8
    assert not done.summary.left and done.summary.configs < first.summary.configs
    last = [swept(**asked)[1][-1] for _ in range(3)]
    assert last[-1].startswith("nothing to do: all 8 problems are measured")


def test_only_a_search_that_leaves_configs_out_is_known_by_a_key():
    of_all = {problem: [] for problem in Request().scope().problems}
    keys = {name: Request(strategy=name).key(of_all) for name in ("adaptive", "plane", "exhaustive")}
    assert keys["plane"] and keys["adaptive"] is keys["exhaustive"] is None
    assert Request(strategy="plane", retry_failed=True).key(of_all) is None


def test_another_seed_and_another_config_in_use_make_another_key():
    request = Request(strategy="plane", operators=("transpose_fp8",))
    problems = request.scope().problems
    of_all = {problem: [] for problem in problems}
    in_use = of_all | {problems[0]: [operator("transpose_fp8").default_config(problems[0], TARGETS["sm_90"])]}
    asked = [request.key(of_all), replace(request, seed=1).key(of_all), request.key(in_use)]
    assert len(set(asked)) == 3 and replace(request, seed=0).key(of_all) == asked[0]


@pytest.mark.slow
@pytest.mark.long
def test_a_search_that_was_cut_goes_on(tmp_path):
    asked = {"store": tmp_path / "store.db", "strategy": "plane", "space": "default"}
    cut, _ = swept(**asked, budget_seconds=2.5)
    done, _ = swept(**asked)
    assert cut.summary.problems + done.summary.problems >= 8 and done.summary.left == 0
    assert swept(**asked)[1][-1].startswith("nothing to do: all 8 problems are measured")


def test_an_operator_of_a_notebook_has_no_key_as_its_space_is_in_no_file(monkeypatch):
    def space(name, problem, target):
        raise AssertionError

    request = Request(operators=("transpose_fp8",), strategy="plane")
    spec = operator("transpose_fp8")
    for of_space in (partial(spec.space), space):
        registered(monkeypatch, replace(spec, space=of_space))
        assert request.key({problem: [] for problem in request.scope().problems})
    monkeypatch.setattr(space, "__module__", "__nowhere__")
    assert request.key({problem: [] for problem in request.scope().problems}) is None
