"""A fitted table as Python: a module that stands alone and reads as if it were written by hand.

It runs on Python 3.9 with the standard library, and its import only creates configs. Its format is that of black and
ruff at any width from 88 columns on, unless a tree is too deep. The caller writes the file.
"""

import json
from collections.abc import Mapping, Sequence

from normtune.errors import NormtuneError
from normtune.heuristics.fitting.case import TableEntry
from normtune.heuristics.fitting.result import Fit, FittedFunction
from normtune.heuristics.writing.entries import ordered, table_text
from normtune.heuristics.writing.regenerate import Command
from normtune.kernels.box import Box
from normtune.kernels.config import Config, Knob, identifier, is_nameless
from normtune.kernels.key import Key
from normtune.kernels.problem import axes_of
from normtune.kernels.tablefile import template
from normtune.kernels.tablefile.facts import encoded
from normtune.kernels.tablefile.header import Gpu, Header, body_hash
from normtune.kernels.tablefile.tree import Leaf, Tree, comparison, comparison_text, configs_of
from normtune.kernels.target import plain_letters
from normtune.results.records import Device


def module_text(fit: Fit, command: Command) -> str:
    """The module, with the command that writes it again.

    Raises:
        NormtuneError: two operators or configs would get the same name in the code.
    """
    entries = [
        TableEntry(function.key, function.figures, function.beside)
        if isinstance(function, FittedFunction)
        else TableEntry(function.key, function.figures, None, function.donor, function.cost)
        for function in ordered(fit.functions, fit.shared)
    ]
    body = body_text(fit.functions, fit.measured)
    header = Header(
        device=gpu_of(fit.device),
        software={name: fit.software.get(name, "unknown") for name in ("triton", "torch")},
        data=fit.data,
        kernels=fit.fingerprints,
        command=encoded(command),
        functions=tuple(map(encoded, entries)),
        body=body_hash(body),
        portable=command.options.get("portable", False),
        without_data=tuple((key.text, key.dtype, donor) for key, donor in fit.without_data()),
        searched=fit.searched,
    )
    return table_text(header, body)


def gpu_of(device: Device) -> Gpu:
    """A device as in the facts of a table."""
    return Gpu(plain_letters(device.label), device.target, device.sms)


def body_text(functions: Sequence[FittedFunction], measured: Mapping[Key, Box]) -> str:
    """The code of a table.

    Args:
        functions: in the order of the code.
        measured: the box of the measured sizes of each key with data.

    Raises:
        NormtuneError: two operators or configs would get the same name in the code, or operators have other sizes.
    """
    of = _form(functions)
    classes = _classes(functions)
    names = _config_names(functions, classes)
    functions_code = []
    for function in functions:
        knobs_used = {config.knobs for config in configs_of(function.tree)}
        answer = template.any_of({name: knobs for name, knobs in classes.items() if knobs in knobs_used})
        functions_code.append("\n".join([of.function(_name(function), answer), *branches(function.tree, 1, names)]))
    _check_unique([*map(_name, functions), *names.values(), template.LIST, template.MEASURED])
    class_of_knobs = {knobs: name for name, knobs in classes.items()}
    return of.code(
        functions_code,
        [_entry(key, f"{_name(function)},") for function in functions for key in function.served],
        [line for key, box in sorted(measured.items()) for line in _intervals(key, box)],
        classes,
        [_constant(name, class_of_knobs[knobs], _arguments(config)) for (knobs, config), name in names.items()],
        has_sizes=any(function.key.sizes for function in functions),
    )


def _config_names(functions: Sequence[FittedFunction], classes: template.Classes) -> "Names":
    """The name of each config in the code, class by class."""
    names: dict[tuple[tuple[Knob, ...], Config], str] = {}
    for name, knobs in classes.items():
        prefix = f"{name.removesuffix('Config').upper()}_" if len(classes) > 1 else ""
        configs = {config for function in functions for config in configs_of(function.tree) if config.knobs == knobs}
        names |= {(config.knobs, config): f"{prefix}{config.constant_name()}" for config in sorted(configs)}
    return names


