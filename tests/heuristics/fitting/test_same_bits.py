"""A fit of which each row keeps the bits of an earlier table."""

from itertools import product
from pathlib import Path

import pytest

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.api.fit import fit as fit_table
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.writing.emit import module_text
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.key import Key
from normtune.kernels.tablefile.parse import trees
from normtune.kernels.tablefile.tree import choose
from normtune.results.evidence import Evidence
from normtune.tests.heuristics.made_up import as_command, options_of
from normtune.tuner.checking.offline import check

pytestmark = pytest.mark.long

SHAPES = [(rows, hidden) for rows in (1, 64, 1024, 4096) for hidden in (64, 128, 256, 512, 1024, 2048)]
COMMAND = "normtune fit --store data.db --out old.py"


@pytest.fixture
def alike(spec):
    """The operator with launches of which a row is summed by its warps alone, whatever the rows of a block."""
    resolve = spec.resolve

    def resolved(config, problem, target, alignment=None):
        return resolve(config, problem, target, alignment)._replace(row_layout=(8, 32, config.num_warps))

    object.__setattr__(spec, "resolve", resolved)


@pytest.fixture
def evidence_of(measure, run, spec):
    """Measurements by a law of the config and problem, of these dtypes and variants."""

    def made(law, dtypes=("bfloat16", "float16", "float32"), variants=("",)):
        kinds = [(dtype, variant) for dtype in dtypes for variant in variants]
        cells = [
            cell
            for dtype, variant in kinds
            for cell in measure(law, SHAPES, dtype=dtype, variant=variant, fingerprint=fingerprint(spec))
        ]
        return Evidence.from_measurements(cells, [run])

    return made


def by_warps(config, problem):
    """A row of four warps for few rows, of sixteen for many."""
    wanted = ("row", 4) if problem.rows < 512 else ("row", 16)
    return 0.0 if (config.schedule, config.num_warps) == wanted else 0.2


def blocks(config, problem):
    """Few warps win everywhere, and blocks of rows more so."""
    return 0.01 * config.num_warps - 0.02 * config.block_row + 1


@pytest.fixture
def old(evidence_of, alike, tmp_path) -> Path:
    path = tmp_path / "old.py"
    path.write_text(module_text(fit(evidence_of(by_warps)), as_command(COMMAND)))
    return path


@pytest.mark.slow
def test_each_shape_keeps_the_order_of_its_sum(old, evidence_of):
    evidence = evidence_of(blocks)
    free = fit(evidence).functions[0].tree
    tree = fit(evidence, FitOptions(same_bits_as=str(old))).functions[0].tree
    before = trees(old.read_text())[Key.parse("toy", "bfloat16")]
    every = [(rows, hidden) for rows in (1, 2, 300, 511, 512, 513, 9000, 1 << 29) for hidden in (1, 65, 777, 2048)]
    assert any(choose(free, shape).num_warps != choose(before, shape).num_warps for shape in every)
    for shape in every:
        assert choose(tree, shape).num_warps == choose(before, shape).num_warps
    assert any(choose(tree, shape) != choose(before, shape) for shape in every)


@pytest.mark.slow
def test_the_option_is_in_the_header_and_the_check_fits_with_it(old, evidence_of, tmp_path, monkeypatch, record_as):

    evidence = record_as(evidence_of(blocks))
    monkeypatch.chdir(tmp_path)
    options = FitOptions(same_bits_as="old.py")
    table = fit_table(evidence, same_bits_as=old)
    assert table.options.same_bits_as == str(old)
    command = " ".join(["normtune fit --recording test-gpu", *options.words(), "--out new.py"])
    assert options_of(command) == options
    new = tmp_path / "new.py"
    new.write_text(module_text(table.fit, as_command(command)))
    assert check(new).failures == ()
    old.unlink()
    assert any("old.py" in failure for failure in check(new).failures)


@pytest.mark.slow
def test_what_the_table_does_not_have_is_refused(old, evidence_of):
    text = old.read_text()
    with pytest.raises(UsageError, match=r"old\.py has no batch-invariant function of toy bfloat16, .*without --batch"):
        fit(evidence_of(blocks), FitOptions(same_bits_as=str(old), batch_invariant=True))
    with pytest.raises(UsageError, match=r"nowhere\.py cannot be read: No such file"):
        fit(evidence_of(blocks), FitOptions(same_bits_as="nowhere.py"))
    old.write_text(text.replace("sm_90", "sm_80"))
    with pytest.raises(UsageError, match=r"old\.py is a table of sm_80: expected one of sm_90"):
        fit(evidence_of(blocks), FitOptions(same_bits_as=str(old)))


@pytest.mark.slow
def test_a_batch_invariant_function_keeps_the_bits_of_the_one_before(evidence_of, alike, tmp_path):
    path, mode = tmp_path / "old.py", FitOptions(batch_invariant=True)
    path.write_text(module_text(fit(evidence_of(by_warps), mode), as_command(COMMAND)))
    before = trees(path.read_text())
    found = fit(evidence_of(blocks), FitOptions(batch_invariant=True, same_bits_as=str(path)))
    of_mode = [one for one in found.functions if one.beside]
    assert {one.key.text for one in of_mode} == {"toy:batch_invariant"}
    for one in of_mode:
        for dtype, (rows, hidden) in product(one.dtypes, SHAPES):
            kept = choose(before[Key.parse("toy:batch_invariant", dtype)], (rows, hidden))
            assert choose(one.tree, (rows, hidden)).num_warps == kept.num_warps


@pytest.mark.slow
def test_a_variant_that_was_not_measured_and_would_take_other_bits_is_refused(evidence_of, alike, tmp_path):
    def other(config, problem):
        return by_warps(config, problem) if not problem.variant else 0.0 if config.num_warps == 8 else 0.3

    path = tmp_path / "old.py"
    path.write_text(module_text(fit(evidence_of(other, variants=("", "no_keep"))), as_command(COMMAND)))
    assert Key.parse("toy:no_keep", "bfloat16") in trees(path.read_text())
    options = FitOptions(same_bits_as=str(path))
    with pytest.raises(NormtuneError, match=r"toy:no_keep bfloat16 would not keep the bits that .*old\.py gives it"):
        fit(evidence_of(blocks), options)
    both = fit(evidence_of(blocks, variants=("", "no_keep")), options)
    assert {one.key for one in both.functions} >= {Key.parse("toy", "bfloat16"), Key.parse("toy:no_keep", "bfloat16")}
