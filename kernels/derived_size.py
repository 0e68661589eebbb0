"""A size that is computed from others, such as `m * n`: trees may have thresholds on it, too.

In: an expression of the names of axes. Out: its normal form, which is Python and the name of the axis, and its value at
a shape. It is made of sums, products and whole quotients by integers, so it never falls where a size grows.
"""

import ast
from collections.abc import Mapping, Sequence
from functools import cache

from normtune.kernels.problem import Shape

_EXPECTED = "expected sums, products, // and cdiv of sizes and positive integers, as m * n or cdiv(m, 64) * n"
_MOST_CHARACTERS = 80


@cache
def normal_form(expression: str, axes: tuple[str, ...]) -> str:
    """The expression as Python, in which `cdiv(a, b)` is `(a + b - 1) // b`.

    Raises:
        ValueError: it is made of something else than sums, products and quotients of these axes and positive
            integers, is an axis itself, or is 0 at the smallest shape.
    """
    fault = ValueError(f"derived size {expression[:_MOST_CHARACTERS]!r} of {', '.join(axes)}: {_EXPECTED}")
    try:
        normal = ast.unparse(_parsed(expression))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise fault from None
    names = {node.id for node in ast.walk(ast.parse(normal)) if isinstance(node, ast.Name)}
    if not names or not names <= {*axes} or normal in axes or len(normal) > _MOST_CHARACTERS:
        raise fault
    if not value_of(normal, dict.fromkeys(axes, 1)):
        raise ValueError(f"derived size {expression!r} is 0 at the smallest shape: expected cdiv in place of //")
    return normal


def size_along(axis: str, axes: Sequence[str], shape: Shape) -> int:
    """The size of a shape along one of its axes, or along a derived one."""
    return shape[axes.index(axis)] if axis in axes else value_of(axis, dict(zip(axes, shape, strict=True)))


def located(shape: Shape, axes: Sequence[str]) -> Shape:
    """The sizes of a shape along axes: its own, in their order, and derived ones behind them."""
    own_axes = axes[: len(shape)]
    return *shape, *(size_along(axis, own_axes, shape) for axis in axes[len(shape) :])


def is_derived(axis: str) -> bool:
    """Whether an axis is a derived one."""
    return not axis.isidentifier()


def value_of(normal: str, sizes: Mapping[str, int]) -> int:
    """The value of a normal form at these sizes."""
    return _value(_parsed(normal), sizes)


@cache
def _parsed(expression: str) -> ast.expr:
    """The expression with quotients in place of cdiv.

    Raises:
        ValueError: it has other parts.
    """
    return _normal(ast.parse(expression, mode="eval").body)


def _normal(node: ast.expr) -> ast.expr:
    match node:
        case ast.Name():
            return node
        case ast.Constant(int(value)) if _is_count(value):
            return node
        case ast.BinOp(left, ast.Add() | ast.Mult() as sign, right):
            return ast.BinOp(_normal(left), sign, _normal(right))
        case ast.BinOp(left, ast.FloorDiv() as sign, ast.Constant(by)) if _is_count(by):
            return ast.BinOp(_normal(left), sign, ast.Constant(by))
        case ast.Call(ast.Name("cdiv"), [top, ast.Constant(int(by))], []) if _is_count(by):
            more = ast.BinOp(_normal(top), ast.Add(), ast.Constant(by - 1)) if by > 1 else _normal(top)
            return ast.BinOp(more, ast.FloorDiv(), ast.Constant(by))
    raise ValueError(ast.dump(node))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 < value < 1 << 31


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Name(name):
            return sizes[name]
        case ast.Constant(int(value)):
            return value
        case ast.BinOp(left, sign, right):
            one, other = _value(left, sizes), _value(right, sizes)
            return (
                one + other
                if isinstance(sign, ast.Add)
                else one * other
                if isinstance(sign, ast.Mult)
                else one // other
            )
    raise AssertionError(f"no part of a derived size: {ast.dump(node)}")
