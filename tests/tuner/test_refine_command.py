"""`normtune.sweep(refine=...)`, on the recorded H200."""

import pytest

from normtune.errors import UsageError
from normtune.kernels.config import COPY
from normtune.kernels.key import Key
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile.locate import SHIPPED
from normtune.kernels.tablefile.tree import Leaf, Split
from normtune.kernels.target import TARGETS
from normtune.results.database.store import Store
from normtune.results.records import Coverage
from normtune.tests.commands import one_line, printed_sweep
from normtune.tuner.device.open import measurable
from normtune.tuner.search.refine import Refine, Refinement
from normtune.tuner.sweep import api
from normtune.tuner.sweep.refine import RefinedTable, refined_table
from normtune.tuner.sweep.request import Request
from normtune.tuner.timing.protocol import ALL_BLOCKS

REPLAY = {"device": "replay:nvidia-h200", "operators": "rms_norm_forward"}


@pytest.fixture
def store(tmp_path):
    """A store that has a coarse grid."""
    path = tmp_path / "store.db"
    api.sweep(**REPLAY, rows=(1, 64, 4096, 65536), hidden=(256, 1024, 4096, 16384), store=path)
    return path


def refined(store, until_percent=1.0, **options):
    return api.sweep(**REPLAY, refine="nvidia-h200", until_percent=until_percent, store=store, **options)


def problems(store):
    with Store.open(store) as opened:
        return {item.problem for item in opened.load().measurements()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"refine": "nowhere.py"}, "nowhere.py is no file or shipped table"),
        ({"operators": "no_such"}, "has no function of 'no_such': expected one of "),
        ({"rows": (1, 2)}, "rows and refine are both given"),
        ({"hidden": (64,)}, "hidden and refine are both given"),
        ({"stale": True}, "stale and refine are both given"),
        ({"effort": "quick"}, "effort and refine are both given"),
        ({}, "cannot be refined: the store has no measurement of its functions.*sweep first"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, options, message):
    path = tmp_path / "store.db"
    with one_line(UsageError, message):
        api.sweep(**REPLAY | {"refine": "nvidia-h200", "store": path} | options)
    assert path.exists() is (not options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"until_percent": 0}, "until_percent is 0: expected a loss over 0 and at most 10.0 percent"),
        ({"until_percent": 11}, "until_percent is 11"),
        ({"grid": "recording"}, "grid and refine are both given"),
        ({"strategy": "exhaustive"}, "strategy and refine are both given"),
    ],
)
def test_a_keyword_that_makes_no_sense_is_refused(options, message):
    with one_line(UsageError, message):
        api.sweep(refine="nvidia-h200", **options)


@pytest.mark.slow
@pytest.mark.long
def test_a_dry_run_tells_what_a_run_measures_and_measures_nothing(store):
    before = problems(store)
    told = printed_sweep(**REPLAY, refine="nvidia-h200", store=store, dry_run=True)
    assert (
        "rms_norm_forward bfloat16: expected loss at shapes that were not measured: too few" in told
        and "a dry run: nothing is measured" in told
    )
    plan = refined(store, dry_run=True).to_plain()["plan"]
    assert plan["problems"] > 0 and plan["problems_known"] == 0
    assert problems(store) == before


@pytest.mark.slow
def test_it_measures_new_shapes_until_the_stated_loss_and_then_nothing(store):
    before = problems(store)
    done = refined(store)
    new = problems(store) - before
    assert len(new) == done.summary.problems > 0
    assert {problem.rows for problem in new} - {1, 64, 4096, 65536}
    assert {problem.hidden for problem in new} - {256, 1024, 4096, 16384}
    assert {(problem.rows, problem.hidden) for problem in new} <= set(
        measurable(*_device_of(store))[Key.parse("rms_norm_forward", "bfloat16")]
    )
    assert refined(store).summary.problems == 0
    assert problems(store) - before == new
    with Store.open(store) as opened:
        assert {run.protocol["strategy"] for run in opened.runs()} == {"adaptive", "refine"}


