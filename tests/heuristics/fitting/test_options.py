"""Options of a fit: refused where they make no sense, and facts that are read as the same values."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normtune.errors import UsageError
from normtune.heuristics.fitting.options import FitOptions
from normtune.results.regimes import REGIMES
from normtune.tests.heuristics.made_up import options_of

NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc", "Z")), min_size=1).filter(lambda name: name[0] != "-")
OPTIONS = st.builds(
    FitOptions,
    leaves=st.none() | st.integers(1, 128),
    operators=st.lists(NAMES).map(tuple),
    max_slowdown=st.none() | st.floats(1, 1e300),
    tie_percent=st.floats(0, 100),
    weights=NAMES,
    max_configs=st.none() | st.integers(1, 10**6),
    baseline=st.none() | NAMES,
    batch_invariant=st.booleans(),
    regime=st.sampled_from(REGIMES),
)


def test_defaults_have_no_facts() -> None:
    assert FitOptions().facts() == {}
    assert options_of("normtune fit --store normtune.db --out table.py") == FitOptions()


def test_every_field_has_a_fact() -> None:
    """A field that was forgotten there would be lost to `check`."""
    values = (3, ("a",), 1.5, 0.2, "mine.csv", 4, "liger", True, True, "warm", "NVIDIA H200")
    other = FitOptions(**dict(zip(FitOptions.__dataclass_fields__, values, strict=True)))
    default = FitOptions()
    for name in FitOptions.__dataclass_fields__:
        assert getattr(other, name) != getattr(default, name)
        alone = FitOptions(**{name: getattr(other, name)})
        assert FitOptions.of_facts(alone.facts()) == alone != default


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"leaves": 0}, "leaves is 0: expected 1 to 128"),
        ({"leaves": 129}, "leaves is 129: expected 1 to 128"),
        ({"leaves": -3}, "leaves is -3"),
        ({"max_configs": 0}, "max-configs is 0"),
        ({"max_configs": -1}, "max-configs is -1"),
        ({"max_slowdown": math.nan}, "max-slowdown is nan"),
        ({"max_slowdown": math.inf}, "max-slowdown is inf"),
        ({"max_slowdown": -math.inf}, "max-slowdown is -inf"),
        ({"max_slowdown": 0.0}, "max-slowdown is 0"),
        ({"max_slowdown": 0.99}, "max-slowdown is 0.99: expected a ratio of at least 1"),
        ({"tie_percent": math.nan}, "tie_percent is nan"),
        ({"tie_percent": math.inf}, "tie_percent is inf"),
        ({"tie_percent": -0.1}, "tie_percent is -0.1"),
        ({"tie_percent": 100.5}, "tie_percent is 100.5: expected percent from 0 to 100"),
        ({"regime": "lukewarm"}, "lukewarm"),
        ({"leaves": 2.5}, "leaves is 2.5: expected an integer"),
        ({"leaves": True}, "leaves is True"),
        ({"leaves": "3"}, "leaves is '3'"),
        ({"max_configs": 4.0}, "max_configs is 4.0"),
        ({"max_slowdown": "1.1"}, "max_slowdown is '1.1': expected a number"),
        ({"tie_percent": None}, "tie_percent is None"),
        ({"weights": 5}, "weights is 5: expected text"),
        ({"baseline": Path("old.py")}, "baseline is "),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        FitOptions(**given)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    options = FitOptions(leaves=np.int64(3), max_slowdown=np.float64(1.1), tie_percent=np.int32(1))  # type: ignore[arg-type]
    assert options.facts() == {"leaves": 3, "max_slowdown": 1.1, "tie_percent": 1}


def test_bounds_are_millionths_of_a_logarithm() -> None:
    options = FitOptions(max_slowdown=1.1, tie_percent=0.1)
    assert (options.cap, options.tie) == (95310, 1000)
    assert (FitOptions().cap, FitOptions(tie_percent=0).tie, FitOptions(max_slowdown=1).cap) == (None, 0, 0)


@pytest.mark.slow
@given(OPTIONS)
def test_the_facts_of_options_are_read_as_the_options(options: FitOptions) -> None:
    assert FitOptions.of_facts(json.loads(json.dumps(options.facts()))) == options


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"faster": True}, "the option 'faster': expected one of leaves, "),
        ({"operators": "a"}, "operators is 'a': expected a list of names"),
        ({"operators": [1]}, r"operators is '\[1\]'"),
        ({"leaves": [2]}, r"leaves is \[2\]: expected an integer"),
        ({"leaves": 10**30}, "expected 1 to 128"),
    ],
)
def test_facts_that_are_no_options_are_refused(facts: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        FitOptions.of_facts(facts)


def test_repeated_options_of_a_line_are_in_order_and_flags_take_no_value() -> None:
    options = options_of("normtune fit --operator a --batch-invariant --operator 'b c' --leaves 3")
    assert options == FitOptions(operators=("a", "b c"), leaves=3, batch_invariant=True)


@pytest.mark.parametrize("command", ["normtune fit --leaves many", "normtune fit --tie x", "normtune fit 'open"])
def test_a_command_that_cannot_be_read_is_a_value_error(command: str) -> None:
    with pytest.raises(ValueError):
        options_of(command)


def test_files_are_seen_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.py").touch()
    seen = FitOptions(weights="mine.csv", baseline="old.py", leaves=2).seen_from(Path("a/b"))
    assert seen == FitOptions(weights="../../mine.csv", baseline="../../old.py", leaves=2)
    for options in (FitOptions(baseline="liger"), FitOptions(baseline="nvidia-h200")):
        assert options.seen_from(Path("a/b")) == options
