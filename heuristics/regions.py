"""The trees of an emitted table, read back from its code, which has no other form than the one that normtune writes.

In: the text of a table. Out: its trees. What a table does is read from the file that users run, not from the fit that
wrote it, so a check of these trees is a check of that file; and a file that passes can be run without harm, whoever
edited it: it names configs, compares rows and hidden with numbers, and does nothing else.
"""

import ast
from functools import cache
from typing import NamedTuple

from normtune.errors import NormtuneError
from normtune.heuristics import form
from normtune.heuristics.tree import Leaf, Split, Tree
from normtune.kernels.config import Config


def trees(text: str) -> dict[tuple[str, str], Tree]:
    """The tree of each (operator key, dtype) of a table.

    Raises:
        NormtuneError: the code has a form that normtune does not write.
    """
    try:
        return _trees(ast.parse(text))
    # Nesting too deep for Python's parser shows as one of the last two.
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        told = " ".join(str(error).split()) or type(error).__name__
        raise NormtuneError(f"its code has a form that normtune does not write ({told})") from None


# What the code refers to and so may not be called otherwise.
_NAMES = {
    "Config",
    "Callable",
    "NamedTuple",
    "TABLES",
    "lookup",
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
    returns: str
    tables: str


@cache
def _frame() -> _Frame:
    module = ast.parse(form.opening() + form.CLOSING)
    function, tables = ast.parse(f"def f{form.SIGNATURE}\n    pass\n{form.TABLES} {{}}").body
    if not isinstance(function, ast.FunctionDef) or not isinstance(tables, ast.AnnAssign) or not function.returns:
        raise AssertionError("the form of a table has no signature")
    return _Frame(
        frozenset(map(_syntax, module.body)),
        ast.dump(function.args),
        ast.dump(function.returns),
        ast.dump(tables.annotation),
    )


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


def _trees(module: ast.Module) -> dict[tuple[str, str], Tree]:
    """The trees of a module.

    Raises:
        ValueError: a statement is not of the form.
    """
    frame = _frame()
    missing = set(frame.statements)
    configs: dict[str, Config] = {}
    functions: dict[str, Tree] = {}
    found: dict[tuple[str, str], Tree] | None = None
    for node in module.body:
        match node:
            case ast.Assign(
                targets=[ast.Name(name)],
                value=ast.Call(func=ast.Name("Config"), args=arguments, keywords=[]),
            ) if name not in configs:
                configs[name] = _config(arguments, node.lineno)
            case ast.FunctionDef(
                name=name, args=arguments, body=body, decorator_list=[], returns=ast.expr() as returns
            ) if (
                ast.dump(arguments) == frame.arguments
                and ast.dump(returns) == frame.returns
                and name not in (*configs, *functions)
            ):
                functions[name] = _tree(body, configs)
            case ast.AnnAssign(
                target=ast.Name("TABLES"), annotation=annotation, value=ast.Dict(keys=keys, values=values)
            ) if found is None and ast.dump(annotation) == frame.tables:
                found = dict(_entry(pair, functions, node.lineno) for pair in zip(keys, values, strict=True))
            case _ if (syntax := _syntax(node)) in missing:
                missing.remove(syntax)
            case _:
                raise ValueError(f"line {node.lineno}")
    if found is None or missing or _NAMES & {*configs, *functions}:
        raise ValueError("a part is missing")
    return found


def _config(arguments: list[ast.expr], line: int) -> Config:
    values = [argument.value if isinstance(argument, ast.Constant) else None for argument in arguments]
    kinds = list(Config.__annotations__.values())
    if not values or len(values) > len(kinds) or any(type(v) is not k for v, k in zip(values, kinds, strict=False)):
        raise ValueError(f"line {line}")
    return Config(*values)  # type: ignore[arg-type]


def _entry(
    pair: tuple[ast.expr | None, ast.expr], functions: dict[str, Tree], line: int
) -> tuple[tuple[str, str], Tree]:
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
