"""Compilation ahead of time, for absent GPUs, within their limits."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from normtune.kernels.operator import operators
from normtune.kernels.problem import ITEMSIZE
from normtune.kernels.target import TARGETS
from normtune.kernels.tiles.launch import Launch
from normtune.tests.commands import PATIENCE, wait_until
from normtune.tests.kernels.launching import compiled_within
from normtune.tuner.compiling import pool as module
from normtune.tuner.compiling.compiler import Compiled
from normtune.tuner.compiling.pool import CompilePool, compile_all
from normtune.tuner.plan.binaries import Job, compile_class, jobs_of
from normtune.tuner.plan.plan import plan, problems

pytestmark = pytest.mark.long

HIDDEN = {"sm_80": [1024], "sm_90": [768, 8192], "sm_100": [4096], "sm_120": [8192], "gfx942": [4096], "gfx950": [4096]}


def widest(jobs):
    """Of each kind of kernel, and of each operator in each dtype, the binary whose tile holds most."""
    found = {}
    for job in sorted(jobs, key=lambda job: job.launch.block_row * job.launch.block_col * ITEMSIZE[job.problem.dtype]):
        name, launch = job.problem.operator, job.launch
        found[name, launch.looped, launch.finish, launch.chunks > 0] = found[name, job.problem.dtype] = job
    return sorted(set(found.values()))


@pytest.mark.slow
@pytest.mark.parametrize("choice", [widest, pytest.param(sorted, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "target", ["sm_90", *(pytest.param(one, marks=pytest.mark.slow) for one in HIDDEN if one != "sm_90")]
)
def test_spaces_compile_within_the_limits_of_the_target(target, choice):
    shapes = [(rows, hidden) for rows in (64, 4096) for hidden in HIDDEN[target]]
    jobs = choice(plan(problems([], ["bfloat16", "float32"], shapes), "default", TARGETS[target]).jobs())
    assert {job.launch.finish for job in jobs} >= {"none", "columns"}
    done = compiled_within(target, jobs=jobs)
    assert sorted(compiled.job for compiled in done) == jobs
    for compiled in done:
        names = [name for name, _ in compiled.binaries]
        assert len(names) == (2 if compiled.job.launch.workspace else 1)
        if target.startswith("sm_"):
            assert all(f".target {target}" in text for _, text in compiled.binaries)


@pytest.mark.slow
def test_aligned_rows_are_read_in_wide_accesses():
    jobs = [
        job
        for job in plan(problems([], ["bfloat16"], [(1 << 14, 768)]), "default", TARGETS["sm_90"]).jobs()
        if job.launch.block_row * job.launch.block_col == 256 * job.launch.num_warps
    ][:4]
    assert jobs
    for compiled in compile_all(jobs, "sm_90", workers=1, keep_assembly=True):
        text = compiled.binaries[0][1]
        assert "ld.global.v4.b32" in text or "cp.async.cg.shared.global" in text
        assert "st.global.v4.b32" in text


@pytest.mark.slow
def test_a_failing_compile_is_a_result_and_costs_nobody_else():
    spec = next(iter(operators().values()))
    good, bad = jobs_of(
        (problem, spec.resolve(spec.default_config(problem, TARGETS["sm_90"]), problem, TARGETS["sm_90"], None))
        for problem in (spec.problem(8, 64, "bfloat16"), spec.problem(8, 128, "bfloat16"))
    )
    bad = bad._replace(launch=bad.launch._replace(block_col=100))  # no power of two: the compiler refuses
    found = {compiled.job: compiled for compiled in compile_all([good, bad], "sm_90", workers=1)}
    assert found[good].status == "ok"
    assert found[bad].status == "compile_error" and "power of 2" in found[bad].reason
    assert "\n" not in found[bad].reason


@pytest.mark.slow
def test_the_pool_ends_with_a_killed_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "from normtune.kernels.target import TARGETS\n"
        "from normtune.tuner.compiling.pool import compile_all\n"
        "from normtune.tuner.plan.plan import plan, problems\n"
        "if __name__ == '__main__':\n"
        "    jobs = plan(problems([], ['bfloat16'], [(4096, 1024)]), 'full', TARGETS['sm_80']).jobs()\n"
        "    for compiled in compile_all(jobs, 'sm_80', workers=2):\n"
        "        print('one', flush=True)\n"
    )
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, env=environment)
    assert parent.stdout.readline() == b"one\n"
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    workers = [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    assert len(workers) == 2
    parent.kill()
    parent.wait()
    wait_until(lambda: not any(_runs(worker) for worker in workers))


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_who_asks_just_before_a_binary_is_done_is_not_told_that_it_took_too_long():
    spec = next(iter(operators().values()))
    problem = spec.problem(8, 64, "bfloat16")
    launch = spec.resolve(spec.default_config(problem, TARGETS["sm_90"]), problem, TARGETS["sm_90"], None)
    job = Job(problem, launch)
    key = compile_class(problem, launch)

    class Late(Future):
        """Done when somebody looks whether it is."""

        def done(self):
            if not super().done():
                self.set_result(Compiled(job, "ok"))
            return super().done()

    pool = CompilePool([], "sm_90")
    pool._futures[key] = Future()
    assert pool.result(problem, launch, 0.0) is None
    pool._futures[key] = late = Late()
    assert pool.result(problem, launch, 0.0) == late.result(0.0) == Compiled(job, "ok")


TORCHLESS = """
import sys, tempfile
from normtune.kernels.target import TARGETS
from normtune.tuner.compiling import compiler
from normtune.tuner.plan.plan import plan, problems
compiler.activate("sm_90", 0, tempfile.mkdtemp())
for job in plan(problems([], ["bfloat16"], [(64, 256)]), "portfolio", TARGETS["sm_90"]).jobs()[::8]:
    print(compiler.compile_job(job, False).status, "torch" in sys.modules)
