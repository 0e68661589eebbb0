"""The pages of the site that docs/ does not have, for `make docs`.

In: mkdocs' configuration. Out: the pages of the root and all files that a page links to outside of docs/, in their
place; `options.md`, every command with its options, from the command line; `api.md`, every public name and the classes
that these return, read from the sources without importing them.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import griffe
import typer.main
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

from normtune import cli

ROOT = Path(__file__).parents[1]
# Pages of the root, by their name in the site.
PAGES = {f"{name}.md": f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")} | {"index.md": "README.md"}
# The package under its name, whatever the folder of the clone.
SOURCES = ROOT / ".cache" / "docs" / "normtune"
_LINK = re.compile(r"(\]\(|src=\")(?![a-z]+:|#)([^)\"#]+)")


def on_startup(**_: Any) -> None:
    """Link the sources below the name of the package, before a plugin looks for them."""
    SOURCES.mkdir(parents=True, exist_ok=True)
    for name in ("__init__.py", "cli.py", "errors.py", "heuristics", "kernels", "results", "tuner"):
        if not (SOURCES / name).is_symlink():
            (SOURCES / name).symlink_to(ROOT / name)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and the files that they link to."""
    for name, source in PAGES.items():
        files.append(File.generated(config, name, content=moved((ROOT / source).read_text("utf-8"), "")))
    files.append(File.generated(config, "options.md", content=options()))
    files.append(File.generated(config, "api.md", content="\n".join(reference())))
    for target in linked([*sorted(ROOT.glob("docs/*.md")), *(ROOT / source for source in PAGES.values())]):
        if target.is_file() and not files.get_file_from_path(target.relative_to(ROOT).as_posix()):
            files.append(File.generated(config, target.relative_to(ROOT).as_posix(), abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The text of a page with links to files outside of docs/ where the site has them."""
    return moved(markdown, "../")


def moved(text: str, root: str) -> str:
    """A text with its links as of the site, which has README.md as index.md and docs/ at the top.

    Args:
        text: of a page.
        root: the way from the folder of the page to the root of the repository.
    """

    def target(match: re.Match[str]) -> str:
        path = match[2].removeprefix(root).removeprefix("docs/")
        return match[1] + ("index.md" if path == "README.md" else path)

    return _LINK.sub(target, text)


def linked(pages: Iterable[Path]) -> set[Path]:
    """The files outside of docs/ that pages link to, and those that these link to."""
    found: set[Path] = set()
    rest = list(pages)
    while rest:
        page = rest.pop()
        targets = {(page.parent / match[2]).resolve() for match in _LINK.finditer(page.read_text("utf-8"))}
        new = {one for one in targets if one.is_file() and ROOT / "docs" not in one.parents} - found
        new -= {ROOT / source for source in PAGES.values()}
        found |= new
        rest += [one for one in new if one.suffix == ".md"]
    return found


def options() -> str:
    """The page of all commands and their options."""
    command = typer.main.get_command(cli.app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="normtune"), name="normtune")
    return text.replace("# `normtune`", "# Options", 1).replace("```console", "```text")


def reference() -> Iterator[str]:
    """The lines of the page of all public names."""
    package = griffe.load("normtune", search_paths=[SOURCES.parent], allow_inspection=False)
    public = {name: package[name].final_target for name in package.exports if name != "__version__"}
    yield "# Reference\n"
    yield "All public names, `from normtune import NAME`, and the classes that they return.\n"
    for name in public:
        yield f"::: normtune.{name}\n"
    for path in sorted(reached(package, public.values()) - {value.path for value in public.values()}):
        yield f"::: {path}\n"


def reached(package: griffe.Module, values: Iterable[griffe.Object]) -> set[str]:
    """The paths of the package's classes that functions return, and that attributes of these hold."""
    found: set[str] = set()
    rest = list(values)
    while rest:
        value = rest.pop()
        members = value.members.values() if value.is_class else ()
        shown = [value, *(one for one in members if not one.is_alias and not one.name.startswith("_"))]
        annotations = [one.returns if one.is_function else one.annotation for one in shown if not one.is_class]
        names = {name.canonical_path for one in annotations for name in names_of(one)}
        for path in sorted(name for name in names - found if name.startswith("normtune.")):
            if (one := package[path.removeprefix("normtune.")]).is_class:
                found.add(path)
                rest.append(one)
    return found


def names_of(annotation: griffe.Expr | str | None) -> Iterator[griffe.ExprName]:
    """The names in an annotation."""
    if isinstance(annotation, griffe.ExprName):
        yield annotation
    elif isinstance(annotation, griffe.Expr):
        yield from (one for one in annotation.iterate() if isinstance(one, griffe.ExprName))
