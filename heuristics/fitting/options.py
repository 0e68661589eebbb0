"""Options of a fit, as words of a command and as data, and back from the facts of a table's header.

`check` fits with the options in the header. `pipeline` applies them.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields, replace
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from normtune.errors import UsageError
from normtune.kernels.tablefile.header import log_ppm_of
from normtune.results.options import flag_of, option
from normtune.results.regimes import COLD, check_regime

OBJECTIVES = ("mean", "worst")
TIE_PERCENT = 0.1
# The solver takes 5 MB per leaf on the recording grid, and time with the square of leaves.
MOST_LEAVES = 128
# Above this, not every integer is a float.
_EXACT = 1 << 53

# Types accepted from Python, NumPy's numbers included.
_KINDS: dict[type, tuple[type, str]] = {
    int: (Integral, "an integer"),
    float: (Real, "a number"),
    str: (str, "text"),
    bool: (bool, "True or False"),
}


@dataclass(frozen=True)
class FitOptions:
    """Options of a fit. A new option is declared here, and used where it takes effect.

    Attributes:
        leaves: the most leaves of a function; None chooses each number by cross-validation.
        operators: plain names or names with a variant; empty for all that were measured.
        objective: `mean` for the least mean slowdown, `worst` for the least mean among trees of the least worst case.
        max_slowdown: bound on each measured problem's time over its best config's time; None for no bound.
        tie_percent: trees within this of the least mean slowdown are equally good, and the simplest is taken.
        weights: of problems: `decades`, `equal`, or a CSV file with columns rows, hidden and weight.
        max_configs: the most distinct configs of a function; None for no bound.
        baseline: a rule by name or a table's file; no leaf may be slower. None for the table that is replaced, if there
            is one; `none` for no comparison with that either.
        same_bits_as: a table's file: at every shape a row keeps the bits that this table gives it; None for none.
        batch_invariant: whether the table also gets batch-invariant functions.
        regime: of the fitted times, a name of `regimes.REGIMES`.

    Raises:
        UsageError: a value is out of range.
    """

    leaves: int | None = option(
        "At most so many leaves per function. Default: chosen by cross-validation.", "N", least=1
    )
    operators: tuple[str, ...] = option("Only this operator. Repeatable.", default=(), name="operator", before="force")
    objective: str = option(
        "mean; worst: of the tables with the best worst shape, the one with the least mean.", default="mean"
    )
    max_slowdown: float | None = option(
        "No measured shape may take longer than so many times its best: 1.10.", "FACTOR"
    )
    tie_percent: float = option(
        "Choose the simplest table within so much mean loss of the best tree.",
        *("PERCENT", "tie", "baseline"),
        default=TIE_PERCENT,
    )
    weights: str = option(
        "Weight of a shape in means: decades, every decade of bytes moved the same; equal; or a CSV file with columns "
        "rows,hidden,weight and, if wanted, operator and dtype.",
        "CHOICE",
        default="decades",
    )
    max_configs: int | None = option(
        "At most so many distinct configs per function; each is a binary that users compile.", "N", before="weights"
    )
    baseline: str | None = option(
        "Rule (liger, ...), shipped table or file that no leaf may be slower than; none: compare with nothing. "
        "Default: the table that is replaced."
    )
    same_bits_as: str | None = option(
        "Table that gives rows the bits that they must keep: at each shape only configs that do are used.", "FILE"
    )
    batch_invariant: bool = option(
        "Also fit functions that give a row the same bits in every batch, and print what they cost.", default=False
    )
    regime: str = option("Fit times measured cold, warm or eager.", default=COLD, before="stability")

    def __post_init__(self) -> None:
        """Refuse invalid values, in one place for the command line and for Python."""
        for field in fields(self):
            if kind_of(field) is tuple:
                continue
            kind, expected = _KINDS[kind_of(field)]
            value = getattr(self, field.name)
            optional = value is None and field.default is None
            # bool is the only subclass among these types: True is an Integral.
            if not optional and (isinstance(value, bool) != (kind is bool) or not isinstance(value, kind)):
                raise UsageError(f"{field.name} is {value!r:.80}: expected {expected}")
        if self.leaves is not None and not 1 <= self.leaves <= MOST_LEAVES:
            raise UsageError(f"leaves is {self.leaves}: expected 1 to {MOST_LEAVES}")
        if self.max_configs is not None and self.max_configs < 1:
            raise UsageError(f"max-configs is {self.max_configs}: expected a positive number")
        check_regime(self.regime)
        if self.objective not in OBJECTIVES:
            raise UsageError(f"unknown objective {self.objective!r}: expected one of {', '.join(OBJECTIVES)}")
        if self.max_slowdown is not None and not 1 <= self.max_slowdown < math.inf:
            raise UsageError(f"max-slowdown is {self.max_slowdown:g}: expected a ratio of at least 1, as 1.10")
        if not 0 <= self.tie_percent <= 100:
            raise UsageError(f"tie is {self.tie_percent:g}: expected percent from 0 to 100, as {TIE_PERCENT}")

    @property
    def tie(self) -> int:
        """The tie in millionths of log-slowdown."""
        return log_ppm_of(self.tie_percent)

    @property
    def cap(self) -> int | None:
        """The greatest regret of a problem, millionths of log-slowdown; None for no bound."""
        return None if self.max_slowdown is None else round(1e6 * math.log(self.max_slowdown))

    def seen_from(self, folder: Path) -> "FitOptions":
        """The options with files named relative to a folder, as in the header of a table there."""
        from normtune.heuristics.fitting.baseline import NONE
        from normtune.heuristics.regret.weights import NAMED
        from normtune.heuristics.rules import RULES

        weights, baseline = self.weights, self.baseline
        if weights not in NAMED:
            weights = seen_from(weights, folder)
        if baseline is not None and baseline not in (NONE, *RULES) and os.path.lexists(baseline):
            baseline = seen_from(baseline, folder)
        same_bits_as = self.same_bits_as and seen_from(self.same_bits_as, folder)
        return replace(self, weights=weights, baseline=baseline, same_bits_as=same_bits_as)

    def facts(self) -> dict[str, Any]:
        """Options that differ from their defaults, as JSON."""
        values = {option.name: (getattr(self, option.name), option.default) for option in fields(self)}
        return {name: _json(value) for name, (value, default) in values.items() if value != default}

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "FitOptions":
        """The inverse of `facts`, of any JSON.

        Raises:
            UsageError: an option is unknown, or its value out of range.
        """
        types, values = {option.name: kind_of(option) for option in fields(cls)}, dict(facts)
        for name, value in facts.items():
            if name not in types:
                raise UsageError(f"it has the option {name[:40]!r}, which is none of `normtune fit` that a table needs")
            if types[name] is tuple:
                if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                    raise UsageError(f"{name} is {str(value)[:40]!r}: expected a list of names")
                values[name] = tuple(value)
        return cls(**values)

    def words(self) -> list[str]:
        """Options of the command that differ from their defaults: repeated ones, those with a value, flags."""
        return words_of(self.facts())


def words_of(facts: Mapping[str, Any]) -> list[str]:
    """The words of options by their names, as `FitOptions.words`, whether their values are valid or not."""
    repeated, valued, flags = [], [], []
    known = {option.name: flag_of(option) for option in fields(FitOptions)}
    for name in sorted(facts, key=[*known, *facts].index):
        flag, value = known.get(name, "--" + name.replace("_", "-")), facts[name]
        if isinstance(value, list):
            repeated += [word for item in value for word in (flag, str(item))]
        elif value is True:
            flags.append(flag)
        else:
            valued += [flag, _text(value)]
    return repeated + valued + flags


def kind_of(option: "Field[Any]") -> type:
    """The type of an option's values: int, float, str, bool, or tuple for a repeated option."""
    (kind,) = {*(get_args(option.type) if isinstance(option.type, UnionType) else (option.type,))} - {NoneType}
    return get_origin(kind) or kind


def seen_from(path: str | os.PathLike[str], folder: Path) -> str:
    """A file or folder relative to a folder; links on the way are followed, as `..` follows them."""
    parent, name = os.path.split(path)
    return os.path.relpath(os.path.join(os.path.realpath(parent), name), os.path.realpath(folder))


def _json(value: Any) -> Any:
    """A value as JSON, without NumPy's numbers; 2.0 becomes 2, so that equal options give equal text."""
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, bool | str | NoneType):
        return value
    return int(value) if value == value // 1 and abs(value) < _EXACT else float(value)


def _text(value: object) -> str:
    """A value on the command line, to the last bit of a float."""
    return str(float(value)).removesuffix(".0") if isinstance(value, float) else str(value)
