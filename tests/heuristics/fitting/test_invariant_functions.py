"""A table with functions for the batch-invariant mode: fitted, written, parsed, checked and reported."""

import re
from pathlib import Path

import pytest

from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.fitting.result import Fit
from normtune.heuristics.writing import report
from normtune.heuristics.writing.emit import module_text
from normtune.heuristics.writing.entries import decisions, entries
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.key import Key
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.header import parse
from normtune.kernels.tablefile.parse import trees
from normtune.kernels.tablefile.tree import choose
from normtune.results.evidence import Evidence
from normtune.results.exchange import recording
from normtune.tests.heuristics.made_up import SHAPES, as_command, eight, rehashed
from normtune.tuner.checking.offline import check

pytestmark = pytest.mark.long

COMMAND = "normtune fit --store test-gpu --batch-invariant --out table.py"
OPTIONS = FitOptions(batch_invariant=True)
FITTED: list[Fit] = []
ROW, BLOCKS = RMSNormConfig("row", 1, 16), RMSNormConfig("block_row", 16, 4)


@pytest.fixture
def recorded(measure, penalty, run, spec, record_as) -> Evidence:
    """Three dtypes of which two share, and a variant with a function of its own, as the recording `test-gpu`."""
    laws = (("bfloat16", penalty), ("float16", penalty), ("float32", eight))
    cells = [cell for dtype, law in laws for cell in measure(law, SHAPES, dtype=dtype, fingerprint=fingerprint(spec))]
    cells += measure(eight, SHAPES, variant="no_keep", fingerprint=fingerprint(spec))
    return record_as(Evidence.from_measurements(cells, [run]))


@pytest.fixture
def fitted(recorded) -> Fit:
    """The fit of the recording, the same in each test."""
    if not FITTED:
        FITTED.append(fit(recorded, OPTIONS))
    return FITTED[0]


@pytest.fixture
def path(fitted, tmp_path) -> Path:
    found = tmp_path / "table.py"
    found.write_text(module_text(fitted, as_command(COMMAND)))
    return found


@pytest.mark.slow
def test_each_function_gets_one_that_does_not_look_at_rows_and_stays_as_it_is(recorded, fitted):
    usual, both = fit(recorded), fitted
    assert [one for one in both.functions if not one.beside] == list(usual.functions)
    assert [one for one in both.shared if not one.key.is_batch_invariant] == list(usual.shared)
    further = [one for one in both.functions if one.beside]
    assert [(one.key, one.dtypes) for one in further] == [
        (one.key.batch_invariant, one.dtypes) for one in usual.functions
    ]
    assert [len({choose(one.functions[0].tree, (rows, 256)) for rows, _ in SHAPES}) for one in (usual, both)] == [2, 2]
    assert all(len({choose(one.tree, shape) for shape in SHAPES if shape[1] == 256}) == 1 for one in further)
    assert {f"{one.key} {one.donor}" for one in both.shared if one.key.is_batch_invariant} == {
        "toy:batch_invariant float16 toy:batch_invariant bfloat16"
    }


def test_what_it_costs_is_what_one_config_for_all_rows_costs(fitted):
    bfloat16, _, variant = (one.beside for one in fitted.functions if one.beside)
    # To hidden 512 the blocks of rows that many rows want serve all of them, which costs few rows 5 %.
    assert bfloat16.worst == pytest.approx(48_790, abs=2000)
    assert 0 < bfloat16.mean < bfloat16.worst
    assert (bfloat16.problems, bfloat16.bounded) == (35, 0)
    assert variant.mean == pytest.approx(0, abs=1000)


def test_a_table_holds_them_and_lookups_do_not_mix(path):
    table = locate.load(path)
    usual, invariant = (
        table.function(Key.parse("toy", "bfloat16")),
        table.function(Key.parse("toy", "bfloat16").batch_invariant),
    )
    assert len({usual(rows, 256) for rows, _ in SHAPES}) == 2
    assert len({invariant(rows, 256) for rows, _ in SHAPES}) == 1
    variant = Key.parse("toy:no_keep", "bfloat16").batch_invariant
    for name in ("toy:no_keep+batch_invariant", "toy:batch_invariant"):
        assert table.name(variant) == Key.parse(name, "bfloat16")
        del table.trees[Key.parse(name, "bfloat16")]
    assert table.function(variant) is None


