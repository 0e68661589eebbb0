"""Files that are not tables, in NORMTUNE_TABLE, use_table, check or an installation."""

import os
import re
from pathlib import Path

import pytest

from normtune.errors import UsageError
from normtune.kernels.key import Key
from normtune.kernels.tablefile import locate
from normtune.tests.heuristics.made_up import rehashed
from normtune.tuner.checking.offline import check

SHIPPED = locate.SHIPPED / "nvidia_h200.py"
CONFIG = 'ROW_WARPS_4 = Config(schedule="row", num_warps=4)\n'
FIRST = 'def rms_norm_backward_bfloat16(rows: int, hidden: int) -> "Config":\n'
INVARIANT = FIRST.replace("_bfloat16", "_batch_invariant_bfloat16")
SIZES = "MEASURED: dict[tuple[str, str], dict[str, tuple[int, int]]] = {\n"
TABLES = 'TABLES: dict[tuple[str, str], Callable[[int, int], "Config"]] = {'
ENTRY = '("rms_norm_forward", "bfloat16"): rms_norm_forward_bfloat16'


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def one_line(path: "str | os.PathLike[str]") -> str:
    """What every way to use a table says of this one."""
    with pytest.raises(UsageError) as loaded:
        locate.load(path)
    text = str(loaded.value)
    assert "\n" not in text and text.isprintable() and len(text) < 400
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UsageError) as selected:
        patch.setenv(locate.VARIABLE, os.fspath(path))
        locate.select("NVIDIA H200", "sm_90", 132)
    assert str(selected.value) == f"NORMTUNE_TABLE cannot be used: {text}"
    return text


