"""Operators of a Python file that is not installed.

In: a path. Out: the operators that the file registers, here and in the processes that the tool starts.
"""

import os
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.operator import operators

_FILES: dict[str, ModuleType] = {}


def load(path: str | os.PathLike[str]) -> None:
    """Run a Python file that registers operators, once; processes that the tool starts later load it, too.

    Raises:
        UsageError: it cannot be read or run, or registers nothing.
    """
    place = str(Path(path).resolve())
    if place in _FILES:
        return
    known = set(operators())
    # By this name what its configs are pickled as is found again in other processes.
    name = f"normtune_operators_{re.sub(r'[^0-9A-Za-z]', '_', Path(place).stem)}"
    found = spec_from_file_location(name, place)
    if found is None or found.loader is None or not Path(place).is_file():
        raise UsageError(f"cannot load operators from {path}: expected a Python file")
    module = module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
        if set(operators()) == known:
            raise UsageError("it registers no operator: normtune.register or @normtune.kernel_operator does")
    # Whatever the file raises.
    except Exception as error:
        del sys.modules[name]
        told = str(error) if isinstance(error, NormtuneError) else f"{type(error).__name__}: {error}"
        raise UsageError(f"cannot load operators from {path}: {told}") from error
    _FILES[place] = module


def loaded() -> tuple[str, ...]:
    """The files that `load` ran, in order."""
    return tuple(_FILES)
