"""Regimes: the regime of stored runs, and no mixture in any reader."""

import pytest

from normtune.errors import UsageError
from normtune.results.database.store import Store
from normtune.results.evidence import Evidence
from normtune.results.exchange import recording
from normtune.results.exchange.recording import load_recording, write_recording
from normtune.results.regimes import REGIMES, check_regime
from normtune.results.source import read_evidence
from normtune.tests.commands import invoke


@pytest.fixture
def mixed(make, make_run):
    """A cold run and two warm ones; the newest kernels were measured warm."""
    runs = [
        make_run(1),
        make_run(2, "2026-11-21T11:00:00+00:00", protocol={"regime": "warm"}),
        make_run(3, "2026-11-21T12:00:00+00:00", protocol={"regime": "warm"}),
    ]
    items = [
        make((30, 31, 32), run=runs[0]),
        make((10, 11), run=runs[1]),
        make((12,), run=runs[2], fingerprint="sha256:new"),
    ]
    return Evidence.from_measurements(items, runs)


@pytest.mark.parametrize(
    ("protocol", "regime"),
    [
        ({}, "cold"),
        ({"strategy": "adaptive"}, "cold"),
        *(({"regime": name}, name) for name in REGIMES),
        ({"regime": "huge pages"}, "huge pages"),
    ],
)
def test_runs_without_a_regime_are_cold(make_run, protocol, regime):
    assert make_run(protocol=protocol).regime == regime


@pytest.mark.slow
def test_the_shipped_recording_is_cold():
    whole = load_recording("nvidia-h200", None)
    assert whole.regimes() == ["cold"]
    assert load_recording("nvidia-h200").digest() == whole.digest()


def test_names_are_checked():
    for name in REGIMES:
        check_regime(name)
    with pytest.raises(UsageError, match="unknown regime 'Warm': expected one of cold, warm, eager"):
        check_regime("Warm")


def test_evidence_of_a_regime_has_its_runs_and_kernels_alone(mixed):
    assert mixed.regimes() == ["cold", "warm"]
    cold, warm = mixed.regime("cold"), mixed.regime("warm")
    assert [len(part.runs) for part in (cold, warm, mixed.regime("eager"))] == [1, 2, 0]
    assert [item.samples.tolist() for item in cold.current().measurements()] == [[30, 31, 32]]
    assert warm.regime("warm") is warm
    # Kernels that were measured warm do not make the cold times stale.
    assert cold.fingerprints() == {"rms_norm_forward": "sha256:aa"}
    assert warm.fingerprints() == {"rms_norm_forward": "sha256:new"}


def test_the_digest_tells_regimes_apart_and_is_that_of_runs_without_one_for_cold_runs(make, make_run):
    protocols = ({}, {"regime": "cold"}, {"regime": "warm"}, {"regime": "eager"})
    digests = [Evidence.from_measurements([make()], [make_run(protocol=told)]).digest() for told in protocols]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_stores_and_recordings_give_the_cold_times_unless_another_regime_is_named(mixed, tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/store.db"
    with Store.open(url) as store:
        store.merge(mixed)
        assert store.load().digest() == mixed.regime("cold").digest()
        assert store.load(regime="warm").digest() == mixed.regime("warm").digest()
        assert store.load(regime=None).digest() == mixed.digest()
        found = {name: list(store.coverage(mixed.runs[0].device, name).values()) for name in REGIMES}
    assert [(known.samples, known.median_ns) for known in found["cold"]] == [(3, 31)]
    assert [(known.samples, known.median_ns) for known in found["warm"]] == [(1, 12)]
    assert found["eager"] == []
    assert read_evidence(url).digest() == mixed.regime("cold").digest()
    assert read_evidence(url, regime="warm").digest() == mixed.regime("warm").digest()
    with pytest.raises(UsageError, match="the store has no times of regime eager, but of cold, warm: name one of"):
        read_evidence(url, regime="eager")
    write_recording(mixed.regime("warm"), "gpu-warm", tmp_path)
    monkeypatch.setattr(recording, "FOLDER", tmp_path)
    assert load_recording("gpu-warm").frame.empty
    assert read_evidence("gpu-warm", "warm").runs[0].regime == "warm"
    with pytest.raises(UsageError, match="recording gpu-warm has no times of regime cold, but of warm"):
        read_evidence("gpu-warm")


def test_a_run_cannot_come_back_in_another_regime(make, make_run, tmp_path):
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        store.begin_run(make_run(1, protocol={"regime": "warm"}))
        store.begin_run(make_run(1, protocol={"regime": "warm", "void_rounds": 4}))
        with pytest.raises(ValueError, match="is stored with another regime: 'warm', not 'cold'"):
            store.begin_run(make_run(1, protocol={}))


def test_what_commands_print_on_stderr_is_a_warning_in_python(tmp_path, make_run, capfd):
    with Store.open(tmp_path / "a.db") as store:
        store.begin_run(make_run(1, "9999-11-22T10:00:00+00:00"))
    with pytest.warns(UserWarning, match="after tomorrow"):
        assert read_evidence(tmp_path / "a.db", "cold").frame.empty
    assert capfd.readouterr() == ("", "")
    listed = invoke("data", "list", "--store", tmp_path / "a.db")
    assert "normtune: warning: run " in listed.stderr and "after tomorrow" in listed.stderr
