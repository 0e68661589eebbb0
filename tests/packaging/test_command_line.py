"""The frame of the command line: errors become one line and an exit code, everything is documented."""

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from normtune import cli
from normtune.errors import NormtuneError, UsageError
from normtune.tests.commands import every_command, main, python

TABLE = "heuristics/tables/nvidia_h200_qk_norm.py"


def ends(monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> int:
    """Exit code of a command that raises `failure`."""
    app = typer.Typer(cls=cli.ErrorLines, pretty_exceptions_enable=False, rich_markup_mode=None)

    @app.command()
    def fail() -> None:
        raise failure

    @app.command()
    def other() -> None: ...

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(sys, "argv", ["normtune", "fail"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize(
    ("failure", "code"),
    [(NormtuneError("the disk is full: free some"), 1), (UsageError("--leaves is 'x': expected an integer"), 2)],
)
def test_expected_errors_are_one_line_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failure: NormtuneError, code: int
) -> None:
    assert ends(monkeypatch, failure) == code
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"normtune: error: {failure}\n")


def test_interrupt_ends_with_130_and_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == (
        "\nnormtune: interrupted. Measurements and binaries are kept; a sweep goes on from there by the same command.\n"
    )


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (
            OSError(errno.EMFILE, "Too many open files"),
            "too many files are open (Too many open files): raise the limit",
        ),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "no process or thread can be started ("),
        (RuntimeError("can't start new thread"), "no process or thread can be started (can't start new thread): raise"),
    ],
)
def test_what_the_system_has_no_more_of_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failure: Exception, told: str
) -> None:
    assert ends(monkeypatch, failure) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"normtune: error: {told}")


@pytest.mark.slow
@pytest.mark.parametrize("files", [7, 11])
def test_a_sweep_with_too_few_files_is_one_line(tmp_path: Path, files: int) -> None:
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))"
    code = f"{limit}; from normtune import cli; cli.main()"
    command = ["sweep", "--effort", "quick", "--device", "replay:nvidia-h200", "--quiet"]
    done = python("-P", "-c", code, *command, cwd=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("normtune: error: too many files are open")


def test_unexpected_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        ends(monkeypatch, ZeroDivisionError())


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "Commands:"),
        (["--help"], 0, "normtune sweep && normtune fit"),
        (["swep"], 2, "Did you mean 'sweep'"),
        (["sweep", "--devise", "cuda:0"], 2, "--devise"),
        (["fit", "--leaves", "many"], 2, "--leaves"),
        (["check"], 2, "Missing argument"),
        (["data"], 2, "export"),
    ],
)
def test_wrong_calls_end_with_2_and_name_what_is_wrong(arguments: list[str], code: int, says: str) -> None:
    result = CliRunner().invoke(cli.app, arguments)
    assert (result.exit_code, says in result.output) == (code, True), result.output


def unread(*arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a Python whose stdout nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    run = python(*arguments, capture_output=False, stdout=writer, stderr=subprocess.PIPE, env=buffered())
    os.close(writer)
    return run.returncode, run.stderr


def buffered() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def as_process(body: str) -> str:
    """Code of a process of the command line, whose commands are this body."""
    return (
        "import os, signal, sys; from normtune import cli, __main__\n"
        f"def run():\n    {body}\n"
        "cli.app = lambda **_: run()\n"
        "__main__.main()"
    )


@pytest.mark.long
@pytest.mark.parametrize("printed", [1, 10_000])
def test_nobody_reads_any_more(printed: int) -> None:
    assert unread("-c", as_process(f"for _ in range({printed}): print('x' * 100)")) == (141, "")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("--help",), ("fit", "--help"), ("--version",), ("check", "--quick", TABLE)])
def test_a_full_or_closed_stdout_is_a_line_or_silence(arguments: tuple[str, ...]) -> None:
    call = f"{sys.executable} -m normtune {' '.join(arguments)}"
    line = "normtune: error: stdout cannot be written: No space left on device\n"
    for streams, code, told in ((">/dev/full", 1, line), (">&-", 0, ""), (">/dev/full 2>/dev/full", 1, "")):
        run = subprocess.run(["sh", "-c", f"{call} {streams}"], capture_output=True, text=True, env=buffered())
        # On a busy machine a command may say first what it does.
        assert (run.returncode, run.stdout, re.sub(r"^normtune: .* \.\.\.\n", "", run.stderr)) == (code, "", told)


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    code = as_process("file = open('file', 'w'); print('printed'); file.write(str(file.fileno())); file.close()")
    call = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code]
    assert subprocess.run(call, cwd=tmp_path).returncode == 0
    assert int((tmp_path / "file").read_text()) > 2


