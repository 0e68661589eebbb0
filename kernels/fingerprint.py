"""The fingerprint of an operator's kernels: it changes when what is launched changes, and with nothing else.

In: an `OperatorSpec`. Out: a sha256 over the statements that its launches use: its launcher or launch rules, its
kernels with the options of `triton.jit`, and the functions, classes and values that these name, in any module. Lines,
comments, docstrings, and names of files, functions and classes do not count. Reads sources as text: needs neither
triton nor torch, and gives the same on every Python.
"""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from types import ModuleType
from typing import Any, NamedTuple

from normtune.kernels.definitions import Definition, Modules, is_library
from normtune.kernels.operator import OperatorSpec, find, members
from normtune.kernels.syntax import Reference
from normtune.kernels.target import TARGETS

# In place of the fingerprint of kernels that another program measured.
UNKNOWN = "unknown"
# Size of the problem whose launch is compared with what was read.
_USUAL = 1024


class Root(NamedTuple):
    """A function or class at which reading begins; or a plain value as text, without a module."""

    name: str
    module: str = ""
    line: int = 0


class Sources(NamedTuple):
    """What the launches of an operator use.

    Attributes:
        digest: `sha256:` and 64 hexadecimal digits.
        definitions: the statements that were read, in the order in which they are named.
        faults: what reading does not find, such as names in `globals()`; changes there are not noticed.
    """

    digest: str
    definitions: tuple[Definition, ...]
    faults: tuple[str, ...]


@cache
def fingerprint(spec: OperatorSpec) -> str:
    """The kernel fingerprint of an operator, `sha256:` and 64 hexadecimal digits."""
    return sources(spec).digest


def sources(spec: OperatorSpec) -> Sources:
    """What the launches of an operator use."""
    return _sources(tuple(_roots(spec.launched())))


def changed(measured: Mapping[str, str]) -> list[str]:
    """The registered operators whose kernels changed since their fingerprint was `measured`, as far as it is known."""
    specs = {name: spec for name, of in measured.items() if of != UNKNOWN and (spec := find(name))}
    return [name for name, spec in specs.items() if measured[name] != fingerprint(spec)]


def unnoticed(names: Iterable[str]) -> list[str]:
    """A line for each of these operators with code that is not found by reading, whose changes go unnoticed.

    Of the kernels of a launcher, those that its default config launches must be among what was read.
    """
    lines = []
    for name in dict.fromkeys(names):
        spec = find(members(name)[0])
        if spec and (faults := [*sources(spec).faults, *_unread_kernels(spec)]):
            lines.append(f"a change of the kernels of {name} may go unnoticed: they use {'; '.join(faults)}")
    return lines


def _unread_kernels(spec: OperatorSpec) -> Iterator[str]:
    target = TARGETS["sm_90"]  # of the launchers that were read, hardly any launches other kernels on another one
    problem = spec.problem(_USUAL, min(_USUAL, spec.max_hidden), spec.dtypes[0])
    launch = spec.launch_of(spec.default_config(problem, target), problem, target)
    read = sources(spec).definitions
    for kernel, *_ in getattr(launch, "calls", ()):
        module = _modules().module(kernel.module)
        places = module.places.get(kernel.name.partition(".")[0], ()) if module else ()
        if not any(Definition(kernel.module, place) in read for place in places):
            yield f"{kernel.name} of {kernel.module}, which its launcher does not name"


_modules = cache(Modules)


def forget() -> None:
    """Read all files again, which may have changed since this process read them."""
    for function in (_modules, _sources, fingerprint):
        function.cache_clear()


@cache
def _sources(roots: tuple[Root, ...]) -> Sources:
    """What these functions and classes use."""
    modules = _modules()
    digest = hashlib.sha256()
    numbers: dict[Definition, int] = {}
    faults: dict[str, None] = {}
    for root in roots:
        if not root.module:
            digest.update(f"value {root.name}\n".encode())
            continue
        module = modules.module(root.module)
        places = [] if module is None else module.places.get(root.name) or module.lambdas(root.line)
        begin = [Definition(root.module, place) for place in places]
        if module and not begin:
            begin = [*modules.meaning(root.module, Reference(root.name)).definitions]
        if not begin:
            faults[f"{root.name} of {root.module}, whose source cannot be read"] = None
        digest.update(f"root {_read(begin, modules, numbers, faults, digest.update)}\n".encode())
    return Sources("sha256:" + digest.hexdigest(), tuple(numbers), tuple(faults))


def _read(
    begin: list[Definition],
    modules: Modules,
    numbers: dict[Definition, int],
    faults: dict[str, None],
    update: Callable[[bytes], object],
) -> list[int]:
    """Read statements and all that they use, depth first; returns the numbers of the statements."""
    for definition in begin:
        if definition in numbers:
            continue
        number = numbers[definition] = len(numbers)
        statement = modules.statement(definition)
        update(f"{number} {statement.text}\n".encode())
        for name, meaning in statement.names.items():
            if meaning.fault:
                faults[f"{meaning.fault} ({statement.place})"] = None
            used = _read([*meaning.definitions], modules, numbers, faults, update)
            update(f"{number} {name} is {used} {sorted(meaning.libraries)}\n".encode())
    return [numbers[definition] for definition in begin]


def _roots(value: Any) -> Iterator[Root]:
    """Where reading begins for a value: functions, classes, kernels, `module:name`, and plain values, also inside."""
    while hasattr(value, "fn"):  # a kernel in `triton.jit` and others
        value = value.fn
    if isinstance(value, partial):
        yield from _roots((value.func, value.args, value.keywords))
    elif isinstance(value, OperatorSpec):
        yield from _roots(value.buffers)
    elif isinstance(value, Mapping):
        yield from _roots([*value.items()])
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _roots(one)
    elif isinstance(value, str) and value.count(":") == 1:
        module, _, name = value.partition(":")
        yield _root(module, name)
    elif callable(value):
        function = inspect.unwrap(value if hasattr(value, "__qualname__") else type(value))
        line = getattr(getattr(function, "__code__", None), "co_firstlineno", 0)
        yield _root(function.__module__ or "", function.__qualname__, line)
        for cell in getattr(function, "__closure__", None) or ():
            yield from _roots(cell.cell_contents)
    elif isinstance(value, ModuleType):
        yield Root(value.__name__)
    elif " at 0x" in (text := repr(value)):  # an object, of which the class is read
        yield from _roots(type(value))
    else:
        yield Root(f"{type(value).__name__} {text}")


def _root(module: str, name: str, line: int = 0) -> Root:
    return Root(f"{module}.{name}") if not module or is_library(module) else Root(name.partition(".")[0], module, line)
