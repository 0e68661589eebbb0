"""The top-level statements of modules, and what the names in them stand for, read from sources.

In: a module and a name in it. Out: the statements that define it, or the dotted name of a library's object. Nothing is
imported or run, so that neither triton nor torch is needed.
"""

import ast
import builtins
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, resolve_name
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from normtune.kernels.syntax import Reference, bare, references, text_of

# Packages whose code is named, not read: their versions are recorded elsewhere, or no launch depends on them.
_LIBRARIES = {"torch", "triton", "numpy", "packaging", "typing_extensions", "builtins", *sys.stdlib_module_names}
# Of normtune only the packages of operators and `tiles` are read: other modules decide no launch.
_FRAMEWORK = ("normtune.kernels.calling", "normtune.kernels.custom_op", "normtune.kernels.tablefile")
# Decorators that neither change a launch nor a kernel: `config` replaces what `triton.autotune` would choose.
_WITHOUT_EFFECT = (
    "normtune.kernel_operator",
    "normtune.kernels.custom_op.decorator.kernel_operator",
    "triton.autotune",
    "triton.runtime.autotuner.autotune",
)
_NAMED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_OF_EVERY_MODULE = {"__name__", "__file__", "__doc__", "__package__", "__spec__"}


class Definition(NamedTuple):
    """A top-level statement: its module, and its place there."""

    module: str
    place: int


class Meaning(NamedTuple):
    """What a reference stands for.

    Attributes:
        definitions: the statements that define it.
        libraries: dotted names of objects of libraries that it stands for.
        fault: why it cannot be found by reading; empty if it can.
    """

    definitions: tuple[Definition, ...] = ()
    libraries: tuple[str, ...] = ()
    fault: str = ""

    def __add__(self, other: "Meaning") -> "Meaning":  # type: ignore[override]
        definitions, libraries = self.definitions + other.definitions, self.libraries + other.libraries
        return Meaning(definitions, libraries, self.fault or other.fault)


class Statement(NamedTuple):
    """A statement that was read.

    Attributes:
        text: without what changes no launch, see `syntax.bare`; functions and classes have numbers in place of names.
        names: those that it uses and does not bind itself, with their attributes, and what they stand for.
        place: its file and line, for messages.
    """

    text: str
    names: dict[str, Meaning]
    place: str


class Module:
    """A module with a source file.

    Attributes:
        file: its path.
        body: its top-level statements.
    """

    def __init__(self, name: str, file: Path) -> None:
        self.name, self.file = name, file
        self.body = ast.parse(file.read_bytes()).body
        self._package = name if file.stem == "__init__" else name.rpartition(".")[0]

    @cached_property
    def imports(self) -> dict[str, list[str]]:
        """By name the dotted names of what an import at the top level binds it to; `*` for all of a module."""
        return self.imported(self.body)

    def imported(self, nodes: Sequence[ast.AST], is_deep: bool = False) -> dict[str, list[str]]:
        """As `imports`, of the imports in these nodes, of those in functions and classes only if `is_deep`."""
        targets: dict[str, list[str]] = {}
        below = ast.walk if is_deep else _outside_functions
        for node in chain.from_iterable(map(below, nodes)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    targets.setdefault(alias.asname or first, []).append(alias.name if alias.asname else first)
            elif isinstance(node, ast.ImportFrom):
                base = "." * node.level + (node.module or "")
                base = resolve_name(base, self._package) if node.level and self._package else base
                for alias in node.names:
                    targets.setdefault(alias.asname or alias.name, []).append(f"{base}.{alias.name}".lstrip("."))
        return targets

    @cached_property
    def places(self) -> dict[str, list[int]]:
        """By name the places of the statements that define or change it, besides imports."""
        places: dict[str, list[int]] = {}
        for place, statement in enumerate(self.body):
            for name in dict.fromkeys(_bound(statement)):
                places.setdefault(name, []).append(place)
        return places

    def lambdas(self, line: int) -> list[int]:
        """The places of the lambdas that begin in a line, which are added to `body`."""
        tree = ast.parse(self.file.read_bytes())  # again, as decorators of statements that were read are gone
        lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda) and node.lineno == line]
        self.body += [ast.copy_location(ast.Expr(node), node) for node in lambdas]
        return [*range(len(self.body) - len(lambdas), len(self.body))]


