"""Evidence: one order and one digest for any order of arrival, and its subsets."""

import random

import numpy as np
import pytest

from normtune.kernels.key import Key
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.results.evidence import Evidence
from normtune.tests.kernels.problems import changed


def test_the_order_of_arrival_does_not_matter(varied):
    items = varied.measurements()
    random.Random(1).shuffle(items)
    again = Evidence.from_measurements(items, reversed(varied.runs))
    assert again.digest() == varied.digest()
    assert again.frame.drop(columns=["rounds", "samples"]).equals(varied.frame.drop(columns=["rounds", "samples"]))


def test_rows_are_sorted_by_shape_as_numbers_then_by_first_round(make, make_run):
    problem = make().problem
    items = [
        make(problem=problem._replace(rows=1000)),
        make((5,), 8),
        make((5,), 0),
        make(problem=problem._replace(rows=9)),
        make(problem=problem._replace(hidden=64)),
    ]
    frame = Evidence.from_measurements(items, [make_run()]).frame
    found = [(row.hidden, row.rows, int(row.rounds[0])) for row in frame.itertuples()]
    assert found == [(64, 4096, 0), (1024, 9, 0), (1024, 1000, 0), (1024, 4096, 0), (1024, 4096, 8)]
    assert (frame["rows"].dtype, frame["hidden"].dtype) == (np.int64, np.int64)


CHANGES = [
    {"times": (3000, 3101)},
    {"times": (3000,)},
    {"first": 1},
    {"fingerprint": "sha256:bb"},
    {"config": RMSNormConfig("row", num_warps=16)},
    {"times": (), "status": "crashed"},
    {"times": ()},
]


def test_every_part_of_a_measurement_changes_the_digest(make, make_run):
    problem = make().problem
    items = [make(), *(make(**change) for change in CHANGES)]
    items += [make(problem=changed(problem, **{name: value})) for name, value in
              {"operator": "x", "rows": 1, "hidden": 1, "dtype": "float32", "variant": "v"}.items()]  # fmt: skip
    digests = {Evidence.from_measurements([item], [make_run()]).digest() for item in items}
    assert len(digests) == len(items)
    assert all(digest.startswith("sha256:") and len(digest) == 71 for digest in digests)


def test_the_digest_covers_device_and_software_but_not_the_protocol(make, make_run):
    run = make_run()
    runs = [
        run,
        run._replace(protocol={"void_rounds": 5}),
        run._replace(device=run.device._replace(driver="580")),
        run._replace(software={"torch": "2.13.0"}),
    ]
    digests = [Evidence.from_measurements([make()], [run]).digest() for run in runs]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_a_sample_that_moves_to_the_next_measurement_changes_the_digest(make, make_run):
    other = RMSNormConfig("row", num_warps=16)
    split = [[make((1, 2)), make((3,), 2, config=other)], [make((1,)), make((2, 3), 1, config=other)]]
    first, second = (Evidence.from_measurements(items, [make_run()]).digest() for items in split)
    assert first != second


def test_the_same_measurement_twice_is_refused(make, make_run):
    with pytest.raises(ValueError, match="there twice: rms_norm_forward"):
        Evidence.from_measurements([make((1, 2)), make((3,))], [make_run()])


def test_a_measurement_without_its_run_is_refused(make, make_run):
    with pytest.raises(ValueError, match="not among the runs"):
        Evidence.from_measurements([make()], [make_run(5)])


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("rows", 0, "rows is 0, expected a positive integer"),
        ("config", '{"schedule": "row"}', "config is not canonical"),
        ("config", "row", "not a config"),
        ("dtype", "", "dtype is empty"),
    ],
)
def test_columns_are_checked(varied, column, value, told):
    columns = {name: varied.frame[name].tolist() for name in varied.frame}
    columns[column][2] = value
    with pytest.raises(ValueError, match=told):
        Evidence.from_columns(columns, varied.runs)


