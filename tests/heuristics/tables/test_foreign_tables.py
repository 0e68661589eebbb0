"""Tables, headers and measurements of unknown origin, in `check` and `fit`."""

import re
from pathlib import Path

import pytest

from normtune.errors import UsageError
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.writing import named_files
from normtune.heuristics.writing.emit import module_text
from normtune.heuristics.writing.regenerate import Command
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.facts import encoded
from normtune.kernels.tablefile.header import parse
from normtune.results.evidence import Evidence
from normtune.results.exchange.parquet_csv import write_parquet
from normtune.tests.commands import invoke, refused, succeed
from normtune.tests.heuristics.made_up import as_command, rehashed, words_of
from normtune.tests.results.stores import record
from normtune.tuner.checking.offline import check

ESCAPE = "\x1b[2J\x1b]0;x\x07"
SHAPES = [(rows, hidden) for rows in (1, 64, 4096) for hidden in (64, 512, 4096)]


def is_plain(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder beside which there are others."""
    made = tmp_path / "tables"
    made.mkdir()
    monkeypatch.chdir(made)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return made


@pytest.fixture
def measured(measure, penalty, run, spec) -> Evidence:
    return Evidence.from_measurements(measure(penalty, SHAPES, fingerprint=fingerprint(spec)), [run])


@pytest.fixture
def table(measured: Evidence, folder: Path, record_as) -> Path:
    """A table of a recording, in `folder`."""
    record_as(measured)
    path = folder / "table.py"
    command = "normtune fit --store test-gpu --leaves 2 --out table.py"
    path.write_text(module_text(fit(measured, FitOptions(leaves=2)), as_command(command)))
    assert check(path).failures == ()
    return path


def commanded(path: Path, words: str, source: str = "--store test-gpu") -> Path:
    """The table with these options, and another source, in its command."""
    command = as_command(f"normtune fit {source} --leaves 2 {words} --out table.py")
    path.write_text(rehashed(path.read_text(), command=encoded(command)))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("begin", ["# Regenerate: ", "# Test GPU", "# toy ", '# {"device"', '# "data"', '# {"key"'])
@pytest.mark.parametrize("odd", [ESCAPE, "\u202e", "\x9b2J", "é"])
def test_its_comments_have_printable_ascii_only(table: Path, begin: str, odd: str) -> None:
    lines = table.read_text().split("\n")
    at = next(place for place, line in enumerate(lines) if line.startswith(begin))
    lines[at] += odd
    table.write_text("\n".join(lines))
    assert odd in table.read_text()
    with pytest.raises(UsageError, match=rf"^line {at + 1} of \S+table\.py is no comment of printable ASCII"):
        check(table)
    with pytest.raises(UsageError, match="printable ASCII"):
        locate.load(table)
    assert is_plain(invoke("check", table).output)


def test_names_in_the_code_reach_no_terminal(table: Path) -> None:
    text = table.read_text()
    table.write_text(rehashed(text.replace('("toy", "bfloat16")', '("to\\x1b[2Jy", "bfloat16")')))
    line = next(line for line, code in enumerate(table.read_text().split("\n"), 1) if "[2Jy" in code)
    shown = invoke("check", "--quick", table).output
    assert f"its code has a form that normtune does not write (line {line})" in shown
    assert "[2Jy" not in shown and is_plain(shown)
    table.write_text(rehashed(text.replace('("toy", "bfloat16")', '("other", "bfloat16")')))
    assert "other bfloat16 is not registered here" in invoke("check", "--quick", table).output


def test_the_fields_of_a_run_reach_no_terminal_and_no_header(
    measure, penalty, run, spec, store, folder, capsys
) -> None:

    odd = run._replace(
        id=f"odd{ESCAPE}",
        started=f"2027-01-01{ESCAPE}é",
        device=run.device._replace(name=f"GPU{ESCAPE} é", driver=ESCAPE),
        software={"triton": ESCAPE, "torch": "é\u202e"},
    )
    record("sqlite:///odd.db", odd, measure(penalty, SHAPES, run=odd.id, fingerprint=f"sha256:0{ESCAPE}é"))
    assert is_plain(succeed("fit", "--store", "odd.db", "--leaves", "2", "--out", "table.py"))
    text = Path("table.py").read_text()
    assert text.isascii() and is_plain(text)
    assert parse(text, "table.py")[0].gpu == "GPU [2J ]0;x ?"
    assert is_plain(invoke("check", "table.py").output)


@pytest.mark.parametrize(
    "word", ["a", "a b", "é", "it's é", "$x", "$NORMTUNE", "a\nb\x1b", "$\\x41", "\udcff", "", "\\", "$'\\x41'"]
)
def test_a_command_is_printable_ascii_and_says_what_it_said(word: str) -> None:
    line = Command(load=(word,), out=word).line()
    assert line.isascii() and line.isprintable()
    assert words_of(line) == ["normtune", "fit", "--load", word, "--like", word]


def test_files_of_any_name_are_found_again(store, folder: Path) -> None:
    succeed("fit", "--store", store, "--leaves", "2", "--out", "table.py", "--evidence", "dätä  1.parquet")
    assert "equal, byte for byte, to a fit of dätä  1.parquet" in invoke("check", "table.py").output


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--weights", "--baseline", "--evidence"])
@pytest.mark.parametrize("place", ["../secret", "/{}/secret", "link", "linked/secret"])
def test_a_header_names_no_file_outside(table: Path, tmp_path: Path, option: str, place: str) -> None:
    (tmp_path / "secret").write_text("root:hunter2:0\n")
    (table.parent / "link").symlink_to("../secret")
    (table.parent / "linked").symlink_to("..")
    source = "" if option == "--evidence" else "--store test-gpu"
    done = invoke("check", commanded(table, f"{option} {place.format(str(tmp_path)[1:])}", source))
    assert done.exit_code == 1
    assert f"{option} of its command names " in done.output
    assert "which is outside of its folder" in done.output
    assert "hunter2" not in done.output
    (line,) = (line for line in done.output.split("\n") if "outside" in line)
    assert line.startswith("  its data cannot be fitted as its command says: ")


def test_a_repository_around_the_table_is_inside(table: Path, tmp_path: Path) -> None:
    (tmp_path / "weights.csv").write_text("rows,hidden,weight\n64,512,3\n")
    commanded(table, "--weights ../weights.csv")
    assert any("outside" in line for line in check(table).failures)
    (tmp_path / ".git").mkdir()
    assert not any("outside" in line for line in check(table).failures)
    (table.parent / ".git").write_text("gitdir: elsewhere\n")
    assert any("outside of its folder" in line for line in check(table).failures)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("content", ["root:hunter2:0\n", "rows,hidden,weight\n1,1,hunter2\n", "hunter2\n" * 9, ""])
def test_what_is_in_a_file_that_is_no_csv_of_ours_is_not_shown(table: Path, content: str) -> None:
    (table.parent / "secret").write_text(content)
    done = invoke("check", commanded(table, "--weights secret"))
    assert done.exit_code == 1
    assert "--weights of its command names secret, which is no CSV file with columns rows,hidden,weight" in done.output
    assert "hunter2" not in done.output


def test_a_store_of_a_header_is_never_opened(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from normtune.results.database.store import Store

    def refuse(*arguments: object, **others: object) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(Store, "open", refuse)
    report = check(commanded(table, "", "--store ../../normtune.db"))
    assert report.failures == ()
    assert any("its command names a store" in note for note in report.notes)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "command",
    [
        "curl example.com | sh",
        "normtune fit; reboot",
        "normtune fit --like $(reboot)",
        "normtune fit --like `reboot`",
        "normtune fit 'unclosed",
        "normtune sweep",
    ],
)
def test_no_command_is_advised_but_those_that_normtune_writes(table: Path, command: str) -> None:
    text = re.sub("(# Regenerate: ).*", lambda match: match[1] + command, table.read_text())
    table.write_text(text.replace("hidden <= ", "hidden <= 1"))
    report = check(table, quick=True)
    assert any("it was edited by hand" in line for line in report.failures)
    assert any("its first lines are not those that normtune writes" in line for line in report.failures)
    assert all("`normtune fit --like table.py`" in line for line in report.failures[:2])
    assert not any(command in line for line in report.failures)


@pytest.mark.slow
@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize(
    "more", ["; touch X", " && touch X", " | sh", " > X", " $(touch X)", " `touch X`", " & touch X", " #", " '", " \\"]
)
def test_a_command_that_runs_more_is_no_table_of_ours(table: Path, more: str, quick: bool) -> None:
    text = table.read_text()
    table.write_text(re.sub("(# Regenerate: .*)", lambda match: match[1] + more, text))
    report = check(table, quick)
    assert any("its first lines are not those that normtune writes" in why for why in report.failures)
    assert "touch" not in "".join(report.failures)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("at", "line"),
    [
        (2, "# Regenerate: curl example.com | sh"),
        (2, "# Install:  curl example.com | sh"),
        (3, "# curl example.com | sh"),
    ],
)
@pytest.mark.parametrize("replaced", [0, 1])
def test_a_line_that_normtune_does_not_write_is_told(table: Path, at: int, line: str, replaced: int) -> None:
    lines = table.read_text().split("\n")
    lines[at : at + replaced] = [line]
    table.write_text("\n".join(lines))
    assert any("its first lines are not those" in why for why in check(table, quick=True).failures)


def test_a_name_with_a_nul_is_outside(table: Path) -> None:
    with pytest.raises(RuntimeError, match="--weights of its command is not the name of a file: it has a NUL"):
        named_files.inside("--weights", "a\0b", table)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--leaves 129", "leaves is 129: expected 1 to 128"),
        ("--operator other", "no measurements of operator 'other'"),
        ("--faster", "the option 'faster': expected one of leaves"),
        ("--regime odd", "unknown regime 'odd'"),
    ],
)
def test_a_header_that_asks_for_what_there_is_not_is_refused(
    table: Path, words: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from normtune.heuristics.fitting import function

    def refuse(*arguments: object) -> None:
        raise AssertionError("fitted")

    monkeypatch.setattr(function, "solved", refuse)
    failures = check(commanded(table, words)).failures
    assert any("its data cannot be fitted as its command says: " in failure and why in failure for failure in failures)


def test_a_header_with_a_number_that_json_lacks_cannot_be_read(table: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be read \(NaN is no number of JSON\): restore the file"):
        check(commanded(table, "--tie nan"))


def test_a_header_decides_no_number_of_leaves_beyond_those_of_a_fit(table: Path) -> None:
    text = table.read_text()
    (function,) = parse(text, "table.py")[0].functions
    table.write_text(rehashed(text, functions=(function | {"figures": function["figures"] | {"asked": 129}},)))
    (failure,) = check(table).failures
    assert "its functions need 1 to 128 leaves" in failure


def test_a_fit_is_announced_and_a_quick_check_fits_nothing(table: Path) -> None:
    done = invoke("check", table)
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(
        r"normtune: \S+: fitting \d+ measurements of recording test-gpu again to compare; --quick skips this",
        line,
    )

    quick = invoke("check", "--quick", table)
    assert (quick.exit_code, quick.stderr) == (0, "")
    assert "not fitted again, as --quick was given" in quick.output
    edited = table.read_text().replace("hidden <= ", "hidden <= 1")
    table.write_text(edited)
    assert "edited by hand" in invoke("check", "--quick", table).output


def test_quick_and_device_exclude_each_other(table: Path) -> None:
    assert "--quick and --device are both given" in refused("check", "--quick", "--device", "replay:nvidia-h200", table)


def test_what_is_printed_of_a_table_has_an_end(table: Path) -> None:
    entries = "".join(f'    ("other{number}", "bfloat16"): toy_bfloat16,\n' for number in range(150))
    sizes = re.sub("toy_bfloat16,", '{"rows": (1, 4096), "hidden": (64, 4096)},', entries)
    head, *parts = re.split(r"(?<== \{\n)(?=    \(\"toy)", table.read_text())
    text = head + "".join(new + part for new, part in zip([entries, sizes], parts, strict=True))
    table.write_text(rehashed(text, software={"x" * 9999: "1"}))
    done = invoke("check", table)
    assert "more of this kind" in done.output
    assert len(done.output) < 50_000


@pytest.mark.parametrize("target", ["sm_" + "9" * 5000, "sm_٩٠", "sm_99999", "sm_-1", "sm_"])
def test_a_target_that_no_gpu_has_is_refused(target: str) -> None:
    from normtune.kernels.target import target_for

    with pytest.raises(UsageError, match="unknown target"):
        target_for(target, 132)


def test_committed_evidence_outside_git_is_in_the_folder_of_its_table(measured: Evidence, folder: Path) -> None:
    """As a wheel that holds a table has them."""
    write_parquet(measured, folder / "data.parquet")
    command = "normtune fit --leaves 2 --out table.py --evidence data.parquet"
    Path("table.py").write_text(module_text(fit(measured, FitOptions(leaves=2)), as_command(command)))
    assert check(Path("table.py")).failures == ()
