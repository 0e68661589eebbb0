"""Parse the code of a table into trees; code of any other form is refused.

In: the text of a table. Out: its trees and measured sizes. They come from the file that users run, so a check of them
is a check of that file. A file that passes is safe to import, whoever edited it: it names configs, compares products of
sizes with numbers, and does nothing else. normtune does not import it.
"""

import ast
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

from normtune.errors import NormtuneError
from normtune.kernels.box import Box
from normtune.kernels.config import KINDS, Config, Knob, check_values, class_of
from normtune.kernels.key import Key, is_operator, is_variant
from normtune.kernels.problem import AXES, AXIS, MAX_ROWS
from normtune.kernels.sizes import is_derived, normal_form
from normtune.kernels.tablefile import template
from normtune.kernels.tablefile.syntax import UNREADABLE, parsed
from normtune.kernels.tablefile.tree import Leaf, Split, Tree, comparison, nodes


class Decisions(NamedTuple):
    """What the code of a table says.

    Attributes:
        trees: by key.
        measured: the box of the measured sizes of each key with data.
        axes: the names of the sizes.
    """

    trees: dict[Key, Tree]
    measured: dict[Key, Box]
    axes: tuple[str, ...]


def trees(text: str) -> dict[Key, Tree]:
    """Trees of a table, by key.

    Raises:
        NormtuneError: the code has a form that normtune does not write.
    """
    return decisions(text).trees


def decisions(text: str) -> Decisions:
    """Trees, measured sizes and axes of a table.

    Raises:
        NormtuneError: the code has a form that normtune does not write.
    """
    try:
        # As bytes, which Python decodes as at an import: in an encoding that a comment declares others are statements.
        module = parsed(text.encode())
        return _decisions(module, _axes(module))
    # A class whose knob has the name of a method raises a TypeError.
    except (*UNREADABLE, TypeError) as error:
        reason = " ".join(str(error).split())[:_MOST_CHARACTERS] or type(error).__name__
        raise NormtuneError(f"its code has a form that normtune does not write ({reason})") from None


def _axes(module: ast.Module) -> tuple[str, ...]:
    """The arguments of the functions of a table, from `lookup`; rows and hidden if that has another form."""
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "lookup"]
    names = tuple(argument.arg for function in functions for argument in function.args.args[2:])
    return names if len(names) in (2, 3) and all(map(AXIS.fullmatch, names)) else AXES


# The largest number in a comparison. Every size and product of sizes is smaller.
_MOST_NUMBER = 1 << 62
# The most thresholds of a function: more than twice the most of a fit. Each costs a level of recursion.
_MOST_CUTS = 300
# Of a quotation of untrusted text in a message.
_MOST_CHARACTERS = 160


class _Frame(NamedTuple):
    """The parts that all tables with the same sizes and classes share, as text of their syntax.

    Attributes:
        opening: the first statements.
        classes: between the functions and the configs.
        closing: the last statements.
        arguments: of every function.
        tables: the type of the list of functions.
        names: that have a meaning in these parts.
    """

    opening: tuple[str, ...]
    classes: tuple[str, ...]
    closing: tuple[str, ...]
    arguments: str
    tables: str
    names: frozenset[str]


@lru_cache(maxsize=64)
def _frame(of: template.Form, classes: tuple[tuple[str, tuple[Knob, ...]], ...], has_sizes: bool) -> _Frame:
    """The frame of a table with these classes of configs.

    Raises:
        ValueError: there are no classes.
    """
    if not classes:
        raise ValueError("a class of configs is missing")
    knobs = dict(classes)
    parts = of.opening(has_sizes), "\n".join(template.class_texts(knobs)), of.closing(knobs, has_sizes)
    opening, defined, closing = (tuple(map(_syntax, ast.parse(part).body)) for part in parts)
    others = f"{of.function('lookup')}\n    pass\n{of.tables(knobs)} {{}}\n{template.SIZES} {{}}"
    function, tables, _ = ast.parse(others).body
    if not isinstance(function, ast.FunctionDef) or not isinstance(tables, ast.AnnAssign):
        raise AssertionError("the form of a table has no signature")
    written = ast.walk(ast.parse(f"{parts[0]}\n{others}\n{parts[2]}"))
    names = {getattr(node, field, "") for node in written for field in ("id", "name", "arg")}
    return _Frame(
        opening, defined, closing, ast.dump(function.args), ast.dump(tables.annotation), frozenset({*KINDS, *names})
    )


def _class(node: ast.stmt) -> tuple[str, tuple[Knob, ...]] | None:
    """The name and knobs of a class of configs; None for another statement.

    Raises:
        ValueError: normtune does not write such a class.
    """
    match node:
        case ast.ClassDef(
            name=name, bases=[ast.Name("NamedTuple")], body=[ast.Expr(value=ast.Constant(str())), *fields]
        ) if name.isascii():
            knobs = tuple(_knob(field) for field in fields)
            if {knob.name for knob in knobs} & {*KINDS}:  # in a class a kind is the knob of its name
                raise ValueError(f"line {node.lineno}")
            defaults = [knob.default is not None for knob in knobs]
            if defaults != sorted(defaults):
                raise ValueError(f"line {node.lineno}: a knob without a default stands below one that has one")
            return name, knobs
        case ast.ClassDef():
            raise ValueError(f"line {node.lineno}")
    return None