def edited(old: str, new: str) -> Path:
    """The shipped table with an edit of its code, and the hash that belongs to it."""
    text = SHIPPED.read_text()
    assert text.count(old) == 1, old
    path = Path("table.py")
    # Of a store that is not at hand, so that a check does not fit again.
    command = {"store": "normtune.db", "out": "table.py"}
    path.write_text(rehashed(text.replace(old, new), command=command))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (FIRST, "raise SystemExit\n" + FIRST),
        (FIRST, "while True:\n    pass\n" + FIRST),
        (FIRST, "import os\n" + FIRST),
        (FIRST, "import os; os._exit(3)\n" + FIRST),
        (FIRST, "@print\n" + FIRST),
        (FIRST, FIRST.replace("rows: int,", "rows: print('x'),")),
        (FIRST, FIRST.replace('"Config"', "print('x')")),
        (FIRST, FIRST.replace("hidden: int", "hidden: int = print('x')")),
        (FIRST, FIRST + "    return rms_norm_backward_bfloat16(rows, hidden)\n"),
        (FIRST, FIRST + "    raise SystemExit\n"),
        (FIRST, FIRST + "    if rows >= 1 / 0:\n        return ROW_WARPS_4\n"),
        (FIRST, FIRST + "    while True:\n        pass\n"),
        (FIRST, FIRST.replace("rms_norm_backward_bfloat16", "lookup") + "    return ROW_WARPS_4\n\n\n" + FIRST),
        (FIRST, FIRST.replace("rms_norm_backward_bfloat16", "Config") + "    return ROW_WARPS_4\n\n\n" + FIRST),
        (FIRST, "def broken(:\n" + FIRST),
        (FIRST, "x = " + "(" * 300 + ")" * 300 + "\n" + FIRST),
        (FIRST, "x = " + "-" * 100_000 + "1\n" + FIRST),
        (FIRST, "\0" + FIRST),
        ("    return table(rows, hidden)\n", "    raise SystemExit\n"),
        ("class Config(NamedTuple):", "class Config(NamedTuple, metaclass=print('x')):"),
        ("    block_col: int = 0\n", "    block_col: int = 0\n    more: int = print('x')\n"),
        ("from typing import NamedTuple", "from antigravity import NamedTuple"),
        (CONFIG, 'ROW_WARPS_4 = Config(schedule="row", num_warps="4")\n'),
        (CONFIG, 'ROW_WARPS_4 = Config(schedule="row", num_warps=True)\n'),
        (CONFIG, 'ROW_WARPS_4 = Config(schedule="row", num_warps=print("x"))\n'),
        (CONFIG, 'ROW_WARPS_4 = Config("row", 1, 4, 1, 0, "none", 0, 1)\n'),
        (CONFIG, 'ROW_WARPS_4 = Config("row", schedule="row", num_warps=4)\n'),
        (CONFIG, 'ROW_WARPS_4 = Config(**{"schedule": "row", "num_warps": 4})\n'),
        (CONFIG, 'ROW_WARPS_4 = Config(*("row", 1, 4))\n'),
        (CONFIG, 'ROW_WARPS_4 = Config(schedule="row", num_warps=4, odd=1)\n'),
        (ENTRY, '("rms_norm_forward", 16): rms_norm_forward_bfloat16'),
        (ENTRY, '("rms_norm_forward", "bfloat16"): 16'),
        (ENTRY, '("rms_norm_forward", "bfloat16"): print'),
        (ENTRY, "**{}"),
        *[
            (ENTRY, f'("{operator}", "{dtype}"): rms_norm_forward_bfloat16')
            for operator, dtype in [
                ("rms_norm_forward", ""),
                ("rms_norm_forward", "\\x1b[2J"),
                ("rms_norm_forward", "x" * 201),
                ("rms_norm_forward:\\x1b[2J", "bfloat16"),
                ("rms_norm_forward:" + "x" * 201, "bfloat16"),
                ("rms_norm_forward.n=08", "bfloat16"),
                ("rms_norm_forward.n=" + "9" * 10, "bfloat16"),
                ("rms_norm_forward.n=" + "9" * 8000, "bfloat16"),
            ]
        ],
        (TABLES, "TABLES: print('x') = {"),
        (TABLES, "OTHER: dict = {"),
        (SIZES, SIZES.replace("int]]]", "int, int]]]")),
        (SIZES, "x = 1\n" + SIZES),
        (SIZES, SIZES + "    **{},\n"),
        (SIZES, SIZES + '    ("a", "b"): print("x"),\n'),
        (SIZES, SIZES + '    ("a", 1): {"rows": (1, 2), "hidden": (1, 2)},\n'),
        (SIZES, SIZES + '    ("a", "b"): {"rows": (1, 2)},\n'),
        (SIZES, SIZES + '    ("a", "b"): {"hidden": (1, 2), "rows": (1, 2)},\n'),
        (SIZES, SIZES + '    ("a", "b"): {"rows": (2, 1), "hidden": (1, 2)},\n'),
        (SIZES, SIZES + '    ("a", "b"): {"rows": (0, 1), "hidden": (1, 2)},\n'),
        (SIZES, SIZES + '    ("a", "b"): {"rows": (1, 1 << 40), "hidden": (1, 2)},\n'),
        (SIZES, SIZES + '    ("a", "b"): {"rows": (1, 9999999999), "hidden": (1, 2)},\n'),
        (SIZES, SIZES + '    ("a", "b"): {"rows": (1.0, 2), "hidden": (1, 2)},\n'),
        (SIZES, SIZES + '    ("a", "b"): {"rows": (True, 2), "hidden": (1, 2)},\n'),
        (SIZES, SIZES + '    ("a", "b"): {"rows": [1, 2], "hidden": (1, 2)},\n'),
        (SIZES, SIZES + '    "ab": {"rows": (1, 2), "hidden": (1, 2)},\n'),
        (SIZES, SIZES + '    ("\\x1b[2J", "b"): {"rows": (1, 2), "hidden": (1, 2)},\n'),
        (SIZES, SIZES + '    ("a", "b"): {"rows": (1,), "hidden": (1, 2)},\n'),
        (SIZES, SIZES + '    ("a", "b"): {"rows": 1, "hidden": (1, 2)},\n'),
        (SIZES, SIZES + '    ("a", "b"): {[]: (1, 2), "hidden": (1, 2)},\n'),
        (SIZES, SIZES + '    ("a", "b"): ("rows", "hidden"),\n'),
        (SIZES, SIZES.replace(" {", " {}\n\n\nx = {")),
        # A function without measured sizes.
        ('    ("rms_norm_backward", "float32"): {\n', '    ("other", "float32"): {\n'),
    ],
)
def test_code_that_normtune_does_not_write_is_not_run(old: str, new: str, capfd: pytest.CaptureFixture[str]) -> None:
    path = edited(old, new)
    assert re.match(
        r"table table\.py cannot be used: its code has a form that normtune does not write \(.+\)", one_line(path)
    )
    assert any("a form that normtune does not write" in line for line in check(path).failures)
    assert capfd.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        # Names of Python's own: it notes the type of TABLES in one, and looks functions up in another.
        (CONFIG, '__annotations__ = Config(schedule="row", num_warps=4)\n' + CONFIG),
        (CONFIG, '__builtins__ = Config(schedule="row", num_warps=4)\n' + CONFIG),
        (FIRST, FIRST.replace("rms_norm_backward_bfloat16", "__name__") + "    return ROW_WARPS_4\n\n\n" + FIRST),
        # One name twice.
        (TABLES, 'rms_norm_forward_bfloat16 = Config(schedule="row", num_warps=4)\n\n\n' + TABLES),
        (CONFIG, CONFIG + CONFIG),
        # What is used stands below its use.
        ("from collections.abc import Callable\nfrom typing import NamedTuple\n\n\n", ""),
        ("from typing import NamedTuple\n\n\n", ""),
        # Numbers that Python does not print, and functions too deep to walk.
        (CONFIG, f'ROW_WARPS_4 = Config(schedule="row", num_warps=0x{"f" * 8000})\n'),
        (CONFIG, 'ROW_WARPS_4 = Config(schedule="row", block_row=0, num_warps=4)\n'),
        (CONFIG, 'ROW_WARPS_4 = Config(schedule="a b", num_warps=4)\n'),
        (FIRST, FIRST + f"    if hidden <= 0x{'f' * 8000}:\n        return ROW_WARPS_4\n"),
        (FIRST, FIRST + f"    if rows >= {1 << 63}:\n        return ROW_WARPS_4\n"),
        (FIRST, FIRST + "    if rows >= 7:\n        return ROW_WARPS_4\n" * 301),
        # A class that cannot be made, or is made otherwise than it reads.
        ("    num_warps: int = 4\n", "    num_warps: int\n"),
        ("    num_warps: int = 4\n", "    block_row: int = 4\n"),
        ("    num_warps: int = 4\n", "    _num_warps: int = 4\n"),
        ("    num_warps: int = 4\n", "    num_warps: int = 4\n    to_json: int = 4\n"),
        ("    num_warps: int = 4\n", "    num_warps: int = 4\n    int: int = 4\n"),
        # The rows at which a batch-invariant function changes are not those of a threshold on a product.
        (INVARIANT, INVARIANT + "    if rows * hidden >= 7:\n        return ROW_WARPS_4\n"),
    ],
)
def test_a_table_that_would_raise_at_a_launch_is_refused_when_it_is_read(old: str, new: str) -> None:
    path = edited(old, new)
    if not new:  # below all that it is used for
        path.write_text(path.read_text().replace("\n\n# Facts", f"\n\n{old}# Facts"))
    why = one_line(path)
    assert re.match(r"table table\.py cannot be used: its code has a form that normtune does not write \(.+\)", why)


