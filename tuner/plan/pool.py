"""The candidates of a problem, each made when it is asked for: of a large space most configs never get a launch.

In: an operator, a problem, a target and the configs of a space. Out: `Pool`. Of configs with equal launches the first
that was asked for is a candidate, so that no launch is timed twice.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from random import Random
from typing import Any, NamedTuple

from normtune.errors import UsageError
from normtune.kernels.call import AnyLaunch
from normtune.kernels.config import Config, Implementation
from normtune.kernels.config_space import Drawn, Space
from normtune.kernels.operator import IllegalConfigError, OperatorSpec
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target

# Number of candidates that stand for those of a large space, and of configs that are drawn for each of them where many
# are illegal.
SUBSET_SIZE = 512
_TRIES = 8
# Most configs of a problem that are asked one after another.
_MOST_LISTED = 1_000_000


class Candidate(NamedTuple):
    """A config, and its launch on the problem."""

    config: Config
    launch: AnyLaunch


class Pool(Sequence[Candidate]):
    """The candidates of a problem; as a sequence all of them, for which each config is asked for its launch.

    Args:
        spec: the operator.
        problem: of the candidates.
        target: of the device.
        space: the configs, before legality.

    Attributes:
        problem: of the candidates.
        space: the configs, before legality.
        pruned: number of configs asked for that are no candidates, by reason.
        requested: number of configs asked for.
    """

    def __init__(self, spec: OperatorSpec, problem: Problem, target: Target, space: Space) -> None:
        self.problem, self.space = problem, space
        self.pruned: Counter[str] = Counter()
        self.requested = 0
        self._spec, self._target = spec, target
        self._others = [*map(Implementation, spec.implementations)]
        self._admitted: list[Candidate] = []
        self._candidates: dict[Config, Candidate] = {}
        self._of_launch: dict[AnyLaunch, Candidate] = {}

    @property
    def is_listed(self) -> bool:
        """Whether there is a list of the space."""
        return not isinstance(self.space, Drawn)

    @property
    def size(self) -> int:
        """Number of configs of the space, legal or not, and of implementations; without a list those made so far."""
        if isinstance(self.space, Drawn):
            return len(self._candidates)
        return len(self.space) + len(self._others)

    @property
    def others(self) -> list[Config]:
        """The implementations, and the configs that were admitted whatever the space."""
        return [*self._others, *(one.config for one in self._admitted)]

    def of(self, config: Config) -> Candidate | None:
        """The candidate with the launch of a config of the space, or of an admitted one; None if it is illegal."""
        if config in self._candidates:
            return self._candidates[config]
        return self._resolve(config) if self._has(config) else None

    def admit(self, configs: Iterable[Config]) -> list[Candidate]:
        """Add configs whatever the space; returns the candidates with their launches, in order, each once."""
        self._admitted = _distinct([*self._admitted, *map(self._resolve, sorted(configs))])
        return self._admitted

    def _resolve(self, config: Config) -> Candidate | None:
        self.requested += 1
        try:
            launch = self._spec.launch(config, self.problem, self._target)
        except IllegalConfigError as error:
            self.pruned[_kind(str(error))] += 1
            return None
        new = Candidate(config, launch)
        candidate = self._candidates[config] = self._of_launch.setdefault(launch, new)
        if candidate is not new:
            self.pruned["same launch as another config"] += 1
        return candidate

    def among(self, configs: Iterable[Config]) -> list[Candidate]:
        """The candidates of these configs, in order, each once."""
        return _distinct(map(self.of, configs))

    def draw(self, count: int, random: Random) -> list[Candidate]:
        """At most so many random candidates, in order: fewer if many configs are illegal, or all if there are few."""
        if not isinstance(self.space, Drawn) and len(self.space) <= count:
            return self.among(self.space)
        candidates: dict[Config, Candidate] = {}
        for _ in range(_TRIES * count):
            config = self._random_config(random)
            if config is not None and (candidate := self.of(config)):
                candidates[candidate.config] = candidate
            if len(candidates) == count:
                break
        return sorted(candidates.values())

    def subset(self, configs: Iterable[Config], seed: int, count: int) -> list[Candidate]:
        """Candidates that stand for all: `count` random ones, implementations, those of `configs`, admitted ones.

        With the same seed the random ones of problems of one operator have the same configs, if they are legal there.
        """
        fixed = map(self.of, [*configs, *self._others])
        return _distinct([*self._admitted, *fixed, *self.draw(count, Random(seed))])

    def __bool__(self) -> bool:
        configs = self.space.some() if isinstance(self.space, Drawn) else islice(self.space, _MOST_LISTED)
        return bool(self._candidates) or any(map(self.of, chain(self._others, configs)))

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._all)

    def __getitem__(self, index: Any) -> Any:
        return self._all[index]

    __hash__ = object.__hash__

    def _has(self, config: Config) -> bool:
        if isinstance(config, Implementation):
            return self._spec.knows(config)
        is_in = self._spec.knows(config) if isinstance(self.space, Drawn) else config in self.space
        rule = self._spec.leaves_out
        return is_in and not (rule and rule(config, self.problem, self._target))

    def _random_config(self, random: Random) -> Config | None:
        if not isinstance(self.space, Drawn):
            return self.space[random.randrange(len(self.space))]
        return self.space.of_trial(self.space.trial(random))

    @cached_property
    def _all(self) -> list[Candidate]:
        """Every config is asked, in order, so that the least of equal launches is kept."""
        if isinstance(self.space, Drawn) or len(self.space) > _MOST_LISTED:
            why = "draws its configs" if isinstance(self.space, Drawn) else f"has {len(self.space)} configs"
            raise UsageError(
                f"operator {self._spec.name!r} {why}, not all of which can be timed: expected a strategy that leaves "
                "configs out, such as plane, or the space portfolio"
            )
        return _distinct(map(self.of, sorted({*self._candidates, *self._others, *self.space})))


def _distinct(candidates: Iterable[Candidate | None]) -> list[Candidate]:
    """In order, each once, without those that are None."""
    return sorted({candidate.config: candidate for candidate in candidates if candidate}.values())


def _kind(reason: str) -> str:
    """A reason without its numbers, for counting."""
    return "illegal: " + " ".join(word for word in reason.split() if not word.isdigit())
