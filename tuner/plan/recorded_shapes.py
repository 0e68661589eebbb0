"""The shapes of a process's calls, counted for sweeps and fits: `normtune.record_shapes`.

In: calls inside of a `with`. Out: `ShapeCounts`, as a data frame, or as a CSV file that `normtune sweep --shapes` and
`normtune fit --weights` read.
"""

import csv
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normtune.errors import UsageError
from normtune.kernels.mode import Dweight, Rstd
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem, axes_of, function_key
from normtune.results.atomic import replaced
from normtune.results.options import as_names
from normtune.tuner.plan.grids import is_of

if TYPE_CHECKING:
    from pandas import DataFrame


class ShapeCounts:
    """How often a process called which operator at which shape. Threads may add while others read."""

    def __init__(self) -> None:
        self._counts: Counter[Problem] = Counter()
        self._lock = threading.Lock()

    def add(self, problem: Problem) -> None:
        """Count one call."""
        with self._lock:
            self._counts[problem] += 1

    def frame(self) -> "DataFrame":
        """A pandas DataFrame with a line for each operator, variant, dtype and shape.

        Its columns are `operator`, `variant`, `dtype`, the sizes (`rows`, `hidden`, or the operator's own), `count` and
        `gradients`: whether the call is a backward, or stored what a backward reads. `qk_norm` stores nothing.
        """
        from pandas import DataFrame

        lines = [
            {
                **dict(zip(("operator", "variant", "dtype"), function_key(problem.key).columns, strict=True)),
                **_sizes(problem),
                "count": count,
                "gradients": _has_gradients(problem),
            }
            for problem, count in self._ordered()
        ]
        sizes = dict.fromkeys(name for problem, _ in self._ordered() for name in _sizes(problem))
        columns = ["operator", "variant", "dtype", *sizes, "count", "gradients"]
        return DataFrame(lines, columns=columns).astype(dict.fromkeys(sizes, "Int64"))

    def save(self, path: str | os.PathLike[str], operators: str | Iterable[str] = ()) -> None:
        """Write the file of `normtune sweep --shapes` and `normtune fit --weights`, where the count is the weight.

        Args:
            path: of the CSV file, with the columns operator, dtype, the sizes and weight.
            operators: only these operators or variants, by name; by default all.

        Raises:
            UsageError: nothing was recorded, or operators have different sizes.
            NormtuneError: the file cannot be written.
        """
        names = as_names("operators", operators)
        counts = [(problem, count) for problem, count in self._ordered() if is_of(_name(problem), names)]
        if not counts:
            what = f"no call of {', '.join(names)}" if names else "no call"
            raise UsageError(
                f"{what} was recorded, so {os.fspath(path)} is not written: call normtune's functions inside of `with "
                "normtune.record_shapes()`, in bfloat16, float16 or float32"
            )
        axes = {axes_of(problem.key.family): problem.key.family for problem, _ in counts}
        if len(axes) > 1:
            named = " and ".join(f"{', '.join(sizes)} ({family})" for sizes, family in axes.items())
            raise UsageError(f"the recorded operators have the sizes {named}: save each with operators=NAME")
        with replaced(Path(path)) as temporary, temporary.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("operator", "dtype", *next(iter(axes)), "weight"))
            for problem, count in counts:
                writer.writerow((_name(problem), problem.dtype, *problem.function_shape, count))

    def _ordered(self) -> list[tuple[Problem, int]]:
        with self._lock:
            counts = [*self._counts.items()]
        return sorted(counts, key=lambda line: (line[0].key, line[0].hidden, line[0].rows))

    def _repr_html_(self) -> str:
        """The table of `frame`."""
        return self.frame()._repr_html_()  # type: ignore[no-any-return, operator]


@contextmanager
def record_shapes() -> Iterator[ShapeCounts]:
    """Count the calls of normtune's operators inside of a `with`, of all threads of this process.

    `with normtune.record_shapes() as shapes:` counts a forward, a backward and each further launch as a call of its own
    operator, eager or compiled. On a CPU, where the formula answers, it counts what a GPU would launch. It does not see
    what no kernel takes (float64, rows over 65536, second derivatives, transforms of `torch.func`), nor replays of a
    CUDA graph: record without graphs. Put it around the call of a compiled function, not inside.

    Yields:
        `ShapeCounts`, with `frame` and `save`; it stays after the `with`.
    """
    from normtune.kernels.call_counts import listening

    shapes = ShapeCounts()
    with listening(shapes.add):
        yield shapes


def _name(problem: Problem) -> str:
    """Operator and variant, as files and options name them; without the integer that is a third size."""
    return function_key(problem.key).text


def _sizes(problem: Problem) -> dict[str, Any]:
    return dict(zip(axes_of(problem.key.family), problem.function_shape, strict=True))


def _has_gradients(problem: Problem) -> bool:
    modes = operator(problem.operator).modes
    return Dweight in modes or (Rstd in modes and Rstd.of(problem) is Rstd.STORED)
