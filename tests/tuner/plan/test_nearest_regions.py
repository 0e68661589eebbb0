"""The portfolio: configs of the nearest regions of other GPUs' tables, legal, few, filled up where tables have none."""

import shutil
from itertools import pairwise

import pytest

from normtune.kernels.box import Box
from normtune.kernels.key import Key
from normtune.kernels.operator import operator, operators
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.tree import choose
from normtune.kernels.target import TARGETS
from normtune.tuner.plan import portfolio as module
from normtune.tuner.plan.grids import shapes
from normtune.tuner.plan.plan import plan, problems
from normtune.tuner.plan.portfolio import CONFIGS, Region, nearest, portfolio

TARGET = TARGETS["sm_90"]
FORWARD = operator("rms_norm_forward")
H200 = locate.SHIPPED / "nvidia_h200.py"
FEW, SOME, MANY, WIDE = (RMSNormConfig("row", 1, warps) for warps in (1, 2, 4, 8))
REGIONS = [
    Region(WIDE, Box.of(rows=(1, 1 << 20), hidden=(4097, 32768)), 132),
    Region(MANY, Box.of(rows=(2049, 1 << 20), hidden=(1, 4096)), 132),
    Region(SOME, Box.of(rows=(129, 2048), hidden=(1, 4096)), 132),
    Region(FEW, Box.of(rows=(1, 128), hidden=(1, 4096)), 132),
    Region(SOME, Box.of(rows=(1, 64), hidden=(1, 64)), 132),
]


def test_the_nearest_regions_are_first_and_each_config_once():
    found = nearest(REGIONS, FORWARD, FORWARD.problem(512, 2048, "bfloat16"), TARGET)
    assert found == [SOME, WIDE, FEW, MANY]  # within, 1, 2 and a little over 2 octaves away
    assert nearest(REGIONS, FORWARD, FORWARD.problem(256, 256, "bfloat16"), TARGET) == [SOME, FEW, MANY, WIDE]


def test_rows_count_per_multiprocessor():
    problem = FORWARD.problem(100, 2048, "bfloat16")
    assert nearest(REGIONS, FORWARD, problem, TARGET)[0] == FEW
    assert nearest(REGIONS, FORWARD, problem, TARGET._replace(sms=TARGET.sms // 4))[0] == SOME


def test_an_illegal_config_gives_way_to_the_next():
    problem = FORWARD.problem(512, 32768, "bfloat16")
    assert not FORWARD.is_legal(FEW, problem, TARGET)
    found = nearest(REGIONS, FORWARD, problem, TARGET)
    assert FEW not in found and found[0] == WIDE


@pytest.mark.parametrize("name", ["rms_norm_forward", "rms_norm_backward"])
def test_on_the_gpu_of_a_table_its_answers_are_tried(name):
    spec, table = operator(name), locate.load(H200)
    tree = table.trees[Key.of(name, "", "bfloat16")]
    for shape in shapes("default")[::3]:
        answer = spec.read_config(choose(tree, shape).to_json())
        assert answer in portfolio(spec, spec.problem(*shape, "bfloat16"), TARGET), shape


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_it_is_legal_everywhere_and_few(name):
    target = TARGETS[name]
    for spec in (spec for operator_name, spec in operators().items() if "fp8" not in operator_name):  # needs sm_89
        keys = [f"{spec.name}:{variant}" if variant else spec.name for variant in spec.variants]
        hidden = sorted({min(2**power + odd, spec.max_hidden) for power in range(17) for odd in (0, 1)})
        sizes = [(rows, size) for rows in (64, 4096) for size in hidden]
        for task in plan(problems(keys, spec.dtypes, sizes), "portfolio", target).tasks:
            assert 1 <= len(task.candidates) <= CONFIGS + 1, task.problem  # one more where launches are equal
            assert all(spec.is_legal(one.config, task.problem, target) for one in task.candidates)


def test_the_plan_counts_the_configs_of_the_default_space_that_it_leaves_out():
    wanted = problems([], ["bfloat16"], shapes("default")[::9])
    few, every = plan(wanted, "portfolio", TARGET), plan(wanted, "default", TARGET)
    launches = [[{one.launch for one in task.candidates} for task in chosen.tasks] for chosen in (few, every)]
    assert few.pruned["only in the default space"] == sum(len(many - own) for own, many in zip(*launches, strict=True))
    assert few.cells() < 0.8 * every.cells()


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """The folder of shipped tables, which is empty."""
    monkeypatch.setattr(locate, "SHIPPED", tmp_path)
    caches = module._tables, module._regions
    for cache in caches:
        cache.cache_clear()
    yield tmp_path
    for cache in caches:
        cache.cache_clear()


def test_without_tables_the_default_space_is_tried_evenly(shipped):
    wanted = [FORWARD.problem(4096, 4096, "bfloat16")]
    (few,), (default,) = (plan(wanted, space, TARGET).tasks for space in ("portfolio", "default"))
    places = [default.candidates.index(candidate) for candidate in few.candidates]
    assert len(places) == CONFIGS and places[0] == 0 and places[-1] == len(default.candidates) - 1
    steps = {after - before for before, after in pairwise(places)}
    assert max(steps) - min(steps) <= 1


def test_a_table_with_few_configs_leaves_room_for_those_of_the_default_space(shipped, monkeypatch):
    shutil.copy(H200, shipped)
    monkeypatch.setattr(module, "regions", lambda tree, whole: [(one.config, one.box) for one in REGIONS])
    wanted = [FORWARD.problem(4096, 2048, "bfloat16")]
    (task,) = plan(wanted, "portfolio", TARGET).tasks
    launches = {one.launch for one in task.candidates}
    assert {FORWARD.launch(one, wanted[0], TARGET) for one in (FEW, SOME, MANY, WIDE)} <= launches
    assert len(launches) == CONFIGS
