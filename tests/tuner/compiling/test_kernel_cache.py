"""Binaries compiled on one machine are found on another, or it is said why not."""

import json
import os
import shutil

import pytest

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.config import COPY
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.results.database.store import Store
from normtune.tests.commands import one_line
from normtune.tests.tuner.benches import sweep
from normtune.tuner.compiling import ahead
from normtune.tuner.compiling.binaries import Compilers
from normtune.tuner.compiling.kernel_cache import (
    FOLDER,
    Folder,
    KernelCache,
    check_out,
    kernel_files,
    key_of,
    triton_version,
)
from normtune.tuner.compiling.pool import CompilePool, compile_all
from normtune.tuner.device.bench import Bench
from normtune.tuner.plan.binaries import jobs_of
from normtune.tuner.plan.plan import Plan, Task, candidates
from normtune.tuner.search.adaptive import Adaptive
from normtune.tuner.sweep import api
from normtune.tuner.timing.trial import gate_launch

TARGET = TARGETS["sm_90"]
CONFIGS = (
    RMSNormConfig("row", num_warps=4),
    RMSNormConfig("persistent", num_warps=4, programs_per_sm=2),
    RMSNormConfig("persistent", num_warps=4, programs_per_sm=2, finish="reduce"),
    RMSNormConfig("persistent", num_warps=4, programs_per_sm=2, finish="dependent"),
)
MORE = RMSNormConfig("persistent", num_warps=8, programs_per_sm=2)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Triton's cache of this test, empty at first."""
    folder = tmp_path / "own"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    return folder


def plan_of(name, *configs, hiddens=(256, 1024)):
    spec = operator(name)
    problems = [spec.problem(4096, hidden, "bfloat16") for hidden in hiddens]
    return Plan(tuple(Task(one, tuple(candidates(spec, configs, one, TARGET)[0])) for one in problems), {})


def filled(plan, folder, target=TARGET):
    folder.mkdir(exist_ok=True)
    return ahead.compile_ahead(plan, target, folder, lambda done, total: None)


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
    cache = KernelCache(path)
    bench = Bench(("normtune.tests.tuner.compiling_engine", "CompilingEngine", ((), str(tmp_path))), Compilers(cache))
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        assert sweep(bench, store, plan, Adaptive).failures == {}
    return cache


@pytest.mark.slow
@pytest.mark.long
def test_a_sweep_finds_all_binaries_in_a_folder_of_another_machine_and_compiles_none(tmp_path, own_cache, monkeypatch):
    plan = plan_of("rms_norm_backward", *CONFIGS)
    done = filled(plan, tmp_path / "out")
    assert (done.binaries, done.compiled, done.failures) == (len(plan.jobs()), len(plan.jobs()), {})
    assert not own_cache.exists()
    folder = moved(tmp_path / "out")
    before = files(folder)
    assert {file.suffix for file in before} == {".json", ".cubin", ".ptx"}
    cache = swept(plan, tmp_path, folder)
    with Store.open(tmp_path / "store.db") as store:
        codes = [item.code for item in store.load().measurements() if item.config != COPY]
    assert codes and all(code.assembly for code in codes)
    assert cache.line() == f"{done.binaries} of {done.binaries} binaries found in {folder}; compiled here: none"
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
    assert [result.new_kernels for result in done] == [()] * len(done) and files(own_cache) == []


@pytest.mark.slow
@pytest.mark.long
def test_a_second_compile_keeps_what_is_there_and_adds_the_rest(tmp_path):
    first, whole = (plan_of("rms_norm_forward", *configs) for configs in (CONFIGS[:1], CONFIGS[:2]))
    filled(first, tmp_path / "out")
    out = moved(tmp_path / "out")
    done = filled(whole, out)
    assert (done.binaries, done.compiled) == (len(whole.jobs()), len(whole.jobs()) - len(first.jobs()))
    before = {file: file.read_bytes() for file in files(out) if not file.name.startswith("__grp__")}
    os.truncate(next(out.rglob("*.cubin")), 100)
    assert filled(whole, out).compiled == 1
    assert {file: file.read_bytes() for file in before} == before


class InterruptedPool(CompilePool):
    """A pool whose user sends an interrupt after the first result."""

    def __iter__(self):
        yield next(super().__iter__())
        raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.long
def test_what_was_compiled_before_an_interrupt_is_kept(tmp_path, monkeypatch):
    plan = plan_of("rms_norm_forward", *CONFIGS[:2])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ahead, "CompilePool", InterruptedPool)
        filled(plan, tmp_path / "out")
    assert filled(plan, tmp_path / "out").compiled < len(plan.jobs())


