"""Generate the reference in docs/api.md: signature and docstring of each public name and of the results' classes.

    python docs/api.py           # write the blocks
    python docs/api.py --check   # end with 1 if the document is out of date

Needs no GPU. The headings, their order and the text around a block are written by hand.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pkgutil import resolve_name
from typing import Any, get_overloads

import normtune
from normtune.docs import blocks
from normtune.docs.blocks import Blocks

DOCUMENT = blocks.ROOT / "docs" / "api.md"
# Classes that are reached through a public name, documented below it.
REACHED = {
    "Table": (
        "heuristics.fitting.figures:Figures",
        "heuristics.fitting.figures:Loss",
        "heuristics.writing.installing:Installed",
    ),
    "check": ("tuner.checking.offline:CheckedTable",),
    "check_on_device": ("tuner.checking.api:DeviceCheck", "tuner.checking.verdict:Judgement"),
    "diff": ("heuristics.api.diff:Diff", "heuristics.api.diff:DeviceDiff"),
    "doctor": ("tuner.doctor.checks:Finding",),
    "export_data": ("results.api:Exported",),
    "merge_data": ("results.merge:Merged",),
    "load_table": ("kernels.tablefile.locate:LoadedTable",),
    "report": ("heuristics.report.function_data:DeviceReport", "heuristics.report.function_data:FunctionData"),
    "show_map": (
        "heuristics.api.maps:Maps",
        "heuristics.api.maps:DeviceMaps",
        "heuristics.api.maps:ConfigMap",
        "heuristics.showing.config_map:BestMap",
    ),
    "uninstall": ("heuristics.writing.installing:Removed",),
    "sweep": ("tuner.sweep.api:Sweep", "tuner.sweep.summary:Summary"),
}
_SECTION = re.compile(r"(Args|Attributes|Raises|Returns):")
_ENTRY = re.compile(r"([\w, *]+): (.*)")
_WIDTH = 120
# Subclasses of torch's classes, whose members torch documents.
_FOREIGN = ("FusedAddRMSNorm", "RMSNorm")


def main() -> None:
    """Write or compare the document."""
    blocks.main(__doc__ or "", "python docs/api.py", "api", {DOCUMENT: BLOCKS})


def reference(name: str) -> Iterator[str]:
    """The lines of a public name."""
    yield from described(name, getattr(normtune, name))
    for path in REACHED.get(name, ()):
        value = resolve_name(f"normtune.{path}")
        yield f"**`{value.__module__}.{value.__name__}`**"
        yield from described(value.__name__, value)


def described(name: str, value: Any) -> Iterator[str]:
    """Signature and docstring of a function or class, and of the public members of a class."""
    yield ""
    if not inspect.isclass(value) or not issubclass(value, BaseException):
        yield from ("```python", *signatures(name, value), "```", "")
    yield from markdown(value.__doc__ or "")
    for member, attribute in members(value).items() if inspect.isclass(value) and name not in _FOREIGN else ():
        if isinstance(attribute, property | cached_property):
            getter = attribute.fget if isinstance(attribute, property) else attribute.func
            yield f"`.{member}`: {_joined(getter.__doc__)}"
            yield ""
        elif not member.startswith("_") and isinstance(method := getattr(attribute, "__func__", attribute), _FUNCTION):
            yield from ("```python", *_signature(f"{name}.{member}", method, is_method=True), "```", "")
            yield from markdown(method.__doc__ or "")


def members(value: type) -> dict[str, Any]:
    """The attributes of a class, with those inherited from classes of normtune."""
    classes = [base for base in value.__mro__ if base.__module__.startswith("normtune.")]
    return {name: attribute for base in reversed(classes) for name, attribute in vars(base).items()}


_FUNCTION = type(main)


def signatures(name: str, value: Any) -> Iterator[str]:
    """The signatures of a function or class, one for each overload."""
    for function in get_overloads(value) if isinstance(value, _FUNCTION) else ():
        yield from _signature(name, function)
    if not isinstance(value, _FUNCTION) or not get_overloads(value):
        yield from _signature(name, value)


def _signature(name: str, value: Callable[..., Any], is_method: bool = False) -> Iterator[str]:
    """A signature as in the source, with the values of defaults; one parameter per line if it is long."""
    signature = inspect.signature(value)
    written = _annotations(value)
    parameters: list[str] = []
    for number, (key, parameter) in enumerate(signature.parameters.items()):
        if is_method and not number:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not any(text.startswith("*") for text in parameters):
            parameters.append("*")
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        annotation = written.get(key) or _text(parameter.annotation)
        text = f"{stars}{key}" + (f": {annotation}" if annotation else "")
        if parameter.default is not parameter.empty:
            default = "..." if "<" in repr(parameter.default) else repr(parameter.default)
            text += f" = {default}" if annotation else f"={default}"
        parameters.append(text)
    result = written.get("return") or _text(signature.return_annotation)
    end = ")" + (f" -> {result}" if result and not inspect.isclass(value) else "")
    line = f"{name}({', '.join(parameters)}{end}"
    yield from [line] if len(line) <= _WIDTH else [f"{name}(", *(f"    {text}," for text in parameters), end]


def _annotations(value: Any) -> dict[str, str]:
    """The annotations of a function as in the source; none for a class."""
    if not isinstance(value, _FUNCTION):
        return {}
    (definition, *_) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    if not isinstance(definition, ast.FunctionDef):
        return {}
    args = definition.args
    arguments = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    written = {one.arg: one.annotation for one in arguments if one and one.annotation} | {"return": definition.returns}
    return {name: ast.unparse(node).strip("'\"") for name, node in written.items() if node}


def _text(annotation: Any) -> str:
    """An annotation as text, without module names."""
    if annotation is inspect.Parameter.empty:
        return ""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"ForwardRef\('([^']+)'\)", r"\1", text)
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", text).replace("NoneType", "None")
    return re.sub(r"^Union\[(.*)\]$", lambda match: match[1].replace(", ", " | "), text)


def markdown(docstring: str) -> Iterator[str]:
    """A docstring in Google's style as Markdown, with a blank line at the end."""
    is_listed = False
    for paragraph in _paragraphs(inspect.cleandoc(docstring)):
        section = _SECTION.fullmatch(paragraph[0])
        if section and section[1] == "Returns":
            yield from _wrapped(f"Returns: {_joined(' '.join(paragraph[1:]))}")
        elif section:
            yield from (f"{section[1]}:", "")
            for entry in _entries(textwrap.dedent("\n".join(paragraph[1:]))):
                yield from _wrapped(entry)
        elif paragraph[0].startswith("    "):
            yield from ("```python", *textwrap.dedent("\n".join(paragraph)).split("\n"), "```")
        else:
            is_listed = paragraph[0].startswith("- ")
            yield from paragraph if is_listed else _wrapped(_joined(" ".join(paragraph)))
        yield ""


def _paragraphs(text: str) -> Iterator[list[str]]:
    """The paragraphs of a text; successive indented ones, as of a code block, are joined."""
    paragraphs: list[list[str]] = []
    for part in text.split("\n\n"):
        lines = part.strip("\n").split("\n")
        if paragraphs and lines[0].startswith("    ") and paragraphs[-1][0].startswith("    "):
            paragraphs[-1] += ["", *lines]
        else:
            paragraphs.append(lines)
    return iter(paragraphs)


def _entries(text: str) -> Iterator[str]:
    """The entries of a section as list items."""
    for entry in re.split(r"\n(?! )", text):
        match = _ENTRY.fullmatch(_joined(entry))
        names = ", ".join(f"`{name}`" for name in match[1].split(", ")) if match else ""
        yield f"- {names}: {match[2]}" if match else f"- {_joined(entry)}"


def _joined(text: str | None) -> str:
    return " ".join((text or "").split())


def _wrapped(text: str) -> list[str]:
    indent = "  " if text.startswith("- ") else ""
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


NAMES = tuple(name for name in normtune.__all__ if name != "__version__")
BLOCKS: Blocks = {name: partial(reference, name) for name in NAMES}

if __name__ == "__main__":
    main()
