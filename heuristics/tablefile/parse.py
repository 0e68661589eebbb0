"""The trees of an emitted table, read back from its code, which has no other form than those that normtune writes.

In: the text of a table. Out: its trees, of one GPU or of any. What a table does is read from the file that users run,
not from the fit that wrote it, so a check of these trees is a check of that file; and a file that passes can be run
without harm, whoever edited it: it names configs, compares products of sizes and numbers, and does nothing else.
"""

import ast
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from normtune.errors import NormtuneError
from normtune.heuristics.tablefile import template
from normtune.heuristics.tablefile.relative_tree import BYTES_PER_L2, HIDDEN, ROWS_PER_SM, Cut, NormalisedTree
from normtune.heuristics.tablefile.syntax import parsed
from normtune.heuristics.tablefile.tree import Leaf, Split, Tree
from normtune.kernels.config import KINDS, Config, Knob, class_of

Kind = TypeVar("Kind", Tree, NormalisedTree)


def trees(text: str) -> dict[tuple[str, str], Tree]:
    """The tree of each (operator key, dtype) of a table of one GPU.

    Raises:
        NormtuneError: the code has a form that normtune does not write.
    """
    return _read(text, template.ONE_GPU, _tree)


def normalised_trees(text: str) -> dict[tuple[str, str], NormalisedTree]:
    """The tree of each (operator key, dtype) of a table for any GPU.

    Raises:
        NormtuneError: the code has a form that normtune does not write.
    """
    return _read(text, template.ANY_GPU, _normalised_tree)


def _read(
    text: str, of: template.Form, read: "Callable[[list[ast.stmt], dict[str, Config]], Kind]"
) -> "dict[tuple[str, str], Kind]":
    try:
        return _trees(parsed(text), of, read)
    # Nesting too deep for Python's parser shows as one of the last two.
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        told = " ".join(str(error).split()) or type(error).__name__
        raise NormtuneError(f"its code has a form that normtune does not write ({told})") from None


# What the code refers to and so may not be called otherwise.
_NAMES = {
    "Callable",
    "NamedTuple",
    "TABLES",
    "lookup",
    "rows",
    "hidden",
    "sms",
    "l2_bytes",
    "int",
    "str",
    "dict",
    "tuple",
    "ValueError",
    "KeyError",
}


class _Frame(NamedTuple):
    """The parts that are alike in all tables, as texts of their syntax."""

    statements: frozenset[str]
    arguments: str
    tables: str


@lru_cache(maxsize=64)
def _frame(of: template.Form, classes: tuple[tuple[str, tuple[Knob, ...]], ...]) -> _Frame:
    """The frame of a table whose configs are of these classes.

    Raises:
        ValueError: there are none.
    """
    if not classes:
        raise ValueError("a class of configs is missing")
    knobs = dict(classes)
    module = ast.parse(of.opening(knobs) + of.closing(knobs))
    function, tables = ast.parse(f"{of.function('f')}\n    pass\n{of.tables(knobs)} {{}}").body
    if not isinstance(function, ast.FunctionDef) or not isinstance(tables, ast.AnnAssign):
        raise AssertionError("the form of a table has no signature")
    return _Frame(frozenset(map(_syntax, module.body)), ast.dump(function.args), ast.dump(tables.annotation))


def _class(node: ast.stmt) -> tuple[str, tuple[Knob, ...]] | None:
    """The name and knobs of a class of configs; None for another statement.

    Raises:
        ValueError: it has another form than those that normtune writes.
    """
    match node:
        case ast.ClassDef(
            name=name, bases=[ast.Name("NamedTuple")], body=[ast.Expr(value=ast.Constant(str())), *fields]
        ) if name.isascii():
            return name, tuple(_knob(field) for field in fields)
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
    """The text of a statement's syntax, without its docstring, of which it is bereft."""
    match node:
        case ast.Expr(value=ast.Constant(str())):
            return "docstring"
        case ast.ClassDef(body=[ast.Expr(value=ast.Constant(str())), *body]):
            node.body = body
        case ast.FunctionDef(body=[ast.Expr(value=ast.Constant(str())), *body]):
            node.body = body
    return ast.dump(node)


