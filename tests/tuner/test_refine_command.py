"""`normtune sweep --refine` from the command line, on the recorded H200."""

import json

import pytest

from normtune.errors import UsageError
from normtune.kernels.config import COPY
from normtune.kernels.key import Key
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.tablefile.locate import SHIPPED
from normtune.kernels.tablefile.tree import Leaf, Split
from normtune.kernels.target import TARGETS
from normtune.results.database.store import Store
from normtune.results.records import Coverage
from normtune.tests.commands import main, one_line
from normtune.tuner.device.open import measurable
from normtune.tuner.search.exhaustive import First
from normtune.tuner.search.refine import Refine, Refinement
from normtune.tuner.sweep import api
from normtune.tuner.sweep.refine import RefinedTable, refined_table
from normtune.tuner.sweep.request import Request
from normtune.tuner.timing.protocol import ALL_BLOCKS

DEVICE = ("--device", "replay:nvidia-h200", "--operator", "rms_norm_forward")
GRID = ("--rows", "1,64,4096,65536", "--hidden", "256,1024,4096,16384")
REFINE = ("--refine", "nvidia-h200")


def invoke(*arguments):
    return main("sweep", *DEVICE, *arguments)


@pytest.fixture
def store(tmp_path):
    """The options for a store that has a coarse grid."""
    options = ("--store", str(tmp_path / "store.db"))
    assert invoke(*GRID, *options, "--quiet").exit_code == 0
    return options


def refined(store, until_percent=1.0):
    return api.sweep(
        "replay:nvidia-h200",
        operators="rms_norm_forward",
        refine="nvidia-h200",
        until_percent=until_percent,
        store=store,
    )


def problems(options):
    with Store.open(options[1]) as opened:
        return {item.problem for item in opened.load().measurements()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--refine", "nowhere.py"), "nowhere.py is no file or shipped table"),
        ((*REFINE, "--operator", "no_such"), "has no function of 'no_such': expected one of "),
        ((*REFINE, "--rows", "1,2"), "--rows and --refine are both given"),
        ((*REFINE, "--hidden", "64"), "--hidden and --refine are both given"),
        ((*REFINE, "--stale"), "--stale and --refine are both given"),
        ((*REFINE, "--effort", "quick"), "--effort and --refine are both given"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_opened(tmp_path, arguments, message):
    path = tmp_path / "store.db"
    done = invoke(*arguments, "--store", str(path))
    assert done.exit_code == 2
    (line,) = done.stderr.strip().splitlines()
    assert message in line
    assert not path.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"until_percent": 0}, "until_percent is 0: expected a loss over 0 and at most 10.0 percent"),
        ({"until_percent": 11}, "until_percent is 11"),
        ({"grid": "quick"}, "grid and refine are both given"),
        ({"strategy": "exhaustive"}, "strategy and refine are both given"),
    ],
)
def test_a_keyword_that_makes_no_sense_is_refused(options, message):
    with one_line(UsageError, message):
        api.sweep(refine="nvidia-h200", **options)


@pytest.mark.slow
def test_a_store_without_measurements_says_to_sweep_first(tmp_path):
    done = invoke(*REFINE, "--store", str(tmp_path / "store.db"))
    assert done.exit_code == 2
    assert "cannot be refined: the store has no measurement of its functions" in done.stderr
    assert "sweep first" in done.stderr


@pytest.mark.slow
@pytest.mark.long
def test_a_dry_run_tells_what_a_run_measures_and_measures_nothing(store):
    before = problems(store)
    told = invoke(*REFINE, *store, "--dry-run").output
    assert (
        "rms_norm_forward bfloat16: expected loss at shapes that were not measured: too few" in told
        and "a dry run: nothing is measured" in told
    )
    plan = json.loads(invoke(*REFINE, *store, "--dry-run", "--json").output)["plan"]
    assert plan["problems"] > 0 and plan["problems_known"] == 0
    assert problems(store) == before


@pytest.mark.slow
def test_it_measures_new_shapes_until_the_stated_loss_and_then_nothing(store):
    before = problems(store)
    done = refined(store[1])
    new = problems(store) - before
    assert len(new) == done.summary.problems > 0
    assert {problem.rows for problem in new} - {1, 64, 4096, 65536}
    assert {problem.hidden for problem in new} - {256, 1024, 4096, 16384}
    assert {(problem.rows, problem.hidden) for problem in new} <= set(
        measurable(*_device_of(store))[Key.parse("rms_norm_forward", "bfloat16")]
    )
    assert refined(store[1]).summary.problems == 0
    assert problems(store) - before == new
    with Store.open(store[1]) as opened:
        assert {run.protocol["strategy"] for run in opened.runs()} == {"adaptive", "refine"}


@pytest.mark.slow
@pytest.mark.long
def test_python_measures_what_the_command_does(store, tmp_path):
    other = tmp_path / "other.db"
    other.write_bytes((tmp_path / "store.db").read_bytes())
    invoke(*REFINE, *store, "--quiet")
    assert refined(other, until_percent=0.2).summary.problems
    assert problems(store) == problems(("--store", str(other)))


def test_variants_are_refined_and_batch_invariant_functions_are_not():
    part = refined_table("nvidia-h200", (), ("bfloat16", "float16"), 0.002)
    assert {key.variant for key in part.trees} == {"", "no_dweight"}  # no_rstd shares the plain function
    assert {key.dtype for key in part.trees} == {"bfloat16", "float16"}
    with pytest.raises(UsageError, match="has no function in float64: it has bfloat16, float16, float32"):
        refined_table(SHIPPED / "nvidia_h200.py", (), ("float64",), 0.002)


def test_the_stated_loss_is_a_fraction_of_the_mean():
    assert Request(refine="nvidia-h200").wanted().refined.until == pytest.approx(0.002)


def _device_of(options):
    with Store.open(options[1]) as opened:
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
    search = First([task], Refine((), {}, Refinement({KEY: TREE}, 0.1, {KEY: []})))
    assert [*search.ask()] == [task]
    assert [batch.blocks for batch in search.race(task)] == [ALL_BLOCKS]
    search.tell(task, {})
    assert not search.pending() and search.report()["refinement"] == []
