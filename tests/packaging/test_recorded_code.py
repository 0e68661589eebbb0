"""`benchmarks/recorded_code.py`: what it writes of recordings whose code is equal, and where some of it is not."""

import shutil
from pathlib import Path

import pytest

from normtune.benchmarks import recorded_code as script
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import operator
from normtune.results.evidence import Evidence
from normtune.results.exchange import recording
from normtune.results.exchange.parquet_csv import read_parquet
from normtune.results.exchange.recorded_code import Cell, RecordedCode, cell_of, pairs_of
from normtune.results.exchange.recording import load_recording, recorded_code, write_code
from normtune.tuner.staleness.code import triton_version
from normtune.tuner.staleness.recorded import CodeChange

NAME, OPERATOR = "nvidia-h200-rms-norm-quantize-fp8-tensor", "rms_norm_quantize_fp8_tensor"


@pytest.fixture
def cells(tmp_path, monkeypatch) -> list[Cell]:
    """The cells of a copy of a recording, of which each has a digest; its kernels changed since."""
    for file in recording.FOLDER.glob(f"{NAME}.*.parquet"):
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(recording, "FOLDER", tmp_path)
    cells = sorted({cell_of(*pair) for pair in pairs_of(load_recording(NAME, None))})
    write_code(RecordedCode("3.7.1", dict.fromkeys(cells, b"digest")), NAME, {})
    monkeypatch.setattr(script, "fingerprint", lambda spec: "sha256:new")
    return cells


def differ(monkeypatch, *changed: Cell) -> None:
    monkeypatch.setattr(script, "difference", lambda *_: CodeChange((OPERATOR,), changed))


def test_a_recording_of_the_same_code_gets_the_present_fingerprint(cells, monkeypatch) -> None:
    before = load_recording(NAME, None)
    differ(monkeypatch, cells[0])
    assert script.convert(NAME) == [f"{NAME}: the code of 1 cells of {OPERATOR} changed"]
    differ(monkeypatch)
    write_code(RecordedCode("3.7.1", dict.fromkeys(cells[2:], b"digest")), NAME, {})
    assert script.convert(NAME) == [f"{NAME}: the code of 2 cells of {OPERATOR} has no digest"]
    assert load_recording(NAME, None).digest() == before.digest()
    write_code(RecordedCode("3.7.1", dict.fromkeys(cells, b"digest")), NAME, {})
    assert script.convert(NAME) == []
    after = load_recording(NAME, None)
    assert set(after.frame["fingerprint"]) == {"sha256:new"} and sorted(recorded_code(NAME).cells) == cells
    assert after.runs == before.runs
    assert after.digest() != before.digest() and len(after.frame) == len(before.frame)


def test_only_measurements_of_changed_code_keep_their_fingerprint(cells, tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "stale.parquet"
    evidence = load_recording(NAME, None)
    (before,) = evidence.fingerprints().values()
    differ(monkeypatch, cells[0])
    write_code(RecordedCode("3.7.1", dict.fromkeys(cells[:-1], b"digest")), NAME, {})
    script.unchanged(NAME, file)
    found = read_parquet(file)
    old = found.frame["fingerprint"] == before
    stale = {cells[0], cells[-1]}
    assert {cell_of(*pair) for pair in pairs_of(Evidence(found.frame[old], found.runs))} == stale
    assert set(found.frame["fingerprint"]) == {before, "sha256:new"}
    assert not {cell_of(*pair) for pair in pairs_of(Evidence(found.frame[~old], found.runs))} & stale
    assert found.runs == evidence.runs and len(found.frame) == len(evidence.frame)


def test_digests_are_added_in_batches_to_those_of_the_same_triton(cells, monkeypatch) -> None:
    evidence = load_recording(NAME, None)
    computed = []

    def record(_, wanted):
        computed.append({*wanted})
        return RecordedCode(triton_version(), dict.fromkeys(wanted, b"newest"))

    monkeypatch.setattr(script, "record", record)
    monkeypatch.setattr(script, "BATCH", 2)
    write_code(RecordedCode("0.1", dict.fromkeys(cells, b"oldest")), NAME, {})
    script.add(NAME, evidence, cells[:3])
    assert computed == [{*cells[:2]}, {cells[2]}]
    assert recorded_code(NAME) == RecordedCode(triton_version(), dict.fromkeys(cells[:3], b"newest"))
    script.add(NAME, evidence, cells[:4])
    assert computed[2:] == [{cells[3]}] and sorted(recorded_code(NAME).cells) == cells[:4]


def test_the_cells_of_committed_tables_are_of_their_recording() -> None:
    evidence = load_recording(NAME, None)
    cells = script.of_tables(NAME, evidence)
    assert cells and {cell.key.operator for cell in cells} == {OPERATOR}
    assert cells <= {cell_of(*pair) for pair in pairs_of(evidence)}
    assert evidence.fingerprints() == {OPERATOR: fingerprint(operator(OPERATOR))}
