"""What a table says of a search that left configs out."""

from dataclasses import replace

import pytest

from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.writing.emit import module_text
from normtune.heuristics.writing.entries import decisions
from normtune.heuristics.writing.report import figures
from normtune.kernels.tablefile.header import parse
from normtune.results.evidence import Evidence
from normtune.results.records import SEARCHED
from normtune.tests.heuristics.made_up import as_command

pytestmark = pytest.mark.long

SHAPE = (1, 64)


def told(evidence: Evidence, entry, strategy="plane") -> Evidence:
    """The evidence of a run whose protocol has this entry for `toy bfloat16`."""
    protocol = {"strategy": strategy, SEARCHED: {"toy bfloat16": entry}}
    return replace(evidence, runs=tuple(run._replace(protocol=protocol) for run in evidence.runs))


def test_the_header_and_the_output_say_what_was_searched(evidence) -> None:
    pairs = 2 * len(evidence.frame)
    found = fit(told(evidence, {"pairs": pairs}), FitOptions(leaves=1))
    assert found.searched == (f"toy bfloat16: plane, 50 % of {pairs} configs",)
    assert f"searched: {found.searched[0]}" in [*figures(found)]
    text = module_text(found, as_command("normtune fit"))
    header, _ = parse(text, "x.py")
    assert header.searched == found.searched and text.endswith(f"\n{header.text()}\n")
    assert "toy" in str(decisions(header))


def test_of_two_runs_the_one_with_more_configs_counts(measure, penalty, run, spec) -> None:
    other = run._replace(id="b" * 32, started="2026-09-02T00:00:00+00:00")
    cells = [*measure(penalty, [SHAPE, (64, 4096)]), *measure(penalty, [(4096, 256)], run=other.id)]
    runs = [
        one._replace(protocol={"strategy": name, SEARCHED: {"toy bfloat16": {"pairs": pairs}}})
        for one, name, pairs in ((run, "random", 500), (other, "plane", 80))
    ]
    (line,) = fit(Evidence.from_measurements(cells, runs)).searched
    assert line == f"toy bfloat16: plane and random, {round(len(cells) / 5)} % of 500 configs"


@pytest.mark.slow
@pytest.mark.parametrize("entry", [None, [], {}, {"pairs": 0}, {"pairs": 10**12}, {"pairs": "10"}])
def test_what_normtune_does_not_write_is_not_told(evidence, entry) -> None:
    assert fit(told(evidence, entry)).searched == ()
    assert fit(told(evidence, {"pairs": 9}, strategy="a\n# Body: b")).searched == ()


def test_the_digest_is_of_what_the_table_tells(evidence) -> None:
    entries = [{"pairs": pairs} for pairs in (1, 2)]
    digests = {told(evidence, entry).digest() for entry in entries}
    assert len(digests | {evidence.digest()}) == 3
    assert fit(evidence).searched == ()