@pytest.mark.slow
def test_names_that_the_code_uses_are_no_names_of_configs() -> None:
    text = (locate.SHIPPED / "nvidia_h200_qk_norm.py").read_text()
    config = next(line for line in text.split("\n") if re.match(r"\w+ = Config\(.*\)$", line))
    Path("table.py").write_text(rehashed(text.replace(config, f"max = {config.partition(' = ')[2]}\n{config}")))
    assert "a name has another meaning" in one_line("table.py")


@pytest.mark.slow
def test_a_table_is_read_in_the_encoding_in_which_python_imports_it() -> None:
    text = f"# -*- coding: raw_unicode_escape -*-\n{SHIPPED.read_text()}"
    Path("table.py").write_text(text)
    locate.load("table.py")
    Path("table.py").write_text(text.replace("\n", "\n# \\u000araise SystemExit\n", 1))
    assert "a form that normtune does not write" in one_line("table.py")


@pytest.mark.slow
@pytest.mark.parametrize("operator", ["rms_norm_forward.n=0", "rms_norm_forward.n=999999999"])
def test_named_integers_of_any_size_raise_at_no_lookup(operator: str) -> None:
    table = locate.load(edited(ENTRY, f'{ENTRY},\n    ("{operator}", "bfloat16"): rms_norm_forward_bfloat16'))
    for wanted in ("rms_norm_forward", "rms_norm_forward.n=7", operator):
        table.function(Key.parse(wanted, "bfloat16"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ['"rms_norm_forward", "int7"', '"rms_norm_forward:odd", "bfloat16"'])
def test_entries_of_what_nobody_knows_are_noted(name: str) -> None:
    report = check(edited(ENTRY, ENTRY.replace('"rms_norm_forward", "bfloat16"', name)))
    told = name.replace('"', "").replace(",", "")
    assert f"{told} is not registered here: its configs were not checked" in report.notes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no table of normtune"),
        (b"x = 1\n", "is no table of normtune"),
        (b"\xff\xfe\x00\x01" * 100, "is no text file"),
        (b"# Code generated by normtune. DO NOT EDIT.\n", "table.py has no facts of format 5, the only one that this"),
        (
            b"# Code generated by normtune. DO NOT EDIT.\n# Format:   5\n# Facts:    {}\n",
            "fit it again by its line Reg",
        ),
        (
            b"# Code generated by normtune. DO NOT EDIT.\n\n# Facts of format 6:\n# {}\n",
            "has no facts of format 5, the",
        ),
        (b"# Code generated by normtune. DO NOT EDIT.\n\n# Facts of format 5:\n# {}\n", "the facts of table.py cannot"),
        (
            b"# Code generated by normtune. DO NOT EDIT.\n\n# Facts of format 5:\nx\n",
            "line 4 of table.py is no comment",
        ),
        (b"# Code generated by normtune. DO NOT EDIT.\n" + b"x" * locate.MAX_BYTES, "has over 1048576 bytes"),
    ],
)
def test_files_that_are_no_tables(content: bytes, message: str) -> None:
    Path("table.py").write_bytes(content)
    assert message in one_line("table.py")
    with pytest.raises(UsageError, match=re.escape(message)):
        check(Path("table.py"))


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo("pipe.py")
    for path in ("pipe.py", tmp_path, "/dev/zero"):
        assert "is no regular file" in one_line(path)
        with pytest.raises(UsageError, match="is no regular file"):
            check(Path(path))
    Path("loop.py").symlink_to("loop.py")
    assert "loop.py cannot be read: Too many levels of symbolic links" in one_line("loop.py")
    Path("gone.py").symlink_to("nowhere.py")
    assert "gone.py cannot be read: No such file" in one_line("gone.py")


