import os
import time
from pathlib import Path

import pytest

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.writing.emit import module_text
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.tablefile.header import Gpu
from normtune.results.evidence import Evidence
from normtune.tests.commands import main
from normtune.tests.heuristics.made_up import SHAPES, as_command, rehashed
from normtune.tuner.checking import api, offline
from normtune.tuner.checking.offline import CheckedTable, check

COMMAND = "normtune fit --store test-gpu --out table.py"


@pytest.fixture
def recorded(measure, penalty, run, spec: OperatorSpec, record_as) -> Evidence:
    """A recording `test-gpu` of the kernels as they are."""
    return record_as(Evidence.from_measurements(measure(penalty, SHAPES, fingerprint=fingerprint(spec)), [run]))


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("leaves", [None, 2])
def test_a_table_of_a_recording_is_fitted_again_byte_for_byte(recorded: Evidence, tmp_path: Path, leaves) -> None:
    command = COMMAND if leaves is None else COMMAND.replace("--out", "--leaves 2 --out")
    report = check(
        write(tmp_path / "table.py", module_text(fit(recorded, FitOptions(leaves=leaves)), as_command(command)))
    )
    assert (report.failures, report.stale) == ((), ())
    limits = "" if leaves is None else "; cross-validation and what shares a function are taken from its facts"
    assert f"equal, byte for byte, to a fit of recording test-gpu{limits}" in report.notes


