"""Recordings: named, one file per operator or its dtypes, small, of one real device, and whole or not at all."""

import os

import numpy as np
import pytest

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.results.evidence import Evidence
from normtune.results.exchange import recording
from normtune.results.exchange.parquet_csv import write_parquet
from normtune.results.exchange.recording import MAX_BYTES, load_recording, recordings, write_recording
from normtune.tests.kernels.problems import changed


@pytest.fixture
def evidence(make, make_run):
    backward = changed(make().problem, operator="rms_norm_backward")
    old, new = make_run(1), make_run(2, "2026-11-22T10:00:00+00:00")
    items = [
        make((5, 6), run=old),
        make((7, 8), run=old, problem=changed(make().problem, variant="no_rstd", dtype="float32")),
        make((9,), run=new, problem=backward),
        make((), run=new, problem=backward, config=RMSNormConfig("row")),
    ]
    return Evidence.from_measurements(items, [old, new])


def test_a_recording_is_read_as_it_was_written(evidence, tmp_path, monkeypatch):
    paths = write_recording(evidence, "nvidia-h200", tmp_path)
    assert [path.name for path in paths] == [
        "nvidia-h200.rms_norm_backward.parquet",
        "nvidia-h200.rms_norm_forward.parquet",
    ]
    write_recording(evidence.select(["rms_norm_forward"]), "nvidia-h200-b", tmp_path)
    monkeypatch.setattr(recording, "FOLDER", tmp_path)
    assert recordings() == ["nvidia-h200", "nvidia-h200-b"]
    assert load_recording("nvidia-h200").digest() == evidence.digest()
    assert load_recording("nvidia-h200-b").digest() == evidence.select(["rms_norm_forward"]).digest()
    with pytest.raises(UsageError, match="unknown recording 'h100': expected one of nvidia-h200, nvidia-h200-b"):
        load_recording("h100")


def test_only_the_newest_kernels_are_recorded(evidence, make, make_run, tmp_path, monkeypatch):
    run = make_run(3, "2026-11-23T10:00:00+00:00")
    newer = make((4,), run=run, fingerprint="sha256:new")
    both = Evidence.from_measurements([*evidence.measurements(), newer], [*evidence.runs, run])
    write_recording(both, "gpu", tmp_path)
    monkeypatch.setattr(recording, "FOLDER", tmp_path)
    frame = load_recording("gpu").frame
    assert frame.groupby("operator")["fingerprint"].unique().map(list).to_dict() == {
        "rms_norm_backward": ["sha256:aa"],
        "rms_norm_forward": ["sha256:new"],
    }


