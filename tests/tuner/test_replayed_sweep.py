"""Stored measurements of a replay, in their order, sample for sample: searches may change only on purpose."""

import hashlib
import sqlite3

import numpy as np
import pytest

from normtune.kernels.config import COPY
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.results.database.store import Store
from normtune.tests.tuner.benches import sweep
from normtune.tests.tuner.made_up_recording import BROKEN, CONFIGS, recorded_plan
from normtune.tuner.search.registry import search

ROWS = (
    "SELECT dtype, rows, hidden, config.config, status, reason, first_round, rounds, samples FROM measurement "
    "JOIN problem ON problem.id = problem_id JOIN config ON config.id = config_id ORDER BY measurement.id"
)


def digest(path):
    """Of all that is stored, in the order in which it was; configs by their number."""
    numbers = {config: number for number, config in enumerate([*CONFIGS, COPY])}
    found = hashlib.sha256()
    with sqlite3.connect(path) as connection:
        for row in connection.execute(ROWS):
            config = COPY if row[3] == COPY.to_json() else RMSNormConfig.from_json(row[3])
            first, rounds, samples = row[6:]
            if samples and not rounds:  # consecutive ones are not stored
                rounds = np.arange(first, first + len(samples) // 4, dtype="<i4").tobytes()
            found.update(repr((*row[:3], numbers[config], *row[4:6], rounds, samples)).encode())
    return found.hexdigest()[:16]


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "first", "resumed"),
    [("adaptive", "11732a65cca997a3", "6fc7404d30588758"), ("exhaustive", "5e59df18b5fcc410", "a4dcae8d7413c1d0")],
)
@pytest.mark.slow
def test_order_and_samples_of_a_sweep_that_is_resumed_stay_as_they_are(opened, tmp_path, strategy, first, resumed):
    """Narrow, then wide beside the best of the narrow one, then what may have failed by chance."""
    path = tmp_path / "store.db"
    whole, told = recorded_plan(), []
    with Store.open(f"sqlite:///{path}") as store:
        sweep(opened(), store, recorded_plan([config for config in CONFIGS[1:] if config != BROKEN]), search(strategy))
        told.append(digest(path))
        assert sweep(opened(), store, whole, search(strategy)).problems == len(whole.tasks)
        assert sweep(opened(), store, whole, search(strategy), retry_failed=True).problems == len(whole.tasks)
        told.append(digest(path))
    assert told == [first, resumed]
