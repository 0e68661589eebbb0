"""What only changed kernels compare with the others is measured again with them."""

import numpy as np
import pytest

from normtune.kernels.config import COPY
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.results.database.store import Store
from normtune.results.records import REPLAY_PREFIX, Device, Measurement, Run
from normtune.tuner.staleness.links import UNLINKED, without_links
from normtune.tuner.sweep import api

SPEC = operator("rms_norm_forward")
PROBLEM = SPEC.problem(4096, 1024, "bfloat16")
DEVICE = Device("NVIDIA H200", "sm_90", 132, 60 << 20, 150109880320, f"{REPLAY_PREFIX}nvidia-h200", "580.159.04")
# Recorded there: a replay has no others.
BEST, SECOND, SLOW, CHANGED, ALONE, BESIDE = (
    RMSNormConfig("block_row", rows, warps) for rows, warps in ((2, 2), (2, 4), (2, 8), (2, 16), (8, 4), (8, 8))
)
RUNS = [Run(name, DEVICE, {}, f"2026-01-0{day}T00:00:00", {}) for day, name in enumerate("abc", 1)]


def cell(run, config, time, is_old=False):
    kernels = "sha256:old" if is_old else fingerprint(SPEC)
    rounds = np.arange(16, dtype=np.int32)
    return Measurement(PROBLEM, config, run, kernels, "ok", "", rounds, np.full(16, time, np.int32))


CELLS = [
    *(cell("a", config, time) for config, time in ((COPY, 900), (BEST, 1000), (SECOND, 1010), (SLOW, 2000))),
    cell("a", CHANGED, 1500, is_old=True),
    # A run without a copy, which the changed config linked to the other.
    cell("b", CHANGED, 1500, is_old=True),
    *(cell("b", config, 1600) for config in (ALONE, BESIDE)),
]
AGAIN = [cell("c", config, 1400) for config in (COPY, CHANGED)]


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "store.db") as opened:
        for run in RUNS:
            opened.begin_run(run)
        opened.add(CELLS)
        yield opened


def unlinked(store, corrected=()):
    return without_links(store.coverage(DEVICE), store.load().of(DEVICE), dict(corrected))


def test_what_the_changed_config_linked_is_stale_with_it(store):
    found = unlinked(store)
    assert set(found) == {(PROBLEM, ALONE), (PROBLEM, BESIDE)}
    assert {state.why_stale for state in found.values()} == {UNLINKED}
    store.add(AGAIN)
    assert set(unlinked(store)) == {(PROBLEM, ALONE), (PROBLEM, BESIDE)}
    store.add([cell("c", ALONE, 1550)])  # links the other of its run
    assert unlinked(store) == {}


def test_unchanged_code_links_before_its_new_fingerprint_is_stored(store):
    assert unlinked(store, {(PROBLEM, CHANGED): ("sha256:old", fingerprint(SPEC))}) == {}
    assert set(unlinked(store, {(PROBLEM, CHANGED): ("sha256:old", "sha256:other")})) == {
        (PROBLEM, ALONE),
        (PROBLEM, BESIDE),
    }


@pytest.mark.slow
def test_a_sweep_plans_them(store, tmp_path):
    planned = api.sweep(device="replay:nvidia-h200", stale=True, dry_run=True, store=tmp_path / "store.db").backlog
    again = {one.config for task in planned.tasks for one in task.candidates}
    assert again == {CHANGED, ALONE, BESIDE}
