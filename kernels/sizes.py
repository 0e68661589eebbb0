"""Arithmetic of named sizes: the extents of buffers, `2*hidden`, and sizes for thresholds, `cdiv(m, 64) * n`.

In: an expression of names, positive integers, +, -, *, / and //, and cdiv. Out: its value at sizes. A derived size,
which trees may have thresholds on, is made of sums, products and whole quotients by integers, so that it never falls
where a size grows; its normal form is Python and the name of the axis.
"""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

from normtune.kernels.problem import Shape

_EXPECTED = "expected sums, products, // and cdiv of sizes and positive integers, as m * n or cdiv(m, 64) * n"
_MOST_CHARACTERS = 80
_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: Fraction,
    ast.FloorDiv: operator.floordiv,
}


@cache
def normal_form(expression: str, axes: tuple[str, ...]) -> str:
    """The expression as Python, in which `cdiv(a, b)` is `(a + b - 1) // b`.

    Raises:
        ValueError: it is made of something else than sums, products and quotients of these axes and positive
            integers, is an axis itself, or is 0 at the smallest shape.
    """
    fault = ValueError(f"derived size {expression[:_MOST_CHARACTERS]!r} of {', '.join(axes)}: {_EXPECTED}")
    try:
        tree = parsed(expression)
        normal = ast.unparse(tree)
    except (ValueError, RecursionError, MemoryError):
        raise fault from None
    names = names_of(normal)
    if not _grows(tree) or not names or not names <= {*axes} or normal in axes or len(normal) > _MOST_CHARACTERS:
        raise fault
    if not value_of(normal, dict.fromkeys(axes, 1)):
        raise ValueError(f"derived size {expression!r} is 0 at the smallest shape: expected cdiv in place of //")
    return normal


def size_along(axis: str, axes: Sequence[str], shape: Shape) -> int:
    """The size of a shape along one of its axes, or along a derived one."""
    return shape[axes.index(axis)] if axis in axes else int(value_of(axis, dict(zip(axes, shape, strict=True))))


def located(shape: Shape, axes: Sequence[str]) -> Shape:
    """The sizes of a shape along axes: its own, in their order, and derived ones behind them."""
    own_axes = axes[: len(shape)]
    return *shape, *(size_along(axis, own_axes, shape) for axis in axes[len(shape) :])


def is_derived(axis: str) -> bool:
    """Whether an axis is a derived one."""
    return not axis.isidentifier()


def names_of(expression: str) -> set[str]:
    """The names in an expression.

    Raises:
        ValueError: as `parsed`.
    """
    return {node.id for node in ast.walk(parsed(expression)) if isinstance(node, ast.Name)}


def value_of(expression: str, sizes: Mapping[str, int]) -> int | Fraction:
    """The value of an expression at these sizes.

    Raises:
        ValueError: as `parsed`.
    """
    return _value(parsed(expression), sizes)


@cache
def parsed(expression: str) -> ast.expr:
    """The syntax tree of an expression, with quotients in place of cdiv.

    Raises:
        ValueError: it has other parts.
    """
    try:
        return _normal(ast.parse(expression, mode="eval").body)
    except SyntaxError:
        raise ValueError(expression) from None


def _normal(node: ast.expr) -> ast.expr:
    match node:
        case ast.Name():
            return node
        case ast.Constant(value) if _is_count(value):
            return node
        case ast.BinOp(left, sign, right) if type(sign) in _OPERATIONS:
            return ast.BinOp(_normal(left), sign, _normal(right))
        case ast.Call(ast.Name("cdiv"), [top, ast.Constant(int(by))], []) if _is_count(by):
            more = ast.BinOp(_normal(top), ast.Add(), ast.Constant(by - 1)) if by > 1 else _normal(top)
            return ast.BinOp(more, ast.FloorDiv(), ast.Constant(by))
    raise ValueError(ast.dump(node))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 < value < 1 << 31


def _grows(node: ast.expr) -> bool:
    """Whether it is made of sums, products and whole quotients by integers."""
    match node:
        case ast.BinOp(left, ast.Add() | ast.Mult(), right):
            return _grows(left) and _grows(right)
        case ast.BinOp(left, sign, by):
            return isinstance(sign, ast.FloorDiv) and isinstance(by, ast.Constant) and _grows(left)
    return True


def _value(node: ast.expr, sizes: Mapping[str, int]) -> Any:
    match node:
        case ast.Name(name):
            return sizes[name]
        case ast.Constant(value):
            return value
        case ast.BinOp(left, sign, right):
            return _OPERATIONS[type(sign)](_value(left, sizes), _value(right, sizes))
    raise AssertionError(f"no part of an expression of sizes: {ast.dump(node)}")
