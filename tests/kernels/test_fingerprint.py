"""The fingerprint changes with everything that can change a launch, and with nothing else, in any module."""

import ast
import functools
import importlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from normtune.kernels import definitions, fingerprint, load_file, operator
from normtune.kernels.operator import operators
from normtune.results.records import Coverage
from normtune.tests.commands import printed_by
from normtune.tests.kernels.registry import forgetting, registered
from normtune.tuner.plan.resume import previous_of
from normtune.tuner.staleness.table import changed_kernels

LAUNCHER = '''
"""Scales rows."""
import functools
from typing import Annotated

import torch
import triton

import scaling.settings as settings
from normtune import Config, kernel_operator
from scaling import kernels
from scaling.rules import warps_of

SHARE = 2
KERNELS = {"usual": kernels.scale}


class RowConfig(Config):
    BLOCK: Annotated[int, "elements a program."] = 128
    num_warps: Annotated[int, "warps a program."] = 4

    def programs(self, numel):
        return triton.cdiv(numel, self.BLOCK * SHARE)


def unused(x):
    return x


def factor_of(x, default=2.0):
    return default if x.shape[0] > settings.FEW else 1.0


@kernel_operator(
    config=RowConfig,
    space={"BLOCK": (64, 128), "num_warps": (4, 8)},
    buffers={"x": "input", "y": "output"},
    reference=lambda x: x * 2,
)
def scaled(x, y, config):
    grid = (config.programs(x.numel()),)
    KERNELS["usual"][grid](
        x, y, x.numel(), factor_of(x), BLOCK=config.BLOCK, num_warps=warps_of(config.num_warps)
    )
'''

PACKAGE = {
    "__init__": "from scaling.kernels import scale as scale\n",
    "settings": "FEW = 16\nDEEP = 3\n",
    "rules": "from scaling.deep import least\n\n\ndef warps_of(warps):\n    return max(warps, least())\n",
    "deep": """
import triton.language as tl

WIDTH = 4
EPS = tl.constexpr(1e-6)


def least():
    return WIDTH // 2
""",
    "helpers": '''
import triton
import triton.language as tl

from scaling import deep

OTHER = tl.constexpr(0.0)


@triton.jit
def loaded(p_x, m_x, FACTOR: tl.constexpr = 2):
    """Loads."""
    return tl.load(p_x, mask=m_x, other=OTHER) * FACTOR + deep.EPS


@triton.jit
def never(x):
    return x
''',
    "kernels": """
import triton
import triton.language as tl

from scaling.helpers import loaded

RUNTIME = ["n"]


def even(args):
    return args["n"] % args["BLOCK"] == 0


@triton.heuristics({"EVEN": even})
@triton.jit(do_not_specialize=RUNTIME)
def scale(x_ptr, y_ptr, n, factor: "fp32", BLOCK: tl.constexpr, EVEN: tl.constexpr):
    # A program has a block.
    o_x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m_x = o_x < n
    b_x = loaded(x_ptr + o_x, m_x)
    tl.store(y_ptr + o_x, b_x * factor, mask=m_x)
""",
}


