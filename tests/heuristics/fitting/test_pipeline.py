import math
from dataclasses import replace

import numpy as np
import pytest

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.fitting.figures import Loss
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.regret.fixed_log import percent
from normtune.heuristics.solver import bins, grid
from normtune.heuristics.writing.emit import module_text
from normtune.heuristics.writing.entries import decisions, entries
from normtune.heuristics.writing.report import figures, verdict
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile.header import parse
from normtune.kernels.tablefile.tree import Leaf, Split, choose
from normtune.results.evidence import Evidence
from normtune.results.records import Run
from normtune.tests.heuristics.made_up import SHAPES, as_command, decided, eight, matrix_of


@pytest.fixture
def measured(measure, penalty, run):
    """Evidence of `toy` by (variant, dtype, law), all on one grid unless told."""

    def build(*parts, shapes=SHAPES, runs=(run,), **more):
        cells = [
            cell for variant, dtype, law in parts for cell in measure(law, shapes, variant=variant, dtype=dtype, **more)
        ]
        return Evidence.from_measurements(cells, runs)

    return build


def test_the_regimes_of_the_data_are_found(evidence: Evidence, penalty) -> None:
    (function,) = fit(evidence).functions
    assert function.figures.leaves == 3
    assert function.figures.loss.worst < 2000
    assert function.dtypes == ("bfloat16", "float16", "float32")
    for rows, hidden in SHAPES[:-1]:
        chosen = choose(function.tree, (rows, hidden))
        assert penalty(chosen, Problem.of("toy", rows, hidden, "bfloat16")) == 0


def test_the_number_of_leaves_bounds_the_tree_and_costs_regret(evidence: Evidence) -> None:
    found = [fit(evidence, FitOptions(leaves=count)).functions[0].figures for count in (1, 2, 3)]
    assert [figures.leaves for figures in found] == [1, 2, 3]
    assert found[0].loss.mean > found[1].loss.mean > found[2].loss.mean
    # What they lose between sizes is told though it decides nothing.
    assert found[0].cross_validated > found[2].cross_validated and found[0].plain_validated > 0


def test_what_is_told_of_other_sizes_is_what_a_fit_of_so_many_leaves_loses(measured) -> None:
    def each_size_its_own(config, problem):
        rows, hidden = (math.log2(problem.rows) / 4, math.log2(problem.hidden) / 3)
        return 0.03 * abs(rows - math.log2(config.num_warps)) + 0.03 * abs(hidden - math.log2(config.block_row))

    data = measured(("", "bfloat16", each_size_its_own))
    options = FitOptions(leaves=6, tie_percent=0.0, baseline="none")
    found = fit(data, options)
    (function,) = found.functions
    assert [tree.leaves for tree in function.other_sizes] == [4, 8] and function.figures.leaves == 6
    losses = [
        fit(data, replace(options, leaves=tree.leaves)).functions[0].figures.loss for tree in function.other_sizes
    ]
    assert [loss.plain for loss in losses] == [tree.loss for tree in function.other_sizes]
    assert losses[0].plain > function.figures.loss.plain > losses[1].plain
    (line,) = (line for line in verdict(found) if line.startswith("  size"))
    four, eight, chosen = (percent(loss.plain, 1) for loss in (*losses, function.figures.loss))
    assert line == f"  size      4 regions {four}, 6 (chosen) {chosen}, 8 {eight}"


@pytest.mark.slow
def test_a_shared_function_is_legal_for_every_dtype_it_serves(measured, penalty, spec: OperatorSpec) -> None:
    # The longest row is 16384: 8 warps reach it in two bytes an element, 16 in four. Fewer warps are faster.
    def few(config, problem):
        return 0.1 * abs(config.num_warps - 4)

    alone = fit(measured(("", "bfloat16", few)), FitOptions(leaves=16)).functions
    assert [choose(alone[0].tree, (1, hidden)).num_warps for hidden in (4096, 16384)] == [4, 16]
    # With data float32 does as well with the function of bfloat16, but that is illegal for it at the longest rows.
    both = fit(measured(("", "bfloat16", few), ("", "float32", few)), FitOptions(leaves=16)).functions
    assert [function.dtypes for function in both] == [("bfloat16", "float16"), ("float32",)]
    assert [choose(function.tree, (1, 16384)).num_warps for function in both] == [8, 16]


def test_leaves_that_legality_takes_come_on_top_of_the_cross_validated_ones(measured) -> None:
    # One config is best wherever it was measured, and illegal at the longest rows: one leaf there, one beyond.
    function = fit(measured(("", "bfloat16", eight))).functions[0]
    assert function.figures.leaves == 2
    assert function.figures.loss.worst < 2000
    assert function.figures.cross_validated < 2000


