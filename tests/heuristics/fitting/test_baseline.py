"""The baseline: rules, tables, and the function of a table for each operator, variant and dtype."""

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from normtune.errors import UsageError
from normtune.heuristics.fitting.baseline import Incumbents, baseline, of_file
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.regret.fixed_log import percent
from normtune.heuristics.regret.matrix import timing_matrix
from normtune.heuristics.rules import RULES
from normtune.heuristics.writing.emit import module_text
from normtune.heuristics.writing.entries import decisions
from normtune.heuristics.writing.report import figures, verdict
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.header import parse
from normtune.kernels.tablefile.parse import trees
from normtune.kernels.tablefile.tree import Leaf, Split, choose, distinct, leaves
from normtune.kernels.target import TARGETS
from normtune.results.evidence import Evidence
from normtune.tests.commands import printed_by
from normtune.tests.heuristics.made_up import SHAPES, as_command

TARGET = TARGETS["sm_90"]
ONE, FOUR = Leaf(RMSNormConfig("row", 1, 1)), Leaf(RMSNormConfig("row", 1, 4))
SLOW = RMSNormConfig("row", 1, 16)


def test_a_rule_answers_for_every_function_and_is_no_tree() -> None:
    found = baseline("liger", Path()).of(Key.parse("rms_norm_forward:no_rstd", "float32"), TARGET)
    assert found is not None
    for shape in ((1, 64), (65536, 128), (4096, 8192), (7, 65536)):
        problem = Problem.of("rms_norm_forward", *shape, "float32", "no_rstd")
        assert found(shape) == RULES["liger"].choose(problem, TARGET) is not None


def test_a_table_answers_by_key_and_dtype_and_its_plain_operator_for_a_variant() -> None:
    own = {Key.parse("toy", "bfloat16"): ONE, Key.parse("toy:no_keep", "float32"): FOUR}
    incumbents = Incumbents(own)
    for variant, dtype, expected in (
        ("", "bfloat16", ONE),
        ("no_keep", "bfloat16", ONE),
        ("no_keep", "float32", FOUR),
        ("", "float32", None),
        ("", "float16", None),
    ):
        found = incumbents.of(Key.of("toy", variant, dtype), TARGET)
        assert (found and found((1, 64))) == (expected and expected.config)
    assert incumbents.of(Key.of("other", "", "bfloat16"), TARGET) is None


@pytest.mark.slow
def test_a_rule_comes_before_a_file_and_a_file_before_a_shipped_table(
    evidence: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "liger").write_text("x = 1\n")
    assert baseline("liger", tmp_path).rule is RULES["liger"]
    shipped = baseline("nvidia-h200", tmp_path)
    assert shipped.trees == trees(locate.read(locate.SHIPPED / "nvidia_h200.py"))
    text = module_text(fit(evidence, FitOptions(leaves=2)), as_command("normtune fit"))
    (tmp_path / "nvidia-h200").write_text(text)
    assert baseline("nvidia-h200", tmp_path).trees == trees(text)
    assert of_file(tmp_path / "nvidia-h200").trees == trees(text)
    monkeypatch.chdir(tmp_path)
    assert baseline(str(tmp_path / "nvidia-h200"), Path("elsewhere")).trees == trees(text)


@pytest.mark.parametrize("text", ["x = 1\n", "", "\0"])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.py").write_text(text)
    with pytest.raises(UsageError, match=r"odd\.py is no table of normtune"):
        baseline("odd.py", tmp_path)


def test_a_link_to_nothing_is_no_name_of_a_shipped_table(tmp_path: Path) -> None:
    (tmp_path / "nvidia-h200").symlink_to(tmp_path / "gone")
    with pytest.raises(UsageError, match="nvidia-h200"):
        baseline("nvidia-h200", tmp_path)


def fitted(evidence: Evidence, incumbents: Incumbents | None, leaves: int = 1, tie: float = 0.1):
    (function,) = fit(evidence, FitOptions(leaves=leaves, tie_percent=tie), incumbents=incumbents).functions
    return function


BETTER = Split("hidden", 512, Split("rows", 4096, FOUR, Leaf(RMSNormConfig("block_row", 4, 4))), Leaf(SLOW))


@pytest.mark.slow
def test_what_loses_against_a_baseline_takes_no_part(evidence: Evidence) -> None:
    """The simplest tree takes 16 warps everywhere; the baseline is what is best up to 512."""
    assert fitted(evidence, None, 3, tie=50).tree == Leaf(SLOW)
    beside = Incumbents({Key.parse("toy", "bfloat16"): BETTER})
    found = fitted(evidence, beside, 3, tie=50)
    assert found.figures.asked == 3
    assert found.figures.slower is None
    assert found.figures.limits == " nowhere slower than the baseline"
    assert found.figures.loss.worst < 1000
    for shape in SHAPES[:-1]:
        assert choose(found.tree, shape) == choose(BETTER, shape)
    # One leaf was validated; there is no table of less than three that is nowhere slower.
    (free,) = fit(evidence, FitOptions(tie_percent=50), incumbents=beside).functions
    assert leaves(free.tree) >= 3 and free.figures.slower is None


