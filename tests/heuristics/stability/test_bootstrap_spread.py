"""Stability of made-up tables: noise-free data change nothing, planted noise changes the expected part; the text."""

from dataclasses import replace

import numpy as np
import pytest

from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.stability import bootstrap_spread as module
from normtune.heuristics.stability.bootstrap_spread import Held, Spread, Stability, share_of, stability, tables_of
from normtune.heuristics.stability.refit import fitted, refitted, server
from normtune.heuristics.stability.report import beforehand, lines
from normtune.heuristics.stability.tied_thresholds import TreeCut, splits
from normtune.kernels.box import Box
from normtune.kernels.key import Key
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf, Split
from normtune.results.evidence import Evidence
from normtune.results.records import Measurement
from normtune.tests.commands import invoke, refused

FEW, MANY = RMSNormConfig("row", 1, 4), RMSNormConfig("row", 1, 16)
HIDDEN = (128, 256, 512, 1024, 2048)
TWO = FitOptions(leaves=2, weights="equal")
# In five of eight blocks FEW is the faster one, by more than it is the slower one in the others.
FASTER, SLOWER = (0, 1, 2, 4, 5), (3, 6, 7)

WHOLE = Box.of(rows=(1, MAX_ROWS), hidden=(1, 16384))


@pytest.fixture
def measured(spec, run):
    """Evidence of one row count: FEW is best up to a size, MANY above; at `noisy` the blocks do not agree."""

    def made(upto, noisy=None):
        rounds = np.arange(16, dtype=np.int32)
        found = []
        for hidden in HIDDEN:
            for config in (FEW, MANY):
                times = np.full(16, 1_000_000 if (hidden <= upto) == (config == FEW) else 1_200_000)
                if hidden == noisy:
                    few = np.where(np.isin(rounds // 2, FASTER), 1_000_000, 1_190_000)
                    times = few if config == FEW else 2_200_000 - np.where(few == 1_000_000, 1_000_000, 1_200_000)
                sample = times.astype(np.int32)
                problem = Problem.of("toy", 64, hidden, "bfloat16")
                found.append(Measurement(problem, config, run.id, "sha256:0", "ok", "", rounds, sample))
        return Evidence.from_measurements(found, [run])

    return made


def of(evidence, options=TWO):
    return fitted(evidence, fit(evidence, options), options)


@pytest.mark.slow
def test_a_refit_of_the_same_times_is_the_same_tree(evidence):
    for options in (FitOptions(), FitOptions(leaves=3), FitOptions(max_configs=2), FitOptions(max_slowdown=1.5)):
        (one,) = of(evidence, options)
        assert refitted(one, one.case.matrix) == one.function.tree


def test_times_without_noise_change_nothing(measured):
    (found,) = stability(of(measured(512)), 20)
    assert (str(found.key), found.leaves, found.tables) == ("toy bfloat16", 2, 20)
    (held,) = found.held
    assert (held.cut.threshold, held.cut.least, held.cut.most, held.share) == (512, 512, 1023, 1.0)
    assert found.weighted == found.plain == found.lost == Spread(0.0, 0.0)


@pytest.mark.slow
def test_planted_noise_changes_a_known_share(measured):
    """At 1024 the sign of the sum of two medians decides, each of four blocks drawn from five of one and three others.

    A median is FEW's with three or four of its blocks, between the two with two (a little on FEW's side), else MANY's.
    With p = 5/8 the sum is MANY's with probability 2 x 0.1516 x 0.3296 + 0.1516^2 = 0.123.
    """
    (found,) = stability(of(measured(1024, noisy=1024)), 400)
    assert found.plain.mean * len(HIDDEN) == pytest.approx(0.123, abs=3 * (0.123 * 0.877 / 400) ** 0.5)
    assert found.weighted.mean == pytest.approx(found.plain.mean)
    assert found.plain.most == found.weighted.most == pytest.approx(1 / len(HIDDEN))
    (held,) = found.held
    # The two thresholds differ by far more than the tie, so the draws that take the other one do not hold it.
    assert (held.cut.threshold, held.cut.least, held.cut.most) == (1024, 1024, 2047)
    assert held.share == pytest.approx(1 - found.plain.mean * len(HIDDEN))
    # Each of them loses at 1024 what MANY does there, which is the most that a table can lose.
    (one,) = of(measured(1024, noisy=1024))
    at = one.case.matrix.problems.index((64, 1024))
    more = one.case.matrix.loss(at, MANY) - one.case.matrix.loss(at, FEW)
    assert more > 50_000
    assert found.lost.most == pytest.approx(more / len(HIDDEN), abs=1)
    assert found.lost.mean == pytest.approx(found.plain.mean * more, abs=1)


def test_a_threshold_that_the_times_cannot_tell_is_an_interval_that_holds(measured, run):
    evidence = measured(512)
    alike = [
        one._replace(samples=np.full(16, 1_000_000 + 100 * (one.config == MANY), np.int32))
        if one.problem.hidden == 1024
        else one
        for one in evidence.measurements()
    ]
    (found,) = stability(of(Evidence.from_measurements(alike, [run])), 20)
    (held,) = found.held
    assert (held.cut.least, held.cut.most, held.share) == (512, 2047, 1.0)


@pytest.mark.slow
def test_it_says_the_same_each_time_in_one_process_and_in_two(measured, monkeypatch):
    made = of(measured(1024, noisy=1024))
    first = stability(made, 30)
    assert 0 < first[0].plain.mean < 1
    assert stability(made, 30) == first
    monkeypatch.setattr(module, "in_order", lambda function, items, seconds: map(function, items))
    assert stability(made, 30) == first


def test_the_seconds_are_told_once_before_the_tables(measured):
    told = []
    stability(of(measured(512)), 3, told.append)
    (seconds,) = told
    assert 0 < seconds < 60


def test_large_functions_get_fewer_tables(measured):
    (one,) = of(measured(512))
    assert tables_of([one]) == 100

    def large(leaves):
        problems = tuple((rows, hidden) for rows in range(20) for hidden in range(31))
        figures = one.function.figures._replace(asked=leaves)
        case = one.case.on(replace(one.case.matrix, problems=problems), one.case.known)
        return one._replace(case=case, function=replace(one.function, figures=figures))

    # 21 x 32 bins: half of the squared leaves by 231 x 32^3 / 6 + 528 x 21^3 / 6 cuts.
    steps = 24**2 / 2 * (231 * 32**3 / 6 + 528 * 21**3 / 6)
    assert tables_of([large(24)] * 3) == int(110e9 // (3 * steps)) == 61
    assert tables_of([large(64)] * 3) == 20
    assert tables_of([]) == 100


def test_functions_that_do_not_look_at_rows_are_left_out(evidence):
    options = FitOptions(leaves=3, batch_invariant=True)
    found = fit(evidence, options)
    assert any(one.beside for one in found.functions)
    assert [str(one.case.key) for one in fitted(evidence, found, options)] == ["toy bfloat16"]
    assert server(found, Key.parse("toy", "bfloat16")).beside is None
    assert server(found, Key.parse("toy:no_keep", "float32")).key.dtype == "bfloat16"
    assert server(found, Key.parse("other", "float32")) is None


def test_a_cut_is_held_by_cuts_of_its_axis_and_interval_where_it_is():
    narrow = WHOLE.cut("hidden", 513)[0]
    cut = TreeCut("rows", 128, narrow, 65, 192)

    def cut_at(axis, threshold, box=WHOLE):
        return [(Split(axis, threshold, Leaf(FEW), Leaf(MANY)), box)]

    wide = WHOLE.cut("hidden", 513)[1]
    tables = [cut_at("rows", 65), cut_at("rows", 192, narrow), cut_at("rows", 193), cut_at("hidden", 128)]
    tables += [cut_at("rows", 128, wide), [], cut_at("rows", 128, wide) + cut_at("rows", 64) + cut_at("rows", 66)]
    assert [share_of(cut, [table]) for table in tables] == [1, 1, 0, 0, 0, 0, 1]
    assert share_of(cut, tables) == pytest.approx(3 / 7)
    assert share_of(cut, []) == 0


def test_cuts_divide_what_those_above_them_leave():
    inner = Split("rows", 128, Leaf(FEW), Leaf(MANY))
    tree = Split("hidden", 256, inner, Split("hidden", 512, Leaf(FEW), inner))
    assert [(split.threshold, box) for split, box in splits(tree, WHOLE)] == [
        (256, WHOLE),
        (128, Box.of(rows=(1, MAX_ROWS), hidden=(1, 256))),
        (512, Box.of(rows=(1, MAX_ROWS), hidden=(257, 16384))),
        (128, Box.of(rows=(1, MAX_ROWS), hidden=(513, 16384))),
    ]


def stable(**changed):
    boxes = (
        WHOLE,
        Box.of(rows=(1, 127), hidden=(129, 16384)),
        Box.of(rows=(128, 4095), hidden=(65, 16384)),
    )
    cuts = [TreeCut("hidden", 128, boxes[0], 128, 255), TreeCut("hidden", 4096, boxes[1], 3072, 6144)]
    held = [Held(cut, share) for cut, share in zip(cuts, (1.0, 0.625), strict=True)]
    held.append(Held(TreeCut("rows", 512, boxes[2], 512, 512), 0.0))
    known = Stability(
        Key.parse("toy", "bfloat16"),
        WHOLE,
        4,
        100,
        tuple(held),
        Spread(0.1234, 0.2),
        Spread(0.05, 0.1),
        Spread(-120.4, 2500.0),
    )
    return known._replace(**changed)


def test_lines():
    assert list(lines([stable()]))[4:] == [
        "  threshold         as good            held  where",
        "toy bfloat16: 4 leaves",
        "  hidden <= 128     128 to 255        100 %",
        "  hidden <= 4096    3072 to 6144       62 %  rows <= 127, hidden >= 129",
        "  rows >= 512       no other            0 %  rows 128-4095, hidden >= 65",
        "  another config on 12.3 % of the shapes by weight (to 20.0 %),",
        "  5.0 % of all (to 10.0 %), which loses -0.01 % more (to 0.25 %)",
    ]
    assert list(lines([stable(tables=0, leaves=1)]))[5:] == ["toy bfloat16: 1 leaf", "  no draw gives a legal table"]
    assert list(lines([])) == []
    assert beforehand(6, 100, 83.4) == "stability: 6 functions are fitted 100 times, about 83 s"


@pytest.mark.slow
def test_fit_tells_it_and_writes_the_same_table(store, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TABLES", 5)
    plain = invoke("fit", "--store", store, "--leaves", "3", "--out", "table.py")
    assert plain.exit_code == 0, plain.output
    written = (tmp_path / "table.py").read_bytes()
    told = invoke("fit", "--store", store, "--leaves", "3", "--out", "table.py", "--stability")
    assert told.exit_code == 0, told.output
    assert (tmp_path / "table.py").read_bytes() == written
    assert "stability: 1 function is fitted 5 times, about 1 s" in told.stderr
    report = told.stdout[told.stdout.index("Stability: 5 tables") :].splitlines()
    assert report[4] == "toy bfloat16: 3 leaves"
    assert [row.split()[:2] for row in report[5:7]] == [["hidden", "<="], ["rows", ">="]]
    assert "another config on" in report[7]


def test_it_is_not_told_of_a_table_for_all_gpus(store):
    assert "--stability and --all-devices" in refused(
        "fit", "--store", store, "--all-devices", "--stability", "--out", "any.py"
    )