@pytest.mark.long
def test_a_refit_does_not_cross_validate(recorded: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from normtune.heuristics.fitting import function

    command = as_command(COMMAND.replace("--out", "--leaves 2 --out"))
    path = write(tmp_path / "table.py", module_text(fit(recorded, FitOptions(leaves=2)), command))

    def refuse(*arguments: object) -> None:
        raise AssertionError("cross-validated")

    monkeypatch.setattr(function, "cross_validated", refuse)
    result = check(path)
    assert result.failures == ()
    assert any("cross-validation and what shares a function are taken from its facts" in note for note in result.notes)


def test_a_table_with_other_leaves_than_its_command_gives_is_not_called_equal(
    recorded: Evidence, tmp_path: Path
) -> None:
    """Two leaves, but a command without `--leaves`, which chooses the number by cross-validation."""
    assert fit(recorded).functions[0].figures.leaves != 2
    path = write(tmp_path / "table.py", module_text(fit(recorded, FitOptions(leaves=2)), as_command(COMMAND)))
    result = check(path)
    assert not any("equal" in note for note in result.notes)
    assert any("it differs from a fit of recording test-gpu" in failure for failure in result.failures)


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_a_table_with_a_variant_is_fitted_again(
    recorded: Evidence, measure, penalty, run, spec, tmp_path: Path, record_as, own: bool
) -> None:
    def law(config, problem):
        return 0.1 * (config.num_warps != 8) if own else penalty(config, problem)

    cells = recorded.measurements() + measure(law, SHAPES, variant="no_keep", fingerprint=fingerprint(spec))
    found = record_as(Evidence.from_measurements(cells, [run]))
    fitted = fit(found)
    assert len(fitted.functions) == 1 + own
    assert check(write(tmp_path / "table.py", module_text(fitted, as_command(COMMAND)))).failures == ()


@pytest.mark.long
def test_an_edited_table_fails_twice(recorded: Evidence, tmp_path: Path) -> None:
    text = module_text(fit(recorded), as_command(COMMAND)).replace("hidden <= 512", "hidden <= 640")
    report = check(write(tmp_path / "table.py", text))
    assert len(report.failures) == 2
    assert "edited by hand" in report.failures[0]
    assert "`normtune fit --like table.py`" in report.failures[0]
    assert "-    if hidden <= 640:\n" in report.failures[1]
    assert "+    if hidden <= 512:" in report.failures[1]


@pytest.mark.slow
def test_an_edit_with_a_mended_hash_is_found_by_the_data(recorded: Evidence, tmp_path: Path) -> None:
    text = module_text(fit(recorded), as_command(COMMAND)).replace("hidden <= 512", "hidden <= 640")
    report = check(write(tmp_path / "table.py", rehashed(text)))
    assert len(report.failures) == 1
    assert "differs from a fit of recording test-gpu" in report.failures[0]
    assert "`normtune fit --like table.py`" in report.failures[0]


@pytest.mark.long
def test_a_changed_figure_is_found_by_the_data(recorded: Evidence, tmp_path: Path) -> None:
    text = module_text(fit(recorded), as_command(COMMAND))
    assert "worst 0.0" in text and '"worst": 0' in text
    report = check(write(tmp_path / "table.py", text.replace("worst 0.0", "worst 0.1")))
    assert "its first lines are not those that normtune writes for its facts" in report.failures[0]
    report = check(write(tmp_path / "table.py", text.replace('"worst": 0', '"worst": 9')))
    assert "differs from a fit of recording test-gpu" in report.failures[0]


def test_without_the_data_the_hash_still_tells(evidence: Evidence, tmp_path: Path) -> None:
    text = module_text(
        fit(evidence, FitOptions(leaves=3)), as_command("normtune fit --store normtune.db --out table.py")
    )
    whole = check(write(tmp_path / "whole.py", text))
    assert whole.failures == ()
    assert any("its command names a store and no file" in note for note in whole.notes)
    edited = check(write(tmp_path / "edited.py", text.replace("hidden <= 512", "hidden <= 640")))
    assert len(edited.failures) == 1


def test_changed_kernels_are_stale(evidence: Evidence, tmp_path: Path) -> None:
    report = check(
        write(tmp_path / "table.py", module_text(fit(evidence, FitOptions(leaves=3)), as_command("normtune fit")))
    )
    assert report.failures == ()
    assert report.stale == ("the kernels of toy changed since they were measured: sweep with --stale, then fit",)


def test_a_config_that_is_illegal_somewhere_in_its_region_fails(evidence: Evidence, tmp_path: Path) -> None:
    text = module_text(fit(evidence, FitOptions(leaves=3)), as_command("normtune fit"))
    # 4 warps are legal up to 512, where they were chosen, and up to 4096 in float32, but not at 16384.
    wider = text.replace("hidden <= 512", "hidden <= 16383").replace(
        'Config(schedule="row", num_warps=16)', 'Config(schedule="row", num_warps=4)'
    )
    report = check(write(tmp_path / "table.py", rehashed(wider)))
    assert any(
        "toy float32: row warps=4 is illegal on sm_90 at 1073741824 rows of 16384" in line for line in report.failures
    )
    assert any("toy bfloat16: block_row block_row=4 warps=4 is illegal" in line for line in report.failures)


def test_code_that_normtune_does_not_write_cannot_be_proved_legal(evidence: Evidence, tmp_path: Path) -> None:
    text = module_text(fit(evidence, FitOptions(leaves=3)), as_command("normtune fit")).replace(
        "if hidden <= 512:", "if hidden < 513:"
    )
    report = check(write(tmp_path / "table.py", rehashed(text)))
    assert any("a form that normtune does not write" in line for line in report.failures)


def test_an_unknown_target_fails(evidence: Evidence, tmp_path: Path) -> None:
    text = module_text(fit(evidence, FitOptions(leaves=3)), as_command("normtune fit"))
    text = rehashed(text, device=Gpu("Test GPU", "sm_10", 132))
    assert any("unknown target 'sm_10'" in line for line in check(write(tmp_path / "table.py", text)).failures)


def test_an_operator_that_is_not_registered_is_noted(
    evidence: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from normtune.kernels import operator as door

    path = write(tmp_path / "table.py", module_text(fit(evidence, FitOptions(leaves=3)), as_command("normtune fit")))
    monkeypatch.delitem(door._OPERATORS, "toy")
    report = check(path)
    assert report.failures == ()
    assert any("toy bfloat16 is not registered here" in note for note in report.notes)


def test_a_missing_file_is_a_wrong_call(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.py cannot be read"):
        check(tmp_path / "none.py")


def test_tables_are_checked_side_by_side_and_told_in_their_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def checked(path: Path, **_: object) -> CheckedTable:
        if path.name == "b.py":
            raise UsageError("b.py is no table")
        time.sleep(0.3 * (path.name == "a.py"))
        return CheckedTable((), (), (f"in {os.getpid()}",))

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(api, "check", checked)
    done = main("check", *(tmp_path / f"{name}.py" for name in "abc"))
    first, here, last, there = done.stdout.splitlines()
    assert (first, last) == (f"{tmp_path}/a.py: OK", f"{tmp_path}/c.py: OK")
    assert os.getpid() not in {int(line.split()[-1]) for line in (here, there)}
    assert (done.exit_code, done.stderr) == (2, "normtune: error: b.py is no table\n")


@pytest.mark.parametrize("cut", [0, 300, -3, None])
def test_a_table_that_an_editor_is_writing_is_read_again(
    recorded: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int | None
) -> None:
    text = module_text(fit(recorded, FitOptions(leaves=2)), as_command(COMMAND))
    damaged = text.replace("hidden <= 512", "hidden <= 640") if cut is None else text[:cut]
    assert damaged != text
    path = write(tmp_path / "table.py", damaged)
    monkeypatch.setattr(offline, "sleep", lambda seconds: path.write_text(text))
    assert check(path, quick=True).failures == ()
    path.write_text(damaged)
    monkeypatch.setattr(offline, "sleep", lambda seconds: None)
    if cut is None:  # its facts are whole
        assert "it was edited by hand" in check(path, quick=True).failures[0]
    else:
        with pytest.raises(NormtuneError):
            check(path, quick=True)