def _entry(key: Key, value: str) -> str:
    return template.in_parentheses("    ", [json.dumps(key.text), json.dumps(key.dtype)], f": {value}")


def _intervals(key: Key, box: Box) -> list[str]:
    """The lines of the measured sizes of a key."""
    intervals = (f"        {json.dumps(axis)}: ({least}, {most})," for axis, least, most in box)
    return [_entry(key, "{"), *intervals, "    },"]


def _form(functions: Sequence[FittedFunction]) -> template.Form:
    axes = {axes_of(function.key.family): function.key.family for function in functions}
    if len(axes) > 1:
        sizes = " and ".join(f"{', '.join(names)} ({family})" for names, family in axes.items())
        raise NormtuneError(f"operators with sizes {sizes} need separate tables: choose some with --operator")
    return template.of_axes(*axes)


def _constant(name: str, of: str, arguments: list[str]) -> str:
    """The statement that names a config, with a call in parentheses where formatters need them for the width."""
    code = template.in_parentheses(f"{name} = {of}", arguments, "")
    if len(code.partition("\n")[0]) <= template.WIDTH or len(f"{name} = (") > template.WIDTH:
        return code
    return f"{name} = (\n{template.in_parentheses(f'    {of}', arguments, '')}\n)"


# The name of each config in the code, by knobs and config: configs of two classes may be equal as tuples.
Names = Mapping[tuple[tuple[Knob, ...], Config], str]


def branches(tree: Tree, depth: int, names: Names) -> list[str]:
    """The lines of a tree, indented by `depth` steps."""
    indent = "    " * depth
    if isinstance(tree, Leaf):
        return _returned(indent, names[tree.config.knobs, tree.config])
    first, rest = (tree.low, tree.high) if comparison(tree.axis) == "<=" else (tree.high, tree.low)
    return [
        f"{indent}if {comparison_text(tree.axis, tree.threshold)}:",
        *branches(first, depth + 1, names),
        *branches(rest, depth, names),
    ]


def _returned(indent: str, name: str) -> list[str]:
    """The lines of a leaf, with a name in parentheses where formatters need them for the width."""
    gained = len("return ") - len("    ")
    if template.WIDTH < len(f"{indent}return {name}") <= template.WIDTH + gained:
        return [f"{indent}return (", f"{indent}    {name}", f"{indent})"]
    return [f"{indent}return {name}"]


def _classes(functions: Sequence[FittedFunction]) -> dict[str, tuple[Knob, ...]]:
    """The classes of configs that a table defines: one named `Config`, or several by their own names.

    Raises:
        NormtuneError: two classes with different knobs have the same name.
    """
    names: dict[tuple[Knob, ...], str] = {}
    for function in functions:
        for config in configs_of(function.tree):
            names.setdefault(config.knobs, _class_name(function, config))
    if len(names) == 1:
        return {template.ONE_CLASS: next(iter(names))}
    _check_unique([*names.values()])
    return {name: knobs for knobs, name in names.items()}


def _class_name(function: FittedFunction, config: Config) -> str:
    """The name of a config's class; without a declaration from the operator's name: `MyOpConfig` for `my_op`."""
    if not is_nameless(config):
        return type(config).__name__
    return "".join(map(str.capitalize, identifier(function.key.family).split("_"))) + "Config"


def _arguments(config: Config) -> list[str]:
    """The values that differ from defaults, and num_warps."""
    return [
        f"{knob.name}={template.literal(value)}"
        for knob, value in zip(config.knobs, config, strict=True)
        if value != knob.default or knob.name == "num_warps"
    ]


def _name(function: FittedFunction) -> str:
    return "_".join(identifier(part) for part in function.key.columns if part)


def _check_unique(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise NormtuneError(
                f"two parts of the code would both be named {name}: rename an operator or a value of a knob"
            )
