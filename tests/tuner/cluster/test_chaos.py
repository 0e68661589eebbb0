"""Sweeps on a cluster whose workers, actors, nodes and drivers are killed: nothing is lost, doubled or left."""

import pytest

from normtune.tests.tuner.cluster.disturbed import KINDS, begin, calm, disturb

pytestmark = pytest.mark.slow
SEEDS = range(1000, 1005)


@pytest.fixture(scope="module")
def undisturbed(machines, tmp_path_factory):
    """A store of the sweep without a cluster, and the seconds that it takes with one."""
    folder = tmp_path_factory.mktemp("undisturbed")
    out, err = begin("none", folder / "whole.db").communicate()
    assert out, err
    return folder / "whole.db", calm(machines, folder)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_doubled_or_left(machines, tmp_path, undisturbed, kind, seed):
    assert disturb(machines, kind, seed, tmp_path, *undisturbed).faults == ()
