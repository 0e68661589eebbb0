"""The line `Regenerate:` of each committed table whose data is committed, run as a user would, over a copy."""

import shlex
import shutil
from pathlib import Path

import pytest

from normtune.heuristics.writing.regenerate import Command, command_of
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.header import FIRST_LINE, parse
from normtune.results.source import is_recording
from normtune.tests.commands import main

ROOT = Path(__file__).parents[3]
FOLDERS = ROOT / "examples", ROOT / "heuristics" / "tables"


def _command(table: Path) -> Command:
    return command_of(parse(locate.read(table), table.name)[0])


def _has_data(table: Path) -> bool:
    command = _command(table)
    return is_recording(command.store) or (table.parent / command.store).is_file()


def _is_table(file: Path) -> bool:
    return file.read_text().startswith(FIRST_LINE)


COMMITTED = [table for folder in FOLDERS for table in sorted(folder.rglob("*.py")) if _is_table(table)]


@pytest.mark.slow
@pytest.mark.parametrize("table", [table for table in COMMITTED if _has_data(table)], ids=lambda table: table.stem)
@pytest.mark.usefixtures("operators_forgotten")
def test_the_command_of_a_header_writes_the_table_again(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(table.parent, folder)
    monkeypatch.chdir(folder)
    copy, words = folder / table.name, shlex.split(_command(table).line())
    assert words[:2] == ["normtune", "fit"]
    result = main(*words[1:])
    assert result.exit_code == 0, result.output
    assert copy.read_text() == table.read_text()
