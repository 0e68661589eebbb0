"""The command line: registers the commands of the rooms and turns errors into exit codes.

In: the arguments of `normtune`. Out: exit code 0, or 1 (a failure), 2 (a wrong call), 130 (interrupted) or 143
(terminated), with one line on stderr; or 141, without a line, if the reader of stdout has ended. The modules of the
commands import heavy libraries inside of functions, so that `--help` is fast.
"""

import errno
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from normtune import __version__
from normtune.errors import DataWarning, NormtuneError, OutputClosed, Terminated
from normtune.heuristics.commands.diff import diff
from normtune.heuristics.commands.fit import fit
from normtune.heuristics.commands.lookup import lookup
from normtune.heuristics.commands.report import plot, report
from normtune.heuristics.commands.show import show
from normtune.heuristics.commands.table import app as table_app
from normtune.kernels.arguments import typed
from normtune.results.commands import app as data_app
from normtune.results.terminal import announced, quietly, say
from normtune.tuner.checking.command import check
from normtune.tuner.contribution.command import contribute
from normtune.tuner.doctor.command import doctor
from normtune.tuner.inspection.command import inspect
from normtune.tuner.sweep.command import compile_, sweep

INTERRUPTED = (
    "normtune: interrupted. Measurements and binaries are kept; a sweep goes on from there by the same command."
)
# Most characters of a command's line in the list of all.
_WIDTH = 70
LOOK, MORE = "To look at tables and measurements", "More commands"
TERMINATED = INTERRUPTED.replace("interrupted", "terminated")


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print each `DataWarning` of the block on stderr."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if category is DataWarning:
            say(f"normtune: warning: {message}", error=True)
        else:
            usual(message, category, *place, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("always", DataWarning)
        warnings.showwarning = show
        yield


class Typed(TyperGroup):
    """The group of commands, whose errors name options and whose warnings are lines."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with typed(), _warnings_as_lines():
            return super().invoke(ctx)


class ErrorLines(Typed):
    """The group of commands; expected errors become a line and an exit code, others keep their traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept `--quiet`, and `--load` with its file, anywhere among the arguments: they are for all commands."""
        rest: list[str] = []
        first: list[str] = []
        words = iter(args)
        for word in words:
            if word == "--":
                rest += [word, *words]
                break
            if word == "--quiet":
                first.append(word)
                continue
            if word.partition("=")[0] != "--load":
                rest.append(word)
                continue
            file = [] if "=" in word else [*islice(words, 1)]
            if "=" not in word and not file:  # it lacks its file, which a command behind it must not become
                rest = []
            first += [word, *file]
        return super().parse_args(ctx, [*first, *rest])

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in plain sections, as Rich's panels would make `--help` a third of a second slower."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            rows = sections.setdefault(command.rich_help_panel, [])
            rows.append((name, command.get_short_help_str(_WIDTH)))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises:
            typer.Exit: it failed with an expected error, or was interrupted.
        """
        try:
            return super().invoke(ctx)
        except NormtuneError as error:
            say(f"normtune: error: {error}", error=True)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            say(f"\n{INTERRUPTED}", error=True)
            raise typer.Exit(130) from None
        except Terminated:
            say(f"\n{TERMINATED}", error=True)
            raise typer.Exit(143) from None
        except (OSError, RuntimeError, MemoryError) as error:
            if not (shortage := _shortage(error)):
                raise
            say(f"normtune: error: {shortage}; all measurements so far are stored", error=True)
            raise typer.Exit(1) from None


def _shortage(error: OSError | RuntimeError | MemoryError) -> str:
    """The resource that the operating system lacks, and what to do; empty for another error."""
    if isinstance(error, MemoryError):
        return "this machine's memory is full, or the limit of `ulimit -v`: raise it, or ask for less at a time"
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return f"too many files are open ({error.strerror}): raise the limit, `ulimit -n 1024`"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"a file's name is too long: {str(error.filename)[:40]}..."
    if (isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.ENOMEM)) or "start new thread" in str(error):
        return f"no process or thread can be started ({error}): raise the limit, `ulimit -u`, or end other programs"
    return ""


