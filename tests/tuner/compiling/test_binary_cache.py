"""Binaries compiled on one machine are found on another, or it is said why not."""

import json
import shutil
from pathlib import Path

import pytest

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.results.database.store import Store
from normtune.tuner import api
from normtune.tuner.compiling.ahead import compile_ahead
from normtune.tuner.compiling.binary_cache import BinaryCache, Folder, Toolchain, add, name_of
from normtune.tuner.compiling.pool import CompilePool
from normtune.tuner.device.bench import WorkerBench
from normtune.tuner.plan.binaries import jobs_of
from normtune.tuner.plan.plan import Plan, Task, candidates
from normtune.tuner.search.adaptive import Adaptive
from normtune.tuner.sweep import sweep
from normtune.tuner.timing.trial import gate_launch

TARGET = TARGETS["sm_90"]
CONFIGS = (
    RMSNormConfig("row", num_warps=4),
    RMSNormConfig("persistent", num_warps=4, programs_per_sm=2),
    RMSNormConfig("persistent", num_warps=4, programs_per_sm=2, finish="reduce"),
    RMSNormConfig("persistent", num_warps=4, programs_per_sm=2, finish="dependent"),
)
MORE = RMSNormConfig("persistent", num_warps=8, programs_per_sm=2)
HERE = Toolchain("3.7.1", "3.11", "b", "a", {"X": "1"})


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Triton's cache of this test, empty at first."""
    folder = tmp_path / "own"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    return folder


def plan_of(name, *configs):
    spec = operator(name)
    problems = [spec.problem(4096, hidden, "bfloat16") for hidden in (256, 1024)]
    return Plan(tuple(Task(one, tuple(candidates(spec, configs, one, TARGET)[0])) for one in problems), {})


def filled(plan, folder):
    folder.mkdir(exist_ok=True)
    return compile_ahead(plan, TARGET, folder, lambda done, total: None)


def moved(folder):
    """The folder as another machine gets it: under another path, the first one gone."""
    target = folder.with_name("moved")
    shutil.copytree(folder, target)
    shutil.rmtree(folder)
    return target


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def swept(plan, tmp_path, path):
    """The cache of a sweep, in which compilers are those of a GPU's sweep and only the times are made up."""
    cache = BinaryCache(path)
    bench = WorkerBench(("compiling_engine", "CompilingEngine", ((), str(tmp_path))), cache)
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        assert sweep(bench, store, plan, Adaptive).failures == {}
    return cache