def _trees(
    module: ast.Module, of: template.Form, read: "Callable[[list[ast.stmt], dict[str, Config]], Kind]"
) -> "dict[tuple[str, str], Kind]":
    """The trees of a module.

    Raises:
        ValueError: a statement is not of the form.
    """
    classes = dict(defined for node in module.body if (defined := _class(node)))
    frame = _frame(of, tuple(classes.items()))
    made = {name: class_of(knobs) for name, knobs in classes.items()}
    missing = set(frame.statements)
    configs: dict[str, Config] = {}
    functions: dict[str, Kind] = {}
    found: dict[tuple[str, str], Kind] | None = None
    for node in module.body:
        match node:
            case ast.Assign(
                targets=[ast.Name(name)],
                value=ast.Call(func=ast.Name(of_class), args=arguments, keywords=[]),
            ) if name not in configs and of_class in made:
                configs[name] = _config(made[of_class], arguments, node.lineno)
            case ast.FunctionDef(name=name, args=arguments, body=body, decorator_list=[], returns=ast.Name(answer)) if (
                ast.dump(arguments) == frame.arguments and answer in made and name not in (*configs, *functions)
            ):
                mine = {key: config for key, config in configs.items() if type(config) is made[answer]}
                functions[name] = read(body, mine)
            case ast.AnnAssign(
                target=ast.Name("TABLES"), annotation=annotation, value=ast.Dict(keys=keys, values=values)
            ) if found is None and ast.dump(annotation) == frame.tables:
                found = dict(_entry(pair, functions, node.lineno) for pair in zip(keys, values, strict=True))
            case _ if (syntax := _syntax(node)) in missing:
                missing.remove(syntax)
            case _:
                raise ValueError(f"line {node.lineno}")
    if found is None or missing or (_NAMES | set(made)) & {*configs, *functions} or _NAMES & set(made):
        raise ValueError("a part is missing")
    return found


def _config(of: type[Config], arguments: list[ast.expr], line: int) -> Config:
    """A config as the code makes it: values in order, those behind them defaults.

    Raises:
        ValueError: a value is missing, is too much or of another kind.
    """
    values: list[Any] = [argument.value if isinstance(argument, ast.Constant) else None for argument in arguments]
    knobs = of.knobs
    pairs = zip(values, knobs, strict=False)
    if len(values) > len(knobs) or any(type(value) is not knob.kind for value, knob in pairs):
        raise ValueError(f"line {line}")
    try:
        return of(*values)
    except TypeError:
        raise ValueError(f"line {line}") from None


def _entry(
    pair: tuple[ast.expr | None, ast.expr], functions: "dict[str, Kind]", line: int
) -> "tuple[tuple[str, str], Kind]":
    match pair:
        case (
            ast.Tuple(elts=[ast.Constant(str(operator)), ast.Constant(str(dtype))]),
            ast.Name(name),
        ) if name in functions:
            return (operator, dtype), functions[name]
    raise ValueError(f"line {pair[1].lineno or line}")


def _tree(body: list[ast.stmt], configs: dict[str, Config]) -> Tree:
    match body:
        case [ast.Return(value=ast.Name(name))] if name in configs:
            return Leaf(configs[name])
        case [
            ast.If(
                test=ast.Compare(left=ast.Name(axis), ops=[sign], comparators=[ast.Constant(int(threshold))]),
                body=first,
                orelse=[],
            ),
            *rest,
        ]:
            if axis == "hidden" and isinstance(sign, ast.LtE):
                return Split(axis, threshold, _tree(first, configs), _tree(rest, configs))
            if axis == "rows" and isinstance(sign, ast.GtE):
                return Split(axis, threshold, _tree(rest, configs), _tree(first, configs))
    raise ValueError(f"line {body[0].lineno if body else 0}")


# What stands on the left of a comparison and on the right.
_SIZES: dict[tuple[tuple[str, ...], tuple[str, ...]], str] = {
    (("rows",), ("sms",)): ROWS_PER_SM,
    (("rows", "hidden"), ("l2_bytes",)): BYTES_PER_L2,
}


def _normalised_tree(body: list[ast.stmt], configs: dict[str, Config]) -> NormalisedTree:
    match body:
        case [ast.Return(value=ast.Name(name))] if name in configs:
            return Leaf(configs[name])
        case [ast.If(test=ast.Compare(left=left, ops=[sign], comparators=[right]), body=first, orelse=[]), *rest]:
            times, sizes = _product(left)
            threshold, unit = _product(right)
            if isinstance(sign, ast.LtE) and (times, sizes, unit) == (1, ("hidden",), ()):
                return Cut(HIDDEN, 1, threshold, _normalised_tree(first, configs), _normalised_tree(rest, configs))
            if isinstance(sign, ast.GtE) and (size := _SIZES.get((sizes, unit))):
                low, high = _normalised_tree(rest, configs), _normalised_tree(first, configs)
                return Cut(size, times, threshold, low, high)
    raise ValueError(f"line {body[0].lineno if body else 0}")


def _product(node: ast.expr) -> tuple[int, tuple[str, ...]]:
    """A product of at most one positive number, in front, and of names: the number, 1 without one, and the names.

    Raises:
        ValueError: it is something else.
    """
    match node:
        case ast.Constant(value) if type(value) is int and value > 0:
            return value, ()
        case ast.Name(name):
            return 1, (name,)
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Name(name)):
            number, names = _product(left)
            return number, (*names, name)
    raise ValueError(f"line {node.lineno}")
