"""What the short form of an operator declares: its tensors, its space, and the faults of both.

In: the arguments of `short_form.kernel_operator`. Out: buffers of a problem, configs, lines that name a fault.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import product

from normtune.errors import UsageError
from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import IN_OUT, INPUT, ITEMSIZE, ROLES, WEIGHT, Buffer, Problem
from normtune.kernels.target import TARGETS, Target

AXES = ("rows", "hidden")
# What the function takes besides tensors and scalars.
OTHERS = ("config", "problem")
Legal = Callable[[Config, Problem, Target], bool]


def check_legal(legal: Legal, spec: OperatorSpec, configs: Sequence[Config]) -> None:
    """Refuse a `legal` by which a config that is illegal is legal again for longer rows: regions are judged by theirs.

    Raises:
        UsageError: it is so for one of these configs.
    """
    sizes = [size for size in (1 << power for power in range(17)) if size <= spec.max_hidden]
    of = spec.at(**{name: values[0] for name, values in spec.sizes.items()})
    problems = [of.problem(1, size, of.dtypes[0]) for size in sizes]
    for config in configs:
        said = [bool(legal(config, problem, TARGETS["sm_90"])) for problem in problems]
        if sorted(said, reverse=True) != said:
            first = said.index(False)
            raise UsageError(
                f"operator {spec.name!r}: legal says no to {config} at hidden {sizes[first]} and yes at hidden "
                f"{sizes[said.index(True, first)]}: what is illegal has to stay so for longer rows; what a sweep need "
                "not time is said by leaves_out"
            )


@lru_cache(256)
def parameters(function: Callable[..., object]) -> tuple[str, ...]:
    """Names that a function takes."""
    return tuple(inspect.signature(function).parameters)


@lru_cache(64)
def _product(config: type[Config], space: tuple[tuple[str, tuple[int | str, ...]], ...]) -> tuple[Config, ...]:
    names = [name for name, _ in space]
    return tuple(sorted(config(**dict(zip(names, values, strict=True))) for values in product(*(v for _, v in space))))


def space_of(config: type[Config], space: Mapping[str, Sequence[int | str]]) -> list[Config]:
    """All configs of a space, ordered."""
    return list(_product(config, tuple((name, tuple(values)) for name, values in space.items())))


def buffers_of(declared: Mapping[str, str], problem: Problem) -> tuple[Buffer, ...]:
    """The tensors of a problem."""
    found = []
    for name, text in declared.items():
        role, axes, dtype = tensor_of(text, tuple(name for name, _ in problem.key.sizes))
        found.append(problem.buffer(name, ",".join(axes), role, dtype))
    return tuple(found)


@lru_cache(256)
def tensor_of(text: str, sizes: tuple[str, ...]) -> tuple[str, tuple[str, ...], str]:
    """Role, axes and dtype of a tensor as it was declared, the last empty for the problem's.

    Raises:
        ValueError: it is neither of the forms.
    """
    role, *rest = text.split() or [""]
    axes: tuple[str, ...] = ("hidden",) if role == WEIGHT else AXES
    dtype = ""
    for word in rest:
        if set(word.split(",")) <= {*AXES, *sizes}:
            axes = tuple(word.split(","))
        elif word in ITEMSIZE:
            dtype = word
        else:
            known = ", ".join((*AXES, *sizes))
            raise ValueError(f"{word!r} is neither a shape (of {known}) nor a dtype ({', '.join(ITEMSIZE)})")
    if role not in ROLES:
        raise ValueError(f"role {role!r}: expected one of {', '.join(ROLES)}")
    return role, axes, dtype


def faults_of(
    function: Callable[..., object],
    config: type[Config],
    space: Mapping[str, Sequence[int | str]],
    buffers: Mapping[str, str],
    scalars: Mapping[str, float],
    sizes: tuple[str, ...],
) -> list[str]:
    """Faults of a declaration that are not visible in its spec; `register` reports the others."""
    if not (isinstance(config, type) and issubclass(config, Config) and config.knobs):
        return [f"config is {config!r}: expected a subclass of normtune.Config with a knob or more"]
    faults = []
    if set(space) != set(config._fields):
        faults.append(f"space has {', '.join(space) or 'nothing'}: expected the knobs {', '.join(config._fields)}")
    for knob in config.knobs:
        values = space.get(knob.name)
        if values is not None and (not values or any(type(value) is not knob.kind for value in values)):
            faults.append(f"space of {knob.name} is {values!r}: expected values of type {knob.kind.__name__}")
    declared = {}
    for buffer, text in buffers.items():
        try:
            declared[buffer] = tensor_of(text, sizes)
        except ValueError as error:
            faults.append(f"buffer {buffer!r} is {text!r}: {error}")
    reads = [axes for role, axes, _ in declared.values() if role in (INPUT, IN_OUT)]
    axes = {axis for role, axes, _ in declared.values() if role in (INPUT, WEIGHT, IN_OUT) for axis in axes}
    if not faults and not reads:
        faults.append("no buffer is an input")
    faults += [
        f"no input has the axis {axis!r}" for axis in (*AXES, *sizes) if reads and not faults and axis not in axes
    ]
    taken = {*parameters(function)}
    expected = {*buffers, *scalars}
    if "config" not in taken:
        faults.append("the function takes no config")
    faults += [f"the function takes no {missing!r}, which is declared" for missing in sorted(expected - taken)]
    faults += [
        f"the function takes {unknown!r}: no buffer and no scalar is declared so"
        for unknown in sorted(taken - expected - {*OTHERS})
    ]
    return faults