@pytest.mark.slow
def test_a_variant_that_costs_little_shares_and_says_so(measured, penalty) -> None:
    found = fit(measured(("", "bfloat16", penalty), ("no_keep", "bfloat16", penalty)))
    assert [function.key.text for function in found.functions] == ["toy"]
    (shared,) = found.shared
    assert shared[:2] == (Key.parse("toy:no_keep", "bfloat16"), Key.parse("toy", "bfloat16"))
    assert shared.figures.loss.problems == 35
    assert abs(shared.cost) < 1000
    text = module_text(found, as_command("normtune fit"))
    header, _ = parse(text, "table")
    assert text.split("\n")[3].startswith("# toy bfloat16 and 1 more: ")
    assert decisions(header)[Key.parse("toy:no_keep", "bfloat16")].donor == Key.parse("toy", "bfloat16")


@pytest.mark.slow
def test_a_dtype_that_costs_little_shares_and_says_so(measured, penalty) -> None:
    found = fit(measured(("", "bfloat16", penalty), ("", "float16", penalty), ("", "float32", eight)))
    assert [(one.key.dtype, one.dtypes) for one in found.functions] == [
        ("bfloat16", ("bfloat16", "float16")),
        ("float32", ("float32",)),
    ]
    (shared,) = found.shared
    assert shared[:2] == (Key.parse("toy", "float16"), Key.parse("toy", "bfloat16"))
    text = module_text(found, as_command("normtune fit"))
    assert '    ("toy", "float16"): toy_bfloat16,\n    ("toy", "float32"): toy_float32,\n' in text
    header, _ = parse(text, "table")
    assert [str(entry.key) for entry in entries(header)] == ["toy bfloat16", "toy float16", "toy float32"]
    lines = text.split("\n")[3:6]
    assert [line.partition(":")[0] for line in lines] == ["# toy bfloat16 and 1 more", "# toy float32", ""]
    assert header.without_data == () and "unmeasured" not in "".join(lines)


@pytest.mark.slow
def test_the_bound_of_sharing_is_what_it_costs_on_the_data(measured, penalty) -> None:
    # Half of the problems lose 1.2 or 4 % by what is best in bfloat16: 0.6 and 2 % on average.
    for loss, functions in ((0.012, 1), (0.04, 2)):

        def slower(config, problem, loss=loss):
            best = penalty(config, problem) == 0
            return loss if best and problem.hidden > 512 else penalty(config, problem) if problem.hidden <= 512 else 0.0

        found = fit(measured(("", "bfloat16", penalty), ("", "float16", slower)))
        assert len(found.functions) == functions, loss
        if found.shared:
            assert 3000 < found.shared[0].cost < 9000


@pytest.mark.slow
def test_a_dtype_with_too_few_problems_in_common_is_not_shared(measure, penalty, spec: OperatorSpec, run: Run) -> None:
    # One row count of five has times of what bfloat16's function answers.
    cells = measure(penalty, SHAPES) + measure(penalty, [s for s in SHAPES if s[0] == 1], dtype="float16")
    cells += measure(penalty, [s for s in SHAPES if s[0] > 1], dtype="float16", configs=[RMSNormConfig("row", 1, 8)])
    found = fit(Evidence.from_measurements(cells, [run]))
    assert [one.key.dtype for one in found.functions] == ["bfloat16", "float16"]


@pytest.mark.slow
def test_a_variant_takes_its_own_function_of_another_dtype(measured, penalty) -> None:
    parts = [
        (variant, dtype, law)
        for dtype in ("bfloat16", "float16")
        for variant, law in (("", penalty), ("no_keep", eight))
    ]
    found = fit(measured(*parts))
    assert [(one.key.text, one.dtypes) for one in found.functions] == [
        ("toy", ("bfloat16", "float16", "float32")),
        ("toy:no_keep", ("bfloat16", "float16", "float32")),
    ]
    assert [str(one.donor) for one in found.shared] == ["toy bfloat16", "toy:no_keep bfloat16"]


@pytest.mark.slow
def test_decisions_of_a_header_are_taken_over(measured, penalty) -> None:
    parts = [
        (variant, dtype, law)
        for dtype in ("bfloat16", "float16")
        for variant, law in (("", penalty), ("no_keep", eight))
    ]
    evidence = measured(*parts, ("", "float32", eight))
    first = module_text(fit(evidence), as_command("normtune fit"))
    again = fit(evidence, decisions=decisions(parse(first, "table")[0]))
    assert module_text(again, as_command("normtune fit")) == first
    # Even one that the data would not make.
    alone = {Key.parse("toy", dtype): decided(3, cross_validated=0) for dtype in ("bfloat16", "float16", "float32")}
    functions = fit(evidence, decisions=alone).functions
    assert [one.key.dtype for one in functions if one.key.text == "toy"] == ["bfloat16", "float16", "float32"]


