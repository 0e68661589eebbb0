"""The tool from Python: the example of docs/python.md runs and has types, and a wrong call is told in one line."""

import json
import re
import warnings
from pathlib import Path

import pytest

import normtune
from normtune.kernels.key import Key
from normtune.tests.commands import main

REPLAY = "replay:nvidia-h200"
RECORDING = {"data": "nvidia-h200"}
TABLE = "nvidia-h200"


def printed(*words: str) -> str:
    """What a command prints."""
    done = main(*words)
    assert done.exit_code == 0, done.output or done.exception
    return done.stdout


def example(root: Path) -> str:
    """The block of docs/python.md that measures."""
    (found,) = re.findall(
        r"^```python\n(import normtune\n\nif __name__.*?)^```", (root / "docs/python.md").read_text(), re.M | re.S
    )
    return found


@pytest.mark.slow
def test_the_example_of_the_document_runs_and_prints_nothing_but_what_it_says(root: Path, tmp_path: Path, run) -> None:
    (tmp_path / "normtune").symlink_to(root)
    (tmp_path / "example.py").write_text(example(root))
    done = run("example.py", cwd=tmp_path, PYTHONPATH=str(tmp_path), PYTHONSAFEPATH="1")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    problems, timings = map(int, lines[0].split())
    assert problems == 18 and timings > 1000
    assert "()" in lines and "0" in lines
    assert any(line in ("OK", "AMBIGUOUS") for line in lines)
    assert any(re.search(r"\bwarps=\d", line) for line in lines)  # the config of `lookup`
    assert {"heuristics.py", "h200.parquet", "all.csv", "h200.db"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
def test_a_plan_is_returned_and_nothing_is_printed_or_made(tmp_path: Path, capfd, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    planned = normtune.sweep(REPLAY, shapes=[(4096, 256), (1, 64)], operators="rms_norm_forward", dry_run=True)
    assert planned.backlog is not None
    assert [task.problem.rows for task in planned.backlog.tasks] and planned.backlog.cells > 2
    assert {task.problem.shape for task in planned.backlog.tasks} == {(4096, 256), (1, 64)}
    assert planned.summary.problems == 0 and planned.device.uuid == REPLAY
    assert capfd.readouterr() == ("", "") and list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_values_are_what_the_commands_print(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = ["sweep", "--device", REPLAY, "--shapes", "1,64x256", "--store", "a.db", "--json"]
    planned = normtune.sweep(REPLAY, rows=[1, 64], hidden=[256], store="a.db", dry_run=True).to_plain()
    assert json.loads(printed(*sweep, "--dry-run")) == planned and planned["sweep"] is None
    swept = normtune.sweep(REPLAY, rows=[1, 64], hidden=[256], store="a.db").to_plain()
    assert swept["sweep"]["problems_measured"] == planned["plan"]["problems"] == 4
    assert json.loads(printed(*sweep))["sweep"]["problems_known"] == 4
    chosen = ["--store", "nvidia-h200", "--operator", "rms_norm_forward", "--dtype", "bfloat16"]
    found = normtune.diff(TABLE, "liger", **RECORDING, operators="rms_norm_forward", dtypes="bfloat16")
    monkeypatch.setenv("COLUMNS", "80")
    assert printed("diff", TABLE, "liger", *chosen, "--markdown") == found.markdown() + "\n"


@pytest.mark.slow
def test_figures_are_fractions() -> None:
    found = normtune.diff(TABLE, "liger", **RECORDING, operators="rms_norm_forward", dtypes="bfloat16")
    row, *variants = found.frame().to_dict("records")
    difference = found.devices[0].differences[0]
    assert row["operator"] == "rms_norm_forward" and len(variants) == len(found.devices[0].differences) - 1
    losses, gain = difference.common(), difference.gain()
    assert losses is not None and gain is not None
    assert row["first_mean"] == pytest.approx(losses[0].mean / 1e6, rel=0.05)
    assert row["first_mean"] < row["second_mean"] < 1 and row["first_worst"] >= row["first_mean"]
    assert row["faster"] == pytest.approx((1 + row["second_mean"]) / (1 + row["first_mean"]) - 1, abs=1e-5)
    assert row["saved_us"] == gain.saved.mean


@pytest.mark.slow
def test_measurements_are_rows_in_the_order_that_is_asked_for() -> None:
    frame = normtune.show(**RECORDING, operators="rms_norm_forward", dtypes="bfloat16", sort="-median_us", limit=5)
    assert len(frame) == 5 and frame["median_us"].is_monotonic_decreasing
    assert set(frame["operator"]) == {"rms_norm_forward"}


@pytest.mark.slow
def test_a_table_is_found_by_name_or_file() -> None:
    by_name = normtune.load_table(TABLE)
    assert by_name.header == normtune.load_table(by_name.source).header
    answer = by_name.function(Key.parse("rms_norm_forward", "bfloat16"))
    assert answer is not None and isinstance(answer(4096, 1024), normtune.Config)
    report = normtune.check(by_name.source, quick=True)
    assert (report.failures, report.stale) == ((), ())


@pytest.mark.slow
def test_findings_of_this_machine_are_values(capfd) -> None:
    assert {finding.level for finding in normtune.doctor("no.db")} <= {"ok", "warning", "problem"}
    assert capfd.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: normtune.sweep("tpu"), "unknown device 'tpu': expected cuda:N or replay:NAME"),
        (lambda: normtune.sweep(REPLAY, budget_seconds=0), "budget_seconds is 0: expected a positive number"),
        (lambda: normtune.sweep(REPLAY, operators=[3]), r"operators is \[3\]: expected a name or a sequence of names"),
        (lambda: normtune.sweep(REPLAY, dtypes="int8"), "unknown dtype 'int8'"),
        (lambda: normtune.sweep(REPLAY, rows=["1"]), "rows has '1': expected positive integers"),
        (
            lambda: normtune.sweep(REPLAY, shapes=[(1, 0)]),
            r"shapes has \(1, 0\): expected 2 positive integers, rows, hidden",
        ),
        (lambda: normtune.sweep(REPLAY, shapes=[]), "shapes is empty: expected tuples of rows, hidden"),
        (lambda: normtune.sweep(REPLAY, shapes=[(1, 64)], rows=[1]), "shapes and rows are both given"),
        (lambda: normtune.sweep(REPLAY, effort="none"), "unknown effort 'none'"),
        (lambda: normtune.sweep(REPLAY, strategy="lucky"), "unknown strategy 'lucky'"),
        (lambda: normtune.fit(7), "the measurements are a int|name is missing"),
        (lambda: normtune.fit(**RECORDING, leaves=0), "leaves is 0: expected 1 to 128"),
        (lambda: normtune.fit(**RECORDING, name="GPU"), "leave name, target, sms, columns, where and l2_bytes out"),
        (lambda: normtune.fit("missing.db"), "missing.db"),
        (lambda: normtune.diff(TABLE, "nobody", **RECORDING), "nobody is no file, rule or shipped table"),
        (lambda: normtune.diff(TABLE, "liger", 7), "the measurements are a int: expected a store"),
        (lambda: normtune.show(**RECORDING, sort="color"), "'color'"),
        (lambda: normtune.show(limit=0), "limit is 0: expected a positive integer"),
        (lambda: normtune.show(**RECORDING, regime="hot"), "unknown regime 'hot'"),
        (lambda: normtune.check("missing.py"), "missing.py cannot be read"),
        (lambda: normtune.check_on_device(TABLE, REPLAY, seed=-1), "seed is -1"),
        (lambda: normtune.check_on_device(TABLE, REPLAY, budget_seconds=0), "budget_seconds is 0"),
        (lambda: normtune.load_table("nobody"), "nobody is no file or shipped table"),
        (lambda: normtune.Store.open("mysql://h/db"), "'mysql': expected sqlite"),
    ],
)
def test_a_bad_value_is_told_in_one_line(call, says: str, tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NORMTUNE_STORE", raising=False)
    with pytest.raises(normtune.NormtuneError, match=says) as error, warnings.catch_warnings(action="error"):
        call()
    assert len(str(error.value).splitlines()) == 1
    assert capfd.readouterr() == ("", "") and list(tmp_path.iterdir()) == []


def test_an_unknown_keyword_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="leafs"):
        normtune.fit(**RECORDING, leafs=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^sweep\(\) got an unexpected keyword argument 'rowz'$"):
        normtune.sweep(REPLAY, rowz=[1])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^sweep\(\) too many positional arguments$"):
        normtune.sweep(REPLAY, "rms_norm_forward")  # type: ignore[call-arg]
