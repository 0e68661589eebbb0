"""Tables whose functions use rows in one mode only; loops and casts as of a kernel; a process that compiled nothing."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from normtune import use, use_batch_invariant
from normtune.heuristics.writing.entries import table_text
from normtune.kernels.calling import batch_invariant
from normtune.kernels.problem import AXES, MAX_ROWS
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.header import body_hash
from normtune.kernels.tablefile.template import of_axes
from normtune.kernels.target import Target

CLASSES = {"Config": RMSNormConfig.knobs}
_FORM = of_axes(AXES)
_CONFIGS = """
FEW = Config(schedule="row", block_row=1, num_warps=2)
MANY = Config(schedule="split", block_row=1, num_warps=2, block_col=64)
FEW_BACKWARD = Config(schedule="persistent", block_row=1, num_warps=2, programs_per_sm=1, finish="reduce")
MANY_BACKWARD = Config(schedule="split", block_row=1, num_warps=2, programs_per_sm=1, finish="reduce", block_col=64)
PARTS = Config(schedule="parts", block_row=1, num_warps=2, programs_per_sm=1)
""".strip()
_FUNCTIONS = f"""
{_FORM.function("forward")}
    if rows >= 16:
        return MANY
    return FEW


{_FORM.function("forward_invariant")}
    if hidden <= 512:
        return FEW
    return MANY


{_FORM.function("backward")}
    if rows >= 16:
        return MANY_BACKWARD
    return FEW_BACKWARD


{_FORM.function("backward_invariant")}
    return MANY_BACKWARD


{_FORM.function("in_parts")}
    return PARTS
""".strip()
_OF_NORM = {"rms_norm_forward": "forward", "rms_norm_backward": "backward"}
_PLAIN = _OF_NORM | dict.fromkeys(("fused_add_rms_norm_forward", "rms_norm_gated_forward"), "in_parts")
_INVARIANT = {f"{key}:batch_invariant": f"{name}_invariant" for key, name in _OF_NORM.items()}


@pytest.fixture(scope="session")
def target() -> Target:
    """The first GPU of this machine."""
    from normtune.kernels.calling.device import describe

    return describe(0)


class Counted(int):
    """The number of a turn of a loop, as a kernel sees it."""

    def to(self, dtype):
        return int(self)


@pytest.fixture
def counted_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the numbers over which a loop runs the interpreter makes plain integers, the compiler tensors."""
    from triton.runtime import interpreter

    monkeypatch.setattr(interpreter, "range", lambda *bounds: map(Counted, range(*bounds)), raising=False)


@pytest.fixture
def rounded_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversions to bfloat16 that round to nearest: the interpreter cuts bits off and loses subnormals."""
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def converted(values, source, target, rounding):
        if (source, target) == (tl.float32, tl.bfloat16):
            bits = values.view(np.uint32)
            rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
            return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)
        if (source, target) == (tl.bfloat16, tl.float32):
            return (values.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        return convert(values, source, target, rounding)

    monkeypatch.setattr(interpreter, "_convert_float", converted)


@pytest.fixture
def write_table(tmp_path: Path) -> Callable[[bool], Path]:
    """Writes a table in float32: one row a program below 16 rows and in chunks above; others in parts.

    With the argument True it also has functions of the batch-invariant mode: forward one row a program up to hidden 512
    and in chunks above, backward in chunks.
    """

    def write(invariant: bool) -> Path:
        entries = _PLAIN | (_INVARIANT if invariant else {})
        lines = [f'    ("{key}", "float32"): {name},' for key, name in entries.items()]
        sizes = [f'    ("{key}", "float32"): {{"rows": (1, {MAX_ROWS}), "hidden": (1, 65536)}},' for key in entries]
        body = _FORM.code([_FUNCTIONS], lines, sizes, CLASSES, [_CONFIGS])
        header = next(iter(locate.shipped().values()))._replace(body=body_hash(body))
        path = tmp_path / f"table_{invariant}.py"
        path.write_text(table_text(header, body))
        return path

    return write


@pytest.fixture
def initial_state(monkeypatch):
    """A process that compiled nothing, and had no setting of the compiled way or of the batch-invariant mode."""
    monkeypatch.setattr(batch_invariant, "_was_on", False)
    torch._dynamo.reset()
    yield
    use()
    use_batch_invariant(None)