def test_a_decision_that_cannot_be_taken_over_is_an_error(measured, penalty) -> None:
    known = {Key.parse("toy", "bfloat16"): decided(0)._replace(donor=Key.parse("toy", "int8"))}
    with pytest.raises(NormtuneError, match="toy bfloat16 cannot take the function of toy int8"):
        fit(measured(("", "bfloat16", penalty)), decisions=known)


@pytest.mark.slow
def test_a_variant_that_costs_much_gets_its_own_function(measured, penalty) -> None:
    found = fit(measured(("", "bfloat16", penalty), ("no_keep", "bfloat16", eight)))
    assert [function.key.text for function in found.functions] == ["toy", "toy:no_keep"]
    assert found.shared == ()
    assert found.functions[1].dtypes == ("bfloat16", "float16", "float32")
    assert choose(found.functions[1].tree, (1024, 512)) == RMSNormConfig("row", 1, 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kept", "functions"),
    [
        (lambda rows, hidden: True, ["toy", "toy:no_keep"]),
        (lambda rows, hidden: rows in (1, 65536) and hidden in (64, 512, 4096), ["toy", "toy:no_keep"]),
        (lambda rows, hidden: hidden < 4096, ["toy"]),
        (lambda rows, hidden: rows > 1, ["toy"]),
    ],
)
def test_a_variant_measured_less_widely_takes_the_plain_function(measure, penalty, run, kept, functions) -> None:
    narrow = [shape for shape in SHAPES if kept(*shape)]
    cells = measure(penalty, SHAPES) + measure(eight, narrow, variant="no_keep")
    evidence = Evidence.from_measurements(cells, [run])
    found = fit(evidence)
    assert [function.key.text for function in found.functions] == functions
    if len(functions) == 1:
        (shared,) = found.shared
        assert f"{shared.key} {shared.donor}" == "toy:no_keep bfloat16 toy bfloat16" and shared.cost > 50_000
    header, _ = parse(module_text(found, as_command("normtune fit")), "table")
    again = fit(evidence, decisions=decisions(header))
    assert module_text(again, as_command("normtune fit")) == module_text(found, as_command("normtune fit"))


@pytest.mark.slow
def test_a_dtype_whose_plain_function_has_data_is_not_served_by_a_variant(measured, penalty) -> None:
    parts = (("", "bfloat16", penalty), ("", "float32", eight), ("no_keep", "bfloat16", eight))
    assert fit(measured(*parts)).functions[2].dtypes == ("bfloat16", "float16")
    # But it is where that function is the one of the variant's own dtype.
    parts = (("", "bfloat16", penalty), ("", "float16", penalty), ("no_keep", "bfloat16", eight))
    assert fit(measured(*parts)).functions[1].dtypes == ("bfloat16", "float16", "float32")


@pytest.mark.slow
def test_the_order_of_measurements_changes_nothing(measure, penalty, spec: OperatorSpec, run: Run) -> None:
    cells = measure(penalty, SHAPES)
    texts = {
        module_text(fit(Evidence.from_measurements(order, [run])), as_command("normtune fit"))
        for order in (cells, cells[::-1])
    }
    assert len(texts) == 1


@pytest.mark.slow
def test_only_the_newest_kernels_count(measure, penalty, spec: OperatorSpec, run: Run) -> None:
    def reverse(config, problem):
        return 1 - penalty(config, problem)

    old = measure(reverse, SHAPES, run="old", fingerprint="sha256:old")
    before = run._replace(id="old", started="2026-01-01T00:00:00")
    found = fit(Evidence.from_measurements(old + measure(penalty, SHAPES), [before, run]))
    assert found.functions == fit(Evidence.from_measurements(measure(penalty, SHAPES), [run])).functions
    assert found.fingerprints == {"toy": "sha256:0"}
    assert "a sweep with --stale repeats them" in found.notes[0]


def test_no_data(spec: OperatorSpec) -> None:
    with pytest.raises(NormtuneError, match="there are no measurements to fit: sweep first"):
        fit(Evidence.from_measurements([], []))


def test_one_problem_is_enough(measured, penalty) -> None:
    found = fit(measured(("", "bfloat16", penalty), shapes=[(8, 64)]))
    assert [one.figures.loss.problems for one in found.functions] == [1]


def test_two_devices_are_named(measure, penalty, spec: OperatorSpec, run: Run) -> None:
    other = run._replace(id="other", device=run.device._replace(name="Other GPU", sms=7))
    cells = measure(penalty, SHAPES) + measure(penalty, SHAPES, run="other")
    with pytest.raises(UsageError, match="Other GPU with 7 SMs; Test GPU with 132 SMs"):
        fit(Evidence.from_measurements(cells, [run, other]))


