"""`benchmarks/recorded_code.py`: what it writes of recordings whose code is equal, and where some of it is not."""

import shutil
from pathlib import Path

import pytest

from normtune.benchmarks import recorded_code
from normtune.results.evidence import Evidence
from normtune.results.exchange import recording
from normtune.results.exchange.parquet_csv import read_parquet
from normtune.results.exchange.recording import load_recording
from normtune.tuner.staleness import recorded
from normtune.tuner.staleness.recorded import CodeChange, cell_of, pairs_of

NAME = "nvidia-h200-rms-norm-quantize-fp8-tensor"


def test_a_recording_of_the_same_code_gets_the_present_fingerprint(tmp_path: Path, monkeypatch) -> None:
    before = load_recording(NAME, None)
    for file in (*recording.FOLDER.glob(f"{NAME}.*.parquet"), recorded.path_of(NAME)):
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(recording, "FOLDER", tmp_path)
    monkeypatch.setattr(recorded_code, "fingerprint", lambda spec: "sha256:new")
    cell = cell_of(*pairs_of(before)[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded_code, "difference", lambda *_: CodeChange(("rms_norm_quantize_fp8_tensor",), (cell,)))
        with pytest.raises(SystemExit, match="the code of 1 cells of rms_norm_quantize_fp8_tensor changed"):
            recorded_code.main([NAME], True)
    assert load_recording(NAME, None).fingerprints() == before.fingerprints()
    monkeypatch.setattr(recorded_code, "difference", lambda *_: CodeChange(("rms_norm_quantize_fp8_tensor",)))
    recorded_code.main([NAME], True)
    after = load_recording(NAME, None)
    assert set(after.frame["fingerprint"]) == {"sha256:new"} and recorded.read(NAME, after) is not None
    assert after.runs == before.runs
    assert after.digest() != before.digest() and len(after.frame) == len(before.frame)


def test_only_measurements_of_changed_code_keep_their_fingerprint(tmp_path: Path, monkeypatch) -> None:
    name, file = "nvidia-h200-rms-norm-quantize-fp8-tensor", tmp_path / "stale.parquet"
    evidence = load_recording(name, None)
    changed = {cell_of(*pairs_of(evidence)[0]), cell_of(*pairs_of(evidence)[-1])}
    (before,) = evidence.fingerprints().values()
    difference = CodeChange(("rms_norm_quantize_fp8_tensor",), tuple(changed))
    monkeypatch.setattr(recorded_code, "difference", lambda code, evidence, cells: difference)
    monkeypatch.setattr(recorded_code, "fingerprint", lambda spec: "sha256:new")
    recorded_code.unchanged(name, file)
    found = read_parquet(file)
    old = found.frame["fingerprint"] == before
    assert {cell_of(*pair) for pair in pairs_of(Evidence(found.frame[old], found.runs))} == changed
    assert set(found.frame["fingerprint"]) == {before, "sha256:new"}
    assert not {cell_of(*pair) for pair in pairs_of(Evidence(found.frame[~old], found.runs))} & changed
    assert found.runs == evidence.runs and len(found.frame) == len(evidence.frame)