def test_variants_are_refined_and_batch_invariant_functions_are_not():
    part = refined_table("nvidia-h200", (), ("bfloat16", "float16"), 0.002)
    assert {key.variant for key in part.trees} == {"", "no_dweight"}  # no_rstd shares the plain function
    assert {key.dtype for key in part.trees} == {"bfloat16", "float16"}
    with pytest.raises(UsageError, match="has no function in float64: it has bfloat16, float16, float32"):
        refined_table(SHIPPED / "nvidia_h200.py", (), ("float64",), 0.002)


def test_the_stated_loss_is_a_fraction_of_the_mean():
    assert Request(refine="nvidia-h200").scope().refined.until == pytest.approx(0.002)


def _device_of(store):
    with Store.open(store) as opened:
        return opened.runs()[0].device, "cold"


ROW_1, ROW_4 = (RMSNormConfig("row", 1, warps) for warps in (1, 4))
BLOCK_8, BLOCK_16 = RMSNormConfig("block_row", 8, 4), RMSNormConfig("block_row", 16, 8)
KEY = Key.parse("rms_norm_forward", "bfloat16")
TREE, INVARIANT = Split("rows", 64, Leaf(ROW_1), Leaf(BLOCK_8)), Leaf(BLOCK_16)
TABLE = RefinedTable("made up", {KEY: TREE}, {KEY: TREE, KEY.batch_invariant: INVARIANT}, (), None, 0.002)


def _stored(key, shape, configs):
    return {Problem(key, *shape): {config: Coverage("ok", "", 16, 100 + at) for at, config in enumerate(configs)}}


@pytest.mark.parametrize(
    ("configs", "timed"),
    [
        ([ROW_1, ROW_4, BLOCK_16], []),  # nothing lacks
        ([ROW_4, BLOCK_16], [ROW_1, ROW_4, BLOCK_16]),
        ([ROW_1, ROW_4], [ROW_1, ROW_4, BLOCK_16]),  # of the batch-invariant function
        ([COPY], []),  # nothing to compare with
    ],
)
def test_configs_of_the_table_without_a_time_are_measured_beside_the_fastest(configs, timed):
    tasks = TABLE.untimed(_stored(KEY, (16, 256), configs), TARGETS["sm_90"], None)
    assert [sorted(task.configs) for task in tasks] == [sorted(timed)] * bool(timed)


def test_a_variant_without_a_function_has_the_plain_one_and_a_failure_is_not_repeated():
    variant = Key.parse("rms_norm_forward:no_rstd", "bfloat16")
    stored = _stored(variant, (4096, 256), [ROW_1, BLOCK_16])
    (task,) = TABLE.untimed(stored, TARGETS["sm_90"], None)
    assert task.problem.key == variant and BLOCK_8 in task.configs
    assert TABLE.untimed(stored, TARGETS["sm_90"], {task.problem: [ROW_1]}) == []  # not recorded
    assert TABLE._replace(names=(KEY.text,)).untimed(stored, TARGETS["sm_90"], None) == []
    stored[task.problem][BLOCK_8] = Coverage("wrong", "", 0, None)
    assert TABLE.untimed(stored, TARGETS["sm_90"], None) == []


def test_untimed_configs_come_before_the_refinement_and_get_all_rounds():
    (task,) = TABLE.untimed(_stored(KEY, (16, 256), [ROW_4, BLOCK_16]), TARGETS["sm_90"], None)
    search = Refine((), {}, Refinement({KEY: TREE}, 0.1, {KEY: []}), [task])
    assert [*search.ask()] == [task]
    assert [batch.blocks for batch in search.race(task)] == [ALL_BLOCKS]
    search.tell(task, {})
    assert not search.pending() and search.report()["refinement"] == []
