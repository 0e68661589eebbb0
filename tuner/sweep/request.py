"""Checks the options of a sweep before anything is opened.

In: the options of `normtune sweep`. Out: `Request`, with the resulting problems, space, search and budget.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from normtune.errors import UsageError
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem, Shape
from normtune.kernels.tablefile import locate
from normtune.kernels.target import TARGETS, Target, target_for
from normtune.results.options import as_names
from normtune.results.records import REPLAY_PREFIX, Device
from normtune.results.regimes import check_regime
from normtune.tuner.device.open import names_of, recorded
from normtune.tuner.plan import grids
from normtune.tuner.plan.plan import PORTFOLIO, RECORDED, SPACES, USUAL, ConfigsOf, Plan, plan, problems
from normtune.tuner.plan.resume import key_of
from normtune.tuner.search.protocol import Search, Strategy
from normtune.tuner.search.registry import check_search, search
from normtune.tuner.sweep.incumbents import always
from normtune.tuner.sweep.options import SweepOptions
from normtune.tuner.sweep.refine import RefinedTable, refined_table

# Greatest expected loss at which a refinement ends.
MOST_UNTIL = 10.0
MOST_SEED = 2**32 - 1


# The search if the configs to time are fixed: by a recording, stored measurements, a table to refine, or binaries.
FIXED_STRATEGY = "adaptive"


class Effort(NamedTuple):
    """Defaults of grid, space, strategy and budget."""

    grid: str
    space: str
    strategy: str
    budget_seconds: float | None


EFFORTS = {
    "quick": Effort("default", PORTFOLIO, "adaptive", 60.0),
    "default": Effort("default", "full", "plane", None),
    "full": Effort("recording", "full", "plane", None),
}


# Options that exclude each other, and why.
_EXCLUSIVE = (
    ("out cache", "ray", "the nodes compile for themselves"),
    ("shapes", "grid rows hidden", "the shapes come from one of them"),
    ("baseline", "stale", "--stale measures only stored configs"),
    (
        "grid rows hidden shapes strategy stale out",
        "refine",
        "--refine chooses the shapes by the table",
    ),
    ("device stale cache dry-run", "out", "binaries are compiled, and nothing is measured"),
)


@dataclass(frozen=True)
class Request(SweepOptions):
    """The checked options of a sweep.

    Raises:
        UsageError: a value is unknown or out of range.
    """

    def __post_init__(self) -> None:
        for name in ("operators", "dtypes"):
            object.__setattr__(self, name, as_names(name, getattr(self, name)))
        names_of(self.device)
        if self.ray is not None:
            from normtune.results.parallel.connect import check_address
            from normtune.tuner.cluster.devices import check_names

            check_address(self.ray)
            check_names(self.device)
        check_search(self.chosen.strategy)  # before its import, which takes half a second
        for firsts, seconds, reason in _EXCLUSIVE:
            for one, other in product(firsts.split(), seconds.split()):
                if self._has(one) and self._has(other):
                    raise UsageError(f"--{one} and --{other} are both given: {reason}")
        self._check_search()
        if self.space is not None and self.space not in SPACES:
            raise UsageError(f"unknown space {self.space!r}: expected one of {', '.join(SPACES)}")
        check_regime(self.regime)
        budget = self.budget_seconds
        if budget is not None and not (_is_number(budget) and budget > 0):
            raise UsageError(f"budget_seconds is {budget!r}: expected a positive number")
        if self.baseline is not None:
            locate.load_table(self.baseline)
        if self.refine is not None and self.effort != "default":
            raise UsageError("--effort and --refine are both given: --refine chooses shapes and configs")
        self._check_compiling()

    @cached_property
    def chosen(self) -> Effort:
        """Grid, space, strategy and budget: from the options, else from the effort.

        Raises:
            UsageError: the effort is unknown.
        """
        if self.effort not in EFFORTS:
            raise UsageError(f"unknown effort {self.effort!r}: expected one of {', '.join(EFFORTS)}")
        implied, budget = EFFORTS[self.effort], self.budget_seconds
        is_replay = str(self.device or "").startswith(REPLAY_PREFIX)
        is_fixed = is_replay or self.stale or self.out is not None or self.cache is not None or self.refine is not None
        strategy = self.strategy or (FIXED_STRATEGY if is_fixed else implied.strategy)
        space = implied.space
        if space != PORTFOLIO and (is_replay or strategy != implied.strategy):
            space = RECORDED if is_replay else "default"
        return Effort(
            self.grid or implied.grid,
            self.space or space,
            strategy,
            implied.budget_seconds if budget is None else budget,
        )

    def _has(self, option: str) -> bool:
        value = getattr(self, option.replace("-", "_"))
        return value is not None and value is not False

    def _check_search(self) -> None:
        """Check the options of a search, which only some searches have."""
        name, chosen, until = self.chosen.strategy, search(self.chosen.strategy), self.until_percent
        if self.seed is not None:
            if not chosen.leaves_out:
                raise UsageError(f"seed is given, but strategy {name} is not random: leave it out")
            if type(self.seed) is not int or not 0 <= self.seed <= MOST_SEED:
                raise UsageError(f"seed is {self.seed!r}: expected an integer from 0 to {MOST_SEED}")
        if not (_is_number(until) and 0 < until <= MOST_UNTIL):
            raise UsageError(f"until_percent is {until!r}: expected a loss over 0 and at most {MOST_UNTIL} percent")

    def _check_compiling(self) -> None:
        if (self.target is None) != (self.out is None):
            raise UsageError("--target and --out compile together: give an architecture such as sm_90, and a folder")
        if self.target is not None:
            self.limits()

    def limits(self) -> Target:
        """Limits of the target that is compiled for.

        Raises:
            UsageError: the target is unknown.
        """
        name = str(self.target)
        return TARGETS[name] if name in TARGETS else target_for(name, TARGETS["sm_90"].sms)

    @property
    def leaves_out(self) -> bool:
        """Whether the search leaves out configs of the plan."""
        chosen = search(self.chosen.strategy)
        return not self.stale and self.refine is None and chosen.leaves_out

    def always(self, problems: Sequence[Problem], device: Device, target: Target) -> ConfigsOf:
        """The configs that are timed at each problem, whatever the space and the search."""
        return always(problems, device, target, self.baseline)

    def space_of(self, problems: Sequence[Problem], device: Device) -> str | ConfigsOf:
        """The name of the space, or the configs of a recording."""
        return recorded(problems, device, self.regime) if self.chosen.space == RECORDED else self.chosen.space

    def search(self, advice: ConfigsOf | None, devices: int) -> Strategy:
        """The strategy; a search that leaves configs out begins with those in `advice` and knows its devices."""
        chosen: Callable[..., Search] = search(self.chosen.strategy)
        options: dict[str, Any] = {} if self.seed is None else {"seed": self.seed}
        options |= {"advice": advice, "devices": devices} if self.leaves_out else {}
        return partial(chosen, **options)

    def key(self, always: ConfigsOf) -> str | None:
        """Key of the request, see `resume.key_of`; None if the unmeasured rest follows from the store."""
        if not self.leaves_out or self.retry_failed:
            return None
        return key_of(always, self.chosen.space, f"{self.chosen.strategy} {self.seed or 0}")

    def scope(self) -> "Scope":
        """The problems of the grid, of the sizes or of the shapes."""
        keys, dtypes, grid = tuple(self.operators), tuple(self.dtypes), self.chosen.grid
        if self.refine is not None:
            until = self.until_percent / 100
            return Scope([], refined=refined_table(self.refine, keys, dtypes or (USUAL,), until))
        if self.shapes is not None:
            source, chosen, too_large = self.shapes, [], 0
            path_or_shapes = Path(source) if isinstance(source, str | os.PathLike) else source
            for operator, dtype, pairs, larger in grids.shapes_of(path_or_shapes, keys, dtypes):
                of_listing = problems([operator] if operator else keys, [dtype] if dtype else dtypes, pairs)
                chosen += of_listing
                too_large += len(larger) * (len(of_listing) // len(pairs) if pairs else 1)
            return Scope([*dict.fromkeys(chosen)], too_large=too_large)
        return Scope(problems(keys, dtypes, partial(self._of_grid, grid)))

    def _of_grid(self, grid: str, spec: OperatorSpec) -> list[Shape]:
        """The shapes of a grid, or of the option's sizes, that an operator supports."""
        defaults = [tuple(sizes) or None for sizes in spec.axes.values()]
        axes = (
            default if option is None else option
            for default, option in zip(defaults, (self.rows, self.hidden), strict=False)
        )
        pairs = grids.shapes(grid, *axes)
        return [pair for pair in pairs if self.hidden is not None or pair[1] <= spec.max_hidden]


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


class Scope(NamedTuple):
    """The problems of a sweep.

    Attributes:
        problems: the problems.
        too_large: number of problems left out, see `plan.Plan`.
        refined: a table whose disputed shapes are measured instead; None without `refine`.
    """

    problems: list[Problem]
    too_large: int = 0
    refined: RefinedTable | None = None

    def plan(self, space: str | ConfigsOf, target: Target, always: ConfigsOf, is_sampled: bool = False) -> Plan:
        """The plan of a space on these problems, with the configs that are always timed; as `plan.plan`."""
        return plan(self.problems, space, target, always, is_sampled)._replace(too_large=self.too_large)
