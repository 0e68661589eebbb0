"""Guarantees of a store, on every supported database."""

import numpy as np
import pytest

from normtune.errors import UsageError
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.results.database.store import Store
from normtune.results.evidence import Evidence
from normtune.results.records import Coverage, TimedCode
from normtune.tests.results.stores import loaded, record


def test_what_is_added_is_loaded(url, make, make_run, plain_rows):
    failure = make(
        (), config=RMSNormConfig("row", num_warps=32), status="compile_error", reason="ptxas: out of registers"
    )
    gaps = make((5, 6, 7), 10)._replace(rounds=np.array([10, 15, 19], np.int32))
    items = [make((3000, 3100, 2900)), failure, make((3050,), 6), gaps]
    record(url, make_run(), items)
    evidence = loaded(url)
    assert plain_rows(evidence.measurements()) == plain_rows(items)
    assert evidence.runs == (make_run(),)


def test_varied_evidence_survives_a_store(url, varied):
    with Store.open(url) as store:
        assert store.merge(varied) == len(varied.frame)
        assert store.load().digest() == varied.digest()


def test_known_measurements_are_ignored_and_later_rounds_are_not(url, make, make_run, plain_rows):
    with Store.open(url) as store:
        store.begin_run(make_run())
        store.add([make((3000, 3100))])
        store.add([make((9999, 9999)), make((3050,), 2)])
        assert plain_rows(store.load().measurements()) == plain_rows([make((3000, 3100)), make((3050,), 2)])


def test_a_new_fingerprint_is_for_the_named_measurements_of_one_kind_of_device(url, varied, make, make_run):
    elsewhere = make_run(4, name="NVIDIA B200", sms=148)
    with Store.open(url) as store:
        store.merge(varied)
        store.merge(Evidence.from_measurements([make(run=elsewhere)], [elsewhere]))
        before = list(store.load().measurements())
        named = make()  # that which `varied` has most often
        changed = {(named.problem, named.config): (named.fingerprint, "sha256:new")}
        store.set_fingerprints(make_run().device, changed)
        after = list(store.load().measurements())
    is_named = [
        (one.problem, one.config, one.fingerprint) == (named.problem, named.config, named.fingerprint)
        and one.run != elsewhere.id
        for one in before
    ]
    assert is_named.count(True) == 2
    wanted = [one._replace(fingerprint="sha256:new") if hit else one for one, hit in zip(before, is_named, strict=True)]
    assert [one[:6] for one in after] == [one[:6] for one in wanted]


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ({"status": "fine"}, "status is 'fine'"),
        ({"times": (0,)}, "a sample is 0 ns"),
        ({"times": (1,), "first": -1}, "a round is -1"),
        ({"times": (), "status": "ok", "reason": ""}, "status ok with 0 samples"),
        ({"status": "timeout", "reason": "slow"}, "status timeout with 2 samples"),
        ({"times": (), "reason": " "}, "status timeout with reason ''"),
        ({"fingerprint": ""}, "fingerprint is empty"),
    ],
)
def test_one_broken_measurement_stops_the_whole_call(url, make, make_run, broken, told):
    with Store.open(url) as store:
        store.begin_run(make_run())
        with pytest.raises(ValueError, match=told):
            store.add([make(config=RMSNormConfig("row", num_warps=2)), make(**broken)])
        assert store.load().frame.empty


def test_descending_rounds_are_refused(url, make, make_run):
    item = make((5, 6))
    with Store.open(url) as store:
        store.begin_run(make_run())
        with pytest.raises(ValueError, match="do not ascend"):
            store.add([make((7, 8), config=RMSNormConfig("row")), item._replace(rounds=item.rounds[::-1])])


def test_a_run_comes_before_its_measurements(url, make, make_run):
    with Store.open(url) as store:
        with pytest.raises(ValueError, match="begin_run comes first"):
            store.add([make()])
        with pytest.raises(ValueError, match="begin_run comes first"):
            store.update_run(make_run())
        # The rows that the failed call had numbered are gone, and are numbered anew.
        store.begin_run(make_run())
        store.add([make()])
        assert len(store.load().frame) == 1


def test_a_run_gets_a_new_protocol_and_nothing_else(url, make_run):
    with Store.open(url) as store:
        store.begin_run(make_run())
        store.update_run(make_run()._replace(protocol={"void_rounds": 3}))
        store.begin_run(make_run())
        assert store.runs() == [make_run()._replace(protocol={"void_rounds": 3})]
        with pytest.raises(ValueError, match="stored with another device"):
            store.begin_run(make_run(sms=1))


