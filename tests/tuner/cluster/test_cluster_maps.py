"""Maps, fits and checks on the CPUs of a Ray cluster of several nodes on this machine."""

import os
import signal
import time
from pathlib import Path

import pytest

import normtune
from normtune.errors import NormtuneError, UsageError
from normtune.kernels.load_file import load
from normtune.kernels.tablefile import locate
from normtune.results.parallel import cluster_maps, on_node
from normtune.results.parallel.cluster_maps import on_cluster
from normtune.results.parallel.maps import in_order
from normtune.results.parallel.tasks import TaskPool
from normtune.tests.commands import one_line, succeed

pytestmark = pytest.mark.slow
LIGER = Path(__file__).parents[3] / "examples" / "liger"
LONG = 5.0


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """The arguments of the tasks that this process begins, which brief maps do as well."""
    monkeypatch.setattr(cluster_maps, "LEAST_SECONDS", 0.0)
    calls, begin = [], TaskPool.begin
    monkeypatch.setattr(TaskPool, "begin", lambda self, *args, **more: calls.append(args) or begin(self, *args, **more))
    return calls


def test_results_come_in_order_from_nodes_and_nested_maps_are_tasks_too(machines) -> None:
    shared = list(range(0, 1000, 10))

    def nested(item: int) -> tuple[int, list[int], set[str]]:
        def inner(number: int) -> tuple[int, str]:
            time.sleep(0.2)
            return shared[item] + number, f"{__import__('ray').get_runtime_context().get_node_id()} {os.getpid()}"

        sums, places = zip(*in_order(inner, range(4), LONG), strict=True)
        return os.getpid(), list(sums), {*places}

    with on_cluster(machines.address):
        found = list(in_order(nested, range(5), LONG))
    assert [sums for _, sums, _ in found] == [[10 * item + number for number in range(4)] for item in range(5)]
    places = {place for _, _, inner in found for place in inner}
    assert len({place.split()[0] for place in places}) > 1
    assert os.getpid() not in {pid for pid, _, _ in found}


def test_the_first_failure_in_order_is_raised_as_it_was(machines) -> None:
    def fails(item: int) -> int:
        if item >= 2:
            time.sleep(0.5 * (item == 2))
            raise UsageError(f"item {item} cannot be")
        return item

    seen = []
    with on_cluster(machines.address), pytest.raises(UsageError, match="item 2 cannot be"):
        for result in in_order(fails, range(6), LONG):
            seen.append(result)
    assert seen == [0, 1]


def test_the_work_of_a_killed_process_is_done_again(machines, tmp_path: Path) -> None:
    def killed(item: int) -> int:
        first = tmp_path / "first"
        if item == 3 and not first.exists():
            first.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    with on_cluster(machines.address):
        assert list(in_order(killed, range(6), LONG)) == list(range(6))
    assert (tmp_path / "first").exists()


def test_work_that_kills_each_process_ends_in_a_line(machines) -> None:
    def kills(_: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with on_cluster(machines.address), pytest.raises(NormtuneError, match=r"^a task of Ray was lost: .*died") as error:
        list(in_order(kills, range(2), LONG))
    assert "\n" not in str(error.value)


def test_nodes_with_other_versions_are_a_line(machines, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {**on_node.facts(), "triton": "0.1"}
    monkeypatch.setattr(on_node, "facts", lambda: facts)
    with on_cluster(machines.address):
        monkeypatch.undo()
        with pytest.raises(NormtuneError, match="the nodes of the cluster with CPUs have other versions than this"):
            list(in_order(int, range(2), LONG))


def test_a_fit_on_a_cluster_writes_the_bytes_of_one_here(machines, begun, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    fit = "fit", "--store", "nvidia-h200-qk-norm", "--out", "heuristics.py"
    succeed(*fit)
    here = Path("heuristics.py").read_bytes()
    Path("heuristics.py").unlink()
    assert not begun
    normtune.fit("nvidia-h200-qk-norm", ray=machines.address).save("heuristics.py")
    assert Path("heuristics.py").read_bytes() == here
    assert begun


def test_a_fit_on_a_cluster_knows_the_operators_of_a_file_on_its_nodes(machines, begun, tmp_path) -> None:
    table, out = LIGER / "rms_norm_h200.py", tmp_path / "again.py"
    load(LIGER / "rms_norm.py")
    with on_cluster(machines.address):
        succeed("fit", "--like", table, "--out", out)
    assert locate.load(out).trees == locate.load(table).trees
    assert begun


def test_a_cluster_that_is_not_there_is_a_line() -> None:
    pytest.importorskip("ray", reason="there is no Ray: pip install 'normtune[ray]'")
    with one_line(NormtuneError, "127.0.0.1:1: no Ray cluster is there"):
        normtune.fit("nvidia-h200-qk-norm", ray="127.0.0.1:1")
