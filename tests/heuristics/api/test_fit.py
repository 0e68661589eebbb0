"""A table from a DataFrame: the same as from a store, and one line about data that cannot be fitted."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import normtune
from normtune.errors import UsageError
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit as fit_evidence
from normtune.kernels.fingerprint import UNKNOWN
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile import locate
from normtune.kernels.target import TARGETS
from normtune.results.evidence import Evidence
from normtune.results.exchange.parquet_csv import read_parquet, write_csv
from normtune.tests.commands import one_line
from normtune.tests.heuristics.made_up import regenerate
from normtune.tuner.checking.offline import check

GPU = {"name": "Test GPU", "target": "sm_90"}


def framed(evidence: Evidence, **changed: object) -> pd.DataFrame:
    """One row a measurement, as somebody would make it by hand."""
    return pd.DataFrame(
        [
            {
                "operator": one.problem.key.text,
                "dtype": one.problem.dtype,
                "rows": one.problem.rows,
                "hidden": one.problem.hidden,
                "config": one.config,
                "rounds": one.rounds,
                "samples": one.samples,
                **changed,
            }
            for one in evidence.measurements()
        ]
    )


def test_a_dataframe_gives_the_table_of_the_evidence(evidence: Evidence) -> None:
    table = normtune.fit(framed(evidence), **GPU, leaves=4)
    expected = fit_evidence(evidence, FitOptions(leaves=4))
    assert [one.tree for one in table.functions] == [one.tree for one in expected.functions]
    assert [one.figures for one in table.functions] == [one.figures for one in expected.functions]
    assert table.device[:4] == ("Test GPU", "sm_90", TARGETS["sm_90"].sms, TARGETS["sm_90"].l2_bytes)
    assert table.lookup("toy", "bfloat16", 4096, 128) == RMSNormConfig("block_row", 4, 4)
    assert table.lookup("toy:no_keep", "float16", 4096, 128) == RMSNormConfig("block_row", 4, 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.notes = ()  # type: ignore[misc]


def test_the_rows_of_a_dataframe_may_have_any_order_and_index(evidence: Evidence) -> None:
    frame = framed(evidence)
    mixed = frame.sample(frac=1, random_state=1).set_index("rows", drop=False)
    assert normtune.fit(mixed, **GPU, leaves=4).text() == normtune.fit(frame, **GPU, leaves=4).text()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["json", "fields"])
def test_a_config_may_be_json_or_columns(evidence: Evidence, kind: str) -> None:
    frame = framed(evidence)
    given = frame.assign(config=[config.to_json() for config in frame["config"]])
    if kind == "fields":
        fields = pd.DataFrame([config._asdict() for config in frame["config"]])
        given = pd.concat([frame.drop(columns="config"), fields], axis=1)
    assert normtune.fit(given, **GPU, leaves=4).text() == normtune.fit(frame, **GPU, leaves=4).text()


def test_an_export_is_read_back(evidence: Evidence, tmp_path: Path) -> None:
    write_csv(evidence, tmp_path / "all.csv")
    table = normtune.fit(pd.read_csv(tmp_path / "all.csv"), **GPU, leaves=4)
    expected = evidence.measurements()
    for one, other in zip(table.evidence.measurements(), expected, strict=True):
        assert (one[:2], one[3:6]) == (other[:2], other[3:6])
        assert (one.rounds.tolist(), one.samples.tolist()) == (other.rounds.tolist(), other.samples.tolist())


def test_one_time_a_config_is_enough(spec) -> None:
    """8 warps are best up to 512 and 4 warps beyond; 16 warps alone are legal beyond what was measured."""
    rows = [
        {"operator": "toy", "dtype": "float32", "rows": count, "hidden": hidden, "schedule": "row", "num_warps": warps}
        | {"nanoseconds": 3000 if warps == 16 else 1000.4 if (hidden <= 512) == (warps == 8) else 2000}
        for count in (1, 64)
        for hidden in (256, 512, 1024, 2048)
        for warps in (4, 8, 16)
    ]
    table = normtune.fit(pd.DataFrame(rows), **GPU, leaves=6)
    (function,) = table.functions
    assert (function.figures.leaves, function.figures.loss.mean, function.figures.loss.worst) == (3, 0, 0)
    found = [table.lookup("toy", "bfloat16", 7, hidden).num_warps for hidden in (1, 512, 1024, 2048, 2049, 16384)]
    assert found == [8, 8, 4, 4, 16, 16]


def test_a_failure_takes_no_part(evidence: Evidence) -> None:
    """Of its configs one failed everywhere, as the column says: it is in no leaf."""
    best = RMSNormConfig("block_row", 4, 4)
    frame = framed(evidence)
    frame["status"] = ["wrong_result" if config == best else "ok" for config in frame["config"]]
    table = normtune.fit(frame, **GPU, leaves=4)
    assert best not in {table.lookup("toy", "bfloat16", rows, 128) for rows in (1, 64, 1024, 4096, 65536)}


@pytest.mark.slow
def test_saved_with_its_measurements_it_passes_check(evidence: Evidence, spec, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    table = normtune.fit(framed(evidence), **GPU, leaves=4, tie_percent=0.5)
    table.save(tmp_path / "heuristics.py", evidence=tmp_path / "data" / "gpu.parquet")
    report = check(tmp_path / "heuristics.py")
    assert (report.failures, report.stale) == ((), ())
    assert any("byte for byte" in note for note in report.notes)
    found = locate.load(tmp_path / "heuristics.py")
    assert regenerate(found.header) == "normtune fit --like heuristics.py"
    assert found.header.command == {
        "options": {"leaves": 4, "tie_percent": 0.5},
        "out": "heuristics.py",
        "evidence": "data/gpu.parquet",
    }
    assert found.lookup("toy", "bfloat16", 4096, 128) == table.lookup("toy", "bfloat16", 4096, 128)
    assert read_parquet(tmp_path / "data" / "gpu.parquet").fingerprints() == {"toy": UNKNOWN}
    other = read_parquet(tmp_path / "data" / "gpu.parquet")
    assert (
        normtune.fit(other, leaves=4, tie_percent=0.5).text().partition("\n\n")[2] == table.text().partition("\n\n")[2]
    )


@pytest.mark.slow
def test_a_baseline_and_weights_are_named_from_the_tables_folder(
    evidence: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("library").mkdir()
    Path(".git").mkdir()
    Path("mine.csv").write_text("rows,hidden,weight\n4096,128,3\n1,64,1\n")
    frame = framed(evidence)
    normtune.fit(frame, **GPU, leaves=2).save("old.py")
    table = normtune.fit(frame, **GPU, leaves=4, weights=Path("mine.csv"), baseline=Path("old.py"))
    table.save("library/new.py", evidence="library/gpu.parquet")
    options = locate.load("library/new.py").header.command["options"]
    assert (options["weights"], options["baseline"]) == ("../mine.csv", "../old.py")
    monkeypatch.chdir("/")
    assert check(tmp_path / "library" / "new.py").failures == ()


def test_files_of_others_are_not_replaced(evidence: Evidence, tmp_path: Path) -> None:
    table = normtune.fit(framed(evidence), **GPU, leaves=2)
    (tmp_path / "mine.py").write_text("x = 1\n")
    with pytest.raises(UsageError, match="normtune did not write it"):
        table.save(tmp_path / "mine.py", evidence=tmp_path / "data.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.py"]
    table.save(tmp_path / "mine.py", force=True)
    assert locate.load(tmp_path / "mine.py").lookup("toy", "bfloat16", 1, 64)


def test_what_it_has_no_function_for_is_said(evidence: Evidence) -> None:
    table = normtune.fit(framed(evidence), **GPU, leaves=2)
    with pytest.raises(UsageError, match="no table for 'other' in 'bfloat16': expected one of toy bfloat16"):
        table.lookup("other", "bfloat16", 1, 64)
    with pytest.raises(UsageError, match="0 x 64: expected"):
        table.lookup("toy", "bfloat16", 0, 64)


def dropped(*names: str):
    return lambda frame: frame.drop(columns=list(names))


def with_value(name: str, value: object):
    def changed(frame: pd.DataFrame) -> pd.DataFrame:
        found = frame.astype({name: object})
        found.at[3, name] = value
        return found

    return changed


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (dropped("rows", "hidden"), "no column rows, hidden: it has operator, dtype, config, rounds, samples"),
        (dropped("config"), r"no column config \(or a column"),
        (dropped("samples"), r"no column samples \(or nanoseconds, microseconds, milliseconds, seconds\)"),
        (lambda frame: frame.iloc[:0], "has no rows"),
        (lambda frame: frame.to_dict(), "measurements are a dict: expected a pandas DataFrame"),
        (lambda frame: pd.concat([frame, frame["rows"]], axis=1), "column 'rows' 2 times"),
        (lambda frame: pd.concat([frame, frame.iloc[:1]]), "same measurement is there twice"),
        (with_value("operator", ":no_keep"), "row 3: unknown variant 'no_keep': "),
        (with_value("operator", "toy:odd"), "unknown variant 'odd'"),
        (with_value("dtype", "int8"), "unknown dtype 'int8'"),
        (with_value("dtype", None), "column 'dtype' has no value in row 3"),
        (with_value("rows", 0), "row 3: rows is 0"),
        (with_value("rows", [1, 2]), "row 3: "),
        (with_value("config", ["row"]), r"config of row 3 is \['row'\]"),
        (with_value("rows", 1.5), "row 3: 1.5 is no whole number"),
        (with_value("hidden", float("inf")), "row 3: "),
        (with_value("hidden", "many"), "row 3: "),
        (with_value("hidden", 16385), "toy takes 1 to 16384"),
        (with_value("config", 7), "config of row 3 is 7"),
        (with_value("config", "{}"), "config of row 3 is '{}'"),
        (with_value("config", ("row", 1, "four")), "cannot be fitted: not a config: num_warps is 'four'"),
        (with_value("config", RMSNormConfig("row", 1, 0)), "num_warps of a config is 0"),
        (with_value("samples", []), r"samples of row 3 is \[\]"),
        (with_value("samples", [1000, -1]), r"samples of row 3 is \[1000, -1\]"),
        (with_value("samples", [1000, float("nan")]), "samples of row 3"),
        (with_value("samples", [2**31]), "samples of row 3"),
        (with_value("samples", 5), "samples of row 3 is 5"),
        (with_value("rounds", [0, 1]), "2 rounds of 16 samples"),
        (with_value("rounds", [0] * 16), "do not ascend"),
        (with_value("rounds", [10**30] * 16), r"rounds of row 3 is \[1000"),
        (with_value("rounds", [-1, *range(15)]), "rounds of row 3 .*expected rounds of 0 to 2147483647"),
        (with_value("rounds", [float("nan")] * 16), "rounds of row 3 .*cannot convert float NaN"),
        (lambda frame: frame.assign(status="odd"), "status is 'odd'"),
        (lambda frame: frame.assign(device=["A"] + ["B"] * (len(frame) - 1)), "column 'device' has 2 values"),
        (lambda frame: frame.assign(device=[["A"]] + [["B"]] * (len(frame) - 1)), "column 'device' has 2 values"),
        (lambda frame: frame.assign(regime="warm"), "the DataFrame has no times of regime cold, but of warm"),
    ],
)
def test_one_line_says_what_is_wrong(evidence: Evidence, change, told: str) -> None:
    with one_line(UsageError, told, 499):
        normtune.fit(change(framed(evidence)), **GPU, leaves=2)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"target": "sm_90"}, "name is missing"),
        ({"name": "GPU"}, "target is missing"),
        ({"name": "GPU", "target": "sm_10"}, "sm_10"),
        ({"name": "GPU", "target": "sm_91"}, "sms is None"),
        ({**GPU, "sms": 0}, "sms is 0"),
        ({**GPU, "sms": True}, "sms is True"),
        ({**GPU, "l2_bytes": 1.5}, "l2_bytes is 1.5"),
        ({**GPU, "batch_invariant": "no"}, "batch_invariant is 'no': expected True or False"),
        ({**GPU, "leaves": 0}, "leaves is 0"),
        ({**GPU, "leaves": "3"}, "leaves is '3'"),
        ({**GPU, "operators": 5}, "operators is 5"),
        ({**GPU, "weights": "none.csv"}, "none.csv does not exist"),
        ({**GPU, "baseline": "nobody"}, "nobody is no rule"),
        ({**GPU, "operators": "other"}, "no measurements of operator 'other'"),
    ],
)
def test_wrong_facts_and_options_are_said(evidence: Evidence, arguments: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        normtune.fit(framed(evidence), **arguments)  # type: ignore[arg-type]


def test_evidence_brings_its_own_gpu(evidence: Evidence) -> None:
    assert normtune.fit(evidence, leaves=2).device == evidence.devices()[0]
    with pytest.raises(UsageError, match="leave name, target, sms, columns, where and l2_bytes out"):
        normtune.fit(evidence, **GPU)


def test_facts_may_be_numbers_of_numpy(evidence: Evidence) -> None:
    table = normtune.fit(framed(evidence), **GPU, sms=np.int64(100), l2_bytes=np.int32(1 << 20), leaves=2)
    assert table.device[2:4] == (100, 1 << 20)


def test_a_dataframe_stays_as_it_was(evidence: Evidence) -> None:
    frame = framed(evidence)
    before = frame.copy(deep=True)
    normtune.fit(frame, **GPU, leaves=2)
    assert frame.columns.tolist() == before.columns.tolist()
    assert all(np.array_equal(one, other) for one, other in zip(frame["samples"], before["samples"], strict=True))
