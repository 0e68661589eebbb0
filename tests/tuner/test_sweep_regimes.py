"""Sweeps in several regimes into one store: each is planned, resumed, anchored and reported by itself."""

import pytest

from normtune.errors import UsageError
from normtune.kernels.config import COPY
from normtune.results.database.store import Store
from normtune.results.exchange.recording import load_recording, write_recording
from normtune.tests.commands import one_line
from normtune.tests.tuner.benches import DEVICE, TARGET, MadeUp, search_of, sweep
from normtune.tuner.device import replay
from normtune.tuner.plan.resume import stale_plan
from normtune.tuner.search.adaptive import Adaptive
from normtune.tuner.sweep import api
from normtune.tuner.sweep.report import device_line, end_lines

REPLAY = {"device": "replay:nvidia-h200", "rows": (1, 512), "hidden": (256,)}


class InRegime(MadeUp):
    def __init__(self, regime):
        super().__init__()
        self.regime = regime

    def block(self, configs):
        """The more warps the faster, where it is warm."""
        times = MadeUp.block(configs)
        return times if self.regime == "cold" else {c: [90_000 - found[0]] * 2 for c, found in times.items()}


def narrowed(whole):
    return whole._replace(tasks=tuple(t._replace(candidates=t.candidates[1:]) for t in whole.tasks))


@pytest.mark.slow
def test_what_is_known_in_one_regime_is_not_done_in_another(store, small_plan):
    for regime in ("cold", "warm", "eager"):
        assert len(search_of(small_plan, Adaptive, store.coverage(DEVICE, regime)).pending()) == 8
        assert sweep(InRegime(regime), store, small_plan, Adaptive).problems == 8
        assert sweep(InRegime(regime), store, small_plan, Adaptive).known == 8
    assert [run.regime for run in store.runs()].count("warm") == 1
    sizes = {regime: len(store.load(regime=regime).frame) for regime in ("cold", "warm", "eager")}
    assert set(sizes.values()) == {small_plan.cells() + 8}


def test_anchors_are_the_incumbents_of_the_same_regime(store, small_plan):
    sweep(InRegime("cold"), store, small_plan, Adaptive)
    sweep(InRegime("warm"), store, narrowed(small_plan), Adaptive)
    bench = InRegime("warm")
    sweep(bench, store, small_plan, Adaptive)
    for task in bench.measured:
        whole = next(t for t in small_plan.tasks if t.problem == task.problem)
        others = [c.config for c in whole.candidates[1:]]
        anchor = max(others, key=lambda config: config.num_warps).num_warps
        assert {c.config.num_warps for c in task.candidates} == {whole.candidates[0].config.num_warps, anchor}
        assert len(task.candidates) == 2


def test_what_is_stale_is_stale_in_its_regime(store, small_plan, monkeypatch):
    sweep(InRegime("warm"), store, small_plan, Adaptive)
    monkeypatch.setattr("normtune.tuner.plan.resume.fingerprint", lambda spec: "sha256:new")
    assert stale_plan(store.coverage(DEVICE), TARGET).tasks == ()
    assert len(stale_plan(store.coverage(DEVICE, "warm"), TARGET).tasks) == 8


def test_a_run_that_never_ends_has_its_regime_from_its_beginning(store, small_plan):
    class Killed(InRegime):
        def measure(self, task, race):
            outcomes = super().measure(task, race)
            if len(self.measured) == 2:
                raise KeyboardInterrupt
            return outcomes

        def phases(self):
            raise SystemExit(1)  # nothing is written at the end

    with pytest.raises(SystemExit):
        sweep(Killed("warm"), store, small_plan, Adaptive)
    assert [run.regime for run in store.runs()] == ["warm"]
    assert store.load().frame.empty and not store.load(regime="warm").frame.empty


@pytest.mark.long
def test_the_end_names_the_command_that_fits_the_regime(store, small_plan):
    bench = InRegime("warm")
    assert "warm: the same buffers again and again" in device_line(bench)
    told = end_lines(sweep(bench, store, small_plan, Adaptive), None)
    assert told[-1].startswith('complete: `normtune.fit(..., regime="warm")` fits a table')
    again = end_lines(sweep(InRegime("warm"), store, small_plan, Adaptive), None)
    assert again == ['nothing to do: all 8 problems are measured; `normtune.fit(..., regime="warm")` makes their table']
    assert (
        f"`normtune fit{store.option}` fits"
        in end_lines(sweep(InRegime("cold"), store, small_plan, Adaptive), None)[-1]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"regime": "hot"}, "unknown regime 'hot': expected one of cold, warm, eager"),
        (REPLAY | {"regime": "warm"}, "recording nvidia-h200 has no times of regime warm, but of cold"),
        (
            REPLAY | {"regime": "eager", "dry_run": True},
            "recording nvidia-h200 has no times of regime eager, but of cold",
        ),
    ],
)
def test_regimes_that_cannot_be_had_are_refused_in_one_line(tmp_path, options, told):
    with one_line(UsageError, told):
        api.sweep(**options, store=tmp_path / "store.db")
    assert not (tmp_path / "store.db").exists()


@pytest.mark.slow
def test_a_replay_of_cold_times_stores_that_they_are_cold(tmp_path):
    done = api.sweep(**REPLAY, regime="cold", store=tmp_path / "store.db")
    assert done.to_plain()["sweep"]["protocol"]["regime"] == "cold"
    with Store.open(f"sqlite:///{tmp_path}/store.db") as opened:
        assert {run.protocol["regime"] for run in opened.runs()} == {"cold"}


@pytest.mark.slow
def test_a_recording_of_warm_times_is_replayed_warm(tmp_path, monkeypatch):
    evidence = load_recording("nvidia-h200").select(["rms_norm_forward:no_rstd"], ["bfloat16"])
    warm = type(evidence)(evidence.frame, tuple(run._replace(protocol={"regime": "warm"}) for run in evidence.runs))
    write_recording(warm, "warm-gpu", tmp_path)
    monkeypatch.setattr("normtune.results.exchange.recording.FOLDER", tmp_path)
    with pytest.raises(UsageError, match="recording warm-gpu has no times of regime cold, but of warm: name one of"):
        replay.ReplayEngine("warm-gpu")
    engine = replay.ReplayEngine("warm-gpu", "warm")
    assert engine.identify().regime == "warm"
    first = warm.measurements()[0]
    engine.begin(first.problem, [])
    assert set(engine.block([COPY]).times[COPY]) <= {
        sample
        for item in warm.measurements()
        if item.problem == first.problem and item.config == COPY
        for sample in item.samples.tolist()
    }
