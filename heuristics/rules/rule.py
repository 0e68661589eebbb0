"""The launch rule, or the list of an autotuner, of another library; libraries without a backward share a file."""

from collections.abc import Callable
from typing import NamedTuple

from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target

FORWARD = "rms_norm_forward"
BACKWARD = "rms_norm_backward"


class Rule(NamedTuple):
    """The launch rule of another library, in configs of normtune.

    Attributes:
        name: for commands, `te_rocm`.
        title: library and kernel, for a sentence.
        source: of the rule.
        choose: the config equivalent to the library's launch for a problem and a target; None if the rule has no
            answer, or one that no kernel of normtune can run. All configs are legal on an H200 at every shape.
    """

    name: str
    title: str
    source: str
    choose: Callable[[Problem, Target], Config | None]


class Autotuned(NamedTuple):
    """A library's use of `triton.autotune`: it times a list of configs at each new shape.

    Its answer at a shape is the config of least median time in its list, if the list was timed. So it is a bound on
    such tuning, as if every shape had been tuned before at no cost. The winner is scored on the same times that
    selected it.

    Attributes:
        name: for commands, `te_rocm.autotune`.
        title: library and kernel, for a sentence.
        source: of the list.
        configs: the list for a problem and a target; empty if the library has no answer. Some may be illegal here.
    """

    name: str
    title: str
    source: str
    configs: Callable[[Problem, Target], tuple[Config, ...]]
