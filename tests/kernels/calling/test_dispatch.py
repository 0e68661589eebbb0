"""The config of dispatch, without a launch."""

import re
import warnings
from types import SimpleNamespace

import pytest
import torch

import normtune
from normtune.errors import UsageError
from normtune.kernels.box import Box
from normtune.kernels.calling import dispatch
from normtune.kernels.operator import operator
from normtune.kernels.problem import AXES, MAX_ROWS
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.loaded import LoadedTable
from normtune.kernels.tablefile.tree import Leaf, Split
from normtune.kernels.target import TARGETS

H200 = TARGETS["sm_90"]
FORWARD = operator("rms_norm_forward")


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("NORMTUNE_TABLE", raising=False)
    normtune.use_table()
    yield
    normtune.use_table()


@pytest.fixture
def gpu(monkeypatch):
    def pretend(name, target):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(name=name))
        monkeypatch.setattr(dispatch, "describe", lambda index: target)
        normtune.use_table()

    return pretend


def shipped(problem):
    return RMSNormConfig(
        *locate.load(locate.SHIPPED / "nvidia_h200.py").lookup(problem.key.text, problem.dtype, *problem[1:3])
    )


def test_the_measured_gpu_gets_its_table_in_silence(gpu):
    gpu("NVIDIA H200", H200)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows, hidden in ((1, 64), (4096, 4096), (1 << 18, 96)):
            problem = FORWARD.problem(rows, hidden, "bfloat16")
            assert dispatch.config_for(FORWARD, problem, H200, 0) == shipped(problem)


def test_a_shipped_table_is_chosen_by_its_name(gpu):
    gpu("NVIDIA H200", H200)
    normtune.use_table("nvidia-h100-80gb-hbm3")
    table = locate.load(locate.SHIPPED / "nvidia_h100_80gb_hbm3.py")
    for rows, hidden in ((1, 64), (4096, 4096), (32, 7168)):
        problem = FORWARD.problem(rows, hidden, "bfloat16")
        assert dispatch.config_for(FORWARD, problem, H200, 0) == RMSNormConfig(
            *table.function(problem.key)(rows, hidden)
        )
    with pytest.raises(UsageError, match="nobody is no file or shipped table"):
        normtune.use_table("nobody")


def test_knobs_of_another_kind_give_the_default_config(gpu, tmp_path):
    gpu("NVIDIA H200", H200)
    text = (locate.SHIPPED / "nvidia_h200.py").read_text()
    text = re.sub(r"\b(num_warps=)(\d+)", r'\1"w\2"', text)
    path = tmp_path / "table.py"
    path.write_text(text.replace("num_warps: int = 4", 'num_warps: str = "w4"'))
    normtune.use_table(path)
    problem = FORWARD.problem(4096, 4096, "bfloat16")
    assert dispatch.config_for(FORWARD, problem, H200, 0) == FORWARD.default_config(problem, H200)


@pytest.mark.parametrize(
    ("name", "target", "stem", "named"),
    [
        ("NVIDIA GeForce RTX 5060 Ti", TARGETS["sm_120"], "portable", "portable table of NVIDIA H200"),
        ("AMD Instinct MI300X", TARGETS["gfx942"], "portable", "portable table of NVIDIA H200"),
        ("NVIDIA H20", H200._replace(sms=78), "nvidia_h100_80gb_hbm3", "table of NVIDIA H100 80GB HBM3"),
        ("NVIDIA H200 NVL", H200, "nvidia_h200", "table of NVIDIA H200"),
    ],
)
def test_an_unmeasured_gpu_gets_the_table_of_another_and_one_warning(gpu, name, target, stem, named):
    gpu(name, target)
    table = locate.load(locate.SHIPPED / f"{stem}.py")
    problems = [FORWARD.problem(rows, hidden, "bfloat16") for rows in (1, 288, 4096) for hidden in (64, 4096)]
    wanted = [RMSNormConfig(*table.function(one.key)(one.rows, one.hidden)) for one in problems]
    told = (
        rf"no table for {name} \({target.name}, {target.sms} SMs\) and uses the {named}, which is unmeasured there: "
        "`normtune sweep --effort quick && normtune fit --install` on this GPU makes its own in a minute"
    )
    with pytest.warns(UserWarning, match=told):
        found = [dispatch.config_for(FORWARD, problem, target, 0) for problem in problems]
    assert found == wanted and len(set(found)) > 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dispatch.config_for(FORWARD, problems[0], target, 0)


def test_a_chosen_table_hands_on_to_the_shipped_one_and_that_to_the_default(gpu, write_table):
    gpu("NVIDIA H200", H200)
    path = write_table(False)
    path.write_text(path.read_text().replace(f'"rows": (1, {MAX_ROWS})', '"rows": (1, 8)'))
    normtune.use_table(path)
    problems = [FORWARD.problem(rows, 4096, "float32") for rows in (1, 16, 17, 1 << 18, 1 << 30)]
    found = [dispatch.config_for(FORWARD, problem, H200, 0) for problem in problems]
    assert found[:2] == [RMSNormConfig("row", 1, 2), RMSNormConfig("split", 1, 2, 1, 0, "none", 64)]
    assert found[2:4] == [*map(shipped, problems[2:4])]
    assert found[4] == FORWARD.default_config(problems[4], H200)