def test_a_replaced_table_is_told_of_and_changes_nothing(evidence: Evidence) -> None:
    replaced = Incumbents({Key.parse("toy", "bfloat16"): BETTER})
    alone, over = (fit(evidence, FitOptions(leaves=1), replaced=table) for table in (None, replaced))
    assert over.functions == alone.functions
    compared = over.compared[Key.parse("toy", "bfloat16")]
    count, most = compared.slower
    assert count > 0 and compared.name == "the table that it replaces" and compared.faster < 0
    assert f"slower at {count} of 34 shapes by up to {percent(most, 1)}; " in " ".join(verdict(over))
    assert alone.compared[Key.parse("toy", "bfloat16")].slower is None


@pytest.mark.slow
def test_bounds_hold_beside_a_baseline_and_what_that_costs_is_told(evidence: Evidence, penalty) -> None:
    """Leaves and configs are as many as were asked for; nothing is slower than the baseline where that can be had."""
    beside = Incumbents({Key.parse("toy", "bfloat16"): BETTER})
    for options in (FitOptions(leaves=3), FitOptions(leaves=5, max_configs=3)):
        (found,) = fit(evidence, options, incumbents=beside).functions
        assert leaves(found.tree) == len(distinct(found.tree)) == 3
        assert found.figures.slower is None
        for shape in SHAPES[:-1]:
            assert choose(found.tree, shape) == choose(BETTER, shape)
    for options in (FitOptions(leaves=1), FitOptions(leaves=9, max_configs=1)):
        whole = fit(evidence, options, incumbents=beside)
        (found,) = whole.functions
        assert found.tree == Leaf(SLOW)
        count, most = found.figures.slower
        lost = slowdowns(found.tree, penalty)
        assert count == sum(loss > 9950 for loss in lost) and most == pytest.approx(max(lost), abs=3000)
        text = module_text(whole, as_command("normtune fit --baseline x.py"))
        told = f"{count} shapes up to {percent(most, 1)} slower than the baseline"
        assert told in " ".join(text.replace("\n#", " ").split())
        assert decisions(parse(text, "x")[0])[Key.parse("toy", "bfloat16")].figures.slower[0] == count
        assert whole.compared[found.key].slower == found.figures.slower
        assert f"toy bfloat16: {told}" in figures(whole)
        assert any("a larger --leaves or --max-configs may avoid slower shapes" in line for line in figures(whole))


def test_a_config_that_is_slower_at_some_shapes_takes_no_part_there(measure, run, spec) -> None:
    """One config alone loses least and is slower at four shapes, which would take leaves of their own."""

    def law(config: Config, problem: Problem) -> float:
        if config == SLOW:
            return 0.05 if problem.rows in (1, 4096) and problem.hidden in (64, 512) else 0.0
        return 0.02 if config == FOUR.config else 0.5

    evidence = Evidence.from_measurements(measure(law, SHAPES), [run])
    beside = Incumbents({Key.parse("toy", "bfloat16"): Split("hidden", 512, FOUR, Leaf(SLOW))})
    free = fit(evidence, FitOptions(leaves=8), incumbents=beside).functions[0]
    for bound in (2, 3):
        found = fit(evidence, FitOptions(leaves=bound), incumbents=beside).functions[0]
        assert leaves(found.tree) <= bound
        assert found.figures.slower is None
    assert free.figures.slower is None


def slowdowns(tree, penalty):
    """Log-ratio to `BETTER` on each shape by the law, millionths."""
    times = [
        [1 + penalty(choose(one, shape), Problem.of("toy", *shape, "bfloat16")) for one in (tree, BETTER)]
        for shape in SHAPES[:-1]
    ]
    return [1e6 * math.log(own / other) for own, other in times]


@pytest.mark.parametrize("config", [RMSNormConfig("row", 1, 32), RMSNormConfig("split", 1, 4, block_col=1024)])
def test_what_was_not_measured_changes_nothing(evidence: Evidence, config: Config, spec: OperatorSpec) -> None:
    """It is counted; what is illegal at a shape could not be launched there."""
    found = fitted(evidence, Incumbents({Key.parse("toy", "bfloat16"): Leaf(config)}), 3)
    legal = sum(spec.is_legal(config, Problem.of("toy", *shape, "bfloat16"), TARGET) for shape in SHAPES[:-1])
    assert 0 < found.figures.uncompared == legal
    alone = fitted(evidence, None, 3)
    assert found == replace(alone, figures=alone.figures._replace(uncompared=legal))


