"""`normtune table`, which installs, removes and exports tables.

In: a table, or nothing. Out: files. `writing` does the work, imported when a command runs.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normtune.results.commands import ReadOption
from normtune.results.terminal import tell

if TYPE_CHECKING:
    from normtune.heuristics.writing.installing import Installed
    from normtune.kernels.tablefile.header import Gpu

app = typer.Typer(help="Install, remove and export tables.", no_args_is_help=True)

TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="File of a table, or shipped table (nvidia-h200).")]
FORCE = "Overwrite, install or remove what normtune did not write, what was edited, and what is of another GPU."
ForceOption = Annotated[bool, typer.Option("--force", help=FORCE)]


@app.command("install", epilog="Example: normtune table install heuristics.py")
def install(table: TableArgument, force: ForceOption = False) -> None:
    """Install a table for this user and its GPU, whose kernels use it from then on."""
    from normtune.heuristics.writing import installing

    tell(installed_text(*installing.install(Path(table), force)))


@app.command("remove", epilog="Example: normtune table remove")
def remove(store: ReadOption = None, force: ForceOption = False) -> None:
    """Remove the installed tables of this machine's GPUs, or of the GPUs of --store."""
    from normtune.heuristics.writing import installing
    from normtune.kernels.tablefile.locate import quoted

    for path, used in installing.uninstall(store, force=force):
        tell(f"removed {quoted(path)}")
        for gpu, other in used:
            tell(f"kernels on {gpu} use {other} from now on")


@app.command("export", epilog="Example: normtune table export heuristics.py --out configs.py")
def export(
    table: TableArgument,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Write the Python module to this file.")],
    force: ForceOption = False,
) -> None:
    """Write the configs of a table as lists for `triton.autotune`."""
    from normtune.heuristics.writing.triton_configs import export_table

    export_table(table, out, force)
    tell(f"wrote {out}")


def installed_text(gpu: "Gpu", installed: "Installed") -> str:
    """Lines about an installed table."""
    from normtune.heuristics.writing.entries import ends
    from normtune.kernels.tablefile import locate

    line = f"installed {installed.path}: kernels on {gpu.name} use it from now on, in place of {installed.displaced}"
    where = [f"  {end}" for end in ends(locate.load(installed.path).measured)]
    return "\n".join(filter(None, (line, *where, installed.note)))
