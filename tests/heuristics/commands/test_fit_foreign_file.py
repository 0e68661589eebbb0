"""Tables of measurements that other programs made: the best configs are found, and nothing is proved of them."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import normtune
from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.fitting.pipeline import fit as fit_evidence
from normtune.kernels.tablefile import locate
from normtune.results.elsewhere import Elsewhere
from normtune.results.evidence import Evidence
from normtune.results.exchange.foreign_file import read_foreign
from normtune.results.exchange.parquet_csv import read_parquet
from normtune.tests.commands import invoke, one_line, refused, succeed
from normtune.tests.heuristics.made_up import as_measured
from normtune.tests.results.stores import loaded, merge
from normtune.tuner.checking.offline import check

ROWS, HIDDEN = (16, 64, 256, 1024, 4096), (256, 1024, 4096, 8192)
FLAGS = ("--name", "NVIDIA H100", "--target", "sm_90", "--sms", "132")
GPU = {"name": "NVIDIA H100", "target": "sm_90", "sms": 132}
UNPAIRED = "unpaired, not gated"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))  # of installed tables
    monkeypatch.chdir(tmp_path)
    return tmp_path


def best(rows: int, hidden: int) -> tuple[int, int]:
    """BLOCK_M and num_warps: large blocks from 1024 rows on, many warps for long rows."""
    return 128 if rows >= 1024 else 16, 8 if hidden > 1024 else 4


def times(law: Callable[[int, int], tuple[int, int]] = best, samples: int = 1) -> pd.DataFrame:
    """Milliseconds of each config at each shape; the best is 20 % ahead, beyond the noise of 1 %."""
    noise = np.random.default_rng(7)
    lines = []
    for rows, hidden, block, warps in itertools.product(ROWS, HIDDEN, (16, 64, 128), (4, 8)):
        wrong = sum(one != other for one, other in zip((block, warps), law(rows, hidden), strict=True))
        for _ in range(samples):
            time = (0.01 + rows * hidden / 1e8) * (1 + 0.2 * wrong) * (1 + 0.01 * noise.random())
            lines.append((rows, hidden, block, warps, time))
    return pd.DataFrame(lines, columns=["M", "N", "BLOCK_M", "num_warps", "time"])


COLUMNS = ("--columns", "operator=mine,rows=M,hidden=N,dtype=float16,milliseconds=time")


def merged(file: str, words: tuple[str, ...] = (*FLAGS, *COLUMNS)) -> tuple[str, ...]:
    """The words of a fit to the measurements of a file, which are merged into a new store."""
    store = f"{file}.db"
    Path(store).unlink(missing_ok=True)
    succeed("data", "merge", file, *words, "--store", store)
    return ("fit", "--store", store)


def answers_of(path: str) -> dict[tuple[int, int], tuple[int, int]]:
    table = locate.load(path)
    return {shape: tuple(table.lookup("mine", "float16", *shape)) for shape in itertools.product(ROWS, HIDDEN)}


RIGHT = {shape: best(*shape) for shape in itertools.product(ROWS, HIDDEN)}


@pytest.mark.slow
def test_a_name_that_no_driver_reports_is_told_where_it_is_installed() -> None:
    times().to_csv("times.csv", index=False)
    told = succeed(*merged("times.csv"), "--out", "table.py", "--install").splitlines()
    note = (
        "no driver is known to report 'NVIDIA H100', and kernels use the table where the name is equal: the nearest "
        "known one is 'NVIDIA H100 80GB HBM3', for `data merge --name`"
    )
    assert note in told
    assert note in succeed("table", "install", "table.py")
    named = ("--name", "NVIDIA H100 80GB HBM3", *FLAGS[2:])
    assert "no driver" not in succeed(*merged("times.csv", (*named, *COLUMNS)), "--install")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("ending", "samples"), [("csv", 1), ("csv", 5), ("parquet", 3)])
def test_the_best_configs_of_an_operator_that_nobody_declared(ending: str, samples: int) -> None:
    frame = times(samples=samples)
    frame.to_csv("times.csv", index=False) if ending == "csv" else frame.to_parquet("times.parquet")
    result = invoke(*merged(f"times.{ending}"), "--out", "table.py")
    assert result.exit_code == 0, result.output
    assert answers_of("table.py") == RIGHT
    assert result.stdout.startswith(f"NVIDIA H100, sm_90, 132 SMs: 120 measurements, {UNPAIRED}\n")
    assert f"the times of mine are {UNPAIRED}: their noise is unknown, and they prove no baseline" in result.stderr
    assert "mine is not registered: its knobs are BLOCK_M, num_warps, and every config counts as legal" in result.stderr
    assert "  normtune table install table.py: kernels on NVIDIA H100 use it" in result.stdout
    text = Path("table.py").read_text()
    header = locate.load("table.py").header
    assert header.data.unpaired and header.data.date == "" and header.kernels == {"mine": "unknown"}
    assert f" measurements, {UNPAIRED}\n" in text
    # Neither a bound on the noise nor a comparison with a baseline is claimed.
    assert all(claim not in text for claim in ('"luck"', "baseline", '"kept"', '"slower"'))
    assert "faster" not in result.stdout and "  today" not in result.stdout


def test_a_store_and_its_export_give_the_same_table_with_its_mark_everywhere() -> None:
    times(samples=3).to_csv("times.csv", index=False)
    succeed("data", "merge", "times.csv", *FLAGS, *COLUMNS, "--store", "a.db")
    succeed("fit", "--store", "a.db", "--out", "store.py", "--evidence", "evidence.parquet")
    succeed("data", "export", "--store", "a.db", "--out", "export.parquet")
    succeed("fit", "--store", "export.parquet", "--out", "export.py")
    assert answers_of("store.py") == answers_of("export.py") == RIGHT
    headers = [locate.load(name).header for name in ("store.py", "export.py")]
    assert len({header.data for header in headers}) == 1 and headers[0].data.unpaired
    assert read_parquet(Path("evidence.parquet")).digest() == loaded("a.db").digest() == headers[0].data.digest
    report = check(Path("store.py"))
    assert report.failures == () and any(UNPAIRED in note for note in report.notes)
    for shown in (
        succeed("show", "--store", "a.db"),
        succeed("show", "export.py", "--store", "export.parquet"),
        succeed("diff", "export.py", "store.py", "--store", "a.db"),
        succeed("diff", "export.py", "store.py", "--store", "a.db", "--details"),
    ):
        assert f"the times of mine are {UNPAIRED}" in shown
    assert "BLOCK_M=128 warps=8" in succeed("show", "--store", "a.db")
    assert not read_parquet(Path("export.parquet")).frame.empty


@pytest.mark.slow
def test_a_difference_between_tables_has_no_interval() -> None:
    times(samples=8).to_csv("times.csv", index=False)
    succeed("data", "merge", "times.csv", *FLAGS, *COLUMNS, "--store", "a.db")
    succeed("fit", "--store", "a.db", "--out", "good.py")
    succeed("fit", "--store", "a.db", "--leaves", "1", "--out", "one.py")
    (device,) = normtune.diff("good.py", "one.py", "a.db").devices
    (found,) = device.differences
    gained = found.gain()
    assert gained.log.mean > 50_000 and gained.log.low is None and gained.saved.low is None
    assert not found.same >= set(found.pairs)


@pytest.mark.slow
def test_no_leaf_gives_way_to_a_baseline_of_which_unpaired_times_prove_nothing() -> None:
    times(lambda rows, hidden: (16, 4)).to_csv("old.csv", index=False)
    succeed(*merged("old.csv"), "--out", "old.py")
    times(samples=8).to_csv("times.csv", index=False)
    frame = read_foreign(Path("times.csv"), _elsewhere())
    for leaves, baseline in (
        (4, {}),
        (1, {"baseline": "old.py"}),
        (4, {"baseline": "old.py"}),
        (4, {"replaces": "old.py"}),
    ):
        table = normtune.fit(pd.read_csv("times.csv"), **GPU, columns=_COLUMNS, leaves=leaves, **baseline)
        (function,) = table.functions
        plain = fit_evidence(frame, table.options).functions[0]
        assert function.tree == plain.tree
        assert (function.figures.slower, function.figures.uncompared) == (None, 0)
        # The times of both are compared all the same.
        assert (table.figures()["faster"].iloc[0] > 0.1) == bool(baseline and leaves == 4)
    succeed(*merged("times.csv"), "--baseline", "old.py", "--out", "new.py")
    assert check(Path("new.py")).failures == ()


_COLUMNS = {"operator": "mine", "rows": "M", "hidden": "N", "dtype": "float16", "milliseconds": "time"}


def _elsewhere() -> Elsewhere:
    return Elsewhere(**GPU, columns=_COLUMNS)


def test_python_reads_files_and_frames_alike() -> None:
    times().to_csv("times.csv", index=False)
    of_frame = normtune.fit(pd.read_csv("times.csv"), **GPU, columns=_COLUMNS, leaves=4)
    (found,) = normtune.merge_data("times.csv", "a.db", **GPU, columns=_COLUMNS)
    assert (found.measurements, found.added) == (120, 120)
    assert normtune.list_data("a.db")["unpaired"].tolist() == [True]
    of_file = normtune.fit("a.db", leaves=4)
    assert of_file.fit.data.digest == of_frame.fit.data.digest
    assert [one.tree for one in of_file.functions] == [one.tree for one in of_frame.functions]
    with one_line(UsageError, "name is missing: name the GPU"):
        normtune.merge_data("times.csv", "a.db")
    with one_line(UsageError, "columns has rows=Q, but times.csv has no column 'Q'"):
        normtune.merge_data("times.csv", "a.db", **GPU, columns={"rows": "Q"})
    with one_line(UsageError, "sms is 0: expected a positive integer"):
        normtune.merge_data("times.csv", "a.db", **{**GPU, "sms": 0})
    with one_line(UsageError, "`merge_data` adds a file of another program to a store"):
        normtune.fit("times.csv", **GPU)


def test_a_registered_operator_knows_what_is_legal(spec) -> None:
    """Beyond hidden 4096, 4 warps are illegal for the toy in float32: its table never answers so there."""
    lines = [
        ("toy", "bfloat16", rows, hidden, "row", warps, 3.0 + (warps != 4))
        for rows in (1, 64)
        for hidden in (256, 1024, 4096)
        for warps in (4, 16)
    ]
    frame = pd.DataFrame(
        lines, columns=["operator", "dtype", "rows", "hidden", "schedule", "num_warps", "microseconds"]
    )
    frame.to_csv("toy.csv", index=False)
    succeed(*merged("toy.csv", FLAGS), "--out", "toy.py")
    table = locate.load("toy.py")
    assert [table.lookup("toy", "bfloat16", 64, hidden).num_warps for hidden in (256, 4096, 4097, 16384)] == [
        4,
        4,
        16,
        16,
    ]
    told = invoke(*merged("toy.csv", FLAGS))
    assert "is not registered" not in told.stderr
    # What is faster by times that nobody paired is not proved to be.
    assert "by unpaired times, which prove no difference\n" in told.stdout and "than the default config" in told.stdout


def test_two_operators_with_knobs_of_their_own_share_a_table() -> None:
    mine, other = times().assign(operator="mine"), times().assign(operator="other").rename(columns={"BLOCK_M": "TILE"})
    pd.concat([mine, other]).to_csv("times.csv", index=False)
    columns = "rows=M,hidden=N,dtype=float16,milliseconds=time"
    succeed(*merged("times.csv", (*FLAGS, "--columns", columns)), "--out", "table.py")
    table = locate.load("table.py")
    assert table.lookup("mine", "float16", 4096, 8192)._asdict() == {"BLOCK_M": 128, "num_warps": 8}
    assert table.lookup("other", "float16", 16, 256)._asdict() == {"TILE": 16, "num_warps": 4}
    assert check(Path("table.py")).failures == ()


def test_an_operator_that_normtune_measured_still_needs_its_declaration() -> None:
    times().to_csv("times.csv", index=False)
    succeed("data", "merge", "times.csv", *FLAGS, *COLUMNS, "--store", "a.db")
    with one_line(UsageError, "unknown operator 'mine': expected one of .*; --load loads a file of others"):
        fit_evidence(as_measured(loaded("a.db")))


def test_times_of_others_stand_beside_those_of_normtune_and_change_nothing_of_them(evidence: Evidence, spec) -> None:
    """Of `toy`, which normtune measured, theirs are left out; `mine` is fitted without a guard, `toy` with it."""
    toys = pd.DataFrame(
        [("toy", "bfloat16", rows, 64, "row", 16, "2026-11-25", 1.0) for rows in (1, 64, 1024)],
        columns=["operator", "dtype", "rows", "hidden", "schedule", "num_warps", "started", "microseconds"],
    )
    toys.to_csv("toys.csv", index=False)
    times().to_csv("times.csv", index=False)
    gpu = Elsewhere(name="Test GPU", target="sm_90", sms=132)
    theirs = [
        read_foreign(Path("toys.csv"), gpu),
        read_foreign(Path("times.csv"), replace(gpu, columns=_COLUMNS)),
    ]
    merge("all.db", evidence, *theirs)
    alone, both = normtune.fit(evidence, leaves=4), normtune.fit("all.db", leaves=4)
    (mine,) = [one for one in both.functions if one.key.operator == "mine"]
    assert [one for one in both.functions if one is not mine] == list(alone.functions)
    assert "left out 3 unpaired measurements of operators that normtune measured" in both.notes
    assert f"the times of mine are {UNPAIRED}: their noise is unknown, and they prove no baseline" in both.notes
    normtune.fit("all.db", leaves=2).save("old.py")
    found = normtune.fit("all.db", leaves=3, baseline="old.py")
    assert {one.key.operator for one in found.functions if one.figures.limits or one.figures.slower} <= {"toy"}
    replaced = normtune.fit("all.db", leaves=3, replaces="old.py")
    assert {key.operator for key, compared in replaced.fit.compared.items() if compared.slower} <= {"toy"}
    assert found.fit.data.unpaired and not alone.fit.data.unpaired


def test_lists_of_configs_say_it() -> None:
    times().to_csv("times.csv", index=False)
    succeed(*merged("times.csv"), "--out", "table.py")
    succeed("table", "export", "table.py", "--out", "configs.py")
    text = Path("configs.py").read_text()
    assert f"({UNPAIRED})" in text.partition("\n")[0]
    assert 'Config({"BLOCK_M": 128}, num_warps=8)' in text and 'Config({"BLOCK_M": 16}, num_warps=4)' in text


def test_a_batch_invariant_function_of_unknown_sums_is_left_out() -> None:
    times().to_csv("times.csv", index=False)
    table = normtune.fit(pd.read_csv("times.csv"), **GPU, columns=_COLUMNS, batch_invariant=True)
    assert [function.key.is_batch_invariant for function in table.functions] == [False]
    assert any("no mine:batch_invariant" in note for note in table.notes)


def test_the_json_of_a_fit_says_that_it_is_unpaired() -> None:
    times().to_csv("times.csv", index=False)
    (table,) = json.loads(invoke(*merged("times.csv"), "--json").stdout)["tables"]
    assert any(UNPAIRED in note for note in table["notes"])


def test_knobs_may_be_words_negative_numbers_and_booleans() -> None:
    lines = ["M,N,TILE,STAGES,UNROLL,time"]
    for rows, (tile, stages, unroll) in itertools.product(
        ROWS, itertools.product(("128x64", "split-k"), (-1, 4), (True, False))
    ):
        wanted = ("128x64", -1, False) if rows < 256 else ("split-k", 4, True)
        wrong = sum(one != other for one, other in zip((tile, stages, unroll), wanted, strict=True))
        lines.append(f"{rows},1024,{tile},{stages},{unroll},{1 + wrong}")
    Path("times.csv").write_text("\n".join(lines))
    succeed(*merged("times.csv"), "--out", "table.py")
    table = locate.load("table.py")
    assert [tuple(table.lookup("mine", "float16", rows, 1024)) for rows in (16, 4096)] == [
        (-1, "128x64", 0),
        (4, "split-k", 1),
    ]
    assert "STAGES_MINUS_1_TILE_128X64_UNROLL_0 = " in Path("table.py").read_text()
    succeed("check", "table.py")


@pytest.mark.parametrize("configs", [(), ("--max-configs", "1")])
def test_few_configs_are_chosen_under_the_other_conditions(configs: tuple[str, ...]) -> None:
    """The config of the least mean is three times as slow as the best at one shape, another 1.4 times everywhere."""
    lines = [f"{rows},1024,{block},{time}" for rows in (64, 128, 256) for block, time in ((1, 1.0), (2, 1.4), (3, 5))]
    lines += ["512,1024,1,3.0", "512,1024,2,1.4", "512,1024,3,1.0"]
    Path("times.csv").write_text("\n".join(["M,N,B,time", *lines]))
    told = succeed(*merged("times.csv"), "--leaves", "1", "--max-slowdown", "1.5", *configs)
    assert "40.0 % from the best possible" in told and "  worst     40.0 % slower than the best, at " in told


@pytest.mark.parametrize("condition", [("--max-slowdown", "1.3"), ()])
def test_a_number_of_configs_that_a_table_has_changes_nothing(condition: tuple[str, ...]) -> None:
    times().to_csv("times.csv", index=False)
    asked = (*merged("times.csv"), "--leaves", "3", *condition, "--json")
    free = json.loads(invoke(*asked).stdout)["tables"][0]["functions"][0]
    bound = json.loads(invoke(*asked, "--max-configs", str(free["configs"])).stdout)["tables"][0]["functions"][0]
    assert (bound["mean"], bound["worst"]) == (free["mean"], free["worst"])


def test_the_list_of_functions_keeps_its_name() -> None:
    Path("times.csv").write_text("M,N,s,time\n64,1024,tables,5\n64,1024,rows,6\n")
    told = refused(*merged("times.csv"), "--out", "table.py", kind=NormtuneError)
    assert "would both be named TABLES: rename an operator or a value of a knob" in told


def test_the_config_of_the_lower_median_wins_whatever_the_number_and_order_of_its_times() -> None:
    lines = [f"{rows},1024,64,{time}" for rows in ROWS for time in (50, 50, *[10] * 7)]
    lines += [f"{rows},1024,128,12" for rows in ROWS for _ in range(2)]
    for order in (lines, lines[::-1]):
        Path("times.csv").write_text("\n".join(["M,N,BLOCK_M,time", *order]))
        succeed(*merged("times.csv"), "--out", "table.py", "--force")
        assert tuple(locate.load("table.py").lookup("mine", "float16", 64, 1024)) == (64,)


def test_too_long_a_time_is_refused_with_advice() -> None:
    Path("times.csv").write_text("M,N,B,time\n64,1024,1,3000\n64,1024,2,4000\n")
    told = refused("data", "merge", "times.csv", *FLAGS, *COLUMNS, "--store", "a.db", kind=UsageError)
    assert (
        "is 3000: expected milliseconds (times of 1 ns to 2.147 s; as only ratios count, divide all times alike)"
        in told
    )


def test_a_baseline_tells_at_how_many_shapes_it_is_compared() -> None:
    rows = [16, 64, 256, 1024]
    for name, blocks in (("base.csv", {1: 50, 2: 70}), ("new.csv", {2: 70, 3: 80})):
        lines = [f"{m},1024,{block},{time}" for m in rows for block, time in blocks.items()]
        Path(name).write_text("\n".join(["M,N,B,time", *lines, *["16,1024,1,68"] * (name == "new.csv")]))
    succeed(*merged("base.csv"), "--out", "base.py")
    asked = (*merged("new.csv"), "--leaves", "1", "--baseline")
    assert "slower than base.py,\n  compared at 1 shape (3 not compared); " in succeed(*asked, "base.py")
    assert "mine is not registered and has no default config" in refused(*asked, "default", kind=UsageError)
