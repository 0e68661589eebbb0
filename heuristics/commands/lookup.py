"""`normtune lookup`: the config of a table at one shape.

In: a table, an operator, a dtype and sizes. Out: the config on a line.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from normtune.errors import UsageError
from normtune.results.terminal import note, say

if TYPE_CHECKING:
    from normtune.kernels.key import Key
    from normtune.kernels.tablefile.loaded import LoadedTable


def lookup(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="File of a table, or shipped table (nvidia-h200).")],
    operator: Annotated[str, typer.Argument(metavar="OPERATOR", help="Operator or variant, rms_norm_forward.")],
    dtype: Annotated[str, typer.Argument(metavar="DTYPE", help="bfloat16, float16 or float32.")],
    sizes: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=N",
            help="rows=4096 hidden=1024, and named integers of the operator.",
        ),
    ],
) -> None:
    """Print a table's config for one shape. Needs no GPU and no store."""
    from normtune.kernels.key import dtype_of
    from normtune.kernels.operator import find
    from normtune.kernels.tablefile.locate import load_table
    from normtune.kernels.tablefile.selection import bounded

    size_by_name, dtype = _size_by_name(sizes), dtype_of(dtype)
    loaded = load_table(table)
    key = _key(loaded, operator, dtype, size_by_name)
    answer = loaded.function(key)
    shape = [_positive(size_by_name, axis, "a size of the shape") for axis in loaded.axes]
    if size_by_name:
        names = [*loaded.axes, *(name for name, _ in key.sizes)]
        raise UsageError(f"unknown size {next(iter(size_by_name))}: expected {', '.join(names)}")
    if answer is None:
        functions = ", ".join(map(str, loaded.trees))
        raise UsageError(f"{table} has no function for {key}: expected one of {functions}")
    if spec := find(key.operator):
        try:
            spec.problem_at(tuple(shape), dtype, key.usual.variant)
        except ValueError as error:
            raise UsageError(str(error)) from None
    if not any(function.box.holds(tuple(shape)) for function in bounded(loaded, key)):
        note("more than a factor of two from what was measured: kernels ask the next table there")
    say(str(answer(*shape)))


def _size_by_name(sizes: list[str]) -> dict[str, Any]:
    size_by_name: dict[str, Any] = {}
    for text in sizes:
        name, equals, value = text.partition("=")
        if not equals or not value.isascii() or not value.isdecimal() or int(value[:20]) < 1 or len(value) > 15:
            raise UsageError(f"{text!r}: expected NAME=N with a positive integer, as rows=4096")
        if name in size_by_name:
            raise UsageError(f"{name} is given twice")
        size_by_name[name] = int(value)
    return size_by_name


def _positive(size_by_name: dict[str, Any], name: str, what: str) -> int:
    if name not in size_by_name:
        raise UsageError(f"{name} is missing ({what}): add {name}=N")
    return int(size_by_name.pop(name))


def _key(table: "LoadedTable", operator: str, dtype: str, size_by_name: dict[str, Any]) -> "Key":
    """The key of an operator with its named integers from the command line."""
    from normtune.kernels.key import Key

    key = Key.parse(operator, dtype)
    names = next((other.sizes for other in table.trees if other.family == key.family), ())
    if key.sizes or not names:
        return key
    return key._replace(
        sizes=tuple((name, _positive(size_by_name, name, f"a named integer of {key.family}")) for name, _ in names)
    )
