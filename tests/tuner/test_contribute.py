"""`normtune contribute` on a replay: the files of a pull request, and what an interrupt leaves to do."""

from pathlib import Path

import pytest

import normtune
from normtune.errors import NormtuneError
from normtune.tests.commands import main, one_line
from normtune.tuner.contribution import command
from normtune.tuner.doctor.checks import OK, PROBLEM, Finding
from normtune.tuner.sweep.progress import Silent

REPLAY = "replay:nvidia-h200"
FILES = ["measured.db", "nvidia_h200.html", "nvidia_h200.parquet", "nvidia_h200.py", "pull_request.md"]
SIZES = {"rows": (1, 64, 512, 4096, 32768), "hidden": (256, 1024, 4096), "operators": "rms_norm_forward"}


def contributed(folder: Path, **sizes: object) -> Path:
    return command.contribution(folder, REPLAY, 600.0, Silent(), **SIZES | sizes)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """The findings of `doctor`, which takes seconds, and no long check."""
    findings = [Finding(OK, "gpu", "NVIDIA H200")]
    monkeypatch.setattr("normtune.tuner.doctor.checks.doctor", lambda store: findings)
    checked = normtune.check_on_device
    monkeypatch.setattr("normtune.tuner.checking.api.check_on_device", lambda *args: checked(*args, budget_seconds=3.0))
    return findings


@pytest.mark.slow
def test_a_folder_has_all_files_and_each_step_is_done_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "h200"
    text = contributed(folder).read_text()
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert normtune.check(folder / "nvidia_h200.py").failures == ()
    assert text.startswith("# A table for NVIDIA H200 (replay)\n\nMeasured and fitted by `normtune contribute`.\n")
    for part in (
        "rms_norm_forward bfloat16",
        "\nCheck on the device: ",
        "B is `portable`",
        "ok       gpu       NVIDIA",
    ):
        assert part in text
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir() if path.suffix != ".db"}
    capsys.readouterr()
    contributed(folder)
    assert {path: path.stat().st_mtime_ns for path in before} == before and capsys.readouterr().err == ""
    (folder / "nvidia_h200.html").unlink()
    contributed(folder)
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert (folder / "nvidia_h200.py").stat().st_mtime_ns == before[folder / "nvidia_h200.py"]
    contributed(folder, rows=(1, 64, 512, 4096, 32768, 65536))
    assert all(path.stat().st_mtime_ns > time for path, time in before.items())


@pytest.mark.slow
def test_without_the_packages_of_a_page_the_other_files_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("normtune.heuristics.report.images._missing_package", lambda: "altair")
    contributed(tmp_path / "h200")
    assert sorted(path.name for path in (tmp_path / "h200").iterdir()) == [FILES[0], *FILES[2:]]
    assert "altair is not installed: pip install 'normtune[report]'; then the same command" in capsys.readouterr().err


@pytest.mark.slow
def test_a_problem_of_the_machine_ends_it_before_a_sweep_of_a_gpu(
    tmp_path: Path, machine: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.append(Finding(PROBLEM, "triton", "TRITON_INTERPRET is set", "unset it"))
    monkeypatch.setattr("normtune.results.records.REPLAY_PREFIX", "as if it were a GPU")
    with one_line(NormtuneError, "^triton: TRITON_INTERPRET is set; unset it$"):
        contributed(tmp_path / "h200")
    assert not [*(tmp_path / "h200").iterdir()]


@pytest.mark.slow
def test_a_budget_without_a_measurement_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = main("contribute", "--device", REPLAY, "--budget", "0.01s", "--quiet")
    told = "normtune: error: nothing was measured in 0.01 s: give a larger --budget\n"
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", told)
    assert [path.name for path in tmp_path.iterdir()] == ["normtune-nvidia_h200_replay"]
    done = main("contribute", "--device", "tpu")
    assert done.exit_code == 2 and "unknown device 'tpu'" in done.stderr
