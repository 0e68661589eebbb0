"""`fit --portable`: answers are legal on every known target of the vendor, which the header says and `check` proves."""

import re
from itertools import product
from pathlib import Path

import pytest

import normtune
from normtune.heuristics.api.fit import Table
from normtune.heuristics.writing.entries import table_text
from normtune.kernels.box import EVERYWHERE
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import operator, read_config
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.header import parse
from normtune.kernels.tablefile.tree import Tree, regions
from normtune.kernels.target import TARGETS, relatives
from normtune.tests.heuristics.made_up import regenerate

RECORDING = "nvidia-h200-fused-add-rms-norm"
BACKWARD = "fused_add_rms_norm_backward"
SHIPPED = sorted(locate.SHIPPED.glob("portable*.py"))


def illegal(key: Key, tree: Tree) -> set[tuple[str, Config]]:
    """The targets on which a config is illegal at an end of one of its regions, beside the config."""
    spec = operator(key.operator)
    return {
        (target.name, config)
        for found, box in regions(tree, EVERYWHERE)
        for config in [read_config(key.operator, found.to_json())]
        for rows, hidden in product((box[0].least, min(box[0].most, MAX_ROWS)), box[1][1:])
        for target in relatives(TARGETS["sm_90"])
        if not spec.is_legal(config, Problem.at(key.usual, (rows, min(hidden, spec.max_hidden))), target)
    }


def fitted(portable: bool) -> Table:
    return normtune.fit(RECORDING, operators=BACKWARD, leaves=8, baseline="none", portable=portable)


@pytest.fixture(scope="module")
def tables() -> tuple[Table, Table]:
    """A fit with and one without the option."""
    return fitted(True), fitted(False)


@pytest.mark.slow
def test_only_configs_that_are_legal_everywhere_take_part(tables: tuple[Table, Table]) -> None:
    portable, plain = ([(one.key, one.tree) for one in table.functions] for table in tables)
    assert not any(illegal(*one) for one in portable)
    assert any(illegal(*one) for one in plain)
    losses = [table.functions[0].figures.loss for table in tables]
    assert losses[1].mean <= losses[0].mean


@pytest.mark.slow
def test_a_portable_table_says_so_and_is_fitted_again(tables: tuple[Table, Table], tmp_path: Path) -> None:
    path = tmp_path / "portable.py"
    tables[0].save(path)
    header = locate.load(path).header
    assert header.portable and header.label == "NVIDIA H200"
    assert regenerate(header) == "normtune fit --like portable.py"
    assert re.match(r"# NVIDIA H200, sm_90, 132 SMs: \d+ measurements, \S+, portable$", path.read_text().split("\n")[2])
    checked = normtune.check(path)
    assert checked.failures == () and any("equal, byte for byte" in note for note in checked.notes)
    assert not parse(tables[1].text(), "plain")[0].portable


def test_a_table_that_only_claims_to_be_portable_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "claims.py"
    header, body = parse(locate.read(locate.SHIPPED / "nvidia_h200_fused_add_rms_norm.py"), "plain")
    path.write_text(table_text(header._replace(portable=True), body))
    failures = normtune.check(path, quick=True).failures
    assert failures and all("is illegal on a known target at" in failure for failure in failures)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_answer_of_the_shipped_ones_is_legal_on_every_known_target(path: Path) -> None:
    table = locate.load(path)
    assert table.header.portable
    assert not {key: found for key, tree in table.trees.items() if (found := illegal(key, tree))}


def test_relatives_are_of_one_vendor() -> None:
    assert {target.name for target in relatives(TARGETS["gfx942"])} == {"gfx942", "gfx950"}
    assert {target.name[:3] for target in relatives(TARGETS["sm_90"])} == {"sm_"}


def test_portable_tables_ship_for_what_most_models_use() -> None:
    families = {key.family for path in SHIPPED for key in locate.load(path).trees}
    assert families >= {"rms_norm_forward", "rms_norm_backward", "fused_add_rms_norm_forward", "rms_norm_gated_forward"}
