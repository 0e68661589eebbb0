"""Syntax without what changes no launch: lines, comments, docstrings, annotations, imports.

In: a statement. Out: it without these, its text, which is the same on every Python, and the names that it uses.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
# Fields that say nothing, or that some versions of Python lack.
_IGNORED = {"type_comment", "type_params", "kind", "ctx", "returns"}


class Reference(NamedTuple):
    """A name that is read, and the attributes that are read from it: `tl.load` is `tl` with `load`."""

    name: str
    attributes: tuple[str, ...] = ()


def bare(statement: ast.stmt, is_without_effect: Callable[[ast.expr], bool]) -> ast.stmt:
    """It without docstrings, imports, decorators without effect, and annotations that Triton does not read.

    The statement itself is changed.
    """
    remainder: ast.stmt = _Bare(is_without_effect).visit(statement) or ast.Pass()
    return ast.copy_location(remainder, statement)


class _Bare(ast.NodeTransformer):
    def __init__(self, is_without_effect: Callable[[ast.expr], bool]) -> None:
        self._is_without_effect = is_without_effect
        self._is_kernel = False
        self._is_class = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: _Function) -> ast.AST:
        before = self._is_kernel, self._is_class
        node.decorator_list = [one for one in node.decorator_list if not self._is_without_effect(one)]
        args = node.args
        parameters = [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]
        # Triton specialises a kernel by the annotations of its parameters; a decorator may make it one.
        self._is_kernel = bool(node.decorator_list) or any(_is_constexpr(one.annotation) for one in parameters)
        self._is_class = False
        for one in parameters:
            one.annotation = one.annotation if self._is_kernel else None
        node.returns = None
        self.generic_visit(node)
        self._is_kernel, self._is_class = before
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        before = self._is_class
        node.decorator_list = [one for one in node.decorator_list if not self._is_without_effect(one)]
        self._is_class = True
        self.generic_visit(node)
        self._is_class = before
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        """`x: int = 1` is `x = 1`, and a bare `x: int` nothing; but a field of a class stays, as its order counts."""
        self.generic_visit(node)
        if _is_constexpr(node.annotation) or (self._is_kernel and not self._is_class):
            return node
        if self._is_class:
            node.annotation = ast.Constant(None)
            return node
        return ast.Assign(targets=[node.target], value=node.value) if node.value else None

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_Pass(self, node: ast.Pass) -> None:
        return None

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """Python 3.11 does not join the literals that an f-string was split into, later ones do."""
        self.generic_visit(node)
        values: list[ast.expr] = []
        for is_text, parts in groupby(node.values, lambda part: isinstance(part, ast.Constant)):
            group = list(parts)
            values += [ast.Constant("".join(str(one.value) for one in group))] if is_text else group  # type: ignore[attr-defined]
        node.values = values
        return node


def _is_constexpr(annotation: ast.expr | None) -> bool:
    return annotation is not None and "constexpr" in ast.unparse(annotation)


def text_of(node: object, aliases: Mapping[str, str]) -> str:
    """A node as text, with `aliases` in place of names. `ast.dump` prints other fields on other versions of Python."""
    if isinstance(node, list):
        return "[" + ",".join(text_of(one, aliases) for one in node) + "]"
    if not isinstance(node, ast.AST):
        return ascii(node)
    fields = {key: value for key, value in ast.iter_fields(node) if key not in _IGNORED}
    for key in ("id", "name"):
        if fields.get(key) in aliases:
            fields[key] = aliases[fields[key]]
    texts = (f"{key}={text_of(of, aliases)}" for key, of in sorted(fields.items()) if of is not None and of != [])
    return f"{type(node).__name__}({','.join(texts)})"


def references(
    node: ast.AST, bound: frozenset[str] = frozenset(), outer: frozenset[str] | None = None
) -> Iterator[Reference]:
    """The names that a node reads and does not bind itself, in order.

    Args:
        node: without imports.
        bound: names that are bound around it.
        outer: those without the names that a class binds, which its methods do not see; None for `bound`.
    """
    outer = bound if outer is None else outer
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Load) and node.id not in bound:
            yield Reference(node.id)
        return
    if reference := _chain(node):
        if reference.name not in bound:
            yield reference
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
        args = node.args
        parameters = [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]
        annotations = [one.annotation for one in parameters]
        for part in filter(None, [*decorators, *annotations, *args.defaults, *args.kw_defaults]):
            yield from references(part, bound, outer)
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        inner = outer | {one.arg for one in parameters} | _stored(body)
        for statement in body:
            yield from references(statement, inner)
        return
    if isinstance(node, ast.ClassDef):
        for one in [*node.decorator_list, *node.bases, *node.keywords]:
            yield from references(one, bound, outer)
        inner = bound | _stored(node.body)
        for statement in node.body:
            yield from references(statement, inner, outer)
        return
    if isinstance(node, _Comprehension):
        targets = _stored([one.target for one in node.generators])
        for child in ast.iter_child_nodes(node):
            yield from references(child, bound | targets, outer | targets)
        return
    for child in ast.iter_child_nodes(node):
        yield from references(child, bound, outer)


def _chain(node: ast.AST) -> Reference | None:
    """The reference that an attribute of a name is, or `getattr` of one with a literal name."""
    if isinstance(node, ast.Name):
        return Reference(node.id)
    if isinstance(node, ast.Attribute):
        base = _chain(node.value)
        return base and Reference(base.name, (*base.attributes, node.attr))
    match node:
        case ast.Call(func=ast.Name("getattr"), args=[value, ast.Constant(str(name))], keywords=[]):
            base = _chain(value)
            return base and Reference(base.name, (*base.attributes, name))
    return None


def _stored(nodes: list[ast.stmt] | list[ast.expr]) -> frozenset[str]:
    """The names that nodes bind in their own scope, besides imports."""
    names: set[str] = set()
    shared: set[str] = set()
    pending: list[ast.AST] = [*nodes]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            continue
        if isinstance(node, ast.Global):
            shared |= {*node.names}
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, _Comprehension):
            names |= {one.target.id for one in ast.walk(node) if isinstance(one, ast.NamedExpr)}
            continue
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            names.add(node.rest)
        pending += ast.iter_child_nodes(node)
    return frozenset(names - shared)