def test_coverage_tells_the_newest_and_counts_its_fingerprint(url, make, make_run):
    old, new = make_run(1), make_run(2, "2026-11-22T10:00:00+00:00")
    changed = RMSNormConfig("row", num_warps=16)
    failed = RMSNormConfig("row", num_warps=32)
    with Store.open(url) as store:
        for run in (new, old):
            store.begin_run(run)
        # Stored in the wrong order: the start of the run decides what is newest.
        store.add([make((200, 210, 220), run=new), make((9,), run=new, config=changed, fingerprint="sha256:bb")])
        store.add(
            [make((100, 110), run=old), make((5, 5), run=old, config=changed), make((8,), run=old, config=failed)]
        )
        store.add([make((), run=new, config=failed, status="wrong_result")])
        problem = make().problem
        assert store.coverage(old.device) == {
            (problem, make().config): Coverage("ok", "sha256:aa", 5, 210),
            (problem, changed): Coverage("ok", "sha256:bb", 1, 9),
            (problem, failed): Coverage("wrong_result", "sha256:aa", 1, 8),
        }
        crash = make_run(5, started="2026-12-01T00:00:00")
        store.begin_run(crash)
        store.add([make((), run=crash, config=failed, status="crashed")])
        assert store.coverage(old.device)[problem, failed].status == "wrong_result"


X, Y, UNDIGESTED = TimedCode(b"launch", b"x"), TimedCode(b"launch", b"y"), TimedCode(b"launch")


@pytest.mark.parametrize(
    ("code", "triton", "status", "expected", "rows"),
    [
        (X, "3.7.0", "ok", ("ok", 5), 2),  # another Triton compiled it to the same code
        (Y, "3.7.0", "ok", ("ok", 2), 1),
        (Y, "3.6.0", "ok", ("ok", 2), 1),  # a launch changed, and no source
        (Y, "3.7.0", "crashed", ("crashed", 0), 1),
        (X, "3.7.0", "crashed", ("ok", 3), 2),
        (UNDIGESTED, "3.6.0", "crashed", ("ok", 3), 2),
        (UNDIGESTED, "3.7.0", "crashed", ("crashed", 0), 1),
        (None, "3.7.0", "ok", ("ok", 5), 2),
    ],
)
def test_of_a_config_measurements_of_the_newest_code_count(
    url, make, make_run, code, triton, status, expected, rows
) -> None:
    old, new = make_run(1), make_run(2, "2026-11-22T10:00:00+00:00")
    with Store.open(url) as store:
        for run, version in ((old, "3.6.0"), (new, triton)):
            store.begin_run(run._replace(software={"triton": version}))
        store.add([make((100, 110, 120), run=old)._replace(code=X)])
        store.add([make((90, 95) if status == "ok" else (), run=new, status=status)._replace(code=code)])
        (state,) = store.coverage(old.device).values()
        evidence = store.load()
    assert (state.status, state.samples) == expected
    assert len(evidence.current().frame) == rows and new.id in set(evidence.current().frame["run"])


@pytest.mark.parametrize(
    "status", ["crashed", "timeout", "compile_error", "out_of_resources", "illegal", "not_recorded"]
)
def test_a_success_outranks_a_failure_of_the_same_kernels(url, make, make_run, status):
    old, new = make_run(1), make_run(2, "2026-11-22T10:00:00+00:00")
    with Store.open(url) as store:
        for run in (new, old):
            store.begin_run(run)
        store.add([make((100, 110), run=old), make((), run=new, status=status)])
        (state,) = store.coverage(old.device).values()
        assert (state.status, state.samples, state.median_ns) == ("ok", 2, 105)
        # Other kernels may fail where those before did not.
        store.add([make((), first=9, run=new, config=RMSNormConfig("row", num_warps=16), fingerprint="sha256:bb")])
        store.add([make((7,), run=old, config=RMSNormConfig("row", num_warps=16))])
        states = store.coverage(old.device)
        assert sorted(one.status for one in states.values()) == ["ok", "timeout"]


def test_a_run_is_set_aside_and_taken_back(url, make, make_run):
    old, new = make_run(1), make_run(2, "9999-11-22T10:00:00+00:00")
    with Store.open(url) as store:
        for run in (old, new):
            store.begin_run(run)
        store.add([make((100, 110), run=old), make((), run=new, fingerprint="sha256:bb")])
        everything = store.load().digest()
        assert store.ahead.startswith(f"run {new.id} of the store ") and store.ahead.endswith(
            f"started 9999-11-22T10:00:00+00:00, after tomorrow, and outranks all measurements until then: "
            f"`normtune data drop {new.id}{store.option}` sets it aside"
        )
        dropped = store.drop(new.id)
        assert dropped.is_dropped and dropped.started == new.started
        assert store.runs() == [old] and store.runs(dropped=True) == [old, dropped]
        assert [one.status for one in store.coverage(old.device).values()] == ["ok"]
        assert store.load().runs == (old,) and store.ahead == ""
        assert [one.measurements for one in store.tally()] == [1]
        # A sweep that still runs writes its protocol, and finds its measurements.
        store.update_run(new)
        assert store.runs() == [old] and store.recount(new.id) == 1
        for wrong, why in (
            (new.id, "is set aside: there is nothing to do"),
            ("00", "2 runs have an id"),
            ("x", "no such"),
        ):
            with pytest.raises(UsageError, match=why):
                store.drop(wrong)
        assert not store.drop(new.id, undo=True).is_dropped
        assert store.load().digest() == everything
        with pytest.raises(UsageError, match="is not set aside"):
            store.drop(new.id, undo=True)


