"""Binaries compiled on one machine are found on another, or it is said why not."""

import hashlib
import json
import os
import shutil

import pytest

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.results.database.store import Store
from normtune.tests.tuner.benches import sweep
from normtune.tuner.compiling import ahead, binary_list
from normtune.tuner.compiling.binaries import Compilers
from normtune.tuner.compiling.binary_cache import FOLDER, BinaryCache, Folder, check_out, name_of
from normtune.tuner.compiling.binary_list import Toolchain, add
from normtune.tuner.compiling.pool import CompilePool
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
HERE = Toolchain("3.7.1", "3.11", "b", "a", {"X": "1"})


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


def filled(plan, folder):
    folder.mkdir(exist_ok=True)
    return ahead.compile_ahead(plan, TARGET, folder, lambda done, total: None)


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
    cache = swept(plan, tmp_path, folder)
    assert (cache.found, cache.compiled) == (done.binaries, {})
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
    assert [result.made for result in done] == [()] * len(done) and files(own_cache) == []


@pytest.mark.slow
@pytest.mark.long
def test_a_second_compile_keeps_what_is_there_and_adds_the_rest(tmp_path):
    first, whole = (plan_of("rms_norm_forward", *configs) for configs in (CONFIGS[:1], CONFIGS[:2]))
    out = tmp_path / "out"
    filled(first, out)
    done = filled(whole, out)
    assert (done.binaries, done.compiled) == (len(whole.jobs()), len(whole.jobs()) - len(first.jobs()))
    before = {file: file.read_bytes() for file in files(out)}
    os.truncate(next(out.rglob("*.cubin")), 100)
    assert filled(whole, out).compiled == 1
    assert {file: file.read_bytes() for file in files(out)} == before


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
    assert filled(plan, tmp_path / "out").compiled == len(plan.jobs()) - 1


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
    assert (cache.found, cache.compiled) == (1, {"of kernels that changed since": 2, "not in it": 1})
    assert cache.line().endswith(
        f"1 of 4 binaries found in {tmp_path}/out; compiled here: 1 (not in it), 2 (of kernels that changed since)"
    )
    assert [path for path in files(own_cache) if path.suffix == ".cubin"]


def swap(binary, other):
    binary.write_bytes(other.read_bytes())


def link(binary, other):
    binary.unlink()
    binary.symlink_to(other)


def link_folder(binary, other):
    shutil.move(binary.parent, binary.parents[2] / "elsewhere")
    binary.parent.symlink_to(binary.parents[2] / "elsewhere")


def pipe(binary, other):
    binary.unlink()
    os.mkfifo(binary)


def change(name, value):
    """Changes the metadata of a binary."""

    def changed(binary, other):
        file = binary.with_suffix(".json")
        file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))

    return changed


def listed_anew(damage):
    """A damage of which the list has the digests."""

    def damaged(binary, other):
        damage(binary, other)
        file = next(binary.parents[1].glob("normtune.*.json"))
        listed = json.loads(file.read_text())
        files = listed["files"][binary.parent.name]
        files.update({name: hashlib.sha256((binary.parent / name).read_bytes()).hexdigest() for name in files})
        file.write_text(json.dumps(listed))

    return damaged


# What somebody did to one binary each, beside another.
DAMAGES = {
    "truncated cubin": lambda binary, other: os.truncate(binary, 100),
    "empty metadata": lambda binary, other: os.truncate(binary.with_suffix(".json"), 0),
    "no file": lambda binary, other: binary.unlink(),
    "changed metadata": change("num_warps", 32),
    "swapped": swap,
    "linked": link,
    "linked folder": link_folder,
    "a pipe": pipe,
    "listed, truncated cubin": listed_anew(lambda binary, other: os.truncate(binary, 100)),
    "listed, empty metadata": listed_anew(lambda binary, other: os.truncate(binary.with_suffix(".json"), 0)),
    "listed, other names": listed_anew(change("__annotations__", 1)),
    "listed, no number": listed_anew(change("shared", "1")),
    "listed, other target": listed_anew(change("target", {"backend": "cuda", "arch": 80, "warp_size": 32})),
    "listed, of another": listed_anew(change("hash", "00" * 32)),
}