@pytest.mark.slow
def test_the_table_is_checked_byte_for_byte(path):
    checked = check(path)
    assert (checked.failures, checked.stale) == ((), ())
    assert checked.notes[0].startswith("equal, byte for byte, to a fit of recording test-gpu")
    header, _ = parse(path.read_text(), "table")
    (entry,) = (entry for entry in entries(header) if str(entry.key) == "toy:batch_invariant bfloat16")
    assert entry.figures.limits == " of hidden, then rows, with one order of a row's sum a hidden size"
    assert entry.beside
    assert [name for name, *_ in header.without_data] == ["toy:no_keep", "toy:no_keep+batch_invariant"]
    path.write_text(module_text(fit(recording.load_recording("test-gpu")), as_command(COMMAND)))
    assert any("it differs from a fit of recording test-gpu" in failure for failure in check(path).failures)


@pytest.mark.slow
def test_a_function_of_the_mode_that_sums_a_row_in_several_orders_is_refused(path):
    text = path.read_text()
    start = text.index("def toy_batch_invariant_bfloat16")
    name = re.search(r"return (\w+)", text[start:])[1]
    edited = text[:start] + text[start:].replace(
        'Config":\n', f'Config":\n    if rows >= 4096:\n        return {name}\n', 1
    )
    path.write_text(rehashed(edited))
    told = [one for one in check(path).failures if one.endswith("elements in several orders")]
    assert told[0].startswith("toy:batch_invariant bfloat16: its configs sum a row of 513 to 16384 elements")


def test_an_illegal_config_of_the_mode_is_found(path):
    text = path.read_text()
    tree = trees(text)[Key.parse("toy:batch_invariant", "bfloat16")]
    wide = choose(tree, (1, 16384))
    own = f"block_row={wide.block_row}, " if wide.block_row > 1 else ""
    written = f'Config(schedule="{wide.schedule}", {own}num_warps={wide.num_warps})'
    edited = text.replace(written, 'Config(schedule="row", num_warps=1)')
    assert edited != text
    path.write_text(edited)
    assert any(failure.startswith("toy:batch_invariant bfloat16: row warps=1 is illegal") for failure in check(path)[0])


@pytest.mark.slow
def test_fewer_leaves_may_be_asked_for(recorded):
    found = fit(recorded, FitOptions(leaves=2, batch_invariant=True)).functions
    assert {one.figures.leaves <= 2 for one in found if one.beside} == {True}


@pytest.mark.slow
def test_costs_are_printed(recorded, fitted):
    printed = "\n".join(report.figures(fitted))
    first = next(one for one in fitted.functions if one.beside)
    assert "batch-invariant (one order of a row's sum for all rows); cost on average and at worst:" in printed
    assert "% toy:batch_invariant bfloat16\n" in printed and first.key.text == "toy:batch_invariant"
    assert "batch-invariant" not in "\n".join(report.figures(fit(recorded)))


@pytest.mark.parametrize("searched", [("bfloat16", "float16"), ("float16",)])
def test_what_is_lost_is_told_over_the_shapes_that_were_timed(measure, run, spec, searched):
    """A search left blocks of rows out at few rows; a bound by their time with 64 rows would be too long."""
    few = [shape for shape in SHAPES if shape[0] < 64]
    count = len(SHAPES) - len(few)

    def law(config, problem):
        best = BLOCKS if problem.rows >= 64 else ROW
        return {best: 0.0, BLOCKS: 0.02}.get(config, 5.0) + problem.rows / 500

    cells = [
        cell
        for dtype in ("bfloat16", "float16")
        for cell in measure(law, SHAPES, dtype=dtype, configs=(ROW, BLOCKS))
        if not (dtype in searched and cell.config == BLOCKS and cell.problem.shape in few)
    ]
    whole = fit(Evidence.from_measurements(cells, [run]), FitOptions(batch_invariant=True, leaves=4))
    (share,) = (one for one in whole.shared if one.key.is_batch_invariant)
    assert share.figures.loss.problems == count
    assert share.figures.loss.worst < 10_000 and share.cost < 10_000
    (own,) = (one for one in whole.functions if one.key.is_batch_invariant)
    is_partial = "bfloat16" in searched
    assert own.beside.problems + own.beside.bounded == len(SHAPES) and (own.beside.bounded > 0) == is_partial
    assert own.beside.worst < (10_000 if is_partial else 30_000)
    entry = decisions(parse(module_text(whole, as_command(COMMAND)), "table")[0])[own.key]
    assert entry.beside == own.beside and (entry.beside[2:] == (count, len(few))) == is_partial
    for lines in (report.figures(whole), report.verdict(whole)):
        assert any(f"at {count} shapes; not timed at {len(few)} more" in line for line in lines) == is_partial