def test_a_request_is_completed_until_a_run_is_set_aside_or_taken_back(url, make_run):
    cold, warm, other = make_run(1), make_run(2, protocol={"regime": "warm"}), make_run(3, sms=66)

    def completed(store):
        return [store.completed_requests(run.device, run.regime) for run in (cold, warm, other)]

    with Store.open(url) as store:
        for run in (cold, warm, other):
            store.begin_run(run)
        for run, request in ((cold, "a"), (cold, "b"), (cold, "b"), (warm, "a"), (other, "c")):
            store.complete(run.id, request)
        assert completed(store) == [{"a", "b"}, {"a"}, {"c"}]
        store.drop(other.id)
        assert completed(store) == [set(), set(), set()]
        store.complete(cold.id, "a")
        store.complete(other.id, "c")  # by a sweep that still runs
        assert completed(store) == [{"a"}, set(), set()]
        store.drop(other.id, undo=True)
        assert completed(store) == [set(), set(), set()]


def test_coverage_and_load_keep_devices_apart(url, make, make_run):
    first, second = make_run(1, uuid="GPU-1"), make_run(2, uuid="GPU-2", driver="580")
    replayed, smaller = make_run(3, uuid="replay:nvidia-h200"), make_run(4, sms=66)
    runs = [first, second, replayed, smaller]
    with Store.open(url) as store:
        for number, run in enumerate(runs):
            store.begin_run(run)
            store.add([make((100,) * (number + 1), run=run)])
        counts = [next(iter(store.coverage(run.device).values())).samples for run in runs]
        assert counts == [3, 3, 3, 4]
        assert store.coverage(first.device._replace(name="NVIDIA A100")) == {}
        assert [run.id for run in store.load(devices=["NVIDIA H200"]).runs] == [first.id, second.id, smaller.id]
        assert [run.id for run in store.load(devices=["NVIDIA H200 (replay)"]).runs] == [replayed.id]
        assert store.load(devices=[]).frame.empty
        assert [device.kind for device in store.load().devices()] == [
            ("NVIDIA H200", 66),
            ("NVIDIA H200", 132),
            ("NVIDIA H200 (replay)", 132),
        ]


def test_a_tally_counts_by_device_operator_and_kernels(url, varied):
    with Store.open(url) as store:
        assert store.tally() == []
        store.merge(varied)
        counted = [(one.device.name, one.operator, one.fingerprint, one.measurements) for one in store.tally()]
    assert counted == [
        ("NVIDIA B200", "rms_norm_forward", "sha256:aa", 1),
        ("NVIDIA H200", "rms_norm_backward", "sha256:aa", 2),
        ("NVIDIA H200", "rms_norm_forward", "sha256:aa", 3),
        ("NVIDIA H200", "rms_norm_forward", "sha256:bb", 1),
    ]


def test_runs_without_measurements_are_listed_but_are_no_evidence(url, make, make_run):
    with Store.open(url) as store:
        store.begin_run(make_run(7))
        assert store.load().runs == ()
        store.begin_run(make_run())
        store.add([make()])
        assert store.load().digest() == Evidence.from_measurements([make()], [make_run()]).digest()
        assert [run.id for run in store.runs()] == [make_run(0).id, make_run(7).id]


def test_merging_adds_what_is_new_in_any_order(tmp_path, varied):
    upper, lower = varied.select((), ["bfloat16", "float32"]), varied.select((), ["float16", "bfloat16"])
    digests = set()
    for name, order in (("a", [upper, lower]), ("b", [lower, upper, lower])):
        with Store.open(f"sqlite:///{tmp_path / name}.db") as store:
            added = [store.merge(part) for part in order]
            assert sum(added) == len(varied.frame)
            assert added[0] == len(order[0].frame)
            digests.add(store.load().digest())
    assert digests == {varied.digest()}


def test_merging_a_run_of_another_device_is_refused_whole(url, make, make_run):
    with Store.open(url) as store:
        store.merge(Evidence.from_measurements([make()], [make_run()]))
        other = make_run(driver="999")
        new = make(config=RMSNormConfig("row", num_warps=2))
        with pytest.raises(ValueError, match="stored with another device"):
            store.merge(Evidence.from_measurements([new], [other]))
        assert len(store.load().frame) == 1


def test_two_stores_write_to_one_database(url, make, make_run, plain_rows):
    items = [make((100 + warps,), config=RMSNormConfig("row", num_warps=warps)) for warps in (1, 2, 4, 8)]
    with Store.open(url) as first, Store.open(url) as second:
        first.begin_run(make_run())
        for store, item in zip([first, second, second, first], items, strict=True):
            store.add([item])
        assert plain_rows(first.load().measurements()) == plain_rows(items)
