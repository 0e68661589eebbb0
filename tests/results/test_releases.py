"""Files of each release, which all later versions read: a store, its measurements as Parquet, and a table.

`releases/VERSION` was written by that version: `sweep --device replay:nvidia-h200 --effort quick --operator
rms_norm_forward --dtype bfloat16 --shapes 1,64,4096x768,1024,8192`, and `fit --evidence`. They never change.
"""

import json
import runpy
import shutil
from pathlib import Path

import pytest

import normtune
from normtune.results.database.store import Store

RELEASES = sorted((Path(__file__).parent / "releases").iterdir())
# Measurements of the store, and the sizes of the sweep.
COUNTS = {"0.1.0": 137}
SHAPES = [(rows, hidden) for rows in (1, 64, 4096) for hidden in (768, 1024, 8192)]


@pytest.fixture(params=RELEASES, ids=lambda folder: folder.name)
def release(request, tmp_path):
    """A copy of the files of a release."""
    return Path(shutil.copytree(request.param, tmp_path / request.param.name))


def count(source):
    return int(normtune.list_data(source)["measurements"].sum())


def test_a_store_of_a_release_is_read_merged_and_fitted(release):
    store, evidence = release / "store.db", release / "evidence.parquet"
    assert count(store) == COUNTS[release.name] == count(evidence)
    normtune.merge_data([store, evidence], release / "new.db")
    assert count(release / "new.db") == COUNTS[release.name]
    table = normtune.fit(store)
    assert all(table.lookup("rms_norm_forward", "bfloat16", *shape) for shape in SHAPES)


def test_a_store_of_a_release_is_written(release):
    with Store.open(release / "store.db") as store:
        for run in store.runs():
            store.complete(run.id, "key")
            assert store.completed_requests(run.device, run.regime) == {"key"}
            store.drop(run.id)
    assert count(release / "store.db") == 0


def test_a_table_of_a_release_answers_as_its_code_does(release):
    table, module = normtune.load_table(release / "table.py"), runpy.run_path(str(release / "table.py"))
    for shape in SHAPES:
        answer = module["lookup"]("rms_norm_forward", "bfloat16", *shape)
        assert json.loads(table.lookup("rms_norm_forward", "bfloat16", *shape).to_json()) == answer._asdict()
