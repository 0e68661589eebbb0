"""A Ray cluster of several nodes on this machine."""

import pytest

from normtune.tests.tuner.cluster.disturbed import Machines


@pytest.fixture(scope="module")
def machines():
    """A head and two nodes with two replays each."""
    pytest.importorskip("ray", reason="there is no Ray: pip install 'normtune[ray]'")
    made = Machines()
    yield made
    made.close()