def test_select_by_operator_variant_and_dtype(varied):
    def sizes(keys, dtypes=()):
        return len(varied.select(keys, dtypes).frame)

    assert (sizes([]), sizes(["rms_norm_forward"]), sizes(["rms_norm_backward"])) == (7, 5, 2)
    assert (sizes(["rms_norm_backward:no_dweight"]), sizes(["rms_norm_forward:no_rstd"])) == (2, 0)
    assert sizes(["rms_norm_forward"], ["bfloat16"]) == 4
    assert sizes(["rms_norm_forward", "rms_norm_backward:no_dweight"]) == 7
    assert [run.device.name for run in varied.select([], ["float16"]).runs] == ["NVIDIA B200"]


def test_kinds_are_in_order_and_each_has_its_rows(varied):
    keys = varied.measured_keys()
    found = list(zip(*(varied.frame[name] for name in ("operator", "variant", "dtype")), strict=True))
    assert [key.columns for key in keys] == sorted(set(found))
    assert len(keys) > 1
    for key in keys:
        assert varied.part(key).index.tolist() == [place for place, own in enumerate(found) if own == key.columns]
    assert varied.part(Key.of("no such operator", "", "bfloat16")).empty
    assert varied.select(["no such operator"]).measured_keys() == []


def test_joined_parts_are_the_whole_in_whatever_order(varied):
    operators = [varied.select([name]) for name in ("rms_norm_backward", "rms_norm_forward")]
    dtypes = [varied.select(dtypes=[name]) for name in ("bfloat16", "float16", "float32")]
    empty = varied.select(["none"])
    for parts in (operators, operators[::-1], dtypes, [empty, *operators], [varied], [empty]):
        found, wanted = Evidence.concat(parts), empty if parts == [empty] else varied
        assert found.digest() == wanted.digest() and found.runs == wanted.runs
        assert found.frame.dtypes.equals(wanted.frame.dtypes)
        assert found.frame.drop(columns=["rounds", "samples"]).equals(wanted.frame.drop(columns=["rounds", "samples"]))
    with pytest.raises(ValueError, match="the same measurement is there twice"):
        Evidence.concat([varied, operators[0]])


def test_current_keeps_the_kernels_of_the_newest_run(make, make_run):
    old, new = make_run(2, "2026-11-21T10:00:00+00:00"), make_run(1, "2026-11-22T10:00:00+00:00")
    backward = changed(make().problem, operator="rms_norm_backward")
    items = [
        make((1,), run=old, fingerprint="sha256:ff"),
        make((2,), run=new, fingerprint="sha256:aa"),
        make((3,), run=old, fingerprint="sha256:cc", problem=backward),
    ]
    evidence = Evidence.from_measurements(items, [old, new])
    assert evidence.fingerprints() == {"rms_norm_backward": "sha256:cc", "rms_norm_forward": "sha256:aa"}
    assert [item.samples.tolist() for item in evidence.current().measurements()] == [[3], [2]]


def test_current_keeps_the_newest_kernels_of_each_device(make, make_run):
    runs = [make_run(number, f"2026-11-2{number}T10:00:00+00:00") for number in (1, 2, 3)]
    other = runs[0].device._replace(name="Other GPU", uuid="GPU-2")
    runs[0], runs[1] = (run._replace(device=other) for run in runs[:2])
    prints = ("sha256:aa", "sha256:bb", "sha256:cc")
    items = [
        make((number,), run=run, fingerprint=one) for number, run, one in zip((1, 2, 3), runs, prints, strict=True)
    ]
    found = Evidence.from_measurements(items, runs).current()
    assert sorted(item.samples.tolist() for item in found.measurements()) == [[2], [3]]
    assert found.runs == tuple(runs[1:])


def test_reasons_are_brought_to_one_line(make, make_run):
    item = make((), reason="ptxas\r\n  error\0: \udc80")
    assert Evidence.from_measurements([item], [make_run()]).frame["reason"].tolist() == ["ptxas error : ?"]
