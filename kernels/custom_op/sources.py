"""The modules that a decorated function uses: its own, and those of libraries whose objects it names.

In: the function. Out: the modules whose change makes its measurements stale, and whether its kernels are decorated.
"""

import inspect
import sys
from collections.abc import Callable
from types import ModuleType

# Packages whose versions are recorded elsewhere, or on which no launch depends.
_NO_SOURCES = {"torch", "triton", "numpy", "normtune", "builtins"} | {*sys.stdlib_module_names}


def sources_of(function: Callable[..., object]) -> tuple[str, ...]:
    """The function's module, and the modules of libraries whose objects it names; a change of one makes it stale."""
    inner = inspect.unwrap(function)
    names = inner.__code__.co_names
    used = inspect.getclosurevars(inner)
    modules, objects = [function.__module__], [*used.globals.values(), *used.nonlocals.values()]
    ids: set[int] = set()
    while objects:
        one = objects.pop()
        if id(one) in ids:
            continue
        ids.add(id(one))
        if isinstance(one, ModuleType):
            objects += [vars(one)[name] for name in names if name in vars(one)]
        name = one.__name__ if isinstance(one, ModuleType) else getattr(inspect.unwrap(one), "__module__", None)
        file = getattr(sys.modules.get(name or ""), "__file__", None) or ""
        if name and name.partition(".")[0] not in _NO_SOURCES and name not in modules and file.endswith(".py"):
            modules.append(name)
    return modules[0], *sorted(modules[1:])


def names_decorated_kernels(function: Callable[..., object]) -> bool:
    """Whether one of its modules has a kernel in `triton.autotune` or `triton.heuristics`."""
    from normtune.kernels.calling.triton_inside import is_decorated

    return any(is_decorated(value) for name in sources_of(function) for value in vars(sys.modules[name]).values())
