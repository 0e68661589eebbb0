"""Sweeps on a Ray cluster of several nodes on this machine: what joins, is lost, is refused, and is compiled."""

import os
import signal
import sys
import time
from contextlib import ExitStack

import pytest

from normtune.errors import NormtuneError
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.results.database.store import Store
from normtune.results.parallel.connect import connected
from normtune.tests.commands import refused, succeed, wait_until
from normtune.tests.tuner.benches import sweep_on
from normtune.tests.tuner.cluster.disturbed import begin, content
from normtune.tests.tuner.made_up_recording import recorded_plan
from normtune.tuner.cluster import devices as cluster_devices
from normtune.tuner.cluster import remote
from normtune.tuner.cluster.binaries import CompilerTasks
from normtune.tuner.cluster.devices import MOST_LOST, ClusterDevices
from normtune.tuner.cluster.remote import ActorLostError
from normtune.tuner.compiling.compiler import compile_job
from normtune.tuner.search.adaptive import Adaptive

pytestmark = pytest.mark.slow
SWEEP = ("sweep", "--device", "replay:nvidia-h200", "--shapes", "1,512x256,4096")


@pytest.fixture
def opened(machines, monkeypatch):
    """Opens the devices of the cluster, by default those of the made-up recording."""
    with ExitStack() as stack:

        def open_all(engine="made_up_recording", function="engine"):
            opener = f"normtune.tests.tuner.{engine}", function, ()
            monkeypatch.setattr(cluster_devices, "opener_of", lambda *_: opener)
            ray = stack.enter_context(connected(machines.address))
            return ClusterDevices(ray, machines.address, "replay:made-up", "cold", stack)

        yield open_all


def waited(devices, until, seconds=90.0):
    """The devices that join until a condition holds."""
    found, end = [], time.monotonic() + seconds
    while not until(found):
        assert time.monotonic() < end, (found, devices.lost)
        found += devices.new_devices()
        time.sleep(0.1)
    return found


def test_the_data_are_those_without_a_cluster_in_any_order(machines, tmp_path):
    for address, name in (("none", "alone.db"), (machines.address, "cluster.db")):
        out, err = begin(address, tmp_path / name).communicate()
        assert out == "40 0 0\n", out + err
    assert content(tmp_path / "alone.db") == content(tmp_path / "cluster.db")
    with Store.open(f"sqlite:///{tmp_path}/cluster.db") as store:
        assert len(store.runs()) > 1


def test_the_command_sweeps_on_a_cluster_and_goes_on_where_it_was_left(machines, tmp_path):
    store = "--store", tmp_path / "store.db"
    told = succeed(*SWEEP, "--ray", machines.address, "--operator", "rms_norm_forward", *store)
    assert "replay of the recorded sweep of NVIDIA H200" in told and "4 problems measured" in told
    told = succeed(*SWEEP, "--ray", machines.address, "--operator", "rms_norm_forward", *store)
    assert "nothing to do: all 4 problems are measured" in told


def test_a_node_that_joins_takes_part(machines, tmp_path):
    driver = begin(machines.address, tmp_path / "store.db", 0.6)
    while not machines.processes("ray::Node"):
        assert driver.poll() is None, driver.communicate()
        time.sleep(0.1)
    node = machines.add(replays=3)
    try:
        out, err = driver.communicate()
        assert out == "40 0 0\n", out + err
    finally:
        machines.remove(node)
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        assert len(store.runs()) > 4


def test_a_gpu_whose_actor_is_lost_three_times_is_left_out_and_named(opened, small_plan, store):
    devices = opened()
    benches = devices.open()
    benches += waited(devices, lambda more: len(benches) + len(more) == 4)
    unlucky = benches[0].name
    for _ in range(MOST_LOST):
        (bench,) = [bench for bench in benches if bench.name == unlucky]
        benches.remove(bench)
        bench.stop()
        with pytest.raises(ActorLostError, match="its actor is lost"):
            bench.ask("try_copy", seconds=5.0)
        devices.new_devices()
        devices.request(4)
        benches += waited(devices, lambda more: more or unlucky in devices.lost)
    assert devices.lost == {unlucky: f"its actor was lost {MOST_LOST} times"}
    assert len(benches) == 3
    summary = sweep_on(benches, store, recorded_plan(), Adaptive, joining=devices)
    assert (summary.problems, summary.left) == (40, 0)