class Modules:
    """The modules that were read, by name."""

    def __init__(self) -> None:
        self._modules: dict[str, Module | None] = {}
        self._statements: dict[Definition, Statement] = {}

    def module(self, name: str) -> Module | None:
        """A module; None without a source file that this Python reads."""
        if name not in self._modules:
            file = _file_of(name)
            self._modules[name] = None
            with suppress(OSError, SyntaxError, ValueError):
                if file and file.suffix == ".py":
                    self._modules[name] = Module(name, file)
        return self._modules[name]

    def statement(self, definition: Definition) -> Statement:
        """A statement as text, and what the names in it stand for."""
        if definition not in self._statements:
            module = self._modules[definition.module]
            assert module
            node = module.body[definition.place]
            inside = module.imported([node], is_deep=True)

            def is_without_effect(decorator: ast.expr) -> bool:
                called = decorator.func if isinstance(decorator, ast.Call) else decorator
                named = [self.meaning(definition.module, one) for one in references(called)]
                return any(name in _WITHOUT_EFFECT for one in named for name in one.libraries)

            node = bare(node, is_without_effect)
            meanings = {one: self.meaning(definition.module, one, inside) for one in references(node)}
            aliases = {node.name: "itself"} if isinstance(node, _NAMED) else {}
            for one, meaning in meanings.items():
                if self._is_of_functions(meaning):
                    aliases.setdefault(one.name, f"function {len(aliases)}")
            names = {".".join((aliases.get(one.name, one.name), *one.attributes)): of for one, of in meanings.items()}
            place = f"{module.file.name}, line {node.lineno} and after"
            self._statements[definition] = Statement(text_of(node, aliases), names, place)
        return self._statements[definition]

    def _is_of_functions(self, meaning: Meaning) -> bool:
        """Whether it stands for functions or classes alone, whose names change no launch."""
        nodes = [self._modules[one.module].body[one.place] for one in meaning.definitions]  # type: ignore[union-attr]
        return bool(nodes) and not meaning.libraries and all(isinstance(node, _NAMED) for node in nodes)

    def meaning(self, module: str, reference: Reference, inside: dict[str, list[str]] | None = None) -> Meaning:
        """What a reference in a module stands for.

        Args:
            module: its name, of a module with a source file.
            reference: the name, and the attributes that are read from it.
            inside: the imports in the function that has the reference.
        """
        name, attributes = reference
        targets = (inside or {}).get(name)
        meaning = self._dotted(targets, attributes) if targets else self._in_module(module, name, attributes)
        if meaning:
            return meaning
        if name in _OF_EVERY_MODULE:
            return Meaning(libraries=(name,))
        if hasattr(builtins, name):
            is_opaque = name in ("globals", "eval", "exec", "__import__")
            return Meaning(libraries=(name,), fault=f"{name}()" if is_opaque else "")
        return Meaning(fault=f"{name}, which nothing defines")

    def _in_module(
        self, module: str, name: str, attributes: tuple[str, ...], trail: frozenset[tuple[str, str]] = frozenset()
    ) -> Meaning | None:
        """What a name at the top level of a module stands for; None if nothing there binds it."""
        read = self.module(module)
        if read is None or (module, name) in trail:
            return None
        trail |= {(module, name)}
        imported = read.imports.get(name, [])
        meaning = Meaning(tuple(Definition(module, place) for place in read.places.get(name, ())))
        if imported and all(map(is_library, imported)):
            meaning = Meaning()  # `torch.manual_seed(0)` changes torch for nobody who reads sources
        if imported:
            meaning += self._dotted(imported, attributes, trail)
        if meaning != Meaning():
            return meaning
        for star in read.imports.get("*", ()):
            base = star.removesuffix(".*")
            if is_library(base):
                if not hasattr(builtins, name):
                    return Meaning(libraries=(".".join((base, name, *attributes)),))
            elif inner := self._in_module(base, name, attributes, trail):
                return inner
        return None

    def _dotted(
        self, targets: Sequence[str], attributes: tuple[str, ...], trail: frozenset[tuple[str, str]] = frozenset()
    ) -> Meaning:
        """What dotted names, with more attributes, stand for."""
        meaning = Meaning()
        for target in dict.fromkeys(targets):
            meaning += self._one(target.split("."), attributes, trail)
        return meaning

    def _one(self, parts: list[str], attributes: tuple[str, ...], trail: frozenset[tuple[str, str]]) -> Meaning:
        whole = ".".join((*parts, *attributes))
        if is_library(whole):
            opaque = [name for name in ("importlib.import_module", "sys.modules") if whole.startswith(name)]
            return Meaning(libraries=(whole,), fault="".join(opaque))
        # The longest module, then a name in it.
        names = [*parts, *attributes]
        size = 1
        while size < len(names):
            module = ".".join(names[:size])
            if meaning := self._in_module(module, names[size], tuple(names[size + 1 :]), trail):
                return meaning
            if not _file_of(f"{module}.{names[size]}"):
                break
            size += 1
        module, rest = ".".join(names[:size]), names[size:]
        if self.module(module) is None or {*rest} & _OF_EVERY_MODULE:
            return Meaning(libraries=(whole,))  # not installed, not in Python, or no matter
        if not rest:
            return Meaning(fault=f"the module {module} as a value")
        return Meaning(fault=f"{'.'.join(rest)} of {module}, which no statement there defines")


def is_library(dotted: str) -> bool:
    """Whether the code of a dotted name is named, not read."""
    first, *rest = dotted.split(".")
    if first != "normtune" or rest[:1] == ["tests"]:
        return first in _LIBRARIES
    file = _file_of(".".join([first, *rest[:2]])) if rest[:1] == ["kernels"] and len(rest) > 1 else None
    return file is None or file.stem != "__init__" or dotted.startswith(_FRAMEWORK)


def _file_of(name: str) -> Path | None:
    """The file of a module, without importing it; a namespace package has its folder."""
    loaded = sys.modules.get(name)
    if file := getattr(loaded, "__file__", None):
        return Path(file)
    spec = _spec_of(name)
    if spec and spec.origin:
        return Path(spec.origin)
    return next((Path(folder) for folder in (spec and spec.submodule_search_locations) or ()), None)


def _spec_of(name: str) -> ModuleSpec | None:
    above = name.rpartition(".")[0]
    try:
        if not above:
            return find_spec(name)
        folders = getattr(sys.modules.get(above), "__path__", None)
        if folders is None and (spec := _spec_of(above)):
            folders = spec.submodule_search_locations
        return PathFinder.find_spec(name, [*folders]) if folders else None
    except (ImportError, ValueError):  # its parent is no package, or it is `__main__`
        return None


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below and including one, without those inside of functions and classes."""
    yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _outside_functions(child)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement binds or changes, besides imports."""
    for node in _outside_functions(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield from _root(node)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):  # `KERNELS.update(...)`
                yield from _root(node.func) if isinstance(statement, ast.Expr) else ()
            elif isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr") and node.args:
                yield from _root(node.args[0])
    for node in ast.walk(statement):
        if isinstance(node, ast.Global):
            yield from node.names


def _root(node: ast.expr) -> Iterator[str]:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id