@pytest.mark.slow
@pytest.mark.long
def test_changed_kernels_and_binaries_that_are_not_there_are_compiled_and_counted(toy, tmp_path, own_cache):
    configs = [RMSNormConfig("row", num_warps=count) for count in (4, 16)]
    others = plan_of("rms_norm_forward", RMSNormConfig("row", num_warps=8), hiddens=(1024,)).tasks

    def both(*chosen):
        return Plan((*plan_of("toy", *chosen, hiddens=(1024,)).tasks, *others), {})

    filled(both(*configs), tmp_path / "out")
    # The kernel of one operator changes, that of the other does not; one config more is asked for.
    text = (tmp_path / "toy_kernels.py").read_text()
    changed = text.replace(
        "extent(y_stride, ALIGNMENT), o_row, o_col, mask, b_y)",
        "extent(y_stride, ALIGNMENT), o_row, o_col, mask, b_y + 1.0)",
    )
    assert changed != text
    toy.kernels("toy_kernels", changed)
    cache = swept(both(*configs, MORE), tmp_path, tmp_path / "out")
    assert cache.line() == f"1 of 4 binaries found in {tmp_path}/out; compiled here: 3"
    assert [path for path in files(own_cache) if path.suffix == ".cubin"]


def pipe(file):
    file.unlink()
    os.mkfifo(file)


def described(text):
    """Replaces the metadata of a binary."""
    return lambda file: file.with_suffix(".json").write_text(text)


# What happened to one binary each.
DAMAGES = {
    "truncated": lambda file: os.truncate(file, 8000),
    "a byte less": lambda file: os.truncate(file, file.stat().st_size - 1),
    "empty": lambda file: os.truncate(file, 0),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "removed": lambda file: file.unlink(),
    "a pipe": pipe,
    "empty metadata": described(""),
    "metadata of another": described(json.dumps({"hash": "00" * 32})),
    "metadata without a name": described("{}"),
    "metadata of another form": described("[1]"),
    "nested metadata": described("[" * 100_000),
}


@pytest.mark.slow
def test_a_damaged_binary_is_compiled_and_the_folder_is_not_changed(tmp_path, own_cache):
    warps = (1, 2, 4, 8, 16)
    configs = [
        *(RMSNormConfig("row", num_warps=count) for count in warps),
        *(RMSNormConfig("persistent", num_warps=count, programs_per_sm=2) for count in warps),
    ]
    plan = plan_of("rms_norm_forward", *configs)
    folder = tmp_path / "out"
    filled(plan, folder)
    binaries = sorted(folder.rglob("*.cubin"))
    assert len(binaries) > len(DAMAGES)
    for damage, binary in zip(DAMAGES.values(), binaries, strict=False):
        damage(binary)
    before = files(folder)
    pool = CompilePool(plan.jobs(), "sm_90", folder=Folder(str(folder)))
    try:
        done = list(pool)
    finally:
        pool.close()
    assert {result.status for result in done} == {"ok"}
    made = {kernel for result in done for kernel in result.new_kernels}
    assert made == {binary.parent.name for binary in binaries[: len(DAMAGES)]}
    assert {path.parent.name for path in own_cache.rglob("*.cubin")} == made and files(folder) == before


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncated", "a byte less", "empty", "zeros"])
def test_a_damaged_binary_of_the_users_own_cache_is_named(own_cache, damage):
    plan = plan_of("rms_norm_forward", CONFIGS[0], hiddens=(256,))
    list(compile_all(plan.jobs(), "sm_90"))
    (binary,) = own_cache.rglob("*.cubin")
    DAMAGES[damage](binary)
    with one_line(NormtuneError, f"Triton's cache has a damaged binary: delete {binary.parent}, and it is compiled"):
        list(compile_all(plan.jobs(), "sm_90"))
    shutil.rmtree(binary.parent)
    assert [result.status for result in compile_all(plan.jobs(), "sm_90")] == ["ok"]


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_a_binary_of_any_target_is_whole_until_its_last_byte_is_missing(tmp_path, name):
    target, problem = TARGETS[name], operator("rms_norm_forward").problem(4096, 256, "bfloat16")
    legal, _ = candidates(operator(problem.operator), CONFIGS[:1], problem, target)
    filled(Plan((Task(problem, tuple(legal)),), {}), tmp_path / "out", target)
    (folder,) = (tmp_path / "out").iterdir()
    binary = next(file for file in kernel_files(folder).values() if file.suffix != ".json")
    os.truncate(binary, binary.stat().st_size - 1)
    assert kernel_files(folder) == {}


