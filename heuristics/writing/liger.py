"""A fit of Liger-Kernel's RMSNorm kernels as a change of Liger-Kernel: a unified diff of its `ops/rms_norm.py`.

In: a fit of the operators of `examples/liger/rms_norm.py`, and the installed Liger-Kernel. Out: the diff, for `git
apply` in its repository. GPUs like the measured one use the thresholds, others Liger's own condition.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from difflib import unified_diff
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent
from typing import NamedTuple

from normtune.errors import UsageError
from normtune.heuristics.fitting.result import Fit, FittedFunction
from normtune.heuristics.writing.emit import branches
from normtune.kernels.tablefile.tree import configs_of
from normtune.kernels.target import plain_letters
from normtune.results.records import Device


class Pass(NamedTuple):
    """A pass of Liger's RMSNorm.

    Attributes:
        title: for people and in names.
        operator: its name in the example.
        knobs: of its configs, in the order of the code's return value.
        function: the function in Liger's file that launches it.
    """

    title: str
    operator: str
    knobs: tuple[str, ...]
    function: str


FORWARD = Pass("forward", "liger_rms_norm", ("block_row", "num_warps"), "rms_norm_forward")
BACKWARD = Pass("backward", "liger_rms_norm_backward", ("block_row", "num_warps", "programs"), "rms_norm_backward")
Passes = Mapping[Pass, Sequence[FittedFunction]]
# The first line to replace, numbered from 1, the line behind the last, and the new text.
Edit = tuple[int, int, str]

_EXAMPLE, _FILE, _VERSION = "examples/liger/rms_norm.py", "ops/rms_norm.py", "0.8.5"
_ROW_MODE = " or row_mode"
_NAMES = {"rows": "n_rows", "hidden": "n_cols"}


def diff(fit: Fit, title: str) -> str:
    """The change of the installed file, after a line `title`.

    Raises:
        UsageError: Liger-Kernel is not installed, its file has another form, or the fit is not of its operators.
    """
    before = installed().read_text("utf-8")
    after, name = changed(before, fit), f"src/liger_kernel/{_FILE}"
    lines = unified_diff(before.splitlines(True), after.splitlines(True), f"a/{name}", f"b/{name}")
    return "".join([f"{title}\n", *lines])


def passes_of(fit: Fit) -> dict[Pass, list[FittedFunction]]:
    """The functions of each pass in a fit.

    Raises:
        UsageError: the fit has no such function, or configs have other knobs.
    """
    passes = {
        one: [function for function in fit.functions if function.key.text == one.operator]
        for one in (FORWARD, BACKWARD)
    }
    if not any(passes.values()):
        raise UsageError(
            f"--format liger is for the operators of {_EXAMPLE}: the table has no {FORWARD.operator} and no "
            f"{BACKWARD.operator}"
        )
    for one, functions in passes.items():
        for config in (config for function in functions for config in configs_of(function.tree)):
            if config._fields != one.knobs:
                raise UsageError(
                    f"--format liger is for the operators of {_EXAMPLE}: {one.operator} has configs with "
                    f"{', '.join(config._fields)}, expected {', '.join(one.knobs)}"
                )
    return {one: functions for one, functions in passes.items() if functions}


def changed(source: str, fit: Fit) -> str:
    """The text of Liger's file with the launches of a fit.

    Raises:
        UsageError: the file has another form than in `_VERSION`, or the fit is not of Liger's operators.
    """
    passes = passes_of(fit)
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    edits: list[Edit] = []
    try:
        for one in passes:
            edits += _edits(source, functions[one.function], one, _call(one, passes[one]))
        backward, first = functions[BACKWARD.function], functions[FORWARD.function]
        if BACKWARD not in passes:  # the backward launches with the warps that the forward returns
            edits.append(_before(source, backward, "_, num_warps = calculate_settings(n_cols)"))
    except (KeyError, StopIteration):
        raise UsageError(
            f"{_FILE} of the installed Liger-Kernel has another form than in version {_VERSION}, whose "
            f"{FORWARD.function} and {BACKWARD.function} test `...{_ROW_MODE}`: install liger-kernel=={_VERSION}"
        ) from None
    edits.append((first.lineno, first.lineno, _choices(fit.device, passes)))
    lines = source.splitlines(True)
    for begin, end, text in sorted(edits, reverse=True):
        lines[begin - 1 : end - 1] = [text]
    return "".join(lines)


def installed() -> Path:
    """The file of the installed Liger-Kernel.

    Raises:
        UsageError: it is not installed.
    """
    found = find_spec("liger_kernel")
    if not found or not found.submodule_search_locations:
        raise UsageError(f"--format liger changes the installed Liger-Kernel: pip install liger-kernel=={_VERSION}")
    return Path(found.submodule_search_locations[0]) / _FILE


def _choices(device: Device, passes: Passes) -> str:
    """The code of the functions that choose, which precede the functions that launch."""
    label = plain_letters(device.label)
    if device.target.startswith("sm_"):
        major, minor = divmod(int(device.target[3:]), 10)
        test = f"not torch.version.hip and torch.cuda.get_device_capability(X.device) == ({major}, {minor})"
    else:
        test = f'torch.cuda.get_device_properties(X.device).gcnArchName.startswith("{device.target}")'
    parts = [
        *("def _is_fitted(X):", f'    """Whether launches were measured on a GPU of its kind: {label}."""'),
        f'    return X.device.type == "cuda" and {test}',
    ]
    for one, functions in passes.items():
        answer = ", ".join(("BLOCK_ROW (0: the row kernel)", *one.knobs[1:]))
        for function in functions:
            returned = {(config.knobs, config): ", ".join(map(str, config)) for config in configs_of(function.tree)}
            code = "\n".join(branches(function.tree, 1, returned))
            parts += [
                *("", "", f"def {_name(one, functions, function)}(n_rows, n_cols):"),
                f'    """{answer}, fitted to times on {label} in {function.key.dtype}."""',
                re.sub("|".join(_NAMES), lambda name: _NAMES[name[0]], code),
            ]
        if len(functions) > 1:
            dtypes = {dtype: _name(one, functions, each) for each in functions for dtype in each.dtypes}
            entries = (f"    torch.{dtype}: {name}," for dtype, name in dtypes.items())
            parts += ["", "", f"_{one.title.upper()}_LAUNCH = {{", *entries, "}"]
    return "\n".join([*parts, "", "", ""])


def _name(one: Pass, functions: Sequence[FittedFunction], function: FittedFunction) -> str:
    return f"_{one.title}_launch" + (f"_{function.key.dtype}" if len(functions) > 1 else "")


def _call(one: Pass, functions: Sequence[FittedFunction]) -> str:
    """The code that chooses a launch of a pass for `X`."""
    first = _name(one, functions, functions[0])
    chosen = first if len(functions) == 1 else f"_{one.title.upper()}_LAUNCH.get(X.dtype, {first})"
    return f"{chosen}(n_rows, n_cols)"


def _edits(source: str, function: ast.FunctionDef, one: Pass, call: str) -> list[Edit]:
    """The edits of a function that launches: its condition, and the choice before it."""
    condition = next(
        node for node in ast.walk(function) if isinstance(node, ast.If) and _is(source, node.test, _ROW_MODE)
    )
    blocks = next(
        node for node in condition.orelse if isinstance(node, ast.Assign) and _is(source, node, "BLOCK_ROW = ")
    )
    todays = _text(source, condition.test).removesuffix(_ROW_MODE)
    lines = [
        f"BLOCK_ROW = 0 if {todays} else {_text(source, blocks.value)}",
        "if _is_fitted(X) and not row_mode:",
        f"    {', '.join(('BLOCK_ROW', *one.knobs[1:]))} = {call}",
        *["    sm_count *= programs"] * ("programs" in one.knobs),
    ]
    return [
        _before(source, function, "\n".join(lines)),
        (condition.lineno, condition.lineno + 1, f"{' ' * condition.col_offset}if not BLOCK_ROW{_ROW_MODE}:\n"),
        (blocks.lineno, blocks.lineno + 1, ""),
    ]


def _before(source: str, function: ast.FunctionDef, text: str) -> Edit:
    """An edit that inserts lines before `if W is not None`: sizes are known there, and the launch is not used yet."""
    place = next(
        node for node in function.body if isinstance(node, ast.If) and _text(source, node.test) == "W is not None"
    )
    return place.lineno, place.lineno, indent(text, " " * place.col_offset) + "\n\n"


def _is(source: str, node: ast.AST, part: str) -> bool:
    return part in _text(source, node)


def _text(source: str, node: ast.AST) -> str:
    return ast.get_source_segment(source, node) or ""
