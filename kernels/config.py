"""Configs: how an operator is launched for a whole region of shapes, as a value for each of its knobs.

In: subclasses of `Config`, one an operator or family of operators, which declare the knobs. Out: the values that spaces
enumerate, sweeps time, tables return and `OperatorSpec.resolve` turns into a launch for one problem. Knows no operator,
no shape and no GPU.
"""

import inspect
import json
import re
import sys
from collections import namedtuple
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self, dataclass_transform, get_args, get_origin

KINDS: dict[str, type] = {"int": int, "str": str}
# Knobs by which a launch rule may divide before it asks what is legal, unless a class says with its default that 0 is a
# value.
_POSITIVE = ("block_row", "num_warps", "num_stages")
_MOST = 1 << 20
# A line that begins with a colon may be a command to a CI log.
_WORD = re.compile(r"[A-Za-z0-9_.+/-][A-Za-z0-9_.:+/-]{0,63}")
# Options of Triton's compiler that a `triton.Config` may have, with its defaults. The knob is 0 where Triton has None.
COMPILER_KNOBS: Mapping[str, int | None] = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None}
# What a message takes of a text that somebody else wrote.
_MOST_CHARACTERS = 200


def compiler_options(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """The options of Triton's compiler among knobs, without `maxnreg=0`, as which None is stored."""
    options = {name: knobs[name] for name in COMPILER_KNOBS if name in knobs}
    return {name: value for name, value in options.items() if value or COMPILER_KNOBS[name] is not None}


class Knob(NamedTuple):
    """One field of a config.

    Attributes:
        name: as it is written in tables, stores and options.
        kind: `int` or `str`.
        meaning: what it decides, in a line, for the table's docstring; empty where nobody said.
        default: left out of texts where a config has it; None where there is none.
    """

    name: str
    kind: type
    meaning: str = ""
    default: int | str | None = None


@dataclass_transform(frozen_default=True)
class Config(tuple[Any, ...]):
    """How an operator is launched: hashable, ordered, equal to the plain tuple of its values.

    A subclass declares a knob a line, integer or text, with its meaning and a default where there is one, behind those
    that it inherits:

        class SoftmaxConfig(Config):
            rows: Annotated[int, "rows a program holds at once."] = 1
            num_warps: Annotated[int, "warps a program."] = 4

    Attributes:
        knobs: the knobs, in the order of the values.

    Raises:
        TypeError: a knob of a subclass is neither `int` nor `str`, has the name of a method, or its default is of
            another kind.
    """

    __slots__ = ()

    knobs: ClassVar[tuple[Knob, ...]] = ()
    _fields: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:

        def __new__(cls, *values: Any) -> Self:
            """Of the values of the knobs, in their order or by name."""

        def __getattr__(self, name: str) -> Any:
            """The value of a knob that the operator declares."""

    def __init_subclass__(cls) -> None:
        declared = {name: _knob(cls, name, hint) for name, hint in inspect.get_annotations(cls).items()}
        cls._take({knob.name: knob for knob in cls.knobs} | declared)
        if not cls.__name__.startswith("_") and cls.knobs:
            _DECLARED.setdefault(_without_meanings(cls.knobs), cls)

    @classmethod
    def _take(cls, knobs: Mapping[str, Knob]) -> None:
        """Give the class its knobs: the constructor and the fields of a `namedtuple` of them."""
        if clashes := [name for name in knobs if name in vars(Config)]:
            raise TypeError(f"a knob is named {clashes[0]!r}, as a method of a config: rename it")
        defaults = [knob.default for knob in knobs.values() if knob.default is not None]
        fields: Any = namedtuple(cls.__name__, list(knobs), defaults=defaults)  # type: ignore[misc]
        for name in ("__new__", "_fields", "_field_defaults", *knobs):
            setattr(cls, name, fields.__dict__[name])
        cls.knobs = tuple(knobs.values())
        if knobs and cls.knobs[0].kind is int:
            cls.__lt__, cls.__gt__ = _Mixed.__lt__, _Mixed.__gt__  # type: ignore[method-assign, assignment]

    def _replace(self, **values: int | str) -> Self:
        return type(self)(**{**self._asdict(), **values})

    def _asdict(self) -> dict[str, int | str]:
        return dict(zip(self._fields, self, strict=True))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"

    def __str__(self) -> str:
        """One line, without default values: `persistent block_row=4 warps=8 stages=3 programs_per_sm=2`."""
        return " ".join(
            str(value) if knob.kind is str and knob.default is None else f"{knob.name.removeprefix('num_')}={value}"
            for knob, value in self._telling()
        )

    def constant_name(self) -> str:
        """The name of this config in a table's code, an identifier: `ROWS_2_WARPS_8`."""
        parts = []
        for knob, value in self._telling():
            if isinstance(value, str):
                parts.append(value if value.isidentifier() else f"{knob.name}_{identifier(value)}")
            else:
                sign = "minus_" * (value < 0)
                parts.append(f"{knob.name.removeprefix('num_')}_{sign}{abs(value)}")
        return "_".join(parts).upper()

    def _telling(self) -> list[tuple[Knob, int | str]]:
        """The knobs, with their values, that differ from the default; warps always."""
        pairs = zip(self.knobs, self, strict=True)
        return [(knob, value) for knob, value in pairs if knob.name == "num_warps" or value != knob.default]

    def to_json(self) -> str:
        """The canonical text of this config: sorted keys, no spaces; equal configs give equal bytes."""
        return json.dumps(self._asdict(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The config that `to_json` wrote.

        `Config` itself takes any knobs, so that a store's configs of operators that are not installed can be read.

        Raises:
            ValueError: the text is not a JSON object of exactly these knobs with values of the right kinds.
        """
        try:
            values: dict[str, Any] = json.loads(text)
            of: type[Any] = cls
            if cls is Config:
                of = class_of(tuple(Knob(name, _known_kind(value)) for name, value in values.items()))
            config: Self = of(**values)
        except (json.JSONDecodeError, TypeError, ValueError, AttributeError, RecursionError) as error:
            why = str(error)[:_MOST_CHARACTERS]
            raise ValueError(f"not a config: {text[:_MOST_CHARACTERS]!r} ({why})") from None
        for knob, value in zip(config.knobs, config, strict=True):
            if type(value) is not knob.kind:
                expected = knob.kind.__name__
                excerpt = text[:_MOST_CHARACTERS]
                raise ValueError(
                    f"not a config: {knob.name} is {str(value)[:40]!r}, expected {expected}, in {excerpt!r}"
                )
        return config

    def __reduce__(self) -> tuple[Any, ...]:
        of = type(self)
        if getattr(sys.modules.get(of.__module__), of.__qualname__, None) is not of:  # as pickle finds no such class
            return _revived, (self.knobs, tuple(self))
        return type(self), tuple(self)


def is_word(text: str) -> bool:
    """Whether a text can be the value of a knob: an identifier, or letters, digits and signs such as `128x64`."""
    return bool(_WORD.fullmatch(text)) or text.isidentifier()


def check_values(config: Config) -> None:
    """Check the values of a config from a file, as launch rules divide by some of them.

    Raises:
        ValueError: a number is out of its range, or a text is no short word.
    """
    if config == COPY:
        return
    is_known = not is_nameless(config)
    for (name, _, _, default), value in zip(config.knobs, config, strict=True):
        least = int(name in _POSITIVE and default != 0) if is_known else -_MOST
        if isinstance(value, str):
            if not is_word(value):
                raise ValueError(f"{name} of a config is {value[:40]!r}, expected a word such as row or 128x64")
        elif not least <= value <= _MOST:
            text = value if abs(value) < 1 << 62 else "a larger number"
            raise ValueError(f"{name} of a config is {text}, expected {least} to {_MOST}")


_NAMELESS = "_AnyConfig"


def identifier(text: str) -> str:
    """Text as part of a name in a table's code."""
    return re.sub(r"\W", "_", text, flags=re.ASCII)


def is_nameless(config: Config) -> bool:
    """Whether no operator at hand declares its knobs."""
    return type(config).__qualname__ == _NAMELESS


_DECLARED: dict[tuple[Knob, ...], type[Config]] = {}


def class_of(knobs: tuple[Knob, ...]) -> type[Config]:
    """The class that declares these knobs, or one without a name where no operator at hand does.

    Raises:
        ValueError: a name is no identifier, or stands twice.
        TypeError: a name is that of a method of a config.
    """
    knobs = _without_meanings(knobs)
    return _DECLARED.get(knobs) or _nameless(knobs)


def _without_meanings(knobs: tuple[Knob, ...]) -> tuple[Knob, ...]:
    return tuple(knob._replace(meaning="") for knob in knobs)


@lru_cache(maxsize=256)
def _nameless(knobs: tuple[Knob, ...]) -> type[Config]:
    nameless: type[Config] = type(_NAMELESS, (_Mixed,), {"__slots__": (), "__module__": __name__})
    nameless._take({knob.name: knob for knob in knobs})
    if len(nameless._fields) != len(knobs) or not knobs:
        raise ValueError(f"expected knobs of different names, got {[knob.name for knob in knobs]}")
    return nameless


def _revived(knobs: tuple[Knob, ...], values: Sequence[int | str]) -> Config:
    return class_of(knobs)(*values)


def _knob(cls: type[Config], name: str, hint: Any) -> Knob:
    meaning = ""
    if get_origin(hint) is Annotated:
        hint, meaning = get_args(hint)[:2]
    kind: Any = KINDS.get(hint, hint) if isinstance(hint, str) else hint
    default: Any = cls.__dict__.get(name)
    if kind not in KINDS.values():
        raise TypeError(f"{cls.__name__}.{name} is annotated {hint!r}: a knob is int or str, plain or in Annotated")
    if not re.fullmatch(r"[ !#-\[\]-~]*", meaning):
        raise TypeError(f"the meaning of {cls.__name__}.{name} is {meaning!r}: expected ASCII without quotes or \\")
    if default is not None and type(default) is not kind:
        raise TypeError(f"{cls.__name__}.{name} has the default {default!r}: expected {kind.__name__}")
    return Knob(name, kind, meaning, default)


def _known_kind(value: object) -> type:
    if type(value) not in KINDS.values():
        raise ValueError(f"{value!r} is neither an integer nor a text")
    return type(value)


class _Mixed(Config):
    """A config that is also sorted among those of other classes, by the names of the knobs."""

    def __lt__(self, other: tuple[Any, ...]) -> bool:
        try:
            return tuple.__lt__(self, other)
        except TypeError:
            return isinstance(other, Config) and self._fields < other._fields

    def __gt__(self, other: tuple[Any, ...]) -> bool:
        try:
            return tuple.__gt__(self, other)
        except TypeError:
            return isinstance(other, Config) and self._fields > other._fields


class Implementation(_Mixed):
    """A function that is called instead of a kernel."""

    implementation: Annotated[str, "the name under which the operator knows the function to call."]


class _Yardstick(_Mixed):
    """Timed beside the configs of a problem; stores have its knobs under this name."""

    schedule: str
    block_row: int = 1
    num_warps: int = 4
    num_stages: int = 1
    programs_per_sm: int = 0
    finish: str = "none"
    block_col: int = 0


# The yardstick beside every problem: a plain device-to-device copy that moves as many bytes. It is stored like a
# config and is never a candidate.
COPY = _Yardstick("copy", num_warps=0)