@pytest.mark.slow
@pytest.mark.long
def test_a_sweep_finds_all_binaries_in_a_folder_of_another_machine_and_compiles_none(tmp_path, own_cache, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    plan = plan_of("rms_norm_backward", *CONFIGS)
    ahead = filled(plan, tmp_path / "out")
    assert (ahead.binaries, ahead.compiled, ahead.failures) == (len(plan.jobs()), len(plan.jobs()), {})
    assert not own_cache.exists()
    folder = moved(tmp_path / "out")
    before = files(folder)
    cache = swept(plan, tmp_path, folder)
    assert (cache.found, cache.compiled) == (ahead.binaries, {})
    assert cache.line() == f"{ahead.binaries} of {ahead.binaries} binaries found in {folder}; compiled here: none"
    assert files(folder) == before and files(own_cache) == []


@pytest.mark.long
@pytest.mark.slow
def test_what_the_gate_launches_is_compiled_as_well(tmp_path, own_cache):
    plan = plan_of("rms_norm_backward", *CONFIGS)
    spec = operator("rms_norm_backward")
    filled(plan, tmp_path / "out")
    trials = [gate_launch(spec, task.problem, one, TARGET) for task in plan.tasks for one in task.candidates]
    pool = CompilePool(jobs_of(trials), "sm_90", folder=Folder(str(tmp_path / "out")))
    try:
        done = list(pool)
    finally:
        pool.close()
    assert len(done) == len(plan.jobs()) and all(result.status == "ok" for result in done)
    assert [result.made for result in done] == [()] * len(done) and files(own_cache) == []


@pytest.mark.slow
@pytest.mark.long
def test_a_second_compile_keeps_what_is_there_and_adds_the_rest(tmp_path):
    first, whole = (plan_of("rms_norm_forward", *configs) for configs in (CONFIGS[:1], CONFIGS[:2]))
    filled(first, tmp_path / "out")
    ahead = filled(whole, tmp_path / "out")
    assert (ahead.binaries, ahead.compiled) == (len(whole.jobs()), len(whole.jobs()) - len(first.jobs()))


@pytest.mark.slow
@pytest.mark.long
def test_changed_kernels_and_binaries_that_are_not_there_are_compiled_and_counted(toy, tmp_path, own_cache):
    filled(plan_of("toy", *CONFIGS[:2]), tmp_path / "out")
    # The kernel of `row` changes, that of `persistent` does not; one config more is asked for.
    text = (tmp_path / "toy_kernels.py").read_text()
    changed = text.replace(
        "extent(y_stride, ALIGNMENT), o_row, o_col, mask, b_y)",
        "extent(y_stride, ALIGNMENT), o_row, o_col, mask, b_y + 1.0)",
    )
    assert changed != text
    toy.kernels("toy_kernels", changed)
    cache = swept(plan_of("toy", *CONFIGS[:2], MORE), tmp_path, tmp_path / "out")
    assert (cache.found, cache.compiled) == (2, {"of kernels that changed since": 2, "not in it": 2})
    assert cache.line().endswith(
        f"2 of 6 binaries found in {tmp_path}/out; compiled here: 2 (not in it), 2 (of kernels that changed since)"
    )
    assert [path for path in files(own_cache) if path.suffix == ".cubin"]


def test_a_cache_of_another_triton_python_or_target_is_told_at_once(tmp_path):
    add(tmp_path, "sm_90", HERE._replace(triton="2.0.0"), {"one": ["A"]})
    assert (
        BinaryCache(tmp_path)
        .unusable("sm_90")
        .startswith(f"the binaries in {tmp_path} cannot be used: it was compiled by Triton 2.0.0, here is ")
    )
    told = BinaryCache(tmp_path).unusable("sm_80")
    assert told.endswith("cannot be used: it has binaries for sm_90, the device is sm_80; all are compiled here")


@pytest.mark.parametrize(
    ("here", "difference"),
    [
        (HERE, ""),
        (HERE._replace(triton="3.8.0", build="c"), "it was compiled by Triton 3.7.1, here is 3.8.0"),
        (HERE._replace(python="3.12", build="c"), "it was compiled by Triton for Python 3.11, here is 3.12"),
        (HERE._replace(build="c"), "it was compiled by another build of Triton 3.7.1"),
        (HERE._replace(assembler="c"), "it was assembled by another version of ptxas"),
        (
            HERE._replace(environment={"X": "2", "Y": "1"}),
            "it was compiled under other variables of the environment (X, Y)",
        ),
    ],
)
def test_the_reason_for_a_compile_is_the_first_difference_of_the_machines(tmp_path, here, difference):
    plan = plan_of("rms_norm_forward", CONFIGS[0])
    problem, launch = plan.tasks[0].problem, plan.tasks[0].candidates[0].launch
    add(tmp_path, "sm_90", HERE, {name_of(problem, launch): ["KERNEL"]})
    cache = BinaryCache(tmp_path)
    cache.note(problem, launch, ("OTHER",), here, "sm_90")
    assert cache.compiled == {difference or "listed in it, but removed": 1} and cache.found == 0


def test_a_list_of_another_toolchain_is_replaced_and_one_of_the_same_grows(tmp_path):
    for number, toolchain in enumerate((HERE, HERE, HERE._replace(triton="3.8.0"))):
        add(tmp_path, "sm_90", toolchain, {f"binary {number}": ["A"]})
        listed = json.loads((tmp_path / "normtune.sm_90.json").read_text())["binaries"]
        assert sorted(listed) == [["binary 0"], ["binary 0", "binary 1"], ["binary 2"]][number]


def test_a_folder_without_binaries_and_one_with_a_damaged_list_are_refused(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"lists no binaries: expected a folder that `normtune sweep --compile-only"):
        BinaryCache(tmp_path)
    for text in ("", "[]", "{}", '{"format": 2}', '{"format": 1, "toolchain": {"a": 1}, "binaries": {}}'):
        (tmp_path / "normtune.sm_90.json").write_text(text)
        with pytest.raises(NormtuneError, match=r"normtune.sm_90.json is damaged .*: fill an empty folder"):
            BinaryCache(tmp_path)
    add_list = tmp_path / "good"
    add_list.mkdir()
    add(add_list, "sm_90", HERE, {})
    monkeypatch.setenv("TRITON_CACHE_MANAGER", "a:B")
    with pytest.raises(UsageError, match=r"--cache and the variable TRITON_CACHE_MANAGER are both given"):
        BinaryCache(add_list)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compile_only": True}, "--compile-only needs --target and --out"),
        ({"compile_only": True, "target": "sm_90"}, "--compile-only needs --target and --out"),
        ({"compile_only": True, "target": "sm_1", "out": "x"}, "unknown target 'sm_1'"),
        ({"compile_only": True, "target": "sm_90", "out": "x", "device": "cuda:0"}, "--device and --compile-only are"),
        ({"compile_only": True, "target": "sm_90", "out": "x", "stale": True}, "--stale and --compile-only are both"),
        ({"compile_only": True, "target": "sm_90", "out": "x", "cache": "y"}, "--cache and --compile-only are both"),
        ({"compile_only": True, "target": "sm_90", "out": "x", "dry_run": True}, "--dry-run and --compile-only are"),
        ({"target": "sm_90"}, "--target is given without --compile-only"),
        ({"out": "x"}, "--out is given without --compile-only"),
        ({"cache": "nowhere", "device": "replay:nvidia-h200"}, "nowhere lists no binaries"),
    ],
)
def test_options_that_contradict_each_other_are_refused_before_anything_is_written(
    tmp_path, monkeypatch, options, message
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        api.sweep(**options)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_fills_a_folder_that_a_sweep_is_given(tmp_path):
    done = api.sweep(compile_only=True, target="sm_90", out=tmp_path / "new" / "out", rows=[64], hidden=[256])
    assert done.compiled and done.compiled.binaries == done.compiled.compiled > 0
    plain = json.loads(json.dumps(done.to_plain()))
    assert (plain["plan"], plain["sweep"], plain["compiled"]["target"]) == (None, None, "sm_90")
    replayed = {"device": "replay:nvidia-h200", "rows": [64], "hidden": [256], "store": tmp_path / "store.db"}
    assert api.sweep(**replayed, cache=tmp_path / "new" / "out").summary.problems == 2
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UsageError, match="--out cannot be written"):
        api.sweep(compile_only=True, target="sm_90", out=file)