def test_a_library_in_the_folder_is_never_loaded(tmp_path, own_cache, monkeypatch):
    """Triton keeps its own, which it loads into the process, in its cache, too."""
    from normtune.tuner.compiling.layered_cache import LayeredCacheManager

    monkeypatch.setenv(FOLDER, str(tmp_path / "out"))
    (tmp_path / "out" / "KEY").mkdir(parents=True)
    (tmp_path / "out" / "KEY" / "cuda_utils.so").touch()
    assert LayeredCacheManager("KEY").get_file("cuda_utils.so") is None


def test_a_folder_with_a_link_is_not_filled(tmp_path):
    (tmp_path / "KEY").symlink_to("/")
    with pytest.raises(UsageError, match=r"--out cannot be written \('KEY' in it is a link\): name another folder"):
        check_out(tmp_path)


def made_up(path, arch, triton):
    """A kernel's folder, of which only the metadata matter."""
    folder = path / key_of(f"{len([*path.iterdir()]):064x}")
    folder.mkdir()
    (folder / "kernel.cubin").touch()
    (folder / "kernel.json").write_text(json.dumps({"target": {"arch": arch}, "triton_version": triton}))
    return folder


def test_binaries_of_another_triton_or_target_are_told_at_once(tmp_path):
    made_up(tmp_path, 90, "2.0.0")
    here = triton_version()
    told = f"the binaries in {tmp_path} cannot be used: they are of {{}}, here is {{}}; all are compiled here"
    assert KernelCache(tmp_path).unusable("sm_90") == told.format("Triton 2.0.0 for sm_90", f"Triton {here} for sm_90")
    made_up(tmp_path, "gfx942", here)
    others = f"Triton 2.0.0 for sm_90, Triton {here} for gfx942"
    assert KernelCache(tmp_path).unusable("sm_80") == told.format(others, f"Triton {here} for sm_80")
    assert KernelCache(tmp_path).unusable("gfx942") == ""


@pytest.mark.parametrize("text", ["", "{}", "[" * 100_000, '{"target": {"arch": "\\u001b[2J"}, "triton_version": "3"}'])
def test_metadata_that_tell_nothing_are_damaged(tmp_path, text):
    (made_up(tmp_path, 90, "2.0.0") / "kernel.json").write_text(text)
    told = KernelCache(tmp_path).unusable("sm_90")
    assert told.startswith(f"the binaries in {tmp_path} cannot be used: they are damaged, here is Triton ")


def test_a_folder_without_binaries_and_a_second_cache_manager_are_refused(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"has no binaries: expected a folder that `normtune compile` filled"):
        KernelCache(tmp_path)
    made_up(tmp_path, 90, "3.7.1")
    monkeypatch.setenv("TRITON_CACHE_MANAGER", "a:B")
    with pytest.raises(UsageError, match=r"--cache and the environment variable TRITON_CACHE_MANAGER are both given"):
        KernelCache(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "sm_1", "out": "x"}, "unknown target 'sm_1'"),
        ({"target": "sm_90", "out": "x", "device": "cuda:0"}, "device and out are"),
        ({"target": "sm_90", "out": "x", "stale": True}, "stale and out are both"),
        ({"target": "sm_90", "out": "x", "cache": "y"}, "cache and out are both"),
        ({"target": "sm_90", "out": "x", "dry_run": True}, "dry_run and out are"),
        ({"target": "sm_90"}, "target and out compile together: give an architecture such as sm_90, and a folder"),
        ({"out": "x"}, "target and out compile together: give an architecture such as sm_90, and a folder"),
        ({"cache": "nowhere", "device": "replay:nvidia-h200"}, "nowhere has no binaries"),
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
    done = api.sweep(target="sm_90", out=tmp_path / "new" / "out", rows=[64], hidden=[256])
    assert done.compiled and done.compiled.binaries == done.compiled.compiled > 0
    plain = json.loads(json.dumps(done.to_plain()))
    assert (plain["plan"], plain["sweep"], plain["compiled"]["target"]) == (None, None, "sm_90")
    replayed = {"device": "replay:nvidia-h200", "rows": [64], "hidden": [256], "store": tmp_path / "store.db"}
    assert api.sweep(**replayed, cache=tmp_path / "new" / "out").summary.problems == 2
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UsageError, match=r"^out cannot be written"):
        api.sweep(target="sm_90", out=file)
