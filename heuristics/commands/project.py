"""A project's options of `normtune fit`, from [tool.normtune] in its pyproject.toml.

In: pyproject.toml of the current folder. Out: values of options that the command line omits. A stranger's project may
only set options of `FitOptions`, and name no files outside of its folder.
"""

import os
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from normtune.errors import UsageError
from normtune.heuristics.fitting.options import FitOptions, words_of
from normtune.kernels.tablefile.locate import quoted
from normtune.results.options import flag_of, parameter_of
from normtune.results.terminal import say

FILE = "pyproject.toml"
# Options whose value may be a file.
_FILES = ("weights", "baseline", "same_bits_as")
_MOST_BYTES = 1 << 20


def defaults(folder: Path) -> dict[str, Any]:
    """The values in a folder's pyproject.toml, by names of the command's parameters; empty without [tool.normtune].

    Raises:
        UsageError: the file is not TOML, an option is unknown, its value is out of range, or its file outside of the
            folder.
    """
    options = {flag_of(field).removeprefix("--"): field for field in fields(FitOptions)}
    given, values = _table(folder / FILE), {}
    for name, value in given.items():
        if name not in options:
            raise UsageError(f"{FILE}: {name[:40]!r} in [tool.normtune]: expected one of {', '.join(options)}")
        field = options[name]
        values[field.name] = _inside(folder, name, value) if field.name in _FILES else value
    try:
        facts = FitOptions.of_facts(values).facts()
    except UsageError as error:
        raise UsageError(f"{FILE}: {error}") from None
    if facts:
        say(f"normtune: options of {FILE}: {' '.join(words_of(facts))}", error=True)
    return {parameter_of(options[name]): values[options[name].name] for name in given}


def _table(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        table = tomllib.loads(text.decode()).get("tool", {}) if len(text) <= _MOST_BYTES else {}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{FILE} cannot be read ({quoted(str(error))[:200]}): mend it, or run elsewhere") from None
    table = table.get("normtune", {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict):
        raise UsageError(f"{FILE}: tool.normtune is {str(table)[:40]!r}: expected a table of options of `normtune fit`")
    return table


def _inside(folder: Path, name: str, value: Any) -> Any:
    """The value, unless it is the path of a file outside of the folder."""
    if not isinstance(value, str) or not (os.path.isabs(value) or os.path.lexists(folder / value) or ".." in value):
        return value
    root, path = os.path.realpath(folder), os.path.realpath(folder / value)
    if os.path.isabs(value) or os.path.commonpath([root, path]) != root:
        raise UsageError(f"{FILE}: {name} is {value[:80]!r}: expected a file in the folder of {FILE}")
    return value