def test_none_takes_the_fixed_default(gpu):
    gpu("NVIDIA H200", H200)
    normtune.use_table(None)
    for name, spec in (("rms_norm_forward", FORWARD), ("rms_norm_backward", operator("rms_norm_backward"))):
        found = {
            dispatch.config_for(spec, spec.problem(rows, hidden, "bfloat16"), H200, 0)
            for rows in (1, 4096, 1 << 18)
            for hidden in (64, 1024, 8192)
        }
        assert len(found) == 1 and found.pop().num_warps == 8, name


@pytest.mark.slow
def test_a_named_table_comes_first(gpu, monkeypatch, tmp_path):
    gpu("NVIDIA H200", H200)
    problem = FORWARD.problem(4096, 4096, "bfloat16")
    other = tmp_path / "other.py"
    text = (locate.SHIPPED / "nvidia_h200.py").read_text()
    other.write_text(re.sub(r"(\bnum_warps=)\d+", r"\g<1>32", text))
    elsewhere = shipped(problem)._replace(num_warps=32)
    assert elsewhere != shipped(problem)
    normtune.use_table(other)
    assert dispatch.config_for(FORWARD, problem, H200, 0) == elsewhere
    normtune.use_table()
    assert dispatch.config_for(FORWARD, problem, H200, 0) == shipped(problem)
    monkeypatch.setenv("NORMTUNE_TABLE", str(other))
    normtune.use_table()
    assert dispatch.config_for(FORWARD, problem, H200, 0) == elsewhere
    monkeypatch.setenv("NORMTUNE_TABLE", str(tmp_path / "missing.py"))
    normtune.use_table()
    with pytest.raises(UsageError, match=r"missing\.py"):
        dispatch.config_for(FORWARD, problem, H200, 0)


def test_a_bad_path_changes_nothing(gpu, tmp_path):
    gpu("NVIDIA H200", H200)
    normtune.use_table(None)
    for content in (None, "x = 1\n", "def lookup(:\n"):
        path = tmp_path / "table.py"
        if content is not None:
            path.write_text(content)
        with pytest.raises(UsageError, match=r"table\.py"):
            normtune.use_table(path)
        problem = FORWARD.problem(4096, 1024, "bfloat16")
        assert dispatch.config_for(FORWARD, problem, H200, 0) == FORWARD.default_config(problem, H200)


def test_a_variant_falls_back_to_the_plain_name_and_a_missing_operator_to_the_default():
    key = FORWARD.key("bfloat16")
    box = Box.of(rows=(1, 64), hidden=(64, 64))
    tree = Split("rows", 4, Leaf(RMSNormConfig("row", 1, 2)), Leaf(RMSNormConfig("row", 1, 8)))
    table = LoadedTable(locate.SHIPPED, None, {key: tree}, {key: box}, AXES)
    look_up = dispatch._in_table(locate.selection_of(table))
    assert look_up(FORWARD.problem(3, 64, "bfloat16", "no_rstd")) == RMSNormConfig("row", 1, 2)
    assert look_up(FORWARD.problem(4, 64, "bfloat16", "no_rstd")) == RMSNormConfig("row", 1, 8)
    assert look_up(FORWARD.problem(3, 64, "float32")) is None


def test_what_is_illegal_on_this_gpu_gives_way_to_the_default(gpu, monkeypatch):
    small = TARGETS["sm_120"]
    backward = operator("rms_norm_backward")
    problem = backward.problem(4096, 8192, "bfloat16")
    greedy = RMSNormConfig("persistent", 1, 8, 4, 1, "reduce")
    assert backward.is_legal(greedy, problem, H200) and not backward.is_legal(greedy, problem, small)
    monkeypatch.setattr(dispatch, "config_for", lambda *arguments: greedy)
    wanted = backward.resolve(backward.default_config(problem, small), problem, small, 16)
    assert dispatch._resolve(backward, problem, small, 0, 16) == wanted
    assert dispatch._resolve(backward, problem, H200, 0, 16) == backward.resolve(greedy, problem, H200, 16)


def test_what_is_made_while_another_table_is_chosen_is_not_kept():
    cache = dispatch.Cache()
    generation = cache.generation
    normtune.use_table(None)
    assert cache.keep("old", 1, generation) == 1 and not cache
    assert cache.keep("new", 2, cache.generation) == 2 and dict(cache) == {"new": 2}


@pytest.mark.parametrize("field", [0])
def test_a_grid_of_no_programs_gives_way_to_the_default(gpu, monkeypatch, field):
    gpu("NVIDIA H200", H200)
    monkeypatch.setattr(dispatch, "config_for", lambda *arguments: RMSNormConfig("persistent", 1, 4, 1, field))
    problem = FORWARD.problem(64, 1024, "bfloat16")
    assert dispatch._resolve(FORWARD, problem, H200, 0, 16).grid == 64