def test_an_operator_without_data_is_named(evidence: Evidence) -> None:
    with pytest.raises(UsageError, match="no measurements of operator 'toy:no_keep': measured are toy"):
        fit(evidence, FitOptions(operators=("toy:no_keep",)))
    with pytest.raises(UsageError, match="'none'"):
        fit(evidence, FitOptions(operators=("none",)))


def test_the_gap_is_to_trees_that_are_legal_beyond_the_measured_sizes_too(measured) -> None:
    found = fit(measured(("", "bfloat16", eight)), FitOptions(leaves=1)).functions[0].figures
    assert found.gap < 2000
    assert found.loss.mean > 90_000


@pytest.mark.slow
@pytest.mark.parametrize(("most", "joined"), [(2600, False), (1200, True)])
def test_of_too_many_sizes_the_nearest_are_not_told_apart_and_nothing_is_proved(measured, monkeypatch, most, joined):
    def by_hidden(config, problem):
        return 0.0 if config.num_warps == (4 if problem.hidden <= 512 else 16) else 0.2

    monkeypatch.setattr(grid, "MAX_BINS", most)
    configs = [RMSNormConfig("row", 1, 4), RMSNormConfig("row", 1, 16)]
    shapes = {(count, 64) for count in range(1, 41)} | {(1, 64 * count) for count in range(1, 41)}
    found = fit(measured(("", "bfloat16", by_hidden), shapes=sorted(shapes), configs=configs), FitOptions(leaves=2))
    # 512 and 576 are far enough apart, as ratios, to keep the cut between them.
    assert found.functions[0].tree == Split("hidden", 512, Leaf(configs[0]), Leaf(configs[1]))
    assert found.functions[0].figures.loss.problems == 79
    assert found.functions[0].figures.joined == joined
    text = module_text(found, as_command("normtune fit")).replace("\n#  ", "")
    assert ('"joined": true' in text) == joined
    told = [line for line in figures(found) if line.endswith("the nearest are merged, nothing is proved")]
    assert len(told) == joined


def test_a_planted_tree_is_found_on_sixty_by_thirty_two_sizes(legality):
    """No cut of it lies where sizes would be joined first."""
    rows, hidden = sorted({int(2 ** (step / 3)) for step in range(9, 69)}), [64 * count for count in range(1, 33)]
    configs = tuple(RMSNormConfig("row", 1, warps) for warps in (4, 8, 16))

    def planted(row, size):
        if size <= 1472:
            return (0 if size <= 704 else 1) if row < 500 else 2
        return 2 if row < 90 else 0

    problems = tuple((row, size) for row in rows for size in hidden)
    best = np.array([planted(*shape) for shape in problems])
    regret = np.where(np.arange(3) == best[:, None], 0, 300_000)
    matrix = matrix_of(regret, problems, configs)
    optima = bins.solve(matrix, legality, 5)
    assert len(problems) == 60 * 32
    assert [optima.least_measured(count) == 0 for count in (4, 5)] == [False, True]


@pytest.mark.parametrize("count", [0, -3])
def test_leaves_are_positive(evidence: Evidence, count: int) -> None:
    with pytest.raises(UsageError, match=f"leaves is {count}"):
        fit(evidence, FitOptions(leaves=count))


def test_too_few_leaves_for_what_was_measured(measure, penalty, spec: OperatorSpec, run: Run) -> None:
    # One config for short rows, another for long ones: no single config has a time everywhere.
    narrow = measure(penalty, [s for s in SHAPES if s[1] <= 512], configs=[RMSNormConfig("row", 1, 4)])
    wide = measure(penalty, [s for s in SHAPES if s[1] > 512], configs=[RMSNormConfig("row", 1, 16)])
    evidence = Evidence.from_measurements(narrow + wide, [run])
    with pytest.raises(NormtuneError, match="no table of at most 1 leaf covers toy bfloat16"):
        fit(evidence, FitOptions(leaves=1, max_slowdown=1.5))
    # Where the worst shape is not bounded, the fit takes either one for the slowest without a time; no figure does.
    whole = fit(evidence, FitOptions(leaves=1))
    (found,) = whole.functions
    own, all_shapes = (len({one.problem for one in cells}) for cells in (wide, narrow + wide))
    assert isinstance(found.tree, Leaf)
    assert found.figures.loss == Loss(0, 0, 0, 0, own, untimed=all_shapes - own, bound=0)
    text = module_text(whole, as_command("normtune fit --leaves 1"))
    assert f"# toy bfloat16: 1 region, loss 0.0 % (worst 0.0 %) at {own} of {all_shapes} shapes" in text
    share = f"timed at {own} of {all_shapes} shapes; others estimated, plain mean at most 0.00 %"
    for output in (figures, verdict):
        assert any(line.endswith(share) for line in output(whole))
    assert fit(evidence, FitOptions(leaves=2)).functions[0].figures.leaves == 2