def test_bounds_beside_a_baseline_that_was_not_timed_everywhere(evidence: Evidence) -> None:
    """Its config for many rows was never timed: that is told and stands in the header, also where bounds are broken."""
    unknown = Leaf(RMSNormConfig("row", 1, 32))
    tree = Split("hidden", 512, Split("rows", 4096, FOUR, unknown), Leaf(SLOW))
    beside = Incumbents({Key.parse("toy", "bfloat16"): tree})
    whole = fit(evidence, FitOptions(leaves=1), incumbents=beside)
    (found,) = whole.functions
    assert found.tree == Leaf(SLOW) and found.figures.slower.problems > 0
    count = sum(rows >= 4096 and hidden <= 512 for rows, hidden in SHAPES[:-1])
    assert found.figures.uncompared == count
    text = module_text(whole, as_command("normtune fit --leaves 1 --baseline x.py"))
    assert f"; {count} shapes not compared with the baseline" in text
    known = decisions(parse(text, "x")[0])
    assert known[Key.parse("toy", "bfloat16")].figures.uncompared == count
    assert f"toy bfloat16: {count} shapes not compared with the baseline" in figures(whole)
    again = fit(evidence, FitOptions(leaves=1), incumbents=beside, decisions=known)
    assert module_text(again, as_command("normtune fit --leaves 1 --baseline x.py")) == text


@pytest.mark.slow
def test_random_parts_of_a_sweep_give_tables_within_the_bounds_and_no_shape_is_slower_unsaid(
    measure, penalty, run, spec
) -> None:
    cells = measure(penalty, SHAPES[:-1])
    beside = Incumbents({Key.parse("toy", "bfloat16"): BETTER})
    untimed = 0
    for seed in range(12):
        draw = random.Random(seed)
        part = Evidence.from_measurements([cell for cell in cells if draw.random() < 0.5], [run])
        options = FitOptions(leaves=draw.choice([1, 3, 6]), max_configs=draw.choice([None, 2, 3]))
        whole = fit(part, options, incumbents=beside)
        (found,) = whole.functions
        assert leaves(found.tree) <= options.leaves and len(distinct(found.tree)) <= (options.max_configs or 9)
        untimed += found.figures.loss.untimed
        matrix = timing_matrix(part, spec, spec.key("bfloat16"), TARGET)
        pairs = [(choose(found.tree, shape), choose(BETTER, shape)) for shape in matrix.problems]
        lost = [[matrix.loss(place, one) for one in pair] for place, pair in enumerate(pairs)]
        slow = [ours - theirs for ours, theirs in lost if None not in (ours, theirs) and ours - theirs > 20_000]
        assert len(slow) <= (found.figures.slower.problems if found.figures.slower else 0)
        told = " ".join(figures(whole))
        assert (" up to " in told) == (found.figures.slower is not None)
        assert found.figures.uncompared == sum(
            None in pair and ours != theirs for pair, (ours, theirs) in zip(lost, pairs, strict=True)
        )
    assert untimed > 0


def test_what_is_illegal_beyond_is_not_kept_there(measure, run, spec) -> None:
    """4 warps are fastest at every measured size, and legal up to 8192 in bfloat16, up to 4096 in float32."""
    few = RMSNormConfig("row", 1, 4)

    def law(config: Config, problem: Problem) -> float:
        return 0.0 if config == few else 0.5 if config == SLOW else 0.2

    evidence = Evidence.from_measurements(measure(law, SHAPES), [run])
    found = fitted(evidence, Incumbents({Key.parse("toy", "bfloat16"): Leaf(few)}), 9, tie=50)
    for rows, hidden in [*SHAPES, (2**31 - 1, 16384), (1, 5000), (1, 4097)]:
        for dtype in ("bfloat16", "float16", "float32"):
            assert spec.is_legal(choose(found.tree, (rows, hidden)), Problem.of("toy", rows, hidden, dtype), TARGET)
    assert choose(found.tree, (64, 256)) == few


def test_a_dtype_shares_no_function_that_is_slower_than_its_own_in_use(measure, run, spec) -> None:
    """float32 would share at 0.9 %; where the table in use has what is best for it, it gets a function of its own."""

    def law(config: Config, problem: Problem) -> float:
        best = 8 if problem.dtype == "float32" and problem.hidden == 256 else 16
        return {best: 0.0, 24 - best: 0.02}.get(config.num_warps, 0.5) if config.schedule == "row" else 0.5

    cells = [one for dtype in ("bfloat16", "float32") for one in measure(law, SHAPES, dtype=dtype)]
    evidence = Evidence.from_measurements(cells, [run])
    assert [one.key.dtype for one in fit(evidence, FitOptions(leaves=3)).functions] == ["bfloat16"]
    in_use = Split("hidden", 128, Leaf(SLOW), Split("hidden", 256, Leaf(RMSNormConfig("row", 1, 8)), Leaf(SLOW)))
    beside = Incumbents({Key.parse("toy", "float32"): in_use})
    plain, other = fit(evidence, FitOptions(leaves=3), incumbents=beside).functions
    assert (plain.key.dtype, other.key.dtype) == ("bfloat16", "float32")
    assert choose(other.tree, (64, 256)) == RMSNormConfig("row", 1, 8)


