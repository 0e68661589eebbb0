"""The two sides of `normtune diff`: tables, rules of other libraries, and picks of their autotuners."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from normtune.errors import UsageError
from normtune.heuristics.rules import AUTOTUNED, RULES
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.problem import Problem
from normtune.kernels.tablefile.locate import by_name, load, read, told
from normtune.kernels.tablefile.parse import normalised_trees, trees
from normtune.kernels.tablefile.relative_tree import on_sms
from normtune.kernels.tablefile.tree import Tree
from normtune.kernels.target import Target


class Side(NamedTuple):
    """A table or a rule.

    Attributes:
        name: for messages.
        choose: (problem, target) to its config, None if it has none.
        tree: (key, target) to its tree on that GPU; None if it has none, as most rules and thresholds in bytes.
    """

    name: str
    choose: Callable[[Problem, Target], Config | None]
    tree: Callable[[Key, Target], Tree | None] = lambda key, target: None


class Tuned(NamedTuple):
    """Picks of an autotuner: at each shape, the config of least median time in a list.

    Attributes:
        name: for messages.
        configs: (problem, target) to the list; empty if it has no answer.
    """

    name: str
    configs: Callable[[Problem, Target], tuple[Config, ...]]


def side(text: str) -> Side:
    """The rule of that name, else the table in the file of that name, else the shipped table of that name.

    Raises:
        UsageError: there is none of them, or the file is not a table.
    """
    if text in RULES:
        rule = RULES[text]
        return Side(text, rule.choose, lambda key, target: rule.tree(key.operator))
    path: str | Path = text
    if not os.path.lexists(text):
        named = by_name()
        if text not in named:
            raise UsageError(
                f"{told(text)} is no file, rule or shipped table: expected a table that `normtune fit --out` wrote, or "
                f"one of {', '.join([*RULES, *AUTOTUNED, *named])}"
            )
        path = named[text]
    return _table(path, told(text))


def contender(text: str) -> Side | Tuned:
    """As `side`, or the autotuned rule of that name.

    Raises:
        UsageError: as `side`.
    """
    return Tuned(text, AUTOTUNED[text].configs) if text in AUTOTUNED else side(text)


def _table(path: str | Path, name: str) -> Side:
    table = load(path)
    text = read(path)
    absolute, relative = (trees(text), {}) if table.is_bound else ({}, normalised_trees(text))

    def choose(problem: Problem, target: Target) -> Config | None:
        answer = table.bound(target.sms, target.l2_bytes).answer(problem.key)
        return answer(*problem.shape) if answer else None

    def tree(key: Key, target: Target) -> Tree | None:
        for name in key.names:
            if name in absolute:
                return absolute[name]
            if name in relative:
                return on_sms(relative[name], target.sms)
        return None

    return Side(name, choose, tree)
