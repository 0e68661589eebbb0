"""What the options of `normtune fit` do, from Python: the same files, and the printed figures as fractions."""

from pathlib import Path

import pytest

import normtune
from normtune.errors import NormtuneError, UsageError
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.header import Gpu
from normtune.tests.commands import invoke, one_line, succeed


def command(*arguments: str) -> str:
    """What `normtune fit` prints."""
    result = invoke("fit", *arguments)
    assert result.exit_code == 0, result.output or result.exception
    return result.stdout


@pytest.mark.long
def test_a_saved_table_is_the_file_of_the_command(store: str) -> None:
    for folder in ("by_command", "by_python"):
        Path(folder).mkdir()
    options = ("--store", store, "--leaves", "3", "--max-slowdown", "1.5")
    command(*options, "--out", "by_command/table.py", "--evidence", "by_command/gpu.parquet")
    table = normtune.fit(Path(store), leaves=3, max_slowdown=1.5)
    table.save("by_python/table.py", evidence="by_python/gpu.parquet")
    for name in ("table.py", "gpu.parquet"):
        assert Path("by_python", name).read_bytes() == Path("by_command", name).read_bytes()


@pytest.mark.slow
def test_a_table_that_replaces_one_is_compared_with_it(store: str) -> None:
    for folder in ("by_command", "by_python"):
        Path(folder).mkdir()
        command("--store", store, "--leaves", "3", "--out", f"{folder}/table.py")
    told = command("--store", store, "--leaves", "1", "--out", "by_command/table.py")
    assert "slower than the table that it replaces" in told and "\n  slower at " in told
    table = normtune.fit(store, leaves=1, replaces="by_python/table.py")
    table.save("by_python/table.py")
    assert Path("by_python/table.py").read_bytes() == Path("by_command/table.py").read_bytes()
    assert table.fit.compared[table.functions[0].key].slower is not None


@pytest.mark.slow
def test_an_installed_table_is_the_file_of_the_command_until_it_is_removed(store: str, gpus_here: list[Gpu]) -> None:
    printed = command("--store", store, "--leaves", "3", "--install")
    path = locate.installed_path("Test GPU")
    by_command = path.read_bytes()
    (one,) = normtune.uninstall(store)
    assert one.path == path and not path.exists()
    ((name, source),) = one.used
    assert name == "Test GPU" and source.startswith("the table of NVIDIA ")
    installed = normtune.fit(store, leaves=3).install()
    assert installed.path == path and path.read_bytes() == by_command
    assert f"in place of {installed.displaced}\n" in printed
    assert (
        succeed("table", "remove", "--store", store) == f"removed {path}\nkernels on {name} use {source} from now on\n"
    )
    with pytest.raises(NormtuneError, match="nothing is installed"):
        normtune.uninstall()
    gpus_here.append(Gpu("NVIDIA X", "sm_90", 132))
    with pytest.raises(UsageError, match="this machine has NVIDIA X"):
        normtune.fit(store, leaves=3).install()
    assert not path.exists()
    assert normtune.fit(store, leaves=3).install(force=True).path == path


def test_an_edited_table_is_replaced_and_removed_by_force_alone(store: str) -> None:
    table = normtune.fit(store, leaves=2)
    path = table.install().path
    path.write_text("x = 1\n")
    with pytest.raises(UsageError, match="did not write it"):
        table.install()
    with pytest.raises(UsageError, match="; force removes it"):
        normtune.uninstall(store)
    assert path.read_text() == "x = 1\n"
    assert table.install(force=True).displaced.endswith("which cannot be used")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda store: normtune.fit(store, baseline="liger", replaces="t.py"),
            "baseline and replaces are both given",
        ),
        (lambda store: normtune.fit(store, replaces="missing.py"), "missing.py cannot be read"),
        (lambda store: normtune.fit(store, portable="yes"), "portable is 'yes': expected True or False"),
        (lambda store: normtune.fit(store, leaves=0), "leaves is 0: expected 1 to 128"),
        (lambda store: normtune.fit(store, operators="nothing"), "no measurements of operator 'nothing'"),
        (lambda store: normtune.fit(store, leaves=2).lookup("toy", "int8", 1, 64), "no table for 'toy' in 'int8'"),
        (lambda store: normtune.uninstall(store, regime="hot"), "unknown regime 'hot'"),
    ],
)
def test_a_bad_value_is_refused_before_anything_is_written(store: str, call, says: str) -> None:
    with one_line(UsageError, says):
        call(store)
    assert [path.name for path in Path().iterdir()] == ["measured.db"]
