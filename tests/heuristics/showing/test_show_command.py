"""`normtune show`: output for stores, devices, tables and measurements, and refusals."""

import math
from pathlib import Path

import pandas as pd
import pytest

from normtune.errors import NormtuneError
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.regret.fixed_log import percent
from normtune.heuristics.regret.matrix import timing_matrix
from normtune.heuristics.showing import listing
from normtune.heuristics.writing.emit import module_text
from normtune.heuristics.writing.entries import entries
from normtune.kernels.config import COPY
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile import locate
from normtune.kernels.target import TARGETS
from normtune.results.database.store import Store
from normtune.results.evidence import Evidence
from normtune.results.records import Measurement
from normtune.tests.commands import refused, succeed
from normtune.tests.heuristics.made_up import SHAPES, as_command
from normtune.tests.results.stores import loaded, record


def write_table(store: str, leaves: int, path: str) -> None:
    """Write the table of so many leaves that fits a store best."""
    fitted = fit(loaded(f"sqlite:///{store}"), FitOptions(leaves=leaves))
    Path(path).write_text(module_text(fitted, as_command("normtune fit")))


def printed(*arguments: str) -> list[str]:
    """The lines of `show` with these options, without spaces at their ends."""
    return [line.rstrip() for line in succeed("show", *arguments).splitlines()]


def cells(lines: list[str]) -> list[list[str]]:
    return [line.split() for line in lines]


def test_without_a_filter_it_is_the_map_of_the_three_regimes(store: str) -> None:
    lines = printed("--store", store)
    assert lines[:4] == [
        "Test GPU, sm_90, 132 SMs: 300 measurements",
        "",
        "toy bfloat16: the best config (1k = 1024)",
        "       rows",
    ]
    assert lines[4:12] == [
        "hidden 1 64 1k 4k 64k",
        "    64 B  B  B  C   C",
        "   128 B  B  B  C   C",
        "   256 B  B  B  C   C",
        "   512 B  B  B  C   C",
        "    1k A  A  A  A   A",
        "    2k A  A  A  A   A",
        "    4k A  A  A  A   A",
    ]
    assert cells(lines[13:16]) == [
        ["A", "15", "15", "row", "warps=16"],
        ["B", "12", "12", "row", "warps=4"],
        ["C", "8", "8", "block_row", "block_row=4", "warps=4"],
    ]
    assert "\x1b" not in "".join(lines)


def test_a_table_is_shown_with_what_it_loses_and_where(store: str) -> None:
    write_table(store, 2, "two.py")
    lines = printed("--store", store, "two.py")
    assert lines[2] == "toy bfloat16: the configs of two.py (1k = 1024)"
    (entry,) = entries(locate.load("two.py").header)
    (told,) = (line for line in lines if line.startswith("The table loses"))
    assert told.startswith(f"The table loses {percent(entry.figures.loss.plain)} on average")
    # Two leaves cannot hold three regimes: few short rows get what many of them need, 5 % slower by the law.
    assert lines[5:9] == [f"{hidden:>6}!A !A !A  A   A" for hidden in (64, 128, 256, 512)]
    worst = lines[lines.index(told) + 1 :]
    assert len(worst) == 5
    assert all(line.endswith(": A, best is row warps=4") and float(line.split()[0]) > 4.5 for line in worst)
    losses = [float(line.split()[0]) for line in worst]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.long
def test_a_table_of_something_else_says_so_and_a_broken_one_is_refused(store: str) -> None:
    shipped = str(locate.SHIPPED / "nvidia_h200.py")
    assert any("nvidia_h200.py has no function for it" in line for line in printed("--store", store, shipped))
    assert "no table of normtune" in refused("show", "--store", store, __file__)
    write_table(store, 1, "one.py")
    text = Path("one.py").read_text()
    Path("one.py").write_text(text.replace(') -> "Config":\n', ') -> "Config":\n    1 / 0\n', 1))
    assert "one.py cannot be used: its code has a form that" in refused("show", "--store", store, "one.py")


@pytest.mark.slow
def test_several_devices_are_shown_one_after_another_and_never_mixed(store: str, measure, run, spec) -> None:
    other = run._replace(id="other", device=run.device._replace(name="A [red]GPU\x1b[2J\n", sms=66))
    slow = measure(lambda config, problem: 9.0, SHAPES[:4], run="other", fingerprint=fingerprint(spec))
    record(f"sqlite:///{store}", other, slow)
    lines = printed("--store", store)
    first, second = (lines.index(line) for line in lines if line.endswith("measurements"))
    assert lines[first] == "A [red]GPU [2J, sm_90, 66 SMs: 36 measurements"
    assert lines[second] == "Test GPU, sm_90, 132 SMs: 300 measurements"
    assert "hidden 1" in lines[first:second]
    assert "hidden 1 64 1k 4k 64k" in lines[second:]


def test_what_older_kernels_took_is_left_out_and_counted(store: str, measure, penalty, run) -> None:
    newer = run._replace(id="newer", started="2026-11-22T10:00:00")
    record(f"sqlite:///{store}", newer, measure(penalty, SHAPES[:2], run="newer", fingerprint="sha256:new"))
    lines = printed("--store", store)
    assert lines[0] == "Test GPU, sm_90, 132 SMs: 18 measurements"
    assert lines[1] == "left out 300 measurements of older kernels: a sweep with --stale repeats them"
    assert lines[2].startswith("the kernels of toy changed since")


