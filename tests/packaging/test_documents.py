"""The documents keep up with the code: every command and option is in the README, every link and command works."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from normtune import __version__, cli

DOCUMENTS = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "docs/design.md",
    "docs/fitting.md",
    "docs/performance.md",
)


def commands() -> Iterator[tuple[str, frozenset[str]]]:
    """Each command as it is typed, with its options."""

    def walk(name: str, command: object) -> Iterator[tuple[str, frozenset[str]]]:
        children = getattr(command, "commands", None)
        if children:
            for child in children.values():
                yield from walk(f"{name} {child.name}", child)
        else:
            options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
            yield name, frozenset(options)

    yield from walk("normtune", typer.main.get_command(cli.app))


COMMANDS = dict(commands())


def test_all_commands_are_known_here() -> None:
    names = {"sweep", "fit", "check", "data list", "data export", "data import", "doctor", "show", "diff"}
    assert set(COMMANDS) == {f"normtune {name}" for name in names}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_is_in_the_readme(root: Path, command: str) -> None:
    text = (root / "README.md").read_text()
    (section,) = re.findall(rf"^### `{command}[^`]*`\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    documented = set(re.findall(r"^\| `(--[a-z-]+)", section, re.MULTILINE))
    assert documented == COMMANDS[command] - {"--help"}


def typed(text: str) -> list[str]:
    """The lines of shell blocks, continued ones joined, and those after the prompt in console blocks."""
    shell = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    return shell.replace("\\\n", " ").splitlines() + re.findall(r"^\$ (.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_normtune_call_in_a_document_has_options_that_exist(root: Path, document: str) -> None:
    text = (root / document).read_text()
    spans = re.findall(r"`(normtune [^`\n]+)`", text)
    calls = [call for line in [*typed(text), *spans] for call in re.split(r"&&|\|", line.partition("#")[0])]
    calls = [call.strip() for call in calls if re.match(r"\s*normtune\b", call)]
    for call in calls:
        words = shlex.split(call.replace("...", ""))
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        name = next((name for name in COMMANDS if shlex.join(words).startswith(name)), None)
        assert name or options <= {"--version", "--help"} or words == ["normtune"], call
        if name:
            assert options <= COMMANDS[name], call


def test_the_readme_shows_what_is_printed(root: Path, tmp_path: Path, run) -> None:
    """Run the console block of the README; a line `...` stands for lines that differ, a date for that of the day."""
    (block,) = re.findall(r"^```console\n(.*?)^```", (root / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "normtune").symlink_to(root)
    block = re.sub(r"\n+", "\n", block)
    for command, shown in re.findall(r"^\$ normtune (.*)\n((?:[^$].*\n)*)", block, re.MULTILINE):
        done = run("-m", "normtune", *shlex.split(command), cwd=tmp_path, PYTHONPATH=str(tmp_path), PYTHONSAFEPATH="1")
        assert done.returncode == 0, done.stderr
        printed = "".join(line.rstrip() + "\n" for line in done.stdout.splitlines() if line.strip())
        pattern = re.escape(shown).replace(re.escape("...\n"), "(?:.*\n)+?")
        pattern = re.sub(r"\d{4}\\-\d\d\\-\d\d", r"\\d{4}-\\d\\d-\\d\\d", pattern)
        assert re.fullmatch(pattern, printed), f"README.md should show this below `normtune {command}`:\n{printed}"


def test_the_readme_names_what_a_sweep_tells_as_json(root: Path, tmp_path: Path, run) -> None:
    (section,) = re.findall(r"^The object of `--json` has (.*?)^###", (root / "README.md").read_text(), re.M | re.S)
    (tmp_path / "normtune").symlink_to(root)
    words = ["sweep", "--json", "--device", "replay:nvidia-h200", "--rows", "4096", "--hidden", "4096"]
    done = run("-m", "normtune", *words, cwd=tmp_path, PYTHONPATH=str(tmp_path), PYTHONSAFEPATH="1")
    told = json.loads(done.stdout)
    keys = {*told, *told["plan"], *told["sweep"], *told["sweep"]["of_copy"]["rms_norm_forward"]}
    assert set(re.findall(r"`([a-z_]+)`", section)) == keys


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_named_files_exist(root: Path, document: str) -> None:
    text = (root / document).read_text()
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert ((root / document).parent / target).exists(), target
    for path in re.findall(r"\b(?:python|make -f) ((?:benchmarks|tests|docs)/[\w./-]+)", text):
        assert (root / path).exists(), path


def test_make_targets_of_the_documents_exist(root: Path) -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (root / "Makefile").read_text(), re.MULTILINE)
    named = {
        target
        for document in DOCUMENTS
        for target in re.findall(r"`?make ([a-z][a-z-]*)`", (root / document).read_text())
    }
    assert named and named <= set(phony.split())


def test_changelog_has_this_version(root: Path) -> None:
    heading = rf"^## \[{re.escape(__version__)}\] - (unreleased|\d{{4}}-\d\d-\d\d)$"
    assert re.search(heading, (root / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_ranges_and_pins_agree(root: Path) -> None:
    """Each pin lies in the range of the same name, and torch and triton leave what is installed alone."""
    from packaging.requirements import Requirement

    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = [text for texts in project["optional-dependencies"].values() for text in texts]
    wanted = [Requirement(text) for text in project["dependencies"] + extras]
    lines = [line for line in (root / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    assert lines == sorted(lines)
    for requirement in wanted:
        assert requirement.specifier.contains(pins[requirement.name]), requirement
    ranges = {requirement.name: requirement.specifier for requirement in wanted}
    for name, versions in {"torch": ("2.11.0+cu130", "2.13.0"), "triton": ("3.6.0", "3.7.1")}.items():
        assert all(ranges[name].contains(version) for version in versions)
