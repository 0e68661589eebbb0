"""The two sides of `normtune diff`: tables, rules of other libraries, and picks of their autotuners."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from normtune.errors import UsageError
from normtune.heuristics.rules import AUTOTUNED, RULES
from normtune.heuristics.rules.rule import Autotuned
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.problem import Problem
from normtune.kernels.tablefile.locate import by_name, load, quoted
from normtune.kernels.tablefile.tree import Tree
from normtune.kernels.target import Target


class Side(NamedTuple):
    """A table or a rule.

    Attributes:
        name: for messages.
        choose: the config for a problem and a target; None without an answer.
        tree: the tree of a table for a key; None without one, as for rules.
    """

    name: str
    choose: Callable[[Problem, Target], Config | None]
    tree: Callable[[Key], Tree | None] = lambda key: None


def side(text: str) -> Side:
    """The rule, else the file of a table, else the shipped table with this name.

    Raises:
        UsageError: none of them exists, or the file is not a table.
    """
    if text in RULES:
        return Side(text, RULES[text].choose)
    path: str | Path = text
    if not os.path.lexists(text):
        named = by_name()
        if text not in named:
            raise UsageError(
                f"{quoted(text)} is no file, rule or shipped table: expected a table that `normtune fit --out` wrote, "
                f"or one of {', '.join([*RULES, *AUTOTUNED, *named])}"
            )
        path = named[text]
    return _table(path, quoted(text))


def contender(text: str) -> Side | Autotuned:
    """The autotuner with this name, else `side`.

    Raises:
        UsageError: neither exists, or the file is not a table.
    """
    return AUTOTUNED[text] if text in AUTOTUNED else side(text)


def _table(path: str | Path, name: str) -> Side:
    table = load(path)

    def choose(problem: Problem, target: Target) -> Config | None:
        answer = table.function(problem.key)
        return answer(*problem.shape) if answer else None

    def tree(key: Key) -> Tree | None:
        return next((table.trees[name] for name in key.names if name in table.trees), None)

    return Side(name, choose, tree)