def test_what_has_no_times_is_named(store: str, run) -> None:
    crashed = Measurement(
        Problem.of("toy", 1, 64, "float16"), RMSNormConfig("row"), run.id, "sha256:0", "crashed", "bang", (), ()
    )
    foreign = crashed._replace(problem=Problem.of("softmax", 1, 64, "float16"))
    record("sqlite:///poor.db", run, [crashed, foreign, crashed._replace(problem=Problem.of("toy", 1, 64, "fp8"))])
    lines = printed("--store", "poor.db")
    assert "toy float16: no config has times" in lines
    assert "softmax float16: operator or dtype is not registered: load the file that declares it" in lines
    assert "toy fp8: operator or dtype is not registered: load the file that declares it" in lines


@pytest.mark.slow
def test_operators_and_dtypes_narrow_a_map(store: str, measure, penalty, run, spec) -> None:
    more = measure(penalty, SHAPES, dtype="float32", fingerprint=fingerprint(spec))
    more += measure(penalty, SHAPES[:4], variant="no_keep", fingerprint=fingerprint(spec))
    with Store.open(f"sqlite:///{store}") as opened:
        opened.add(more)
    titles = [line.partition(":")[0] for line in printed("--store", store) if "the best config" in line]
    assert titles == ["toy bfloat16", "toy float32", "toy"]
    (title,) = (line for line in printed("--store", store, "--operator", "toy:no_keep") if "best config (" in line)
    assert title == "toy:no_keep bfloat16: the best config (1k = 1024)"
    assert not any("bfloat16" in line for line in printed("--store", store, "--dtype", "float32"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--operator", "softmax"], "--operator is 'softmax': measured are toy"),
        (["--dtype", "fp8"], "--dtype is 'fp8': measured are bfloat16"),
        (["none.py"], "none.py is no file or shipped table"),
    ],
)
def test_wrong_options_are_one_line(store: str, options: list[str], says: str) -> None:
    assert says in refused("show", "--store", store, *options)


def test_a_missing_and_an_empty_store_say_what_to_do(store: str) -> None:
    told = refused("show", "--store", "none.db", kind=NormtuneError)
    assert told == "there is no store none.db: name one that exists, or run `normtune sweep --store none.db` first"
    Store.open("sqlite:///empty.db").close()
    assert printed("--store", "empty.db") == ["there are no measurements yet: sweep first"]


@pytest.mark.slow
def test_the_map_of_the_shipped_recording_fits_80_columns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    lines = printed("--store", "nvidia-h200", "--operator", "rms_norm_backward", "--dtype", "bfloat16")
    assert max(map(len, lines)) <= 80
    # The plain operator's 25 row counts take two bands, the variant's 18 take one.
    headers = [line.split()[1:] for line in lines if line.startswith("hidden ")]
    assert [(len(labels), labels[0], labels[-1]) for labels in headers] == [
        (14, "1", "768"),
        (11, "1k", "256k"),
        (18, "1", "256k"),
    ]


def test_the_ratios_of_the_listing_are_what_they_say(measure, penalty, run, spec) -> None:
    measurements = measure(penalty, SHAPES)
    copies = [item._replace(config=COPY, samples=item.samples * 2) for item in measurements if item.config[2] == 16]
    copies = list({item.problem: item for item in copies}.values())
    failed = Measurement(
        Problem.of("toy", 1, 64, "bfloat16"), RMSNormConfig("row", 1, 32), run.id, "sha256:0", "timeout", "x", (), ()
    )
    evidence = Evidence.from_measurements([*measurements, *copies, failed], [run])
    matrix = timing_matrix(evidence, spec, spec.key("bfloat16"), TARGETS["sm_90"])
    assert matrix is not None
    frame = listing.listing(evidence, [matrix])
    assert list(frame.columns) == [*listing.columns(evidence), "config"]
    assert len(frame) == len(measurements) + len(copies) + 1
    (row,) = frame[
        (frame["rows"] == 4096) & (frame["hidden"] == 128) & (frame["schedule"] == "row") & (frame["num_warps"] == 4)
    ].to_dict("records")
    assert row["median_us"] == pytest.approx(1300, rel=0.06)
    assert row["best_ratio"] == pytest.approx(1.3, abs=0.01)
    assert row["gbps"] == pytest.approx(4096 * 128 * 2 / (1000 * row["median_us"]))
    (copy,) = frame[(frame["rows"] == 4096) & (frame["hidden"] == 128) & (frame["schedule"] == "copy")].to_dict(
        "records"
    )
    assert row["copy_ratio"] == pytest.approx(row["median_us"] / copy["median_us"])
    assert math.isnan(copy["best_ratio"])
    (row,) = frame[frame["status"] == "timeout"].to_dict("records")
    assert [math.isnan(row[name]) for name in ("median_us", "best_ratio", "copy_ratio", "gbps")] == [True] * 4


def test_a_knob_that_only_some_operators_have_is_an_order() -> None:
    frame = pd.DataFrame({"knob": ["", 16, "none", 2, ""]})
    assert listing.ordered(frame, "knob")["knob"].tolist() == [2, 16, "", "", "none"]
    assert listing.ordered(frame, "-knob")["knob"].tolist() == ["none", "", "", 16, 2]
