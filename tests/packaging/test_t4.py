"""T4 files of other tuners: what is read, and what is refused."""

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest

from normtune.benchmarks.lib.t4 import read_t4
from normtune.errors import NormtuneError
from normtune.tests.commands import main, one_line

pytestmark = pytest.mark.slow  # a benchmark, or what documents say of it

HUB = Path(__file__).parents[1] / "tuner/search/benchmark_hub"
A100 = HUB / "convolution_milo-A100_T4.json"


def test_a_file_of_the_hub_is_read_with_its_samples_and_costs():
    space = read_t4(HUB / "convolution_milo-W6600_T4.json.gz")
    assert (space.name, len(space.timed), len(space.configs)) == ("convolution_milo-W6600", 120, 120)
    assert space.configs == sorted(space.timed) and len({type(config) for config in space.configs}) == 1
    assert space.configs[0]._fields[:3] == ("block_size_x", "block_size_y", "tile_size_x")
    assert {len(one.nanoseconds) for one in space.timed.values()} == {32}
    for one in space.timed.values():
        assert one.objective == pytest.approx(one.nanoseconds.mean(), rel=1e-6)
    assert all(0.1 < seconds < 60 for seconds in space.overhead.values())


def test_samples_come_from_the_cache_file_beside_it(tmp_path):
    space = read_t4(A100)
    assert {len(one.nanoseconds) for one in space.timed.values()} == {32}
    assert len(space.configs) == len(space.timed) + 2
    alone = read_t4(Path(shutil.copy(A100, tmp_path)))
    assert alone.name == "convolution_milo-A100"
    assert {len(one.nanoseconds) for one in alone.timed.values()} == {1}
    assert {c: one.objective for c, one in alone.timed.items()} == {c: one.objective for c, one in space.timed.items()}


def test_parameters_that_are_no_integers_are_texts(tmp_path):
    document = json.loads(A100.read_text())
    for number, result in enumerate(document["results"]):
        result["configuration"] |= {"layout": "row", "factor": 0.5 * number, "use_shmem": True}
    path = tmp_path / "a_T4.json"
    path.write_text(json.dumps(document))
    config = read_t4(path).configs[0]
    assert (config.layout, config.factor, config.use_shmem) == ("row", "0.0", 1)


def damaged(change):
    def apply(document):
        change(document)
        return json.dumps(document)

    return apply


def of_first(change):
    return damaged(lambda document: change(document["results"][0]))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (lambda document: "", "no T4 file"),
        (lambda document: json.dumps(document)[:-9], "no T4 file"),
        (lambda document: "[" * 100_000, "no T4 file"),
        (lambda document: "[1]", "no T4 file"),
        (lambda document: "{}", "no 'schema_version'"),
        (damaged(lambda d: d.update(schema_version="2.0")), "schema_version is '2.0', known is 1"),
        (damaged(lambda d: d["metadata"].update(timeunit="days")), "timeunit is 'days'"),
        (damaged(lambda d: d.update(results=[])), "results is no list of configs"),
        (damaged(lambda d: d["results"].append(d["results"][0])), "is there twice"),
        (of_first(lambda one: one.pop("times")), "no 'times'"),
        (of_first(lambda one: one["configuration"].pop("use_cmem")), "different parameters"),
        (of_first(lambda one: one["times"].update(runtimes=[1.0, -1.0])), "a time is '-1.0'"),
        (of_first(lambda one: one["times"].update(runtimes=[0.0])), "a time is '0.0'"),
        (of_first(lambda one: one["times"].update(runtimes=["1"])), "a time is '1'"),
        (of_first(lambda one: one["times"].update(runtimes=[1e999])), "a time is 'inf'"),
        (of_first(lambda one: one["measurements"][0].update(value="RuntimeFailedConfig")), "could not convert"),
        (damaged(lambda d: d.update(results=d["results"][-2:])), "no config was timed"),
    ],
)
def test_a_bad_file_is_refused_in_a_line(tmp_path, text, told):
    path = tmp_path / "a_T4.json"
    path.write_text(text(json.loads(A100.read_text())))
    with one_line(NormtuneError, re.escape(told)) as caught:
        read_t4(path)
    assert str(path) in str(caught.value)


def test_a_damaged_archive_and_a_missing_file_are_refused_in_a_line(tmp_path):
    path = tmp_path / "a_T4.json.gz"
    path.write_bytes(gzip.compress(A100.read_bytes())[:-20])
    for bad in (path, tmp_path / "none.json", tmp_path):
        with one_line(NormtuneError, f"{bad} is no T4 file"):
            read_t4(bad)


def test_import_says_why_a_store_takes_no_t4_file_and_makes_none(tmp_path):
    done = main("data", "merge", A100, "--store", tmp_path / "s.db")
    assert done.exit_code == 2 and "not taken in rounds" in done.output and done.output.count("\n") == 1
    assert not list(tmp_path.iterdir())