def test_a_file_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object, flags: int) -> int:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patch:  # the superuser may read everything
        patch.setattr(os, "open", refuse)
        assert "table.py cannot be read: Permission denied; check the path" in one_line("table.py")


@pytest.mark.parametrize(
    "name", ["a\nb", 'a"b', "a'b", "a\tb", " ", "\u2028", "é.py", "~nobody/x.py", "~/x.py", "x" * 300]
)
def test_hostile_names_stay_in_one_line(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv(locate.VARIABLE, name)
    with pytest.raises(UsageError) as caught:
        locate.select("NVIDIA H200", "sm_90", 132)
    text = str(caught.value)
    assert text.startswith("NORMTUNE_TABLE cannot be used: table ")
    assert "cannot be read: " in text
    assert text.isprintable()


def test_a_name_with_a_nul(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"table 'a\\x00b' cannot be read: a NUL in its name; check the path"):
        locate.load("a\0b")


def test_a_named_table_may_be_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("mine.py").write_text(SHIPPED.read_text())
    monkeypatch.setenv(locate.VARIABLE, "~/mine.py")
    assert locate.select("Other", "sm_80", 1).source == "~/mine.py (NORMTUNE_TABLE)"


@pytest.mark.long
def test_a_broken_installed_table_says_how_to_get_rid_of_it() -> None:
    path = locate.installed_path("NVIDIA H200")
    path.parent.mkdir(parents=True)
    for content, why in (
        ("x = 1\n", "is no table of normtune"),
        (SHIPPED.read_text().replace(FIRST, "raise SystemExit\n" + FIRST), "a form that"),
    ):
        path.write_text(content)
        with pytest.raises(UsageError) as caught:
            locate.select("NVIDIA H200", "sm_90", 132)
        text = str(caught.value)
        assert text.startswith("the installed table cannot be used: ")
        assert why in text
        assert text.endswith(f"; delete {path}, and install another")
    path.unlink()
    assert locate.select("NVIDIA H200", "sm_90", 132).source == "the table of NVIDIA H200"
