import os
import pwd
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normtune.errors import UsageError
from normtune.heuristics.writing.entries import table_text
from normtune.kernels.key import Key
from normtune.kernels.problem import AXES
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile import locate, template
from normtune.kernels.tablefile.header import Data, Gpu, Header, body_hash
from normtune.kernels.tablefile.loaded import LoadedTable
from normtune.kernels.tablefile.selection import TableSelection
from normtune.tests.commands import printed_by
from normtune.tuner.doctor.data import without_gpu

ONE = template.of_axes(AXES)
CLASSES = {"Config": RMSNormConfig.knobs}
# A table whose one config has the name of its GPU for a schedule.
BODY = ONE.code(
    [f"{ONE.function('only')}\n    return ONE"],
    ['    ("a", "b"): only,'],
    ['    ("a", "b"): {"rows": (1, 1048576), "hidden": (1, 1073741824)},'],
    CLASSES,
    ["ONE = Config(schedule=NAME)"],
)


def write(
    path: Path, device: str, target: str, sms: int, body: str = BODY, operator: str = "a", portable: bool = False
) -> Path:
    body = body.replace("NAME", repr(device.replace(" ", "_")))
    gpu, data = Gpu(device, target, sms), Data("-", 1, "2026-11-20")
    header = Header(gpu, {"triton": "3.6.0"}, data, {operator: "b"}, {}, (), body_hash(body), portable)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(table_text(header, body))
    return path


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of three GPUs and a portable one ship; nothing is installed or named."""
    shipped = tmp_path / "shipped"
    write(shipped / "h200.py", "NVIDIA H200", "sm_90", 132)
    write(shipped / "a100.py", "NVIDIA A100", "sm_80", 108)
    write(shipped / "mi300x.py", "AMD MI300X", "gfx942", 304)
    write(shipped / "a_portable.py", "NVIDIA H200", "sm_90", 132, BODY.replace("NAME", "'any'"), portable=True)
    (shipped / "__init__.py").write_text("")
    monkeypatch.setattr(locate, "SHIPPED", shipped)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv(locate.VARIABLE, raising=False)


def first(selection: TableSelection) -> LoadedTable:
    return selection.tables[0][1]()


def chosen(selection: TableSelection) -> str:
    return str(first(selection).lookup("a", "b", 1, 1)[0]).replace("_", " ")


def test_the_shipped_table_of_the_same_name_and_sms_is_exact() -> None:
    found = locate.select("NVIDIA H200", "sm_90", 132)
    assert (chosen(found), found.exact) == ("NVIDIA H200", True)


@pytest.mark.parametrize(
    ("gpu", "table"),
    [
        (("NVIDIA H200", "sm_90", 66), "NVIDIA H20"),
        (("NVIDIA H20", "sm_90", 132), "NVIDIA GH200"),
        (("NVIDIA H200 NVL", "sm_90", 132), "NVIDIA H200"),
        (("NVIDIA GH200 480GB", "sm_90", 132), "NVIDIA GH200"),
        (("NVIDIA H100 PCIe", "sm_90", 114), "NVIDIA GH200"),
        (("NVIDIA A30", "sm_80", 56), "NVIDIA A100"),
    ],
)
def test_another_gpu_gets_the_table_of_the_nearest_one_of_its_target(gpu: tuple[str, str, int], table: str) -> None:
    write(locate.SHIPPED / "h20.py", "NVIDIA H20", "sm_90", 78)
    write(locate.SHIPPED / "zgh200.py", "NVIDIA GH200", "sm_90", 132)
    found = locate.select(*gpu)
    assert (chosen(found), found.exact) == (table, False)
    assert found.source == f"the table of {table}, which is unmeasured there"


@pytest.mark.parametrize(
    "gpu", [("NVIDIA B200", "sm_100", 148), ("NVIDIA H200", "sm_120", 132), ("AMD MI355X", "gfx950", 256), ("", "", 0)]
)
def test_a_gpu_of_another_target_gets_the_portable_table(gpu: tuple[str, str, int]) -> None:
    found = locate.select(*gpu)
    assert found.source == "the portable table of NVIDIA H200, which is unmeasured there"
    assert (chosen(found), found.exact, len(found.tables)) == ("any", False, 1)


def test_portable_tables_are_asked_last(monkeypatch: pytest.MonkeyPatch) -> None:
    write(locate.SHIPPED / "portable_more.py", "NVIDIA H200", "sm_90", 132, *of_operator("c", "more"), portable=True)
    assert chosen(locate.select("NVIDIA H200", "sm_90", 132)) == "NVIDIA H200"
    for gpu in (("NVIDIA H200", "sm_90", 132), ("NVIDIA B200", "sm_100", 148)):
        config = locate.select(*gpu).answer(Key.parse("c", "b"))(1, 1)
        assert config is not None and config[0] == "more"


def test_an_installed_table_comes_before_that_of_another_gpu() -> None:
    write(locate.installed_path("NVIDIA H100 NVL"), "NVIDIA H100 NVL", "sm_90", 132)
    found = locate.select("NVIDIA H100 NVL", "sm_90", 132)
    assert (chosen(found), found.exact) == ("NVIDIA H100 NVL", True)


def test_the_installed_table_of_the_gpu_comes_before_the_shipped_one(tmp_path: Path) -> None:
    path = write(locate.installed_path("NVIDIA H200"), "NVIDIA H200", "sm_90", 132, BODY.replace("NAME", "'mine'"))
    assert path == tmp_path / "data" / "normtune" / "tables" / "nvidia_h200.py"
    found = locate.select("NVIDIA H200", "sm_90", 132)
    assert (chosen(found), found.exact) == ("mine", True)
    assert chosen(locate.select("NVIDIA H200", "sm_90", 66)) == "NVIDIA H200"


def of_operator(name: str, config: str) -> tuple[str, str]:
    """The code of a table of an operator, and its name."""
    return BODY.replace("NAME", repr(config)).replace('("a", "b")', f'("{name}", "b")'), name


def test_an_operator_is_served_by_the_first_table_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = "NVIDIA H200", "sm_90", 132
    write(locate.SHIPPED / "nvidia_h200_more.py", *gpu, *of_operator("c.heads=8", "more"))
    write(locate.SHIPPED / "nvidia_a100_other.py", "NVIDIA A100", "sm_80", 108, *of_operator("e", "never"))

    def served(key: str) -> str | None:
        config = locate.select(*gpu).answer(Key.parse(key, "b"))(1, 1)
        return None if config is None else str(config[0]).replace("_", " ")

    assert [served(key) for key in ("a", "a:flag", "c.heads=8", "c.heads=16", "e")] == [
        *("NVIDIA H200", "NVIDIA H200", "more", "more", None)
    ]
    write(locate.installed_path("NVIDIA H200"), *gpu, *of_operator("d", "mine"))
    assert [served(key) for key in ("a", "c.heads=8", "d")] == ["NVIDIA H200", "more", "mine"]
    monkeypatch.setattr(locate, "shipped", dict)
    assert [served(key) for key in ("a", "c.heads=8", "d")] == [None, None, "mine"]


def test_a_gpu_of_several_tables_is_named_once() -> None:
    write(locate.SHIPPED / "nvidia_h200_more.py", "NVIDIA H200", "sm_90", 132, *of_operator("c", "more"))
    assert without_gpu() == "normtune ships tables of AMD MI300X, NVIDIA A100, NVIDIA H200"


def test_further_tables_are_loaded_once_and_only_when_they_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = "NVIDIA H200", "sm_90", 132
    write(locate.SHIPPED / "nvidia_h200_more.py", *gpu, *of_operator("c", "more"))
    loaded = []
    load = locate.load
    monkeypatch.setattr(locate, "load", lambda path: loaded.append(Path(path).stem) or load(path))
    found = locate.select(*gpu)
    assert loaded == []
    for _ in range(2):
        assert [function.table.source.stem for function in found.functions(Key.parse("c", "b"))] == ["nvidia_h200_more"]
        assert loaded == ["nvidia_h200_more"]


def of_few_rows(config: str) -> str:
    """The code of a table that was measured at 1 to 8 rows."""
    return BODY.replace("NAME", repr(config)).replace("(1, 1048576)", "(1, 8)")


def test_every_table_hands_on_to_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = "NVIDIA H200", "sm_90", 132
    named = write(tmp_path / "named.py", *gpu, of_few_rows("named"))
    installed = BODY.replace("NAME", "'mine'").replace("(1, 1048576)", "(1, 64)")
    write(locate.installed_path("NVIDIA H200"), *gpu, installed)

    def answers(table: Path | None = None) -> list[str | None]:
        config = locate.select(*gpu, table=table).answer(Key.parse("a", "b"))
        found = [config(rows, 64) for rows in (16, 17, 128, 129, 1 << 21, (1 << 21) + 1)]
        return [None if one is None else str(one[0]) for one in found]

    installed_on = ["mine", "mine", "mine", "NVIDIA_H200", "NVIDIA_H200", None]
    assert answers() == installed_on
    assert answers(named) == ["named", *installed_on[1:]]
    monkeypatch.setenv(locate.VARIABLE, str(named))
    assert answers() == ["named", *installed_on[1:]]


def test_the_named_table_comes_first_whatever_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(locate.installed_path("NVIDIA H200"), "NVIDIA H200", "sm_90", 132, BODY.replace("NAME", "'mine'"))
    monkeypatch.setenv(locate.VARIABLE, str(write(tmp_path / "named.py", "Other", "sm_120", 36)))
    found = locate.select("NVIDIA H200", "sm_90", 132)
    assert (chosen(found), found.exact) == ("Other", True)


def test_without_any_table_nothing_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "SHIPPED", tmp_path / "none")
    found = locate.select("NVIDIA H200", "sm_90", 132)
    assert (found.tables, found.exact, found.source) == ((), False, "the default config of each operator")
    assert found.answer(Key.parse("a", "b"))(1, 1) is None


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


@pytest.mark.slow
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
        "import sys; from normtune.kernels.tablefile import locate; locate.select('A', 'sm_90', 1); "
        "print(sorted({'numpy', 'pandas', 'torch', 'triton', 'sqlalchemy', 'rich', 'typer'} & set(sys.modules)))"
    )
    assert printed_by(code, env=os.environ).strip() == "[]"