@pytest.mark.slow
def test_a_binary_that_is_not_as_it_was_listed_or_cannot_be_read_is_compiled(tmp_path, own_cache):
    warps = (1, 2, 4, 8, 16)
    configs = [
        *(RMSNormConfig("row", num_warps=count) for count in warps),
        *(RMSNormConfig("persistent", num_warps=count, programs_per_sm=2) for count in warps),
    ]
    plan = plan_of("rms_norm_forward", *configs)
    folder = tmp_path / "out"
    filled(plan, folder)
    binaries = [min(one.glob("*.cubin")) for one in sorted(folder.iterdir()) if one.is_dir()]
    assert len(binaries) > len(DAMAGES)
    for damage, binary in zip(DAMAGES.values(), binaries, strict=False):
        damage(binary, binaries[-1])
    before = files(folder)
    pool = CompilePool(plan.jobs(), "sm_90", folder=Folder(str(folder)))
    try:
        done = list(pool)
    finally:
        pool.close()
    assert {result.status for result in done} == {"ok"}
    made = {kernel for result in done for kernel in result.made}
    assert made == {binary.parent.name for binary in binaries[: len(DAMAGES)]}
    assert {path.parent.name for path in own_cache.rglob("*.cubin")} == made and files(folder) == before
    cache = BinaryCache(folder)
    for result in done:
        cache.note(result.job.problem, result.job.launch, result.made, result.toolchain, "sm_90")
    listed_again = sum(name.startswith("listed") for name in DAMAGES)
    expected = {"damaged in it": len(DAMAGES) - listed_again, "of kernels that changed since": listed_again}
    assert (cache.found, cache.compiled) == (len(binaries) - len(DAMAGES), expected)


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
            "it was compiled with other environment variables (X, Y)",
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


def damaged_lists():
    """Texts that are no list, or one that names what is not in its folder, or garbles a terminal."""
    yield from ("", "[]", "{}", '{"format": 1}', '{"format": ' + "9" * 5000 + "}", "[" * 100_000)
    whole = {"format": 2, "toolchain": HERE._asdict(), "binaries": {}, "files": {}}
    for name in ("../K", "/K", "K/..", ".", "", "K\n"):
        yield json.dumps(whole | {"binaries": {"one": [name]}})
        yield json.dumps(whole | {"files": {name: {}}})
        yield json.dumps(whole | {"files": {"K": {name: "0" * 64}}})
    yield json.dumps(whole | {"files": {"K": {"k.cubin": "../"}}})
    yield json.dumps(whole | {"files": {"K": ["k.cubin"]}})
    for toolchain in ({"a": 1}, {"triton": "\x1b[2J", "python": "3"}, {"triton": 3, "python": "3"}):
        yield json.dumps(whole | {"toolchain": toolchain})


def test_a_folder_without_binaries_and_one_with_a_damaged_list_are_refused(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"lists no binaries: expected a folder that `normtune sweep --compile-only"):
        BinaryCache(tmp_path)
    for text in damaged_lists():
        (tmp_path / "normtune.sm_90.json").write_text(text)
        with pytest.raises(NormtuneError, match=r"normtune.sm_90.json is damaged [ -~]*: fill an empty folder"):
            BinaryCache(tmp_path)
        with pytest.raises(NormtuneError, match=r"normtune.sm_90.json is damaged [ -~]*: fill an empty folder"):
            check_out(tmp_path)
    (tmp_path / "normtune.sm_90.json").unlink()
    os.mkfifo(tmp_path / "normtune.sm_90.json")
    with pytest.raises(NormtuneError, match=r"is damaged \(OSError: not a regular file\)"):
        BinaryCache(tmp_path)
    add_list = tmp_path / "good"
    add_list.mkdir()
    add(add_list, "sm_90", HERE, {})
    with monkeypatch.context() as patch:
        patch.setattr(binary_list, "_MOST_BYTES", (add_list / "normtune.sm_90.json").stat().st_size - 1)
        with pytest.raises(NormtuneError, match=r"is damaged \(OSError: over \d+ bytes\)"):
            BinaryCache(add_list)
    monkeypatch.setenv("TRITON_CACHE_MANAGER", "a:B")
    with pytest.raises(UsageError, match=r"--cache and the environment variable TRITON_CACHE_MANAGER are both given"):
        BinaryCache(add_list)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compile_only": True}, "compile_only needs target and out"),
        ({"compile_only": True, "target": "sm_90"}, "compile_only needs target and out"),
        ({"compile_only": True, "target": "sm_1", "out": "x"}, "unknown target 'sm_1'"),
        ({"compile_only": True, "target": "sm_90", "out": "x", "device": "cuda:0"}, "device and compile_only are"),
        ({"compile_only": True, "target": "sm_90", "out": "x", "stale": True}, "stale and compile_only are both"),
        ({"compile_only": True, "target": "sm_90", "out": "x", "cache": "y"}, "cache and compile_only are both"),
        ({"compile_only": True, "target": "sm_90", "out": "x", "dry_run": True}, "dry_run and compile_only are"),
        ({"target": "sm_90"}, "target is given without compile_only"),
        ({"out": "x"}, "out is given without compile_only"),
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
    with pytest.raises(UsageError, match=r"^out cannot be written"):
        api.sweep(compile_only=True, target="sm_90", out=file)
