"""Report on a table whose kernels changed: by the compiled code of its configs, or by their sources."""

from functools import partial
from pathlib import Path

import pytest

from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.writing.emit import module_text
from normtune.kernels.fingerprint import fingerprint
from normtune.results.evidence import Evidence
from normtune.tests.heuristics.made_up import SHAPES, as_command
from normtune.tuner.checking.offline import check
from normtune.tuner.staleness import table as table_module
from normtune.tuner.staleness.recorded import CodeChange

pytestmark = pytest.mark.long

STALE = "the kernels of toy changed since they were measured: sweep with --stale, then fit"


@pytest.fixture
def table(measure, penalty, run, spec, tmp_path: Path, record_as) -> Path:
    """A table of a recording whose kernels had other sources."""
    found = Evidence.from_measurements(measure(penalty, SHAPES, fingerprint="sha256:old"), [run])
    assert fingerprint(spec) != "sha256:old"
    record_as(found)
    path = tmp_path / "table.py"
    path.write_text(module_text(fit(found), as_command("normtune fit --store test-gpu --out table.py")))
    return path


@pytest.fixture
def compare_by(monkeypatch: pytest.MonkeyPatch):
    """Compares code by another function."""
    return partial(monkeypatch.setattr, table_module, "difference")


def test_equal_code_is_said_and_nothing_is_stale(table: Path, compare_by) -> None:
    asked = []

    def compare(code, evidence, cells):
        asked.extend(cells)
        return CodeChange(("toy",))

    compare_by(compare)
    report = check(table)
    assert (report.failures, report.stale) == ((), ())
    configs = {cell.config for cell in asked}
    assert len(configs) > 1 and {cell.key.columns for cell in asked} == {("toy", "", "bfloat16")}
    assert (
        "the sources of the kernels of toy changed since they were measured, the compiled code of the table's "
        f"{len(configs)} configs did not"
    ) in report.notes


def test_kernels_of_which_a_table_has_no_config_are_not_named(table: Path, compare_by) -> None:
    compare_by(lambda *_: CodeChange(("other",)))
    report = check(table)
    assert (report.failures, report.stale) == ((), ())
    assert "its kernels are those that were measured" in report.notes
    assert not any("other" in note for note in report.notes)


def test_the_configs_whose_code_changed_are_named(table: Path, compare_by) -> None:
    changed = []

    def compare(code, evidence, cells):
        changed.append(min(cells, key=lambda cell: cell.config))
        return CodeChange(("toy",), tuple(changed))

    compare_by(compare)
    (line,) = check(table).stale
    assert line.startswith("the compiled code of 1 of the table's ")
    assert f"({changed[0].config})" in line and line.endswith("sweep with --stale, then fit")


@pytest.mark.slow
def test_where_code_cannot_be_compared_the_sources_decide(table: Path, compare_by) -> None:
    compare_by(lambda *_: CodeChange(("toy",), undecided="no triton"))
    report = check(table)
    assert report.stale == (STALE,)
    assert "whether their compiled code changed is not known: no triton" in report.notes
    compare_by(lambda *_: CodeChange(("toy",)))
    assert check(table, quick=True).stale == (STALE,)


def test_kernels_that_are_the_same_are_said_to_be_so(table: Path, compare_by) -> None:
    compare_by(lambda *_: CodeChange(()))
    report = check(table)
    assert report.stale == () and "its kernels are those that were measured" in report.notes
