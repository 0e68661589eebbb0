"""Tells a listener the problem of each call of this package's functions, while it listens.

In: a listener. Out: the problems of all threads' calls: of each launch on a GPU, and elsewhere of the launch that the
formula replaces. For that, functions through which these calls go are replaced while somebody listens. At other times
no call runs any code of this module.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import Tensor

from normtune.kernels.calling import cached, compiled
from normtune.kernels.calling.arguments import is_for_kernels
from normtune.kernels.calling.eager import CallPlan, problem_of
from normtune.kernels.calling.launcher import BoundLaunch
from normtune.kernels.calling.layout import has_memory, takes_kernels
from normtune.kernels.calling.operation import Operation, Way
from normtune.kernels.custom_op import decorator
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem

Listener = Callable[[Problem], None]

_listeners: tuple[Listener, ...] = ()
_installing = threading.Lock()
# The replaced functions: owner, name, and what they are while nobody listens.
_replaced: list[tuple[Any, str, Any]] = []


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Inside of a `with`, a listener gets the problem of each call, in the thread of the call."""
    global _listeners
    with _installing:
        if not _listeners:
            for owner, name, problem in _CALLS:
                usual = getattr(owner, name)
                _replaced.append((owner, name, usual))
                setattr(owner, name, _telling(usual, problem))
            # The formula of a compiled function would tell nothing.
            _replaced.append((compiled, "way_of", compiled.way_of))
            setattr(compiled, "way_of", _kernel)  # noqa: B010  (its parameters are others)
        _listeners += (listener,)
    try:
        yield
    finally:
        with _installing:
            index = _listeners.index(listener)
            _listeners = _listeners[:index] + _listeners[index + 1 :]
            while _replaced and not _listeners:
                setattr(*_replaced.pop())


def _kernel(*_: Any) -> Way:
    return "kernel"


def _telling(usual: Callable[..., Any], problem_of_call: Callable[..., Problem | None]) -> Callable[..., Any]:
    """A function that tells the listeners the problem of each call that succeeds."""

    @wraps(usual)
    def telling(*arguments: Any, **named: Any) -> Any:
        result = usual(*arguments, **named)
        if problem := problem_of_call(*arguments, **named):
            for listener in _listeners:
                listener(problem)
        return result

    return telling


def _of_forward(
    operation: Operation,
    _key: Any,
    tensors: tuple[Any, ...],
    _scalars: Any,
    _mode: Any,
    is_saving: bool,
    *_: Any,
    **__: Any,
) -> Problem | None:
    return _of_formula(operation, operation.forward, dict(zip(operation.inputs, tensors, strict=True)), is_saving)


def _of_backward(
    _key: Any, tensors: tuple[Any, ...], plan: CallPlan, _needs_rows: bool, needs_columns: bool, *_: Any
) -> Problem | None:
    operation = plan.operation
    assert operation.backward
    names = (*operation.incoming, *operation.saved)
    return _of_formula(operation, operation.backward, dict(zip(names, tensors, strict=True)), needs_columns)


def _of_formula(
    operation: Operation, spec: OperatorSpec, tensors: Mapping[str, Tensor | None], is_whole: bool
) -> Problem | None:
    """The problem of a call that only the device keeps from the kernels; a launched one tells its own."""
    x = next(iter(tensors.values()))
    assert x is not None
    if not (has_memory(x) and x.numel() and is_for_kernels(operation, x)) or takes_kernels(operation, x):
        return None
    return problem_of(operation, spec, tensors, is_whole)


# Owner and name of each function through which calls go, and the problem by its arguments.
_CALLS: tuple[tuple[Any, str, Callable[..., Problem | None]], ...] = (
    (BoundLaunch, "at", lambda launch, *_: launch.problem),
    (cached, "new_forward", _of_forward),
    (cached, "new_backward", _of_backward),
    (decorator, "_launched", lambda _declared, _tensors, _config, problem, _target: problem),
    (decorator.KernelOperator, "_implementation", lambda _operator, _spec, problem, *_: problem),
)