def test_an_interrupt_before_anything_is_measured_is_one_line_whatever_catches_exceptions() -> None:
    swallowed = "try: signal.raise_signal(signal.SIGINT)\n    except BaseException: print('swallowed')"
    run = python("-c", as_process(swallowed))
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "\nnormtune: interrupted\n")


def test_a_process_that_a_command_starts_tells_of_no_interrupt() -> None:
    child = "print(os.waitstatus_to_exitcode(os.wait()[1])) if os.fork() else signal.raise_signal(signal.SIGINT)"
    run = python("-c", as_process(child))
    assert (run.returncode, run.stdout, run.stderr) == (0, "130\n", "")


@pytest.mark.slow
@pytest.mark.long
def test_a_table_is_there_though_nobody_reads_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = ["fit", "--store", "nvidia-h200", "--operator", "rms_norm_forward", "--leaves", "3"]
    monkeypatch.chdir(tmp_path)
    code, told = unread("-u", "-m", "normtune", *fit, "--out", "table.py", "--evidence", "data.parquet")
    assert code == 141
    # Lines that it prints before the table, on standard error.
    assert [line.split()[1] for line in told.splitlines()][:2] == ["reading", "fitting"]
    assert sorted(os.listdir(tmp_path)) == ["data.parquet", "table.py"]


@pytest.mark.parametrize("name", every_command())
def test_help_is_short_to_ask_for_and_has_an_example_that_is_a_call(name: str) -> None:
    words = name.split()
    asked = main(*words, "-h")
    assert asked.exit_code == 0 and asked.output == main(*words, "--help").output
    (example,) = re.findall(r"Example: (normtune .*)", " ".join(asked.output.split()))
    assert example.split()[1 : len(words) + 1] == words
    given = {word for word in example.split() if word.startswith("--")}
    assert given <= {option for parameter in every_command()[name].params for option in parameter.opts}


def test_usual_options_come_first_in_help() -> None:
    first, more = main("fit", "--help").output.split("More options:")
    assert "--out FILE" in first and "--max-configs N" in more and "--max-configs N" not in first
    assert "More options:" not in main("lookup", "--help").output


def test_commands_have_a_line_each_in_sections() -> None:
    lines = main("--help").output.partition("\nCommands:\n")[2].splitlines()
    titles = [line for line in lines if line and not line.startswith(" ")]
    assert titles == [f"{cli.LOOK}:", f"{cli.MORE}:"] and not any(line.endswith("...") for line in lines)
    assert len([line for line in lines if line.startswith("  ")]) == len({name.split()[0] for name in every_command()})


def test_usual_options_exist() -> None:
    for command in every_command().values():
        assert {*getattr(command, "usual", ())} <= {parameter.name for parameter in command.params}


def test_operators_may_be_loaded_anywhere(operators_forgotten: None) -> None:
    file = Path(__file__).parents[2] / "examples" / "softmax.py"
    words = ["show", "--store", "nvidia-h200", "--dtype", "hot"]
    for place in range(len(words) + 1):
        for load in (["--load", file], [f"--load={file}"]):
            done = main(*words[:place], *load, *words[place:])
            # An option with a value takes the word behind it, as it does on any command line.
            assert done.exit_code == 2 and ("hot" in done.stderr or place in (2, 4)), done.output
    done = main("show", "--load")
    assert done.exit_code == 2 and "'--load' requires an argument" in done.stderr


@pytest.mark.long
def test_quiet_leaves_answers_and_errors_wherever_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(Path(__file__).parents[2] / TABLE, "table.py")
    answers = {
        "lookup nvidia-h200 rms_norm_forward bfloat16 rows=1 hidden=64": "block_row ",
        "check --quick table.py": "table.py: OK",
    }
    for call, answer in answers.items():
        words = call.split()
        for place in (0, 1, len(words)):
            done = main(*words[:place], "--quiet", *words[place:])
            assert done.exit_code == 0 and done.stdout.startswith(answer) and done.stderr == ""
    for call in ("table export table.py --out a.py", "data export --store nvidia-h200-qk-norm --out a.parquet"):
        done = main(*call.split(), "--quiet")
        assert (done.exit_code, done.output) == (0, "") and Path(call.split()[-1]).exists()
    failed = main("--quiet", "lookup", "nothing", "rms_norm_forward", "bfloat16", "rows=1", "hidden=64")
    assert failed.exit_code == 2 and failed.stderr.startswith("normtune: error: nothing is no file")


@pytest.mark.slow
def test_a_command_that_prints_nothing_for_a_moment_says_what_it_does() -> None:
    code = as_process("from normtune.results import terminal; import time\n    with terminal.announced('working'): {}")
    run = python("-c", code.format("time.sleep(1)"))
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "normtune: working ...\n")
    run = python("-c", code.format("print('done'); time.sleep(1)"))
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")
