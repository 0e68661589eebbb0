import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normtune.errors import UsageError
from normtune.heuristics import form, locate
from normtune.heuristics.header import Header, body_hash

# A table whose one config has the name of its GPU for a schedule.
BODY = (
    f"{form.opening()}\n\n\nONE = Config(NAME)\n\n\ndef only{form.SIGNATURE}\n    return ONE\n\n\n"
    f'{form.TABLES} {{\n    ("a", "b"): only,\n}}\n{form.CLOSING}'
)


def write(path: Path, device: str, target: str, sms: int, body: str = BODY) -> Path:
    body = body.replace("NAME", repr(device))
    header = Header(
        "normtune fit", device, target, sms, "triton 3.6.0", "-", {"a": "b"}, "-", ("-",), (), body_hash(body)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{header.text()}\n{body}")
    return path


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of three GPUs ship; nothing is installed or named."""
    shipped = tmp_path / "shipped"
    write(shipped / "h200.py", "NVIDIA H200", "sm_90", 132)
    write(shipped / "a100.py", "NVIDIA A100", "sm_80", 108)
    write(shipped / "mi300x.py", "AMD MI300X", "gfx942", 304)
    (shipped / "__init__.py").write_text("")
    monkeypatch.setattr(locate, "SHIPPED", shipped)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv(locate.VARIABLE, raising=False)


def chosen(selection: locate.Selection) -> str:
    return selection.table.lookup("a", "b", 1, 1)[0]


def test_the_shipped_table_of_the_same_name_and_sms_is_exact() -> None:
    found = locate.select("NVIDIA H200", "sm_90", 132)
    assert (chosen(found), found.exact) == ("NVIDIA H200", True)


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (("NVIDIA H200", "sm_90", 66), "NVIDIA H200"),
        (("NVIDIA H100 PCIe", "sm_90", 114), "NVIDIA H200"),
        (("NVIDIA B200", "sm_100", 148), "NVIDIA H200"),
        (("NVIDIA RTX 3090", "sm_86", 82), "NVIDIA H200"),
        (("NVIDIA A10", "sm_84", 72), "NVIDIA A100"),
        (("AMD MI250", "gfx90a", 104), "AMD MI300X"),
    ],
)
def test_another_gpu_gets_the_nearest_table(gpu: tuple[str, str, int], expected: str) -> None:
    found = locate.select(*gpu)
    assert (chosen(found), found.exact) == (expected, False)
    assert expected in found.source


def test_among_tables_of_one_target_the_nearest_sms_win(tmp_path: Path) -> None:
    write(tmp_path / "shipped" / "h20.py", "NVIDIA H20", "sm_90", 78)
    assert chosen(locate.select("NVIDIA H100 NVL", "sm_90", 100)) == "NVIDIA H20"
    assert chosen(locate.select("NVIDIA H100", "sm_90", 120)) == "NVIDIA H200"


def test_the_installed_table_of_the_gpu_comes_before_the_shipped_one(tmp_path: Path) -> None:
    path = write(locate.installed_path("NVIDIA H200"), "NVIDIA H200", "sm_90", 132, BODY.replace("NAME", "'mine'"))
    assert path == tmp_path / "data" / "normtune" / "tables" / "nvidia_h200.py"
    found = locate.select("NVIDIA H200", "sm_90", 132)
    assert (chosen(found), found.exact) == ("mine", True)
    assert chosen(locate.select("NVIDIA H200", "sm_90", 66)) == "NVIDIA H200"


def test_the_named_table_comes_first_whatever_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(locate.installed_path("NVIDIA H200"), "NVIDIA H200", "sm_90", 132, BODY.replace("NAME", "'mine'"))
    monkeypatch.setenv(locate.VARIABLE, str(write(tmp_path / "named.py", "Other", "sm_120", 36)))
    found = locate.select("NVIDIA H200", "sm_90", 132)
    assert (chosen(found), found.exact) == ("Other", True)


def test_without_any_table_nothing_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "SHIPPED", tmp_path / "none")
    found = locate.select("NVIDIA H200", "sm_90", 132)
    assert (found.table.tables, found.exact) == ({}, False)
    with pytest.raises(ValueError, match="no table ships with normtune"):
        found.table.lookup("a", "b", 1, 1)


def test_a_named_table_that_is_missing_is_an_error_that_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(locate.VARIABLE, "/nowhere/table.py")
    with pytest.raises(UsageError, match=r"NORMTUNE_TABLE cannot be used: table /nowhere/table\.py cannot be read"):
        locate.select("NVIDIA H200", "sm_90", 132)


def test_a_relative_data_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert locate.installed_path("A") == Path("/home/somebody/.local/share/normtune/tables/a.py")


def test_a_user_without_a_home_has_no_installed_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    assert locate.select("NVIDIA H200", "sm_90", 132).source == "the table of NVIDIA H200"
    with pytest.raises(UsageError, match="no home folder: set XDG_DATA_HOME"):
        locate.installed_path("NVIDIA H200")


def test_a_home_that_may_not_be_entered_has_no_installed_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        for name in ("stat", "lstat"):
            patch.setattr(os, name, refuse)
        found = locate._installed("NVIDIA H200")
    assert found is None


@given(st.text())
def test_a_slug_is_a_safe_file_name(name: str) -> None:
    found = locate.slug(name)
    assert found
    assert len(found) <= 64
    assert set(found) <= set("abcdefghijklmnopqrstuvwxyz0123456789_")


def test_slugs_of_known_names() -> None:
    assert locate.slug("NVIDIA H200") == "nvidia_h200"
    assert locate.slug("../../etc/passwd\0") == "etc_passwd"
    assert locate.slug("...") == "gpu"


def test_locating_loads_nothing_heavy() -> None:
    code = (
        "import sys; from normtune.heuristics import locate; locate.select('A', 'sm_90', 1); "
        "print(sorted({'numpy', 'pandas', 'torch', 'triton', 'sqlalchemy', 'rich', 'typer'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=os.environ)
    assert done.stdout.strip() == "[]"
