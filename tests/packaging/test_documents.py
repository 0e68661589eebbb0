"""The documents match the code: every command and option is documented, every link, path and call works."""

import json
import pkgutil
import re
import shlex
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from normtune import __version__
from normtune.tests.commands import every_command, main
from normtune.tuner.compiling.ahead import Ahead

DOCUMENTS = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "docs/cluster.md",
    "docs/commands.md",
    "docs/decisions.md",
    "docs/design.md",
    "docs/fitting.md",
    "docs/glossary.md",
    "docs/kernels.md",
    "docs/measuring.md",
    "docs/operators.md",
    "docs/python.md",
    "docs/results.md",
    "docs/tables.md",
)
FOLDERS = "benchmarks|docs|examples|heuristics|kernels|results|tests|tuner"


@pytest.mark.slow
def test_all_documents_are_known_here(tracked: list[str]) -> None:
    documents = {path for path in tracked if re.fullmatch(r"(docs/)?[^/]+\.md", path)}
    assert documents == set(DOCUMENTS)


@pytest.mark.slow
@pytest.mark.parametrize(("document", "lines", "kilobytes"), [("README.md", 150, 16), ("docs/design.md", 200, 8)])
def test_the_first_documents_are_short(root: Path, document: str, lines: int, kilobytes: int) -> None:
    text = (root / document).read_bytes()
    assert (text.count(b"\n") <= lines, len(text) <= kilobytes << 10) == (True, True)


COMMANDS = {
    f"normtune {name}": {option for one in command.params for option in one.opts if option.startswith("--")}
    for name, command in every_command().items()
}


@pytest.mark.slow
def test_all_commands_are_known_here() -> None:
    names = {"sweep", "compile", "fit", "check", "show", "diff", "report", "plot", "lookup", "inspect", "doctor"}
    names |= {"contribute"}
    names |= {f"data {name}" for name in ("list", "drop", "export", "merge")}
    names |= {f"table {name}" for name in ("install", "remove", "export")}
    assert set(COMMANDS) == {f"normtune {name}" for name in names}


