"""DTensors: two processes, each with its shard, against torch's own RMSNorm of the whole."""

import subprocess
import sys
from pathlib import Path

import pytest

from normtune.tests.commands import PATIENCE

# Run, not imported: torch.distributed takes a second.
SHARDED = Path(__file__).with_name("sharded.py")


@pytest.mark.slow
def test_shards_of_two_processes(tmp_path):
    ranks = [
        subprocess.Popen([sys.executable, SHARDED, str(rank), str(tmp_path / "ranks")], stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    for rank in ranks:
        _, told = rank.communicate(timeout=PATIENCE)
        assert rank.returncode == 0, told.decode()
