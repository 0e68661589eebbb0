"""The fingerprint of an operator's kernels: it changes exactly when their syntax trees do.

In: an `OperatorSpec`. Out: a sha256 over the syntax trees of the modules that its spec lists, without docstrings,
comments, annotations and positions. Reads sources as text: needs neither triton nor torch, and gives the same on
every Python. same_code.json lists, by the fingerprint of sources, those of earlier sources whose compiled code was
proved equal on all of a recording (benchmarks/recorded_code.py writes it).
"""

import ast
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from normtune.kernels.load_file import NUMBER
from normtune.kernels.operator import OperatorSpec, find

SAME_CODE = Path(__file__).with_name("same_code.json")
# In place of the fingerprint of kernels that another program measured.
UNKNOWN = "unknown"


def fingerprint(spec: OperatorSpec) -> str:
    """The kernel fingerprint of an operator, `sha256:` and 64 hexadecimal digits.

    Raises:
        FileNotFoundError: a module that the spec lists has no source file.
    """
    return _of_modules(spec.sources)


def is_current(spec: OperatorSpec, measured: str) -> bool:
    """Whether sources with the fingerprint `measured` are the present ones, or compile to the same code."""
    present = fingerprint(spec)
    return measured == present or measured in same_code().get(present, ())


def changed(measured: Mapping[str, str]) -> list[str]:
    """The registered operators whose kernels changed since their fingerprint was `measured`, as far as it is known."""
    specs = {name: spec for name, of in measured.items() if of != UNKNOWN and (spec := find(name))}
    return [name for name, spec in specs.items() if not is_current(spec, measured[name])]


@cache
def same_code() -> dict[str, list[str]]:
    """By the fingerprint of the present sources, those of earlier sources that compile to the same code."""
    equal: dict[str, list[str]] = json.loads(SAME_CODE.read_text("utf-8"))
    return equal


def alike(measured: str) -> frozenset[str]:
    """The fingerprints of sources that are known to compile to the same code as these, which are among them."""
    return frozenset({measured}).union(*(of for now, then in same_code().items() if measured in (of := {now, *then})))


def source_fingerprint(source: str) -> str:
    """The fingerprint of one module's text."""
    return hashlib.sha256(_canonical(ast.parse(source)).encode()).hexdigest()


@cache
def _of_modules(modules: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for name in modules:
        module_spec = find_spec(name)
        if module_spec is None or module_spec.origin is None:
            raise FileNotFoundError(f"no source of module {name}")
        # Without the number of a file that was loaded after another one of its name.
        stem = name.partition(NUMBER)[0]
        digest.update(f"{stem} {source_fingerprint(Path(module_spec.origin).read_text('utf-8'))}\n".encode())
    return "sha256:" + digest.hexdigest()


def _canonical(node: object) -> str:
    """A node as text. Not `ast.dump`, which prints other fields on other versions of Python."""
    if isinstance(node, list):
        return "[" + ",".join(_canonical(item) for item in node) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    if isinstance(node, ast.AnnAssign):  # x: int = 1 is x = 1; a bare x: int does nothing at run time
        if node.value is None:
            return ""
        return _canonical(ast.Assign(targets=[node.target], value=node.value))
    for name in ("annotation", "returns", "type_comment", "type_params", "kind", "ctx", "type_ignores"):
        if not (name == "annotation" and _is_constexpr(fields.get(name))):
            fields.pop(name, None)
    if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        body = node.body
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:] if isinstance(body[0].value.value, str) else body
        fields["body"] = [item for item in body if not (isinstance(item, ast.AnnAssign) and item.value is None)]
    inner = ",".join(f"{key}={_canonical(value)}" for key, value in sorted(fields.items()) if value not in (None, []))
    return f"{type(node).__name__}({inner})"


def _is_constexpr(annotation: object) -> bool:
    """Whether an annotation is `tl.constexpr`, the only kind that changes the compiled code."""
    return isinstance(annotation, ast.Attribute) and annotation.attr == "constexpr"