@pytest.mark.slow
def test_a_recording_that_is_too_large_leaves_all_files_alone(evidence, make, make_run, tmp_path):
    run = make_run(9)
    noise = np.random.default_rng(0).integers(1, 2**31 - 1, MAX_BYTES // 4).tolist()
    large = Evidence.from_measurements([*evidence.measurements(), make(noise, run=run)], [*evidence.runs, run])
    (written,) = write_recording(evidence.select(["rms_norm_backward"]), "gpu", tmp_path)
    old = written.read_bytes()
    with pytest.raises(NormtuneError, match=r"gpu\.rms_norm_forward\.bfloat16\.parquet would have \d{7} bytes"):
        write_recording(large, "gpu", tmp_path)
    assert os.listdir(tmp_path) == ["gpu.rms_norm_backward.parquet"]
    assert written.read_bytes() == old


def test_an_operator_that_is_too_large_for_one_file_has_one_for_each_dtype(make, make_run, tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "FOLDER", tmp_path)
    noise = np.random.default_rng(0).integers(1, 2**31 - 1, (2, 2000)).tolist()
    problem = make().problem
    items = [make((9,), problem=changed(problem, operator="rms_norm_backward"))]
    for variant in ("", "no_rstd"):  # in both files: the kinds of neither are all before those of the other
        items += [
            make(samples, problem=changed(problem, variant=variant, dtype=dtype))
            for samples, dtype in zip(noise, ("bfloat16", "float32"), strict=True)
        ]
    evidence = Evidence.from_measurements(items, [make_run()])
    whole = ["gpu.rms_norm_backward.parquet", "gpu.rms_norm_forward.parquet"]
    parts = [whole[0], "gpu.rms_norm_forward.bfloat16.parquet", "gpu.rms_norm_forward.float32.parquet"]
    other = tmp_path / "gpu.rms_norm_forward.heads=2.parquet"  # of another operator
    write_parquet(evidence.select(["none"]), other)
    large = write_recording(evidence, "gpu", tmp_path)[1].stat().st_size
    for limit, wanted in ((large - 1, parts), (MAX_BYTES, whole)):
        monkeypatch.setattr(recording, "MAX_BYTES", limit)
        assert [path.name for path in write_recording(evidence, "gpu", tmp_path)] == wanted
        assert sorted(os.listdir(tmp_path)) == sorted([*wanted, other.name])  # none in the other layout
        assert load_recording("gpu").digest() == evidence.digest()


def test_a_file_of_somebody_else_in_the_other_layout_is_not_removed(evidence, tmp_path):
    foreign = tmp_path / "gpu.rms_norm_forward.float16.parquet"
    foreign.write_bytes(b"PAR1")
    with pytest.raises(UsageError, match=r"float16\.parquet: it exists and normtune did not write it"):
        write_recording(evidence, "gpu", tmp_path)
    assert os.listdir(tmp_path) == [foreign.name]


@pytest.mark.parametrize("name", ["", "NVIDIA H200", "../h200", "a.b", "-a", "a\n"])
def test_a_name_that_cannot_be_one(evidence, tmp_path, name):
    with pytest.raises(UsageError, match="the recording's name is"):
        write_recording(evidence, name, tmp_path)


def test_a_recording_is_of_one_real_device(evidence, varied, make, make_run, tmp_path):
    with pytest.raises(UsageError, match=r"2 .NVIDIA B200 with 148 SMs, NVIDIA H200 with 132 SMs"):
        write_recording(varied, "gpu", tmp_path)
    with pytest.raises(UsageError, match="no measurements to record"):
        write_recording(Evidence.from_measurements([], []), "gpu", tmp_path)
    replayed = make_run(uuid="replay:nvidia-h200")
    with pytest.raises(UsageError, match="are a replay"):
        write_recording(Evidence.from_measurements([make(run=replayed)], [replayed]), "gpu", tmp_path)
    with pytest.raises(UsageError, match="none does not exist"):
        write_recording(evidence, "gpu", tmp_path / "none")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("field", ["operator", "dtype"])
def test_an_operator_or_a_dtype_that_is_no_file_name(make, make_run, field):
    item = make(problem=changed(make().problem, **{field: "../../evil"}))
    with pytest.raises(ValueError, match=f"{field} is '../../evil', expected"):
        Evidence.from_measurements([item], [make_run()])


@pytest.mark.slow
@pytest.mark.parametrize("name", recordings())
def test_a_shipped_recording_is_of_one_device_and_one_kernel_with_whole_blocks_of_rounds(name):
    for path in recording.FOLDER.glob(f"{name}.*.parquet"):
        assert path.stat().st_size <= MAX_BYTES
    evidence = load_recording(name)
    assert len(evidence.devices()) == 1
    assert evidence.current().digest() == evidence.digest()
    frame = evidence.frame[evidence.frame["status"] == "ok"]
    rounds = (
        frame["samples"]
        .map(len)
        .groupby([frame[column] for column in ("operator", "variant", "dtype", "rows", "hidden", "config")])
        .max()
    )
    # Searches dropped what was clearly slower after a block, other sweeps later.
    searched = ("nvidia-h100-80gb-hbm3", "nvidia-h200", "nvidia-h200-qk-norm", "nvidia-h200-rms-norm-gated")
    least = 2 if name in searched else 6
    assert rounds.min() >= least, "a void round may be missing, a block may not"
