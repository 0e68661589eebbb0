"""A header is enough to fit its table again: under random conditions, with random baselines."""

import random

import pytest

from normtune.errors import NormtuneError
from normtune.heuristics.fitting.baseline import Incumbents
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.rules import RULES
from normtune.heuristics.writing.emit import module_text
from normtune.heuristics.writing.entries import decisions, ends
from normtune.heuristics.writing.regenerate import Command, command_of
from normtune.kernels.box import Box
from normtune.kernels.key import Key
from normtune.kernels.tablefile.header import parse
from normtune.kernels.tablefile.parse import trees
from normtune.results.evidence import Evidence

SHAPES = [(rows, hidden) for rows in (1, 3, 64, 100, 1024, 5000) for hidden in (64, 96, 128, 256, 700, 1024, 4096)]


@pytest.fixture
def measured(measure, run):
    """Evidence of a seed: speeds by region of a few sizes, and by so much by single shape."""

    def make(seed: int, roughness: float, dtypes: tuple[str, ...]) -> Evidence:
        def law(config, problem) -> float:
            region = random.Random(f"{seed} {config} {problem.hidden // 512} {problem.rows > 1000}")
            single = random.Random(f"{seed} {config} {problem}")
            return region.choice([0.0, 0.05, 0.2]) + roughness * single.random()

        return Evidence.from_measurements([one for dtype in dtypes for one in measure(law, SHAPES, dtype=dtype)], [run])

    return make


def options_of(draw: random.Random) -> FitOptions:
    return FitOptions(
        leaves=draw.choice([None, 1, 3, 6, 12]),
        max_configs=draw.choice([None, None, 2, 3]),
        tie_percent=draw.choice([0, 0.1, 1, 3]),
        max_slowdown=draw.choice([None, None, 1.3]),
    )


def written(evidence: Evidence, options: FitOptions, incumbents: Incumbents | None = None) -> str:
    return module_text(fit(evidence, options, incumbents=incumbents), Command(options=options.facts()))


def again(evidence: Evidence, text: str, baseline: Incumbents | None = None) -> str:
    """As `check` does it: from the header alone."""
    header, _ = parse(text, "table.py")
    command = command_of(header)
    found = fit(evidence, command.fit_options(), incumbents=baseline, decisions=decisions(header))
    return module_text(found, command)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_a_refit_from_the_header_gives_the_same_bytes(measured, seed: int) -> None:
    draw = random.Random(seed)
    options, roughness = options_of(draw), draw.choice([0.002, 0.05, 0.2])
    evidence = measured(seed, roughness, draw.choice([("bfloat16",), ("bfloat16", "float32")]))
    other = written(measured(seed + 1000 * (seed % 2), 0.0, ("bfloat16",)), FitOptions(leaves=draw.choice([2, 5, 9])))
    try:
        alone = written(evidence, options)
    except NormtuneError as error:
        assert "is possible; allow it" in str(error)
        return
    assert again(evidence, alone) == alone
    for baseline in (Incumbents(trees(other)), Incumbents({}, RULES["liger"])):
        beside = written(evidence, options, baseline)
        assert again(evidence, beside, baseline) == beside


def test_where_a_table_ends_is_told_once_for_all_functions_or_by_box() -> None:
    one, two = Box.of(rows=(4, 8), hidden=(64, 128)), Box.of(rows=(1, 100), hidden=(64, 128))
    first, second, third = (Key.parse("toy", dtype) for dtype in ("bfloat16", "float16", "float32"))
    assert ends({first: one, second: one}) == [
        "it answers at rows 2 to 16, hidden 32 to 256; the next table elsewhere, or the default config"
    ]
    assert ends({first: one, second: two, third: one}) == [
        "toy bfloat16 and 1 more: answers at rows 2 to 16, hidden 32 to 256",
        "toy float16: answers at rows 1 to 200, hidden 32 to 256; the next table elsewhere, or the default config",
    ]