def _knob(node: ast.stmt) -> Knob:
    match node:
        case ast.AnnAssign(target=ast.Name(name), annotation=ast.Name(kind), value=None) if kind in KINDS:
            return Knob(name, KINDS[kind])
        case ast.AnnAssign(target=ast.Name(name), annotation=ast.Name(kind), value=ast.Constant(default)) if (
            kind in KINDS and type(default) is KINDS[kind]
        ):
            return Knob(name, KINDS[kind], default=default)  # type: ignore[arg-type]
    raise ValueError(f"line {node.lineno}")


def _syntax(node: ast.stmt) -> str:
    """Text of a statement's syntax; its docstring is removed from the statement."""
    match node:
        case ast.Expr(value=ast.Constant(str())):
            return "docstring"
        case ast.ClassDef(body=[ast.Expr(value=ast.Constant(str())), *body]):
            node.body = body
        case ast.FunctionDef(body=[ast.Expr(value=ast.Constant(str())), *body]):
            node.body = body
    return ast.dump(node)


def _decisions(module: ast.Module, axes: tuple[str, ...]) -> Decisions:
    """What a module says, whose functions take the sizes `axes`.

    Raises:
        ValueError: a statement has another form.
    """
    of, statements = template.of_axes(axes), module.body
    classes = dict(defined for node in statements if (defined := _class(node)))
    has_sizes = any(isinstance(node, ast.FunctionDef) and node.name == "_nearest" for node in statements)
    frame = _frame(of, tuple(classes.items()), has_sizes)
    first = next(place for place, node in enumerate(statements) if isinstance(node, ast.ClassDef))
    last = max(0, len(statements) - len(frame.closing))
    for start, expected in ((0, frame.opening), (first, frame.classes), (last, frame.closing)):
        for node, syntax in zip_longest(statements[start : start + len(expected)], expected):
            if node is None or _syntax(node) != syntax:
                raise ValueError(f"line {node.lineno}" if node else "a part is missing")
    decisions = statements[len(frame.opening) : first]
    if len(decisions) < 2:
        raise ValueError("a part is missing")
    *code, tables, measured = decisions
    class_of_name = {name: class_of(knobs) for name, knobs in classes.items()}
    configs = _configs(statements[first + len(frame.classes) : last], class_of_name)
    functions: dict[str, Tree] = {}
    for node in code:
        match node:
            case ast.FunctionDef(
                name=name, args=arguments, body=body, decorator_list=[], returns=ast.expr() as returns
            ) if ast.dump(arguments) == frame.arguments and name not in (*configs, *functions):
                if sum(isinstance(part, ast.If) for part in ast.walk(node)) > _MOST_CUTS:
                    raise ValueError(f"line {node.lineno}: a function of over {_MOST_CUTS} thresholds")
                functions[name] = _tree(axes, body, _answers(returns, configs, class_of_name))
            case _:
                raise ValueError(f"line {node.lineno}")
    match tables:
        case ast.AnnAssign(
            target=ast.Name(template.LIST), annotation=annotation, value=ast.Dict(keys=keys, values=values)
        ) if ast.dump(annotation) == frame.tables:
            tree_of_key = dict(_entry(pair, functions) for pair in zip(keys, values, strict=True))
        case _:
            raise ValueError(f"line {tables.lineno}")
    names = {*configs, *functions}
    if names & set(class_of_name) or frame.names & {*names, *class_of_name}:
        raise ValueError("a name has another meaning")
    # Python's own names, such as `__annotations__`, which has the type of `TABLES`.
    if reserved := sorted(name for name in {*names, *class_of_name} if name.startswith("__") and name.endswith("__")):
        raise ValueError(f"the name {reserved[0][:40]}")
    return Decisions(tree_of_key, _measured(measured, axes, tree_of_key), axes)


def _configs(nodes: Sequence[ast.stmt], classes: Mapping[str, type[Config]]) -> dict[str, Config]:
    """The configs of statements that each name one, by name.

    Raises:
        ValueError: a statement has another form, or names an earlier config.
    """
    configs: dict[str, Config] = {}
    for node in nodes:
        match node:
            case ast.Assign(
                targets=[ast.Name(name)], value=ast.Call(func=ast.Name(of_class), args=[], keywords=keywords)
            ) if name not in configs and of_class in classes:
                configs[name] = _config(classes[of_class], keywords, node.lineno)
            case _:
                raise ValueError(f"line {node.lineno}")
    return configs


_SIZES_TYPE = ast.dump(ast.parse(f"{template.SIZES} {{}}").body[0].annotation)  # type: ignore[attr-defined]


