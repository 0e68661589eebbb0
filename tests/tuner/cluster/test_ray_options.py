"""Options of `--ray`, and what is said where there is no cluster; without Ray."""

import signal
import sys
from types import SimpleNamespace

import pytest

from normtune.errors import NormtuneError, UsageError
from normtune.results.parallel.connect import check_address, connected
from normtune.tests.commands import refused
from normtune.tuner.sweep.request import Request


@pytest.mark.parametrize("address", ["", "cluster", "host:", "ray://host:10001", "host:port", ":6379"])
def test_an_address_of_another_form_is_refused(address):
    with pytest.raises(UsageError, match="expected auto, local, or the HOST:PORT that `ray start --head` prints"):
        Request(ray=address)


@pytest.mark.parametrize("address", ["auto", "local", "10.0.0.1:6379", "head.example:6379", "[::1]:6379"])
def test_an_address_of_a_cluster_is_taken(address):
    check_address(address)
    assert Request(ray=address).ray == address


@pytest.mark.parametrize("device", ["cuda:0", "cuda:0,cuda:1", "replay:a,replay:b"])
def test_the_device_is_a_kind_for_every_node(device):
    with pytest.raises(UsageError, match="expected all, or one replay:NAME for every node"):
        Request(device, ray="auto")


def test_options_of_one_machine_are_refused(tmp_path):
    with pytest.raises(UsageError, match="--cache and --ray are both given"):
        Request(ray="auto", cache=tmp_path)
    with pytest.raises(UsageError, match="--out and --ray are both given"):
        Request(ray="auto", target="sm_90", out=tmp_path)


def test_without_ray_a_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    told = refused("sweep", "--ray", "auto", kind=NormtuneError)
    assert told.startswith("--ray needs Ray ") and told.endswith(": pip install 'normtune[ray]'")


def test_an_interrupt_while_ray_starts_waits_until_it_has(monkeypatch):
    told = []

    def init(**_):
        signal.raise_signal(signal.SIGINT)
        told.append("started")

    private = SimpleNamespace(worker=SimpleNamespace())
    ended = {"is_initialized": lambda: False, "shutdown": lambda: told.append("ended")}
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init, _private=private, **ended))
    with pytest.raises(KeyboardInterrupt), connected("local"):
        told.append("used")
    assert told == ["started", "ended"]


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_a_line(tmp_path):
    pytest.importorskip("ray", reason="there is no Ray: pip install 'normtune[ray]'")
    told = refused("sweep", "--ray", "127.0.0.1:1", "--store", tmp_path / "store.db", kind=NormtuneError)
    assert "--ray 127.0.0.1:1: no Ray cluster is there" in told
    assert not (tmp_path / "store.db").exists()