def test_a_dtype_shares_a_function_whose_config_was_not_timed_at_some_shapes(measure, run, spec) -> None:
    """A search left the best config out at three shapes of float16, at which the baseline was timed."""

    def law(config: Config, problem: Problem) -> float:
        return 0.0 if config == SLOW else 0.05 if config == FOUR.config else 0.5

    left_out = SHAPES[3:30:10]
    cells = [one for dtype in ("bfloat16", "float16") for one in measure(law, SHAPES, dtype=dtype)]
    timed = [
        cell
        for cell in cells
        if (cell.problem.dtype, cell.config) != ("float16", SLOW) or cell.problem.shape not in left_out
    ]
    evidence = Evidence.from_measurements(timed, [run])
    beside = Incumbents({Key.parse("toy", dtype): FOUR for dtype in ("bfloat16", "float16")})
    command = as_command("normtune fit --leaves 2 --baseline x.py")
    whole = fit(evidence, FitOptions(leaves=2), incumbents=beside)
    assert [(one.key.dtype, one.tree) for one in whole.functions] == [("bfloat16", Leaf(SLOW))]
    (share,) = whole.shared
    assert (share.figures.uncompared, share.figures.slower, share.figures.loss.problems) == (3, None, len(SHAPES) - 3)
    assert "toy float16: 3 shapes not compared with the baseline" in figures(whole)
    text = module_text(whole, command)
    assert "; 3 shapes not compared with the baseline" in text
    known = decisions(parse(text, "x")[0])
    assert module_text(fit(evidence, FitOptions(leaves=2), incumbents=beside, decisions=known), command) == text


def test_a_function_in_place_of_a_refused_one_has_enough_leaves_and_both_losses_are_told(measure, run, spec) -> None:
    """float16 has 14 shapes, for which 3 leaves are too few; what it would share is slower than the baseline at one."""

    def law(config: Config, problem: Problem) -> float:
        few = problem.rows < 64
        ideal = (2 if few else 1) if problem.hidden <= 128 else (8 if few else 4) if problem.hidden <= 512 else 16
        if problem.dtype == "float16" and problem.hidden == 256 and not few and config.num_warps in (4, 8):
            return 0.03 if config.num_warps == 4 else 0.0
        return 0.1 * abs(math.log2(config.num_warps / ideal)) + 0.5 * (config.schedule != "row")

    shapes = [shape for shape in SHAPES if shape[0] in (1, 4096)]
    cells = [*measure(law, SHAPES), *measure(law, shapes, dtype="float16")]
    evidence = Evidence.from_measurements(cells, [run])
    options = FitOptions(leaves=8)
    (shared,) = fit(evidence, options).shared
    beside = Incumbents({Key.parse("toy", "float16"): Leaf(RMSNormConfig("row", 1, 8))})
    whole = fit(evidence, options, incumbents=beside)
    own = next(one for one in whole.functions if one.key.dtype == "float16")
    assert 3 < own.figures.leaves <= 8 and own.figures.slower is None
    assert own.figures.loss.mean <= shared.figures.loss.mean < 5000
    (note,) = whole.notes
    losses = (percent(figure.loss.mean) for figure in (shared.figures, own.figures))
    assert note == (
        "toy float16 could share the function of toy bfloat16, which loses {}, but is up to 3.0 % slower than the "
        "baseline at 1 shape; its own function loses {}; --baseline none shares".format(*losses)
    )


ANOTHER_FIRST = """
from normtune.kernels.config import Config

class Other(Config):
    block_row: int
    block_col: int
    num_warps: int = 4

from normtune.heuristics.fitting.baseline import of_file
from normtune.kernels.config import class_of
from normtune.kernels.key import Key
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.tree import configs_of

found = of_file(locate.SHIPPED / "nvidia_h200_rms_norm_quantize_fp8.py")
configs = [*configs_of(found.trees[Key.parse("transpose_fp8", "bfloat16")])]
print(class_of(configs[0].knobs).__name__, len(configs) > 2, *{type(config).__name__ for config in configs})
"""


def test_a_table_s_configs_are_of_its_operator_where_another_one_has_the_same_knobs() -> None:
    """Their class names the knobs in the new table."""
    assert printed_by(ANOTHER_FIRST) == "Other True TransposeConfig\n"