def _measured(node: ast.stmt, axes: tuple[str, ...], trees: dict[Key, Tree]) -> dict[Key, Box]:
    """The measured sizes of each key with data, from their statement.

    Raises:
        ValueError: it has another form, or a function lacks its sizes.
    """
    match node:
        case ast.AnnAssign(target=ast.Name(template.MEASURED), annotation=annotation, value=ast.Dict() as value) if (
            ast.dump(annotation) == _SIZES_TYPE
        ):
            line = f"line {node.lineno}"
        case _:
            raise ValueError(f"line {node.lineno}")
    boxes: dict[Key, Box] = {}
    without_sizes = {id(tree) for tree in trees.values()}
    try:
        for entry, ends in zip(value.keys, value.values, strict=True):
            key, sizes = _key(entry), ast.literal_eval(ends)
            if tuple(sizes) != axes or not all(map(_is_interval, sizes.values())):
                raise ValueError(line)
            boxes[key] = Box.of(**sizes)
            # A mode without a function has the plain one.
            without_sizes -= {id(trees[name]) for name in [name for name in key.names if name in trees][:1]}
    except (AttributeError, TypeError, ValueError):  # literal_eval names the address of what is no literal
        raise ValueError(line) from None
    if without_sizes:
        raise ValueError(f"{line}: a function without measured sizes")
    return boxes


def _is_interval(ends: object) -> bool:
    match ends:
        case tuple((int(least), int(most))) if bool not in map(type, ends):
            return 1 <= least <= most <= MAX_ROWS
    return False


def _answers(returns: ast.expr, configs: dict[str, Config], classes: dict[str, type[Config]]) -> dict[str, Config]:
    """The configs that a function may return by its annotation: those of one class, or all.

    Raises:
        ValueError: the annotation is neither.
    """
    match returns:
        case ast.Constant(template.ANY_CLASS):
            return configs
        case ast.Constant(str(of_class)) if of_class in classes:
            return {name: config for name, config in configs.items() if type(config) is classes[of_class]}
    raise ValueError(f"line {returns.lineno}")


def _config(of: type[Config], keywords: list[ast.keyword], line: int) -> Config:
    """The config of a call with values by keyword.

    Raises:
        ValueError: a value is missing, unknown or of another type.
    """
    values = {one.arg: literal.value for one in keywords if one.arg and (literal := _literal(one.value))}
    kinds = {knob.name: knob.kind for knob in of.knobs}
    if len(values) < len(keywords) or any(type(value) is not kinds.get(name) for name, value in values.items()):
        raise ValueError(f"line {line}")
    try:
        config = of(**values)
    except TypeError:
        raise ValueError(f"line {line}") from None
    check_values(config)
    return config


def _literal(node: ast.expr) -> ast.Constant | None:
    """A value of a knob, which may be negative; None if it is no literal."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(int(value))):
            return ast.Constant(-value)
        case ast.Constant():
            return node
    return None


def _entry(pair: tuple[ast.expr | None, ast.expr], functions: dict[str, Tree]) -> tuple[Key, Tree]:
    match pair:
        case (entry, ast.Name(name)) if name in functions:
            key, tree = _key(entry), functions[name]
            # The rows at which a function of that mode changes are those of its thresholds.
            if not key.is_batch_invariant or not any(
                is_derived(node.axis) for node in nodes(tree) if hasattr(node, "axis")
            ):
                return key, tree
    raise ValueError(f"line {pair[1].lineno}")


def _key(node: ast.expr | None) -> Key:
    """The key of a function or of measured sizes, whose names are words.

    Raises:
        ValueError: it has another form.
    """
    match node:
        case ast.Tuple(elts=[ast.Constant(str(text)), ast.Constant(str(dtype))]):
            operator, _, variant = text.partition(":")
            if is_operator(operator) and is_variant(variant) and dtype and is_variant(dtype):
                return Key.parse(text, dtype)
    raise ValueError(f"line {node.lineno if node else 0}")


_SIGNS = {">=": ast.GtE, "<=": ast.LtE}


def _tree(axes: tuple[str, ...], body: list[ast.stmt], configs: dict[str, Config]) -> Tree:
    match body:
        case [ast.Return(value=ast.Name(name))] if name in configs:
            return Leaf(configs[name])
        case [
            ast.If(
                test=ast.Compare(left=size, ops=[sign], comparators=[ast.Constant(int(threshold))]),
                body=first,
                orelse=[],
            ),
            *rest,
        ] if 0 <= threshold <= _MOST_NUMBER and (axis := _axis(size, axes)) and type(sign) is _SIGNS[comparison(axis)]:
            low, high = (first, rest) if isinstance(sign, ast.LtE) else (rest, first)
            return Split(axis, threshold, _tree(axes, low, configs), _tree(axes, high, configs))
    raise ValueError(f"line {body[0].lineno if body else 0}")


def _axis(size: ast.expr, axes: tuple[str, ...]) -> str:
    """The axis that is compared: one of `axes` or a derived one.

    Raises:
        ValueError: it is neither.
    """
    text = ast.unparse(size)
    if text not in axes and normal_form(text, axes) != text:
        raise ValueError(f"line {size.lineno}")
    return text