import torch
print(torch.zeros(1).item())
"""


@pytest.mark.slow
def test_a_process_of_the_pool_compiles_without_torch_and_can_still_import_it():
    done = subprocess.run([sys.executable, "-c", TORCHLESS], capture_output=True, text=True, timeout=PATIENCE)
    *told, last = done.stderr.splitlines()  # on which it prints, whatever libraries print
    assert len(told) >= 2 and set(told) == {"ok False"} and last == "0.0", told


def test_nothing_to_compile():
    assert list(compile_all([], "sm_90")) == []


def test_binary_leaves_out_what_does_not_specialise():
    launch = Launch(True, 132, 1, 64, 4, 1, 16, False, 132 * 64)
    assert launch.binary == launch._replace(grid=264, workspace=264 * 64).binary
    assert launch.binary != launch._replace(workspace=0).binary
    assert launch.binary != launch._replace(alignment=8).binary


HOSTILE = """
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}, {operator!r}, {folder!r}]
import hostile_spec, hostile_sweep
from normtune.kernels.target import TARGETS
from normtune.tuner.compiling import pool as module
from normtune.tuner.plan.plan import plan, problems
if __name__ == "__main__":
    hostile_sweep.distribution(Path({folder!r}))
    jobs = plan(problems(["hostile"], ["float32"], [(64, 256)]), "default", TARGETS["sm_90"]).jobs()
    faults = ("hang_in_compiler", "kill_compiler", "none")
    jobs = [job for job in jobs if hostile_spec.FAULTS[job.launch.num_stages - 1] in faults]
    module.COMPILE_SECONDS = 15.0
    pool = module.CompilePool(jobs, "sm_90", workers=2)
    for compiled in pool:
        print(hostile_spec.FAULTS[compiled.job.launch.num_stages - 1], compiled.status, compiled.reason, sep="|")
    pool.close()
