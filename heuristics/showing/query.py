"""`--where`: rows of a table by a safe filter expression.

In: a pandas frame and a query in pandas syntax. Out: the rows for which it holds. pandas evaluates attributes and
calls, and with them anything. So the expression is parsed first, and only comparisons of columns with constants are
accepted.
"""

import ast
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from normtune.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

EXAMPLE = "hidden <= 512 and rows >= 4096"
# Tests of a text column, `reason.str.contains("shared")`.
_TEXT_TESTS = ("contains", "startswith", "endswith")
_PLAIN = (
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.Invert, ast.USub, ast.UAdd, ast.Load),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.List, ast.Tuple),
)
_MOST_CHARACTERS = 2000


def where(frame: "pd.DataFrame", query: str) -> "pd.DataFrame":
    """The rows of a frame for which the query holds.

    Args:
        frame: of numbers and texts.
        query: comparisons of its columns, joined by `and`, `or`, `not`.

    Raises:
        UsageError: the query is not such an expression; the text names the columns.
    """
    columns = list(frame.columns)
    try:
        # Not the text itself: pandas splits lines differently from Python.
        kept: Any = frame.eval(_read(query, columns), engine="python")
        if str(getattr(kept, "dtype", "")) != "bool":
            raise ValueError("it is neither true nor false for a measurement")
        return frame.loc[kept.to_numpy()]
    # The exception for a comparison of a number with a text depends on the version of pandas.
    except Exception as error:
        raise _wrong(query, " ".join(str(error).split()) or type(error).__name__, columns) from None


def check(query: str, columns: Collection[str]) -> None:
    """Check that a query is an expression over these columns, before there are any data.

    Raises:
        UsageError: it is not; the text names the columns.
    """
    try:
        _read(query, columns)
    except (ValueError, MemoryError) as error:
        raise _wrong(query, " ".join(str(error).split()) or type(error).__name__, columns) from None


def _read(query: str, columns: Collection[str]) -> str:
    """The expression of a query, rewritten in one line.

    Raises:
        ValueError: it is invalid, or does more than compare columns with constants.
    """
    if len(query) > _MOST_CHARACTERS:
        raise ValueError(f"it has {len(query)} characters, expected at most {_MOST_CHARACTERS}")
    try:
        tree = ast.parse(query.strip(), mode="eval")
        _check(tree, columns)
        return ast.unparse(tree)
    except SyntaxError as error:
        raise ValueError(error.msg) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _wrong(query: str, why: str, columns: Collection[str]) -> UsageError:
    shown = query if len(query) <= 80 else f"{query[:77]}..."
    return UsageError(
        f"--where is {shown!r}: {why}; expected an expression such as {EXAMPLE!r} over {', '.join(columns)}"
    )


def _check(node: ast.AST, columns: Collection[str]) -> None:
    """Check that a node holds only columns, constants and comparisons of them.

    Raises:
        ValueError: it holds anything else.
    """
    if isinstance(node, ast.Call):
        _check_text_test(node, columns)
        return
    if isinstance(node, ast.Name):
        if node.id not in columns:
            raise ValueError(f"there is no column {node.id}")
    elif isinstance(node, ast.Constant):
        if not isinstance(node.value, int | float | str):
            raise ValueError(f"{node.value!r} is neither a number nor a text")
    elif not isinstance(node, _PLAIN):
        raise ValueError(f"{ast.unparse(node)} is not understood")
    elif isinstance(node, ast.BinOp) and not isinstance(node.op, ast.BitAnd | ast.BitOr):
        for side in (node.left, node.right):  # a text times a number may fill the memory
            if not isinstance(side, ast.Name | ast.BinOp | ast.UnaryOp) and not _is_number(side):
                raise ValueError(f"{ast.unparse(node)} is no sum or product of numbers")
    for child in ast.iter_child_nodes(node):
        _check(child, columns)


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _check_text_test(node: ast.Call, columns: Collection[str]) -> None:
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Attribute(value=ast.Name(name), attr="str"), attr=test),
            args=[ast.Constant(str())],
            keywords=[],
        ) if test in _TEXT_TESTS and name in columns:
            return
    tests = ", ".join(f".str.{test}" for test in _TEXT_TESTS)
    raise ValueError(f"{ast.unparse(node)} is not understood: of calls there are {tests} of a column, with one text")
