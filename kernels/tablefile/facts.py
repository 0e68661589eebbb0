"""Values of typed tuples as JSON, and back.

In: named tuples of numbers, texts, sequences, mappings and such tuples. Out: values for `json`, without defaults; and
the tuples from JSON, which is checked, as a table may come from anybody. Imports only the standard library, because
dispatch reads headers.
"""

from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from normtune.kernels.key import Key

_hints = cache(get_type_hints)
# Of a quotation of an untrusted value in a message.
_MOST_CHARACTERS = 60


def encoded(value: Any) -> Any:
    """A value as JSON, without fields that equal their default."""
    if isinstance(value, Key):
        return [value.text, value.dtype]
    if hasattr(value, "_fields"):
        defaults = value._field_defaults
        fields = zip(value._fields, value, strict=True)
        return {name: encoded(item) for name, item in fields if name not in defaults or item != defaults[name]}
    if isinstance(value, tuple | list):
        return [encoded(item) for item in value]
    if isinstance(value, dict):
        return {name: encoded(item) for name, item in value.items()}
    return value


def decoded(kind: Any, value: Any, name: str) -> Any:
    """JSON as a value of a type, the inverse of `encoded`; fields of another version are left out.

    Args:
        kind: a class of named tuples; `Key`, which is a list of text and dtype; `int`, `str`, `bool`,
            `tuple[int, ...]`, `dict[str, str]`, `int | None` or `Any`.
        value: the JSON.
        name: the value's name in errors.

    Raises:
        ValueError: the JSON has another type.
    """
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if kind is Key:
        return Key.parse(*decoded(tuple[str, str], value, name))
    if origin in (Union, UnionType):
        (kind,) = {*args} - {NoneType}
        return None if value is None else decoded(kind, value, name)
    if origin is tuple and isinstance(value, list):
        kinds = [args[0]] * len(value) if args[-1] is ... else [*args]
        if len(kinds) == len(value):
            return tuple(
                decoded(*pair, f"{name}[{index}]") for index, pair in enumerate(zip(kinds, value, strict=True))
            )
    elif origin is dict and isinstance(value, dict):
        return {key: decoded(args[1], item, f"{name}.{key[:_MOST_CHARACTERS]}") for key, item in value.items()}
    elif hasattr(kind, "_fields") and isinstance(value, dict):
        hints, required = _hints(kind), {*kind._fields} - {*kind._field_defaults}
        if missing := required - set(value):
            raise ValueError(f"{name} lacks {', '.join(sorted(missing))[:_MOST_CHARACTERS]}")
        return kind(
            **{field: decoded(hints[field], item, f"{name}.{field}") for field, item in value.items() if field in hints}
        )
    elif type(value) is kind:
        return value
    raise ValueError(f"{name} is {repr(value)[:_MOST_CHARACTERS]}, expected {_type_name(kind)}")


def _type_name(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return "a list" if get_args(kind)[-1] is ... else f"a list of {len(get_args(kind))}"
    return {int: "an integer", str: "text", bool: "true or false"}.get(kind, "an object")
