"""Launches as calls ask for them, noted while a warmup makes the calls.

In: requests, from any thread: autograd has one of its own. Out: a list of them.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor

from normtune.kernels.call import KernelCall
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem


class Request(NamedTuple):
    """The arguments of `dispatch.prepared`."""

    spec: OperatorSpec
    problem: Problem
    tensors: Mapping[str, Tensor | None]
    scalars: Mapping[str, float]
    batch_invariant: bool
    options: Mapping[str, Any] | None
    is_in_place: bool


# A launch that no table knows: its kernel calls and their workspace, of tensors by name and the number of rows for
# which they are chosen, None for that of the tensors.
Tableless = Callable[[Mapping[str, Tensor], int | None], tuple[Sequence[KernelCall], Tensor]]


class TablelessRequest(NamedTuple):
    """The arguments of `dispatch.prepared_without_table`."""

    calls_of: Tableless
    tensors: Mapping[str, Tensor]


_noted: list[Request | TablelessRequest] | None = None
_noting = threading.Lock()


def note(request: Request | TablelessRequest) -> None:
    """Note a request, if a warmup asks for it."""
    if _noted is not None:
        _noted.append(request)


@contextmanager
def noted() -> Iterator[list[Request | TablelessRequest]]:
    """The requests of all threads inside of a `with`; one at a time."""
    global _noted
    with _noting:
        found: list[Request | TablelessRequest] = []
        _noted = found
        try:
            yield found
        finally:
            _noted = None
