"""The spec of an operator that nobody declared, of which only times are known.

In: its name, the class of its configs and its dtypes. Out: an `OperatorSpec` for a fit: each config is its own launch,
legal at every shape, and moves as many bytes as a tensor of rows x hidden. It is not registered and has no kernel.
"""

from typing import NamedTuple

from normtune.kernels.config import COPY, Config
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import INPUT, MAX_ROWS, ROWS_HIDDEN


class _Launch(NamedTuple):
    """The launch of a config: nothing is known of it but that."""

    binary: Config
    grid: int = 1
    workspace: int = 0


def undeclared_spec(name: str, config: type[Config], dtypes: tuple[str, ...]) -> OperatorSpec:
    """The spec of an operator with these knobs that was timed in these dtypes."""
    return OperatorSpec(
        name=name,
        modes=(),
        config=config,
        dtypes=dtypes,
        max_hidden=MAX_ROWS,
        buffers=lambda problem: (problem.buffer("x", ROWS_HIDDEN, INPUT),),
        space=lambda space, problem, target: (),
        resolve=lambda config, problem, target, alignment: _Launch(config),
        default_config=lambda problem, target: COPY,  # never legal: what would run without a table is not known
        kernel_calls="",
        reference_module="",
    )