class Project:
    """A file with a launcher, and the package that it uses."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._monkeypatch = folder, monkeypatch
        self.file = folder / "launcher.py"
        self.file.write_text(LAUNCHER)
        (folder / "scaling").mkdir()
        for name, text in PACKAGE.items():
            (folder / "scaling" / f"{name}.py").write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace a text in a module, which has it."""
        path = self.file if name == "launcher" else self.folder / "scaling" / f"{name}.py"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def loaded(self) -> operator.OperatorSpec:
        """The operator of the file, loaded anew."""
        for name in [one for one in sys.modules if one.partition(".")[0] == "scaling"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        fingerprint.forget()
        with self._monkeypatch.context() as patch:
            forgetting(patch)
            patch.setattr(sys, "dont_write_bytecode", True)
            load_file.load(self.file)
            return operator.operator("scaled")

    def fingerprint(self) -> str:
        """Of the operator."""
        return fingerprint.fingerprint(self.loaded())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    operators()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Project(tmp_path, monkeypatch)
    fingerprint.forget()


HARMFUL = {
    "kernel": ("kernels", "o_x < n", "o_x <= n"),
    "helper of another module": ("helpers", "* FACTOR", "+ FACTOR"),
    "default of a helper": ("helpers", "FACTOR: tl.constexpr = 2", "FACTOR: tl.constexpr = 3"),
    "constexpr of another module": ("helpers", "constexpr(0.0)", "constexpr(1.0)"),
    "constexpr two modules away, by an attribute": ("deep", "1e-6", "1e-5"),
    "integer two modules away": ("deep", "WIDTH = 4", "WIDTH = 8"),
    "function two modules away": ("deep", "WIDTH // 2", "WIDTH // 4"),
    "launch rule": ("rules", "max(warps", "min(warps"),
    "grid": ("launcher", "self.BLOCK * SHARE", "self.BLOCK"),
    "integer of a method of the config": ("launcher", "SHARE = 2", "SHARE = 1"),
    "argument of a launch": ("launcher", "x, y, x.numel()", "y, x, x.numel()"),
    "option of a launch": ("launcher", "BLOCK=config.BLOCK,", "BLOCK=config.BLOCK, num_stages=3,"),
    "default of a function": ("launcher", "default=2.0", "default=3.0"),
    "value through a module": ("settings", "FEW = 16", "FEW = 1024"),
    "change of a module from outside": ("launcher", "SHARE = 2", "SHARE = 2\nsettings.FEW = 5"),
    "registry of kernels": ("launcher", '"usual": kernels.scale}', '"usual": kernels.scale, "other": 1}'),
    "registry that is changed later": ("launcher", "class RowConfig", 'KERNELS["usual"] = 1\n\n\nclass RowConfig'),
    "options of jit": ("kernels", "jit(do_not_specialize=RUNTIME)", "jit(do_not_specialize=RUNTIME, debug=True)"),
    "a global option of jit": ("kernels", 'RUNTIME = ["n"]', "RUNTIME = []"),
    "noinline": ("helpers", "@triton.jit\ndef loaded", "@triton.jit(noinline=True)\ndef loaded"),
    "heuristic": ("kernels", "== 0\n", "== 1\n"),
    "a module of a package beside another": (
        "launcher",
        "scaling.rules import warps_of",
        "scaling.deep import least as warps_of",
    ),
    "a constexpr that is none any more": ("kernels", "EVEN: tl.constexpr", "EVEN"),
    "type of an argument": ("kernels", '"fp32"', '"fp64"'),
    "dtype of a tensor": ("launcher", '"y": "output"', '"y": "output float32"'),
    "another function": ("launcher", "factor_of(x),", "unused(x),"),
    "another function under the name": ("rules", "from scaling.deep import least", "from math import pi as least"),
}
HARMLESS = {
    "comment in a kernel": ("kernels", "    # A program has a block.", "    # Anything else,\n    # in two lines."),
    "comment above a kernel": ("kernels", "@triton.heuristics", "# A comment\n\n@triton.heuristics"),
    "docstring of a kernel": ("kernels", "    # A program", '    """Scales."""\n    # A program'),
    "docstring of a helper": ("helpers", '"""Loads."""', '"""Loads\n\n    a tile.\n    """'),
    "docstring of a launcher": ("launcher", "    grid = (", '    """Scales."""\n    grid = ('),
    "docstring of a module": ("deep", "import triton", '"""Constants."""\nimport triton'),
    "licence line": ("kernels", "import triton\n", "# SPDX-License-Identifier: MIT\nimport triton\n"),
    "licence line of the launcher": ("launcher", '"""Scales rows."""', '# Copyright\n"""Scales rows."""'),
    "blank lines": ("helpers", "OTHER =", "\n\n\n\nOTHER ="),
    "quotes": ("kernels", '["n"]', "['n']"),
    "parentheses": ("kernels", "b_x * factor,", "(b_x * factor),"),
    "a trailing comma": ("kernels", "loaded(x_ptr + o_x, m_x)", "loaded(\n        x_ptr + o_x,\n        m_x,\n    )"),
    "digits": ("settings", "FEW = 16", "FEW = 0x10"),
    "annotation of a launcher": (
        "launcher",
        "def factor_of(x, default=2.0):",
        "def factor_of(x: object, default: float = 2.0) -> float:",
    ),
    "annotation of a value": ("launcher", "SHARE = 2", "SHARE: int = 2"),
    "order of imports": ("launcher", "import torch\nimport triton", "import triton\nimport torch"),
    "an import": ("kernels", "import triton\n", "import math\nimport triton\n"),
    "a function that no launch uses": ("launcher", "return x\n", "return 3 * x\n"),
    "a kernel that no launch uses": ("helpers", "def never(x):\n    return x", "def never(x):\n    return x + 1"),
    "a value that no launch uses": ("settings", "DEEP = 3", "DEEP = 4"),
    "a new operator beside": ("launcher", "def unused", "def another(x):\n    return kernels\n\n\ndef unused"),
    "the space": ("launcher", '"BLOCK": (64, 128)', '"BLOCK": (64, 128, 256)'),
    "the reference": ("launcher", "x * 2,", "x + x,"),
    "name of a function": ("launcher", "factor_of", "scale_of"),
    "name of a class": ("launcher", "RowConfig", "BlockConfig"),
    "meaning of a knob": ("launcher", '"elements a program."', '"elements of a program."'),
    "configs of triton.autotune": (
        "kernels",
        "@triton.heuristics",
        "@triton.autotune(configs=[triton.Config({})], key=[])\n@triton.heuristics",
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("edit", HARMFUL)
def test_an_edit_of_what_a_launch_uses_is_found(project: Project, edit: str) -> None:
    before = project.fingerprint()
    project.edit(*HARMFUL[edit])
    assert project.fingerprint() != before


@pytest.mark.one_in(2)
@pytest.mark.parametrize("edit", HARMLESS)
def test_an_edit_that_changes_no_launch_is_none(project: Project, edit: str) -> None:
    before = project.fingerprint()
    project.edit(*HARMLESS[edit])
    assert project.fingerprint() == before


def rename_file(project: Project) -> None:
    project.file = project.file.rename(project.folder / "other_name.py")


def rename_module(project: Project) -> None:
    (project.folder / "scaling" / "helpers.py").rename(project.folder / "scaling" / "tiles.py")
    project.edit("kernels", "scaling.helpers", "scaling.tiles")


def move_function(project: Project) -> None:
    project.edit("rules", "from scaling.deep import least", "from scaling.newer import least")
    text = (project.folder / "scaling" / "deep.py").read_text()
    (project.folder / "scaling" / "newer.py").write_text(text)


def print_anew(project: Project) -> None:
    """Another formatter: no comment, no line break, no quotes as before."""
    for path in (project.file, *(project.folder / "scaling").glob("*.py")):
        path.write_text(ast.unparse(ast.parse(path.read_text())))


def format_anew(project: Project) -> None:
    ruff = shutil.which("ruff", path=Path(sys.executable).parent)
    assert ruff
    subprocess.run([ruff, "format", "-q", "--isolated", "--line-length", "40", project.folder], check=True)


def reorder(project: Project) -> None:
    path = project.folder / "scaling" / "kernels.py"
    text, _, kernel = path.read_text().partition("@triton.heuristics")
    head, _, rule = text.partition("def even")
    path.write_text(
        f"{head}def even{rule}RUNTIME = ['n']\n\n\n@triton.heuristics{kernel}".replace('RUNTIME = ["n"]\n', "", 1)
    )


@pytest.mark.parametrize("change", [rename_file, rename_module, move_function, print_anew, format_anew, reorder])
def test_names_of_files_formatters_and_order_do_not_count(project: Project, change: Callable[[Project], None]) -> None:
    before = project.fingerprint()
    change(project)
    assert project.fingerprint() == before


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (
            ("launcher", 'KERNELS["usual"][grid]', 'globals()["KERNELS"]["usual"][grid]'),
            "globals() (launcher.py, line ",
        ),
        (("launcher", 'KERNELS["usual"][grid]', 'eval("KERNELS")["usual"][grid]'), "eval() (launcher.py, line "),
        (
            ("launcher", 'KERNELS["usual"][grid]', 'getattr(kernels, "sca" + "le")[grid]'),
            "the module scaling.kernels as a value (launcher.py, line ",
        ),
        (
            ("launcher", 'KERNELS["usual"][grid]', 'importlib.import_module("scaling.kernels").scale[grid]'),
            "importlib.import_module (launcher.py, line ",
        ),
        (("launcher", "warps_of(config", 'vars()["config"] and warps_of(config'), ""),
        (("launcher", "KERNELS = {", "KERNELS = list.__call__([kernels.scale]) and {"), ""),
        (
            ("launcher", 'KERNELS = {"usual": kernels.scale}', "from hidden import KERNELS"),
            "scale of scaling.kernels, which its launcher does not name",
        ),
    ],
)
def test_what_reading_does_not_find_is_told(project: Project, edit: tuple[str, str, str], told: str) -> None:
    hidden = "KERNELS = {}\n\n\ndef register(kernel):\n    KERNELS['usual'] = kernel\n    return kernel\n"
    (project.folder / "hidden.py").write_text(hidden)
    if "hidden" in edit[2]:
        project.edit("kernels", "@triton.heuristics", "import hidden\n\n\n@hidden.register\n@triton.heuristics")
    project.edit("launcher", "import functools", "import importlib")
    project.edit(*edit)
    spec = project.loaded()
    with pytest.MonkeyPatch.context() as patch:
        registered(patch, spec)
        lines = fingerprint.unnoticed(["scaled"])
    if told:
        assert len(lines) == 1 and lines[0].startswith("a change of the kernels of scaled may go unnoticed: they use ")
        assert told in lines[0]
    else:
        assert lines == []


SWORN = "its kernels are those that were measured"


@pytest.mark.parametrize(
    ("edit", "is_stale", "is_sworn"),
    [
        (HARMFUL["helper of another module"], True, False),
        (HARMLESS["comment in a kernel"], False, True),
        (("launcher", 'KERNELS["usual"][grid]', '(globals(), KERNELS["usual"])[1][grid]'), True, False),
    ],
)
def test_a_check_and_a_sweep_go_by_it(
    project: Project, edit: tuple[str, str, str], is_stale: bool, is_sworn: bool
) -> None:
    def asked() -> tuple[list[str], list[str], int]:
        spec = project.loaded()
        with pytest.MonkeyPatch.context() as patch:
            registered(patch, spec)
            header = SimpleNamespace(kernels={"scaled": before})
            stale, notes = changed_kernels(header, "", None)
            return stale, notes, len(previous_of(stored, ["scaled"]))

    before = project.fingerprint()
    spec = project.loaded()
    problem = spec.problem(4, 64, "float16")
    stored = {(problem, spec.config(64, 4)): Coverage("ok", before, 16, 1000)}
    assert asked() == ([], [SWORN], 1)
    project.edit(*edit)
    stale, notes, times = asked()
    assert (bool(stale), SWORN in notes, times) == (is_stale, is_sworn, int(not is_stale))
    if not is_stale:
        return
    assert stale == ["the kernels of scaled changed since they were measured: sweep with --stale, then fit"]
    before = project.fingerprint()  # measured as it is now
    assert (SWORN in asked()[1]) == ("globals" not in edit[2])


# Edits of normtune's own sources, in the modules of rms_norm_forward.
OWN = "normtune.kernels"
OWN_HARMFUL = {
    "kernel": ("tiles.walk", "TILE.has_column_mask and i_chunk", "i_chunk"),
    "eviction": ("rms_norm.kernels", '"evict_last" if', '"evict_first" if'),
    "constexpr condition": ("tiles.walk", "if PART < COLS:", "if PART <= COLS:"),
    "limit of the calls": ("tiles.launch", "MAX_READ_AGAIN_BYTES = 64", "MAX_READ_AGAIN_BYTES = 32"),
    "argument of a call": ("rms_norm.kernels", '"num_warps": launch.num_warps', '"num_warps": 4'),
    "grid": ("tiles.launch", "-(-hidden // self.part_col)", "1 - (-hidden // self.part_col)"),
    "option of jit": (
        "rms_norm.kernels",
        "do_not_specialize=FORWARD_RUNTIME",
        "do_not_specialize=FORWARD_RUNTIME, debug=True",
    ),
    "jit": (
        "tiles.walk",
        "@triton.jit\ndef _chunks",
        "@triton.jit(noinline=True)\ndef _chunks",
    ),
    "helper": ("tiles.walk", "tl.rsqrt", "1 / tl.sqrt"),
    "modes": ("rms_norm.kernels", "(Rstd, Sum,", "(Sum, Rstd,"),
    "runtime arguments": ("rms_norm.kernels", "FORWARD_RUNTIME = ", "FORWARD_RUNTIME = () or "),
    "part": ("tiles.walk", "tl.program_id", "1 + tl.program_id"),
    "limit of a launch": ("rms_norm.launch", "FORWARD_ELEMENTS_PER_THREAD = 128", "FORWARD_ELEMENTS_PER_THREAD = 64"),
    "tile": ("tiles.tile", "o_col < n_col", "o_col <= n_col"),
    "alignment": ("tiles.tile", "tl.multiple_of(length.to(tl.int64), ALIGNMENT)", "length.to(tl.int64)"),
    "store": ("tiles.tile", "b_value.to(ptr.dtype.element_ty), mask=mask", "b_value, mask=mask"),
    "tile mask": ("tiles.tile", "if BLOCK_ROW > 1:", "if BLOCK_ROW > 2:"),
    "shared rule": ("tiles.launch", "RESERVED_SHARED_BYTES = ", "RESERVED_SHARED_BYTES = 1 + "),
    "buffer": ("rms_norm.operator", '"float32"', '"float64"'),
}
OWN_HARMLESS = {
    "comment": ("rms_norm.kernels", "    b_y = ", "    # a comment\n    b_y = "),
    "docstring": ("rms_norm.kernels", '"""x, or s = x ', '"""The x, or s = x '),
    "docstring of a module": ("rms_norm.kernels", '"""The kernels of', '"""Kernels of'),
    "licence": ("rms_norm.kernels", '"""The kernels of', '# SPDX-License-Identifier: MIT\n"""The kernels of'),
    "blank lines": ("rms_norm.kernels", "@triton.jit\n", "\n\n@triton.jit\n"),
    "quotes": ("rms_norm.kernels", '"evict_first"', "'evict_first'"),
    "number": ("tiles.launch", "64 << 10", "0x40 << 10"),
    "moved": ("tiles.launch", "MAX_SUM_BYTES = 128 << 10", "LAST = 1\nMAX_SUM_BYTES = 128 << 10"),
    "unused import": ("rms_norm.kernels", "import triton\n", "import math\nimport triton\n"),
    "annotation": ("rms_norm.kernels", "-> tuple[KernelCall, ...]:", "-> object:"),
    "comment of a helper": ("rms_norm.kernels", "@triton.jit\n", "# why\n@triton.jit\n"),
    "docstring of a helper": ("tiles.tile", '"""Write a tile', '"""Writes a tile'),
    "unused helper": ("tiles.tile", "@triton.jit\ndef extent", "def unused():\n    pass\n\n\n@triton.jit\ndef extent"),
    "comment on a limit": ("rms_norm.launch", "# Most elements of a tile", "# The most elements of a tile"),
    "backward": ("rms_norm.launch", "BACKWARD_ELEMENTS_PER_THREAD = 64", "BACKWARD_ELEMENTS_PER_THREAD = 32"),
    "docstring of a rule": ("tiles.launch", '"""', '"""\n\n    '),
    "order": (
        "rms_norm.kernels",
        "import triton\nimport triton.language as tl",
        "import triton.language as tl\nimport triton",
    ),
    "space": ("rms_norm.operator", "space=forward_space", "space=backward_space"),
    "scalars": ("rms_norm.operator", "limiting=(),", "limiting=(Product.ROUNDED,),"),
}


@functools.cache
def own_present() -> str:
    """The present fingerprint of rms_norm_forward."""
    return fingerprint.fingerprint(operators()["rms_norm_forward"])


def own_fingerprint(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, change: Callable[[str], str]) -> str:
    """The fingerprint of rms_norm_forward where one of its modules has another text."""
    module = f"{OWN}.{name}"
    usual = definitions._file_of
    path = usual(module)
    assert path
    copy = folder / path.name
    copy.write_text(change(path.read_text()))
    with monkeypatch.context() as patch:
        patch.setattr(definitions, "_file_of", lambda one: copy if one == module else usual(one))
        fingerprint.forget()
        try:
            return fingerprint.fingerprint(operators()["rms_norm_forward"])
        finally:
            fingerprint.forget()


@pytest.mark.one_in(4)
@pytest.mark.parametrize("edit", [*OWN_HARMFUL, *OWN_HARMLESS])
def test_edits_of_the_own_kernels_are_found_where_they_change_a_launch(edit, tmp_path, monkeypatch) -> None:
    name, old, new = {**OWN_HARMFUL, **OWN_HARMLESS}[edit]

    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    assert (own_fingerprint(monkeypatch, tmp_path, name, change) == own_present()) == (edit in OWN_HARMLESS)


@pytest.mark.parametrize("name", ["rms_norm.kernels", "rms_norm.launch", "tiles.tile", "rms_norm.kernels"])
def test_another_formatter_does_not_count(name, tmp_path, monkeypatch) -> None:
    assert own_fingerprint(monkeypatch, tmp_path, name, lambda text: ast.unparse(ast.parse(text))) == own_present()


def test_the_own_kernels_are_found_by_reading() -> None:
    assert {name: fingerprint.sources(spec).faults for name, spec in operators().items()} == dict.fromkeys(
        operators(), ()
    )


def test_operators_with_other_kernels_than_measured_are_named_and_unknown_ones_are_not() -> None:
    known = operators()
    measured = {"rms_norm_forward": "sha256:old", "gone": "sha256:old"}
    present = fingerprint.fingerprint(known["rms_norm_backward"])
    assert fingerprint.changed(measured | {"rms_norm_backward": present}) == ["rms_norm_forward"]


@pytest.mark.slow
def test_needs_neither_triton_nor_torch_and_is_the_same_everywhere() -> None:
    here = {name: fingerprint.fingerprint(spec) for name, spec in operators().items()}
    code = (
        "import sys\n"
        "from normtune.kernels.fingerprint import fingerprint\n"
        "from normtune.kernels.operator import operators\n"
        "print({name: fingerprint(spec) for name, spec in operators().items()})\n"
        "assert not {'torch', 'triton', 'numpy'} & set(sys.modules)\n"
    )
    assert printed_by(code).strip() == str(here)