"""


@pytest.mark.slow
def test_a_compiler_that_hangs_or_dies_costs_its_binary(tmp_path):
    here = Path(__file__).parents[1]
    paths = {"tests": str(here), "operator": str(here / "hostile_operator"), "folder": str(tmp_path)}
    script = tmp_path / "compile.py"
    script.write_text(HOSTILE.format_map(paths))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    found = [tuple(line.split("|")) for line in done.stdout.splitlines()]
    failed = [item for item in found if item[1] != "ok"]
    assert sorted(failed) == [
        ("hang_in_compiler", "timeout", "compiling took over 15 s"),
        ("kill_compiler", "crashed", "the compiler's process died (exit code 9)"),
    ]
    assert [name for name, status, _ in found if status == "ok"] == ["none"] * 4


ONCE = """
import os, signal, time
from pathlib import Path
from normtune.tuner.compiling.compiler import Compiled

def compile_job(job, keep_assembly, only_codes):
    attempts = Path({folder!r}) / str(job.problem.hidden)
    with attempts.open("a") as file:
        file.write("x")
    if len(attempts.read_text()) <= {faults}:
        {fault}
    return Compiled(job, "ok")
"""


@pytest.mark.parametrize(
    ("fault", "status"), [("os.kill(os.getpid(), signal.SIGKILL)", "crashed"), ("time.sleep(600)", "timeout")]
)
@pytest.mark.slow
@pytest.mark.parametrize("faults", [1, 2])
def test_a_compiler_that_fails_once_is_tried_again_and_the_second_time_convicts(
    tmp_path, monkeypatch, fault, status, faults
):
    name = f"once_{status}_{faults}"
    (tmp_path / f"{name}.py").write_text(ONCE.format(folder=str(tmp_path), fault=fault, faults=faults))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(module, "compile_job", __import__(name).compile_job)
    spec = next(iter(operators().values()))
    shapes = [spec.problem(8, hidden, "bfloat16") for hidden in (64, 256, 1024)]
    jobs = jobs_of(
        (problem, spec.resolve(spec.default_config(problem, TARGETS["sm_90"]), problem, TARGETS["sm_90"], None))
        for problem in shapes
    )
    counts = []
    monkeypatch.setattr(module, "COMPILE_SECONDS", 5.0)
    pool = CompilePool(jobs, "sm_90", 2, on_progress=counts.append)
    found = [compiled.status for compiled in pool]
    pool.close()
    assert found == ["ok" if faults == 1 else status] * 3
    assert sorted(counts) == [1, 2, 3]
    assert [len((tmp_path / str(problem.hidden)).read_text()) for problem in shapes] == [2, 2, 2]


INTERRUPTED = """
from normtune.errors import Terminated
from normtune.kernels.target import TARGETS
from normtune.tuner.compiling.pool import compile_all
from normtune.results.parallel.interrupts import terminable
from normtune.tuner.plan.plan import plan, problems
if __name__ == "__main__":
    jobs = plan(problems([], ["bfloat16"], [(4096, 1024)]), "full", TARGETS["sm_80"]).jobs()
    try:
        with terminable():
            list(compile_all(jobs, "sm_80", workers=2))
    except (KeyboardInterrupt, Terminated) as error:
        print(type(error).__name__)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("end", "told"), [("SIGINT", "KeyboardInterrupt"), ("SIGTERM", "Terminated"), ("SIGKILL", "")])
def test_who_is_ended_leaves_no_files_of_the_compiler_and_no_warning(tmp_path, end, told):
    script, temporary = tmp_path / "compile.py", tmp_path / "temporary"
    script.write_text(INTERRUPTED)
    temporary.mkdir()
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache"), "TMPDIR": str(temporary)}
    with (tmp_path / "stderr").open("w+") as errors:
        pool = subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=errors, env=environment, text=True
        )
        while pool.poll() is None and not list(temporary.glob("**/*.ptx")):
            time.sleep(0.001)
        pool.send_signal(getattr(signal, end))
        # Of who is killed the resource tracker holds the pipe until it is done.
        assert pool.communicate(timeout=PATIENCE)[0].strip() == told
        wait_until(lambda: not _any_lives_with(temporary))
        errors.seek(0)
        assert errors.read() == ""
    if told:
        assert not list(temporary.iterdir())


def _any_lives_with(temporary):
    """Whether a process lives that was started with this folder for its temporary files."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TMPDIR={temporary}".encode() in path.read_bytes() and _runs(path.parent.name):
                return True
        except OSError:
            continue
    return False