@pytest.mark.slow
def test_every_command_is_documented(root: Path) -> None:
    text = (root / "docs/commands.md").read_text()
    assert set(re.findall(r"^\| `(normtune [a-z ]+)` \|", text, re.MULTILINE)) == set(COMMANDS)
    headings = " ".join(re.findall(r"^## (.*)$", text, re.MULTILINE))
    assert all(name in headings or name.startswith(("normtune data ", "normtune table ")) for name in COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_says_what_it_does_in_a_sentence(command: str) -> None:
    parameters = every_command()[command.removeprefix("normtune ")].params
    assert all(re.fullmatch(r"(?s)\S.*\.", one.help) for one in parameters if one.param_type_name == "option")


# Before an option of another program's command.
OTHERS = ("git ", "kubectl ", "pip ", "python ", "ray ", "sbatch ")
EVERYWHERE = frozenset({"--help", "--install-completion", "--load", "--quiet", "--version"})


def spans(text: str) -> list[str]:
    """The inline code of a document."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL))


def named(text: str) -> set[str]:
    """The options of normtune in the inline code of a text."""
    return {
        option
        for span in spans(text)
        if not span.startswith(OTHERS)
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", span)
    }


@pytest.mark.slow
@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name != "docs/decisions.md"])
def test_every_option_that_a_document_names_exists(root: Path, document: str) -> None:
    """But those that are gone: decisions, and the left column of a list of the changelog."""
    text = (root / document).read_text()
    if document == "CHANGELOG.md":
        text = re.sub(r"^\| [^|]* \|", "|", text, flags=re.MULTILINE)
    assert named(text) <= EVERYWHERE.union(*COMMANDS.values())


@pytest.mark.slow
def test_the_options_of_a_section_are_those_of_the_commands_that_it_names(root: Path) -> None:
    text = (root / "docs/commands.md").read_text()
    sections = re.findall(r"^(## `normtune .*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(sections) == 12
    for section in sections:
        commands = {name for name in COMMANDS if re.search(rf"\b{name}\b", section)}
        assert named(section) <= EVERYWHERE.union(*(COMMANDS[name] for name in commands)), section[:40]


def typed(text: str) -> list[str]:
    """The lines of shell blocks, continued ones joined, and those after the prompt in console blocks."""
    shell = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    return shell.replace("\\\n", " ").splitlines() + re.findall(r"^\$ (.*)$", text, re.MULTILINE)


@pytest.mark.parametrize(
    "document",
    ["README.md", *(pytest.param(name, marks=pytest.mark.slow) for name in DOCUMENTS if name != "README.md")],
)
def test_every_normtune_call_in_a_document_has_options_that_exist(root: Path, document: str) -> None:
    text = (root / document).read_text()
    spans = re.findall(r"`(normtune [^`\n]+)`", text)
    calls = [call for line in [*typed(text), *spans] for call in re.split(r"&&|\|", line.partition("#")[0])]
    calls = [call.strip() for call in calls if re.match(r"\s*normtune\b", call)]
    for call in calls:
        words = shlex.split(call.replace("...", ""))
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        name = next((name for name in COMMANDS if shlex.join(words).startswith(name)), None)
        assert name or options <= {"--version", "--help", "--install-completion"} or words == ["normtune"], call
        if name:
            assert options <= COMMANDS[name] | {"--load"}, call  # which may stand behind any command


@pytest.mark.slow
def test_the_console_block_shows_what_is_printed(root: Path, tmp_path: Path, run) -> None:
    """Run the console block of docs/commands.md; a line `...` stands for lines that differ, a date for any date."""
    (block,) = re.findall(r"^```console\n(.*?)^```", (root / "docs/commands.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "normtune").symlink_to(root)
    block = re.sub(r"\n+", "\n", block)
    for command, shown in re.findall(r"^\$ normtune (.*)\n((?:[^$].*\n)*)", block, re.MULTILINE):
        words = shlex.split(command)
        words += ["--budget", "1h"] if words[0] == "sweep" else []  # on a busy machine a minute is too short for it
        done = run("-m", "normtune", *words, cwd=tmp_path, PYTHONPATH=str(tmp_path), PYTHONSAFEPATH="1")
        assert done.returncode == 0, done.stderr
        printed = "".join(line.rstrip() + "\n" for line in done.stdout.splitlines() if line.strip())
        pattern = re.escape(shown).replace(re.escape("...\n"), "(?:.*\n)+?")
        pattern = re.sub(r"\d{4}\\-\d\d\\-\d\d", r"\\d{4}-\\d\\d-\\d\\d", pattern)
        assert re.fullmatch(pattern, printed), (
            f"docs/commands.md should show this below `normtune {command}`:\n{printed}"
        )
    small = ["fit", "--leaves", "8", "--out", "small.py"]
    run("-m", "normtune", *small, cwd=tmp_path, PYTHONPATH=str(tmp_path), PYTHONSAFEPATH="1")
    readme, table = (root / "README.md").read_text(), (tmp_path / "small.py").read_text()
    (function,) = re.findall(r"^```python\n(def rms_norm_\w+\(.*?)^```", readme, re.M | re.S)
    assert function in table
    losses = dict(re.findall(r"# rms_norm_(\w+) bfloat16: 8 regions, loss ([\d.]+ %)", table))
    assert f"which loses {losses['forward']}" in readme and f"8 lose {losses['backward']}" in readme


@pytest.mark.parametrize("affine", [True, False])
def test_the_recipe_replaces_the_norms_of_a_model_and_gives_them_back(root: Path, affine: bool, capsys) -> None:
    import torch

    import normtune

    (recipe,) = re.findall(r"^```python\n(print\(normtune.patch.*?)^```", (root / "README.md").read_text(), re.M | re.S)
    norm = torch.nn.RMSNorm(8, eps=1e-3, elementwise_affine=affine)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), norm, torch.nn.Sequential(torch.nn.RMSNorm(8)))
    if affine:
        torch.nn.init.normal_(norm.weight)
    x = torch.randn(4, 8)
    wanted, parameters, kinds = model(x), dict(model.named_parameters()), list(map(type, model.modules()))
    names = {"model": model, "normtune": normtune}
    patching, giving_back = recipe.splitlines()
    exec(patching, names)
    assert capsys.readouterr().out == "replaced 2 norms: 2 RMSNorm\n"
    changed = [type(module) is not kind for module, kind in zip(model.modules(), kinds, strict=True)]
    assert changed == [False, False, True, False, True]
    assert {name: id(one) for name, one in model.named_parameters()} == {n: id(one) for n, one in parameters.items()}
    torch.testing.assert_close(model(x), wanted)
    exec(giving_back, names)
    assert list(map(type, model.modules())) == kinds


@pytest.mark.slow
def test_the_keys_of_a_sweep_as_json_are_documented(root: Path, tmp_path: Path, run) -> None:
    text = (root / "docs/commands.md").read_text()
    (section,) = re.findall(r"^`--json` prints one object:\n(.*?)^## ", text, re.M | re.S)
    (tmp_path / "normtune").symlink_to(root)
    words = ["sweep", "--json", "--device", "replay:nvidia-h200", "--shapes", "4096x4096"]
    done = run("-m", "normtune", *words, cwd=tmp_path, PYTHONPATH=str(tmp_path), PYTHONSAFEPATH="1")
    told = json.loads(done.stdout)
    keys = {*told, *told["plan"], *told["sweep"], *told["sweep"]["of_copy"]["rms_norm_forward"]}
    # Of a large space, or where something was compiled or is disputed; of several GPUs, and of disturbed ones.
    keys |= {"configs_asked", "compiled", *Ahead._fields}
    keys |= {"ratios", "loss", "others", "name", "found", "advice"}
    assert set(re.findall(r"`([a-z_]+)`", section)) == keys


@pytest.mark.slow
def test_the_keys_of_a_check_as_json_are_documented(root: Path, tmp_path: Path) -> None:
    text = (root / "docs/commands.md").read_text()
    (section,) = re.findall(r"^\*\*For other programs\.\*\*(.*?)^\[examples", text, re.M | re.S)
    table, missing = root / "heuristics/tables/nvidia_h200.py", tmp_path / "missing.py"
    keys = {"tables"}
    for words in (["--quick"], ["--device", "replay:nvidia-h200", "--budget", "4s"]):
        for one in json.loads(main("check", table, missing, *words, "--format", "json").stdout)["tables"]:
            keys |= {*one, *(key for function in one.get("functions", ()) for key in function)}
    assert set(re.findall(r"`([a-z_]+)`", section)) - {"rows", "hidden", "config", "best", "failure", "loss"} == keys


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_named_files_exist(root: Path, document: str) -> None:
    text = (root / document).read_text()
    prose = re.sub(r"```.*?```|`[^`\n]+`", "", text, flags=re.DOTALL)  # `kernel[grid](...)` is no link
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose):
        assert ((root / document).parent / target).exists(), target
    for path in re.findall(r"\b(?:python|make -f) ((?:benchmarks|tests|docs)/[\w./-]+)", text):
        assert (root / path).exists(), path


@pytest.mark.slow
@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name != "CHANGELOG.md"])
def test_every_path_and_module_that_a_document_names_exists(root: Path, document: str) -> None:
    """Capital letters stand for what the reader puts there; a dotted name may be that of something in a module.

    A changelog names what there was.
    """
    text = (root / document).read_text()
    for path in re.findall(rf"(?<![\w./-])((?:{FOLDERS})/[\w./-]*\w/?)", text):
        assert re.search("[A-Z]{3}", path) or (root / path).exists(), path
    for name in re.findall(rf"(?<![\w./-])(?:normtune\.)?((?:{FOLDERS})(?:\.[a-z_]\w*)+)(?![\w/])", text):
        if not name.endswith((".md", ".py")):
            assert pkgutil.resolve_name(f"normtune.{name}"), name


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_anchor_that_a_document_links_to_exists(root: Path, document: str) -> None:
    text = (root / document).read_text()
    for file, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", text):
        linked = ((root / document).parent / file).read_text() if file else text
        headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", linked, flags=re.M | re.S), re.MULTILINE)
        anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
        assert anchor in anchors, f"{file}#{anchor}"


@pytest.mark.slow
def test_the_picture_depends_on_no_blank_and_no_font(root: Path) -> None:
    """Renderers differ in the blanks that they keep, and in the fonts that they have."""
    text = (root / "docs/quick.svg").read_text()
    elements = ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")
    words = [element.text or "" for element in elements]
    assert words[:4] == ["normtune", "$", "normtune", "sweep"] and "rms_norm_backward" in words
    assert all(re.fullmatch(r"\S+", word) for word in words)
    assert set(re.findall(r"font-family: ([^;]+);", text)) == {"monospace", "sans-serif"}


@pytest.mark.slow
def test_make_targets_of_the_documents_exist(root: Path) -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (root / "Makefile").read_text(), re.MULTILINE)
    named = {
        target
        for document in DOCUMENTS
        for target in re.findall(r"`?make ([a-z][a-z-]*)`", (root / document).read_text())
    }
    assert named and named <= set(phony.split())


@pytest.mark.slow
def test_changelog_has_this_version(root: Path) -> None:
    heading = rf"^## \[{re.escape(__version__)}\] - (unreleased|\d{{4}}-\d\d-\d\d)$"
    assert re.search(heading, (root / "CHANGELOG.md").read_text(), re.MULTILINE)


@pytest.mark.slow
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