app = typer.Typer(
    cls=ErrorLines,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(is_given: bool) -> None:
    if is_given:
        say(f"normtune {__version__}")
        raise typer.Exit


@app.callback()
def normtune(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    load: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Run a Python file that registers operators; accepted anywhere. Repeatable."),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", help="Print answers and errors, without progress and names of files; accepted anywhere."
        ),
    ] = False,
) -> None:
    """Measure kernels on a GPU, and fit a table of their best launch configs.

    `normtune sweep && normtune fit` measures this machine's GPU, into ./normtune.db, and prints the figures of a table.
    """
    context.with_resource(quietly(quiet))
    for file in load or ():
        from normtune.kernels.load_file import load as load_operators

        load_operators(file)


class Sectioned(TyperCommand):
    """A command whose help lists the usual options first. A subclass names them."""

    usual: tuple[str, ...] = ()

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the usual options, and the others."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], "More options": []}
        for parameter in self.get_params(ctx):
            is_usual = not self.usual or parameter.name in self.usual
            options = "Options" if is_usual else "More options"
            if record := parameter.get_help_record(ctx):
                sections["Arguments" if parameter.param_type_name == "argument" else options].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _register(
    command: Callable[..., None],
    doing: str,
    example: str,
    usual: str = "",
    section: str = "Commands",
) -> None:
    """Add a command: what it does while it prints nothing, an example, its usual options, its section in `--help`."""
    sectioned = type("Sectioned", (Sectioned,), {"usual": tuple(usual.split())})

    name, epilog = command.__name__.rstrip("_"), f"Example: normtune {example}"

    @app.command(name, cls=sectioned, epilog=epilog, rich_help_panel=section)
    @wraps(command)
    def called(**arguments: Any) -> None:
        with nullcontext() if arguments.get("as_json") else announced(doing):
            command(**arguments)


_register(
    sweep,
    "planning, a few seconds",
    "sweep --device replay:nvidia-h200",
    "device operator dtype effort shapes budget store",
)
_register(
    fit,
    "reading the measurements",
    "fit --out heuristics.py --evidence h200.parquet",
    "store out evidence like leaves baseline install",
)
_register(check, "reading the table", "check heuristics.py", "quick strict device")
_register(report, "reading the measurements", "report nvidia-h200", section=LOOK)
_register(show, "reading the measurements", "show --store nvidia-h200 --operator rms_norm_forward", section=LOOK)
_register(diff, "reading the measurements", "diff heuristics.py liger", "store details markdown", section=LOOK)
_register(
    lookup,
    "reading the table",
    "lookup nvidia-h200 rms_norm_forward bfloat16 rows=4096 hidden=1024",
    section=LOOK,
)
_register(
    plot,
    "reading the measurements",
    "plot nvidia-h200 --operator rms_norm_forward --dtype bfloat16 --out map.svg",
    section=LOOK,
)
_register(doctor, "looking at this machine, a few seconds", "doctor", section=MORE)
_register(contribute, "opening the device, a few seconds", "contribute --budget 15m", section=MORE)
_register(inspect, "recording, interpreting and compiling, some seconds", "inspect examples/softmax.py", section=MORE)
_register(
    compile_,
    "planning, a few seconds",
    "compile sm_90 binaries --operator rms_norm_forward",
    "operator dtype effort",
    section=MORE,
)
app.add_typer(table_app, name="table", rich_help_panel=MORE)
app.add_typer(data_app, name="data", rich_help_panel=MORE)


def main() -> None:
    """Run the command line on `sys.argv` and exit."""
    try:
        try:
            app(prog_name="normtune")
        finally:
            sys.stdout.flush()
    except OutputClosed as error:
        if reason := str(error):
            say(f"normtune: error: stdout cannot be written: {reason}", error=True)
        sys.exit(1 if reason else 141)
