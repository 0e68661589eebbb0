"""`benchmarks/recorded_code.py`: what it writes of recordings whose code is equal, and where some of it is not."""

import json
from pathlib import Path

import pytest

from normtune.benchmarks import recorded_code
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import operator
from normtune.results.evidence import Evidence
from normtune.results.exchange.parquet_csv import read_parquet
from normtune.results.exchange.recording import load_recording
from normtune.tuner.staleness.recorded import CodeChange, cell_of, pairs_of

FORWARD, GATED = (fingerprint(operator(name)) for name in ("rms_norm_forward", "rms_norm_gated_forward"))


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What is written if the recordings have these pairs of fingerprints, and the file has those before."""
    file, changed = tmp_path / "same_code.json", {"broken": ["broken: the code of 2 cells of rms_norm_forward changed"]}

    def write(pairs: dict[str, list[tuple[str, str]]], before: dict[str, list[str]], names: list[str]) -> object:
        monkeypatch.setattr(recorded_code, "SAME_CODE", file)
        for module in ("benchmarks.recorded_code", "kernels.fingerprint"):
            monkeypatch.setattr(f"normtune.{module}.same_code", lambda: before)
        monkeypatch.setattr(recorded_code, "recordings", lambda: list(pairs))
        monkeypatch.setattr(recorded_code, "compare", lambda name: (pairs[name], changed.get(name, [])))
        recorded_code.main(names, True)
        return json.loads(file.read_text())

    return write


def test_recordings_of_several_earlier_sources_of_the_same_kernels_are_all_kept(written) -> None:
    pairs = {"one": [(FORWARD, "sha256:1")], "two": [(FORWARD, "sha256:0"), (GATED, GATED)]}
    assert written(pairs, {}, []) == {FORWARD: ["sha256:0", "sha256:1"]}


def test_one_recording_leaves_what_is_known_of_the_others(written) -> None:
    before = {FORWARD: ["sha256:0"], GATED: ["sha256:2"], "sha256:gone": ["sha256:3"]}
    found = written({"one": [(FORWARD, "sha256:1")], "two": []}, before, ["one"])
    assert found == {FORWARD: ["sha256:0", "sha256:1"], GATED: ["sha256:2"]}


def test_a_recording_of_which_one_operator_changed_keeps_the_others(written, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="the code of 2 cells of rms_norm_forward changed"):
        written({"broken": [(GATED, "sha256:2")], "one": [(FORWARD, "sha256:1")]}, {}, [])
    assert json.loads((tmp_path / "same_code.json").read_text()) == {FORWARD: ["sha256:1"], GATED: ["sha256:2"]}


def test_only_measurements_of_changed_code_keep_their_fingerprint(tmp_path: Path, monkeypatch) -> None:
    name, file = "nvidia-h200-reduce-partials", tmp_path / "stale.parquet"
    evidence = load_recording(name, None)
    changed = {cell_of(*pairs_of(evidence)[0]), cell_of(*pairs_of(evidence)[-1])}
    (before,) = evidence.fingerprints().values()
    difference = CodeChange(("reduce_partials",), tuple(changed))
    monkeypatch.setattr(recorded_code, "difference", lambda code, evidence, cells: difference)
    monkeypatch.setattr(recorded_code, "fingerprint", lambda spec: "sha256:new")
    recorded_code.unchanged(name, file)
    found = read_parquet(file)
    old = found.frame["fingerprint"] == before
    assert {cell_of(*pair) for pair in pairs_of(Evidence(found.frame[old], found.runs))} == changed
    assert set(found.frame["fingerprint"]) == {before, "sha256:new"}
    assert not {cell_of(*pair) for pair in pairs_of(Evidence(found.frame[~old], found.runs))} & changed
    assert found.runs == evidence.runs and len(found.frame) == len(evidence.frame)
