"""What a launch rule of another library is here.

In: nothing. Out: `Rule` and `Autotuned`. Each has a file of its own; the names under which they are found are in the
package.
"""

from collections.abc import Callable
from typing import NamedTuple

from normtune.heuristics.tablefile.tree import Tree
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target

FORWARD = "rms_norm_forward"
BACKWARD = "rms_norm_backward"


class Rule(NamedTuple):
    """How another library decides on a launch, in the terms of this one.

    Attributes:
        name: under which it is asked for, `te_rocm`.
        title: library and kernel, as one would say it in a sentence.
        source: where the rule was read.
        choose: (problem, target) to the config that does here what that library does there; None where the rule has no
            answer, or one that no kernel here can run. What is answered is legal on an H200 at every shape.
        tree: name of an operator to the rule as a tree, where thresholds on rows and hidden are all of it; else None.
    """

    name: str
    title: str
    source: str
    choose: Callable[[Problem, Target], Config | None]
    tree: Callable[[str], Tree | None] = lambda operator: None


class Autotuned(NamedTuple):
    """How another library lets `triton.autotune` decide: by timing a list of configs at each new shape.

    It has an answer only where that list was timed: of its configs the one of the least median time at that very shape.
    So it is no rule but a bound of what such tuning can reach: each shape is a key of its own, as if every one had been
    met before, at no cost; the winner is scored on the times that made it win.

    Attributes:
        name: under which it is asked for, `te_rocm.autotune`.
        title: as in `Rule`.
        source: where the list was read.
        configs: (problem, target) to the list; empty where that library has no answer. Some may be illegal here.
    """

    name: str
    title: str
    source: str
    configs: Callable[[Problem, Target], tuple[Config, ...]]
