"""The launch rule, or the list of an autotuner, of another library. Each rule has a file of its own."""

from collections.abc import Callable
from typing import NamedTuple

from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.kernels.tablefile.tree import Tree
from normtune.kernels.target import Target

FORWARD = "rms_norm_forward"
BACKWARD = "rms_norm_backward"


class Rule(NamedTuple):
    """The launch rule of another library, in configs of normtune.

    Attributes:
        name: for commands, `te_rocm`.
        title: library and kernel, for a sentence.
        source: of the rule.
        choose: (problem, target) to the config equivalent to that library's launch; None if the rule has no answer, or
            one that no kernel here can run. All answers are legal on an H200 at every shape.
        tree: name of an operator to the rule as a tree, if it consists of thresholds on rows and hidden; else None.
    """

    name: str
    title: str
    source: str
    choose: Callable[[Problem, Target], Config | None]
    tree: Callable[[str], Tree | None] = lambda operator: None


class Autotuned(NamedTuple):
    """A library's use of `triton.autotune`: it times a list of configs at each new shape.

    Its answer at a shape is the config of least median time in its list there, if the list was timed. So it is not a
    rule, but a bound on such tuning: as if every shape had been tuned before, at no cost. The winner is scored on the
    times that made it win.

    Attributes:
        name: for commands, `te_rocm.autotune`.
        title: as in `Rule`.
        source: of the list.
        configs: (problem, target) to the list; empty if that library has no answer. Some may be illegal here.
    """

    name: str
    title: str
    source: str
    configs: Callable[[Problem, Target], tuple[Config, ...]]