def test_a_node_with_another_normtune_is_named_and_left_out(machines, opened, tmp_path):
    (tmp_path / "normtune").mkdir()
    (tmp_path / "normtune" / "__init__.py").write_text("__version__ = '0.0.1'\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    node = machines.add(replays=1, env_vars={"PYTHONPATH": paths})
    try:
        devices = opened()
        benches = devices.open()
        devices.request(5)
        benches += waited(devices, lambda more: devices.lost and len(benches) + len(more) == 4)
        ((name, reason),) = devices.lost.items()
        (bad,) = {facts["NodeID"] for facts in devices._ray.nodes() if name.endswith(facts["NodeID"][:6])}
        assert reason.startswith("it has normtune 0.0.1 of sources ") and reason.endswith(": install the same there")
        assert " where the sweep has " in reason
        # Its CPUs compile nothing.
        compilers = devices._compilers._elsewhere("sm_90")
        jobs = recorded_plan([RMSNormConfig("row", 1, warps) for warps in (1, 2)]).jobs()[:12]
        done = [compilers.schedule(compile_job, (job, False), 60.0) for job in jobs]
        assert {future.result(120.0).status for future in done} == {"ok"}
        assert compilers._refused <= {bad}
    finally:
        machines.remove(node)


def test_where_no_node_has_the_versions_of_the_sweep_nothing_waits_for_a_compiler(opened):
    devices = opened()
    wait_until(lambda: sum(node["Alive"] for node in devices._ray.nodes()) == 3)  # a lost one is known to be
    pool = CompilerTasks(devices._ray, "sm_90", {**devices._facts, "triton": "0.1"}, {})
    call = pool.schedule(compile_job, (recorded_plan().jobs()[0], False), 60.0)
    with pytest.raises(NormtuneError, match="the nodes of the cluster with CPUs have other versions than this command"):
        call.result(90.0)
    assert len(pool._refused) == 3


def test_an_operator_that_a_node_cannot_load_is_a_line(opened, monkeypatch):
    monkeypatch.setattr(remote, "files_of_operators", lambda: (("/here/missing.py", b"import not_installed"),))
    with pytest.raises(NormtuneError, match=r"cannot load .*/missing.py: .*'not_installed'; install it") as error:
        opened().open()
    assert "\n" not in str(error.value)


def test_a_node_that_does_not_answer_loses_its_actor(machines, opened, monkeypatch):
    devices = opened()
    bench, *_ = devices.open()
    pid = devices._ray.get(devices._workers[bench].actor.__ray_call__.remote(lambda self: os.getpid()))
    monkeypatch.setattr(remote, "GRACE_SECONDS", 1.0)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ActorLostError):
        bench.ask("try_copy", seconds=1.0)
    end = time.monotonic() + 60.0
    while pid in machines.processes("ray::Node"):
        assert time.monotonic() < end, "it still has the GPU"
        time.sleep(0.2)


def test_unlike_devices_of_one_name_are_told_apart(opened, monkeypatch):
    devices = opened()
    first, *_ = devices.open()
    devices._alike[first.device.kind] = "torch 1.0, driver 2"
    with pytest.raises(
        NormtuneError, match=r"it has torch .*, driver .*, others .* have torch 1.0, driver 2: sweep it"
    ):
        devices._check_alike(first)


@pytest.mark.parametrize("is_intact", [True, False])
def test_binaries_are_compiled_on_any_node_and_refused_if_they_arrive_otherwise(opened, store, is_intact, monkeypatch):
    devices = opened("cluster.arriving_engine", "arriving_engine")
    if not is_intact:
        noted = CompilerTasks._noted

        def changed(self, outcome, archive):
            files = devices._ray.get(archive)
            damaged = {kernel: {name: content[:-1] for name, content in each.items()} for kernel, each in files.items()}
            return noted(self, outcome, devices._ray.put(damaged))

        monkeypatch.setattr(CompilerTasks, "_noted", changed)
    plan = recorded_plan([RMSNormConfig("row", 1, warps) for warps in (1, 2)])
    summary = sweep_on(devices.open(), store, plan._replace(tasks=plan.tasks[:3]), Adaptive, joining=devices)
    assert summary.left == 0 and len(summary.measured) == 3
    reasons = {reason for _, reason in summary.failures}
    assert reasons == (set() if is_intact else {"compiled on the node of the GPU"})
    assert any("binaries_refused" in run.protocol for run in store.runs()) != is_intact


def test_bad_clusters_are_refused_in_a_line_and_nothing_is_stored(machines, tmp_path):
    store = "--store", tmp_path / "store.db"
    nodes = len(machines.nodes()) + 1
    told = refused("sweep", "--ray", machines.address, *store, kind=NormtuneError)
    assert f"none of the {nodes} nodes of the cluster has a GPU" in told
    told = refused("sweep", "--device", "replay:nothing", "--ray", machines.address, *store, kind=NormtuneError)
    assert "unknown recording 'nothing'" in told
    assert not (tmp_path / "store.db").exists()


def test_a_cluster_with_another_ray_is_refused_in_a_line(machines, monkeypatch):
    import ray

    monkeypatch.setattr(ray, "__version__", "2.9.0")
    told = refused(*SWEEP, "--ray", machines.address, kind=NormtuneError)
    assert "no Ray cluster can be joined (Version mismatch: " in told and "2.9.0" in told
