"""Operators of a Python file that is not installed.

In: a path. Out: the operators that the file registers, here and in the processes that the tool starts.
"""

import os
import re
import sys
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.operator import operators

# Between the name of a module and its number; no file's stem has it, as other characters become underscores.
NUMBER = "-"

_FILES: dict[str, ModuleType] = {}


def load(path: str | os.PathLike[str]) -> None:
    """Run a Python file that registers operators, once; processes started later also run it.

    Raises:
        UsageError: the file cannot be read or run, or registers nothing.
    """
    file = str(Path(path).resolve())
    if file in _FILES:
        return
    before = set(operators())
    # Pickled configs refer to this module, which other processes import under the same name: they load the same files
    # in the same order. Of files with one stem the later ones get a number.
    name = stem = f"normtune_operators_{re.sub(r'[^0-9A-Za-z]', '_', Path(file).stem)}"
    if others := sum(module.__name__.partition(NUMBER)[0] == stem for module in _FILES.values()):
        name = f"{stem}{NUMBER}{others + 1}"
    module_spec = spec_from_file_location(name, file)
    if module_spec is None or module_spec.loader is None or not Path(file).is_file():
        raise UsageError(f"cannot load operators from {path}: expected an existing Python file")
    module = module_from_spec(module_spec)
    sys.modules[name] = module
    try:
        try:
            module_spec.loader.exec_module(module)
        except Exception:
            if set(operators()) != before or not (gpu := _absent_gpu()):
                raise
            with gpu:
                module_spec.loader.exec_module(module)
        if set(operators()) == before:
            raise UsageError("it registers no operator: normtune.register or @normtune.kernel_operator does")
    # Whatever the file raises; a script may end with `sys.exit()`, which would end the command without a word.
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        message = str(error) if isinstance(error, NormtuneError) else f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError):
            message += "; install it, or name the folder that has it in PYTHONPATH"
        raise UsageError(f"cannot load operators from {path}: {message}") from error
    _FILES[file] = module


def _absent_gpu() -> AbstractContextManager[None] | None:
    """A simulated GPU for libraries that query one when they are imported; None if torch has a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or torch.cuda.is_available():
        return None
    return import_module("normtune.kernels.custom_op.absent_gpu").while_imported()  # type: ignore[no-any-return]


def loaded() -> tuple[str, ...]:
    """The files that `load` ran, in order."""
    return tuple(_FILES)
