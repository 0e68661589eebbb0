"""The digests of a recording distinguish a refactoring of its kernels from a change of their code."""

import inspect

import numpy as np
import pytest

from normtune.errors import NormtuneError
from normtune.kernels import alignment, operator
from normtune.kernels.config import COPY
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.key import Key
from normtune.kernels.rms_norm import forward
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.target import target_for
from normtune.kernels.tiles import launch
from normtune.results.evidence import Evidence
from normtune.results.exchange.recording import load_recording
from normtune.results.records import Measurement, Run
from normtune.tests.tuner.benches import DEVICE
from normtune.tuner.staleness import recorded
from normtune.tuner.staleness.code import triton_version
from normtune.tuner.staleness.recorded import Cell, cell_of, difference, pairs_of, path_of, read, record, write

KERNELS = inspect.getsource(forward)
# Other sources of the same code.
REFACTORED = KERNELS.replace("_MAX_SUM_BYTES", "_MOST_SUM_BYTES")
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
def known(evidence, tmp_path, monkeypatch) -> Evidence:
    """The recording, its digests beside it."""
    monkeypatch.setattr(recorded.recording, "FOLDER", tmp_path)
    code = record(evidence)
    assert sorted(code.cells) == CELLS
    write(code, path_of("made-up"))
    assert read("made-up", evidence) == code
    assert difference(code, evidence, CELLS) == ((), (), "")
    return evidence


@pytest.mark.slow
def test_a_moved_kernel_is_suspect_and_did_not_change(toy, known):
    toy.kernels("moved", REFACTORED)
    assert difference(read("made-up", known), known, CELLS) == (("toy",), (), "")
    with pytest.raises(NormtuneError, match="the kernels of toy changed since they were recorded"):
        record(known)


@pytest.mark.slow
def test_the_cells_whose_arithmetic_changed_are_named_if_they_were_asked_for(toy, known):
    toy.kernels("toy_kernels", KERNELS.replace("b_square += rounded(b_x * b_x", "b_square += 1.0 + rounded(b_x * b_x"))
    assert difference(read("made-up", known), known, CELLS) == (("toy",), (CELLS[1],), "")
    assert difference(read("made-up", known), known, CELLS[:1]) == (("toy",), (), "")


@pytest.mark.slow
def test_a_launch_that_changed_outside_of_the_sources_is_noticed(known, monkeypatch):
    monkeypatch.setattr(launch, "alignment_of", lambda *extents: alignment.alignment_of(8, *extents))
    assert difference(read("made-up", known), known, CELLS).changed == tuple(CELLS)


@pytest.mark.slow
def test_without_this_triton_or_digests_the_sources_decide(toy, known, monkeypatch):
    toy.kernels("moved", REFACTORED)
    monkeypatch.setattr(recorded, "triton_version", lambda: "9.9")
    assert difference(read("made-up", known), known, CELLS).undecided.endswith("here is 9.9")
    path_of("made-up").unlink()
    assert difference(read("made-up", known), known, CELLS) == (
        ("toy",),
        (),
        "the measurements have no digests of their code",
    )


@pytest.mark.slow
def test_digests_of_another_recording_are_none_and_damaged_ones_an_error(known):
    path = path_of("made-up")
    text = path.read_text()
    for other in (("sha256:", "sha256:0"), ("toy bfloat16 2048", "toy bfloat16 4096")):
        path.write_text(text.replace(*other))
        assert read("made-up", known) is None
    assert read("(" * 300, known) is None  # no file has such a name
    path.write_text(text[:-20])
    with pytest.raises(NormtuneError, match="is damaged"):
        read("made-up", known)


@pytest.mark.slow
def test_the_digests_of_the_shipped_recording_are_those_of_the_present_kernels():
    # Not by `difference` alone, which compares no code while sources and launches are the recorded ones.
    evidence = load_recording("nvidia-h200", None)
    code = read("nvidia-h200", evidence)
    assert code is not None
    if code.triton != triton_version():
        pytest.skip(f"digests of Triton {code.triton}")
    sample = sorted(code.cells)[:: len(code.cells) // 6]
    pairs = [pair for pair in pairs_of(evidence) if cell_of(*pair) in sample]
    digests = recorded._digests(pairs, target_for("sm_90", 132))
    assert digests == {cell: code.cells[cell] for cell in sample}
