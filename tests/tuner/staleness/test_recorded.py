"""The digests of a recording distinguish a refactoring of its kernels from a change of their code."""

import inspect

import numpy as np
import pytest

from normtune.errors import NormtuneError
from normtune.kernels import operator
from normtune.kernels.config import COPY
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.key import Key
from normtune.kernels.rms_norm import kernels as forward
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.results.evidence import Evidence
from normtune.results.exchange import recording
from normtune.results.exchange.recorded_code import Cell, RecordedCode
from normtune.results.exchange.recording import load_recording, recorded_code, recordings, write_code, write_recording
from normtune.results.records import Measurement, Run
from normtune.tests.tuner.benches import DEVICE
from normtune.tuner.staleness import recorded
from normtune.tuner.staleness.code import triton_version
from normtune.tuner.staleness.recorded import difference, record

KERNELS = inspect.getsource(forward)
# Other sources of the same code.
REFACTORED = KERNELS.replace("FORWARD_RUNTIME", "FORWARD_SIZES")
ROW, SPLIT = RMSNormConfig("row", num_warps=4), RMSNormConfig("split", num_warps=8, programs_per_sm=2, block_col=1024)
CELLS = [Cell(Key.of("toy", "", "bfloat16"), 2048, config) for config in (ROW, SPLIT)]


@pytest.fixture
def evidence(toy) -> Evidence:
    spec = operator.operator("toy")
    run = Run("r", DEVICE, {"triton": "3.6.0"}, "2026-11-21T10:00:00+00:00", {})
    times = np.arange(1, 3, dtype=np.int32)
    cells = [
        Measurement(spec.problem(rows, 2048, "bfloat16"), config, run.id, fingerprint(spec), "ok", "", times, times)
        for rows in (64, 4096)
        for config in (ROW, SPLIT, COPY)
    ]
    return Evidence.from_measurements(cells, [run])


@pytest.fixture
def digested(evidence, tmp_path, monkeypatch) -> Evidence:
    """A recording with digests."""
    monkeypatch.setattr(recording, "FOLDER", tmp_path)
    write_recording(evidence, "made-up", tmp_path)
    code = record(evidence, CELLS)
    write_code(code, "made-up", {})
    assert recorded_code("made-up") == code and sorted(code.cells) == CELLS
    loaded = load_recording("made-up")
    assert loaded.digest() == evidence.digest() and loaded.codes() == {}
    assert difference(code, loaded, CELLS) == ((), (), "")
    return loaded


@pytest.mark.slow
def test_a_moved_kernel_is_suspect_and_did_not_change(toy, digested):
    toy.kernels("moved", REFACTORED)
    assert difference(recorded_code("made-up"), digested, CELLS) == (("toy",), (), "")
    with pytest.raises(NormtuneError, match="the kernels of toy changed since they were recorded"):
        record(digested, CELLS)


@pytest.mark.slow
def test_the_cells_whose_arithmetic_changed_are_named_if_they_were_asked_for(toy, digested, monkeypatch):
    toy.kernels(
        "toy_kernels",
        KERNELS.replace(
            "_store_rstd(args, b_rstd, at.o_row, at.m_row, is_first",
            "_store_rstd(args, 2.0 * b_rstd, at.o_row, at.m_row, is_first",
        ),
    )
    code = recorded_code("made-up")
    assert difference(code, digested, CELLS) == (("toy",), (CELLS[1],), "")
    assert difference(code, digested, CELLS[:1]) == (("toy",), (), "")
    # Another Triton may compile to equal code, which is proof, or to other code, which says nothing of the sources.
    older = code._replace(triton="0.1")
    assert difference(older, digested, CELLS[:1]) == (("toy",), (), "")
    assert "are of Triton 0.1, here is" in difference(older, digested, CELLS).undecided


@pytest.mark.slow
def test_without_triton_or_digests_the_sources_decide(toy, digested, monkeypatch):
    toy.kernels("moved", REFACTORED)
    code = recorded_code("made-up")
    for known, reason in (
        (RecordedCode(), "the measurements have no digests of their code"),
        (code._replace(cells={CELLS[0]: b"digest"}), "1 of the table's 2 configs by hidden size have no digest"),
    ):
        change = difference(known, digested, CELLS)
        assert (change.suspects, change.changed) == (("toy",), ()) and change.undecided.startswith(reason)
    monkeypatch.setattr(recorded, "triton_version", lambda: "")
    assert difference(code, digested, CELLS).undecided == "triton, which compiles the kernels, is not installed"


def test_digests_stay_with_new_fingerprints_and_are_of_the_present_files(evidence, tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "FOLDER", tmp_path)
    write_recording(evidence, "made-up", tmp_path)
    assert recorded_code("made-up") == RecordedCode()
    code = RecordedCode("3.7.1", {CELLS[0]: b"digest"})
    write_code(code, "made-up", {"toy": "sha256:new", "other": "sha256:other"})
    assert recorded_code("made-up") == code
    after = load_recording("made-up")
    assert set(after.frame["fingerprint"]) == {"sha256:new"}
    marks = evidence.frame.assign(fingerprint="sha256:new")
    assert after.digest() == Evidence(marks, evidence.runs).digest()


@pytest.mark.slow
@pytest.mark.parametrize("name", recordings())
def test_the_digests_of_a_shipped_recording_are_those_of_the_present_kernels(name):
    # Not by `difference`, which compares no code while the sources are the recorded ones.
    evidence, code = load_recording(name, None), recorded_code(name)
    if code.triton != triton_version():
        pytest.skip(f"digests of Triton {code.triton}")
    sample = sorted(code.cells)[:: len(code.cells) // 2]
    assert record(evidence, sample).cells == {cell: code.cells[cell] for cell in sample}
