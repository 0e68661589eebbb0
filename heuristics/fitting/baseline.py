"""What is in use, than which a new table must not be slower.

In: a table that is replaced, or the baseline that a user names. Out: for each function, its answers and, of a table,
its tree.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from normtune.errors import UsageError
from normtune.heuristics.rules import RULES
from normtune.heuristics.rules.rule import Rule
from normtune.heuristics.tablefile import locate
from normtune.heuristics.tablefile.parse import trees
from normtune.heuristics.tablefile.tree import Tree, choose
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem, join_key, split_key
from normtune.kernels.target import Target


@dataclass(frozen=True)
class Incumbent:
    """What is in use for one operator, variant and dtype.

    Attributes:
        choice: (rows, hidden) to a config, None where there is no answer.
        tree: of a table that is replaced, to which the new one is brought near; None for a mere baseline.
    """

    choice: Callable[[int, int], Config | None]
    tree: Tree | None = None


@dataclass(frozen=True)
class Incumbents:
    """What is in use for all operators.

    Attributes:
        trees: of a table, by key and dtype; empty where it is a rule.
        rule: of a library; None where it is a table.
        replaced: whether the table is to be replaced, and not just compared with.
    """

    trees: dict[tuple[str, str], Tree]
    rule: Rule | None = None
    replaced: bool = False

    def of(self, operator: str, variant: str, dtype: str, target: Target) -> Incumbent | None:
        """What is in use for one of them; None where that has no answer."""
        rule = self.rule
        if rule:
            return Incumbent(
                lambda rows, hidden: rule.choose(Problem(operator, rows, hidden, dtype, variant), target), None
            )
        key = join_key(operator, variant)
        tree = self.trees.get((key, dtype)) or self.trees.get((split_key(key)[0], dtype))
        if tree is None:
            return None
        return Incumbent(lambda rows, hidden: choose(tree, rows, hidden), tree if self.replaced else None)


def of_file(path: str | os.PathLike[str], replaced: bool = False) -> Incumbents:
    """The table in a file.

    Raises:
        UsageError: it cannot be read, or is no table of one GPU.
    """
    if locate.load(path).header.is_for_any_gpu:
        raise UsageError(f"{locate.told(path)} is a table for any GPU: expected one of one GPU, or a rule")
    return Incumbents(trees(locate.read(path)), replaced=replaced)


def baseline(name: str, folder: Path) -> Incumbents:
    """The rule of that name, else the table in the file of that name, else the shipped table of that name.

    Args:
        name: as a user gives it.
        folder: in which a file is looked for.

    Raises:
        UsageError: there is none of them.
    """
    if name in RULES:
        return Incumbents({}, RULES[name])
    path = folder / name
    if not os.path.lexists(path):
        named = locate.by_name()
        if name not in named:
            of_one_gpu = [stem for stem, place in named.items() if place.name != locate.ANY_GPU]
            raise UsageError(
                f"baseline {locate.told(name)} is no rule, file or shipped table: expected a table that `normtune fit` "
                f"wrote, or one of {', '.join([*RULES, *of_one_gpu])}"
            )
        path = named[name]
    return of_file(path)
