"""What a table says of a search that left configs out."""

from dataclasses import replace

import pytest

from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.writing.emit import module_text
from normtune.heuristics.writing.entries import decisions
from normtune.heuristics.writing.report import figures
from normtune.kernels.problem import Problem
from normtune.kernels.tablefile.header import parse
from normtune.kernels.tablefile.tree import choose
from normtune.results.evidence import Evidence
from normtune.results.records import SEARCHED
from normtune.tests.heuristics.made_up import as_command

pytestmark = pytest.mark.long

SHAPE = (1, 64)


def told(evidence: Evidence, entry, strategy="plane") -> Evidence:
    """The evidence of a run whose protocol has this entry for `toy bfloat16`."""
    protocol = {"strategy": strategy, SEARCHED: {"toy bfloat16": entry}}
    return replace(evidence, runs=tuple(run._replace(protocol=protocol) for run in evidence.runs))


def configs_by_penalty(evidence, penalty):
    """The configs measured at `SHAPE`, the fastest first."""
    problem = Problem.of("toy", *SHAPE, "bfloat16")
    return sorted(
        (m.config for m in evidence.measurements() if m.problem == problem), key=lambda c: penalty(c, problem)
    )


def test_the_header_and_the_output_say_what_was_searched_and_what_the_audit_found(evidence, penalty) -> None:
    ordered = configs_by_penalty(evidence, penalty)
    problem, options = Problem.of("toy", *SHAPE, "bfloat16"), FitOptions(leaves=1)
    (chosen,) = {choose(fit(evidence, options).functions[0].tree, SHAPE)}
    faster = [config for config in ordered if penalty(config, problem) < penalty(chosen, problem) - 0.01]
    slower = [config for config in ordered if penalty(config, problem) > penalty(chosen, problem) + 0.01]
    assert faster and slower
    drawn = [[*SHAPE, config.to_json()] for config in (faster[0], slower[0], slower[1])]
    pairs = 2 * len(evidence.frame)
    found = fit(told(evidence, {"pairs": pairs, "audited": drawn, "missed": 12345}), options)
    most = (1 + penalty(chosen, problem)) / (1 + penalty(faster[0], problem)) - 1
    begin = f"toy bfloat16: plane, 50 % of {pairs} configs, of 3 audited, 1 was faster than the choice, by at most "
    (line,) = found.searched
    assert line.startswith(begin) and line.endswith(" %, expected to have missed 1.24 %")
    assert float(line.removeprefix(begin).partition(" ")[0]) == pytest.approx(100 * most, abs=0.2)
    assert f"searched: {found.searched[0]}" in [*figures(found)]
    text = module_text(found, as_command("normtune fit"))
    header, _ = parse(text, "x.py")
    assert header.searched == found.searched and header.text() == text[: len(header.text())]
    assert "toy" in str(decisions(header))


@pytest.mark.slow
def test_an_audited_config_that_was_chosen_is_compared_with_the_best_of_the_others(evidence, penalty) -> None:
    best = choose(fit(evidence).functions[0].tree, SHAPE)
    problem = Problem.of("toy", *SHAPE, "bfloat16")
    first, second, *_ = (penalty(config, problem) for config in configs_by_penalty(evidence, penalty))
    assert penalty(best, problem) == first < second - 0.01
    entry = {"pairs": 1000, "audited": [[*SHAPE, best.to_json()]], "missed": None}
    (line,) = fit(told(evidence, entry)).searched
    begin, _, most = line.partition("of 1 audited, 1 was faster than the choice, by at most ")
    assert begin and float(most.removesuffix(" %")) == pytest.approx(100 * ((1 + second) / (1 + first) - 1), abs=0.2)


def test_two_runs_count_together_and_nothing_audited_is_said(measure, penalty, run, spec) -> None:
    other = run._replace(id="b" * 32, started="2026-09-02T00:00:00+00:00")
    cells = [*measure(penalty, [SHAPE, (64, 4096)]), *measure(penalty, [(4096, 256)], run=other.id)]
    configs = [m.config for m in cells if m.problem.rows == 1]
    runs = [
        one._replace(
            protocol={
                "strategy": name,
                SEARCHED: {"toy bfloat16": {"pairs": 500, "audited": audited, "missed": None}},
            }
        )
        for one, name, audited in ((run, "random", [[*SHAPE, configs[0].to_json()]]), (other, "plane", []))
    ]
    (line,) = fit(Evidence.from_measurements(cells, runs)).searched
    assert line.startswith(f"toy bfloat16: plane and random, {round(len(cells) / 5)} % of 500 configs, of 1 audited, ")
    none = {"pairs": 500, "audited": [], "missed": 0}
    (line,) = fit(told(Evidence.from_measurements(cells, [run, other]), none)).searched
    assert line.endswith("of 500 configs, none audited, expected to have missed 0.00 %")
    # A sweep that was continued knows at its end what it did not at its stop.
    for one, missed in zip(runs, (20_000, 3_000_000), strict=True):  # the second began earlier
        one.protocol[SEARCHED]["toy bfloat16"]["missed"] = missed
    (line,) = fit(Evidence.from_measurements(cells, runs)).searched
    assert line.endswith("expected to have missed 2.02 %")


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        {"pairs": 0, "audited": [], "missed": None},
        {"pairs": 10**12, "audited": [], "missed": None},
        {"pairs": 10, "audited": "x", "missed": None},
        {"pairs": 10, "audited": [], "missed": -1},
        {"pairs": 10, "audited": []},
    ],
)
def test_what_normtune_does_not_write_is_not_told(evidence, entry) -> None:
    assert fit(told(evidence, entry)).searched == ()
    assert fit(told(evidence, {"pairs": 9, "audited": [], "missed": None}, strategy="a\n# Body: b")).searched == ()


@pytest.mark.slow
def test_audited_configs_that_cannot_be_read_are_left_out(evidence) -> None:
    entry = {"pairs": 1000, "audited": [["x", 1, "{}"], [1, 64, "no json"], [1, 64], 3], "missed": None}
    (line,) = fit(told(evidence, entry)).searched
    assert line.endswith("none audited")


def test_the_digest_is_of_what_the_table_tells(evidence) -> None:
    entries = [{"pairs": pairs, "audited": [], "missed": None} for pairs in (1, 2)]
    digests = {told(evidence, entry).digest() for entry in entries}
    assert len(digests | {evidence.digest()}) == 3
    assert fit(evidence).searched == ()
