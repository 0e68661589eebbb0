"""The baseline of a fit: a table or a rule against which the new table must not regress."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from normtune.errors import UsageError
from normtune.heuristics.rules import RULES
from normtune.heuristics.rules.rule import Rule
from normtune.heuristics.solver.simplify import replaced as with_parts
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import find, operator, read_config
from normtune.kernels.problem import Problem, Shape, axes_at, axes_of
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.tree import Leaf, Tree, choose, configs_of
from normtune.kernels.target import Target

# No baseline: the new table is not even compared with the replaced one.
NONE = "none"
# The operators' default configs, which may be the rule of a user's library.
DEFAULT = "default"


def _default_config(problem: Problem, target: Target) -> Config:
    if find(problem.operator) is None:
        raise UsageError(
            f"--baseline is {DEFAULT}, but {problem.operator} is not registered and has no default config: --load the "
            "file that declares it, or name a table"
        )
    return operator(problem.operator).default_config(problem, target)


DEFAULT_RULE = Rule(DEFAULT, "the default config", "the operator", _default_config)
# Baselines that are not files.
NAMES = (NONE, DEFAULT, *RULES)


# Config of a baseline for a shape; None without an answer.
Choice = Callable[[Shape], Config | None]


@dataclass(frozen=True)
class Incumbents:
    """The baseline of all operators.

    Attributes:
        trees: of a table, by key; empty for a rule.
        rule: of a library; None for a table.
    """

    trees: dict[Key, Tree]
    rule: Rule | None = None

    def of(self, key: Key, target: Target) -> Choice | None:
        """The baseline of one key; None if the table has no function for it."""
        rule = self.rule
        if rule:
            return lambda shape: rule.choose(Problem.at(key, shape), target)
        tree = next((self.trees[name] for name in key.names if name in self.trees), None)
        if tree is None:
            return None
        return lambda shape: choose(tree, shape, axes_at(key))


def of_file(path: str | os.PathLike[str]) -> Incumbents:
    """The table in a file as baseline.

    Raises:
        UsageError: the file cannot be read, is not a table, or has other sizes than its operators.
    """
    table = locate.load(path)
    for key in table.trees:
        if table.axes != axes_of(key.family):
            raise UsageError(
                f"the table {locate.quoted(path)} has sizes {', '.join(table.axes)}: expected "
                f"{', '.join(axes_of(key.family))}, those of {key.family}"
            )
    return Incumbents({key: _of_operator(key.operator, tree) for key, tree in table.trees.items()})


def _of_operator(operator: str, tree: Tree) -> Tree:
    """The tree with configs of the operator's class; a file has only knobs, which two classes may share."""
    return with_parts(tree, (Leaf(read_config(operator, config.to_json())) for config in configs_of(tree)))


def baseline(name: str, folder: Path) -> Incumbents | None:
    """The rule, else the table in a file of `folder`, else the shipped table with this name; None for `none`.

    `default` is the rule of the operators' default configs.

    Raises:
        UsageError: no such rule, file or table exists.
    """
    if name == NONE:
        return None
    if rule := {**RULES, DEFAULT: DEFAULT_RULE}.get(name):
        return Incumbents({}, rule)
    path = folder / name
    if not os.path.lexists(path):
        shipped = locate.by_name()
        if name not in shipped:
            raise UsageError(
                f"baseline {locate.quoted(name)} is no rule, file or shipped table: expected a table that `normtune "
                f"fit` wrote, or one of {', '.join([*NAMES, *shipped])}"
            )
        path = shipped[name]
    return of_file(path)
