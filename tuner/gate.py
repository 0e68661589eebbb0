"""Correct before fast: a launch is compared with the float64 reference before it is timed.

In: problem and launch on a device. Out: nothing, or `WrongResultError` with the output and the error. One binary
passes once: the shapes here are chosen so that its loop runs several times, the last tile is cut, and rows of zeros,
tiny, huge and outlying values are among them.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from normtune.kernels.call import run
from normtune.kernels.operator import IllegalConfigError, Launch, OperatorSpec
from normtune.kernels.problem import MAX_ROWS, Buffer, Problem
from normtune.kernels.target import Target
from normtune.tuner.planning import Candidate

WORKSPACE = "workspace"
EPS = 1e-6
OFFSET = 0.25
# Programs of the fixed grid while gating: the grid is no part of the binary, and few programs loop often.
GATE_PROGRAMS = 5
# Full passes of the grid's loop, more than any pipeline has stages.
GATE_PASSES = 6
_GUARD_BYTES = 512
_GUARD_VALUE = 0xA5


class WrongResultError(RuntimeError):
    """A kernel's output differs from the reference by more than rounding, or lies where it should not."""


def gate_launch(spec: OperatorSpec, problem: Problem, candidate: Candidate, target: Target) -> tuple[Problem, Launch]:
    """The problem and launch on which a candidate's binary is tried: same binary, rows and grid of the gate's own."""
    config, launch = candidate
    programs = min(launch.grid, GATE_PROGRAMS)
    if launch.looped and not launch.workspace:
        try:
            many = spec.resolve(config, problem._replace(rows=MAX_ROWS), target, None)
        except IllegalConfigError:
            many = None
        # One program may be another binary (it ends its sums itself), then it makes all the passes alone.
        programs = GATE_PROGRAMS if many and many.binary == launch.binary else 1
    if not launch.looped:
        programs = GATE_PROGRAMS
    rows = programs * launch.block_row * GATE_PASSES + max(1, launch.block_row // 2)
    grid = programs if launch.looped else -(-rows // launch.block_row)
    workspace = grid * problem.hidden if launch.workspace else 0
    return problem._replace(rows=rows), launch._replace(grid=grid, workspace=workspace)


def gate(spec: OperatorSpec, problem: Problem, candidate: Candidate, target: Target, device: torch.device) -> None:
    """Try the binary of a candidate.

    Raises:
        WrongResultError: an output is off, was left unwritten, or something was written beside it.
    """
    problem, launch = gate_launch(spec, problem, candidate, target)
    inputs, expected = _case(spec, problem, device)
    buffers = [buffer for buffer in spec.buffers(problem) if buffer.role == "output"]
    buffers.append(Buffer(WORKSPACE, (max(1, launch.workspace),), "float32", "output"))
    guarded = {buffer.name: _guarded(buffer, device) for buffer in buffers}
    outputs = {name: tensor for name, (_, tensor) in guarded.items()}
    workspace = outputs.pop(WORKSPACE)
    run(spec.kernels().calls(launch, problem, {**inputs, **outputs}, workspace, EPS, OFFSET))
    compare(outputs, expected)
    for name, (memory, _) in guarded.items():
        if not _untouched(memory):
            raise WrongResultError(f"{name}: wrote outside of its memory")


def compare(outputs: Mapping[str, Tensor], expected: Mapping[str, Any]) -> None:
    """Check outputs against `Expected` values.

    Raises:
        WrongResultError: naming the first output that is off, and by how much.
    """
    # In pieces, as a float64 copy of the largest outputs would not fit beside the reference; read back at once, as each
    # read waits for the GPU. `max` keeps NaN, and a NaN is not below anything.
    excess = {
        name: torch.stack(
            [
                ((part.double() - exact).abs_() / allowed).max()
                for part, exact, allowed in zip(_pieces(outputs[name]), _pieces(value), _pieces(tolerance), strict=True)
            ]
        ).max()
        for name, (value, tolerance) in expected.items()
    }
    for name, worst in zip(excess, torch.stack(list(excess.values())).tolist(), strict=True):
        if not worst <= 1.0:
            raise WrongResultError(f"{name}: error is {worst:.3g} times what rounding allows")


def _pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    return tensor.reshape(-1).split(1 << 26)


def poison(tensor: Tensor) -> None:
    """Fill an output with NaN, so that what is not written shows."""
    tensor.fill_(float("nan"))


@lru_cache(maxsize=8)
def _case(spec: OperatorSpec, problem: Problem, device: torch.device) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Hostile inputs of a problem and what comes of them."""
    generator = torch.Generator(device).manual_seed(20_000 + problem.hidden)
    references = spec.references()
    inputs = references.inputs(problem, generator, device, True)
    return inputs, references.reference(problem, inputs, EPS, OFFSET)


def _guarded(buffer: Buffer, device: torch.device) -> tuple[Tensor, Tensor]:
    """Memory with guard bytes on both sides, and the poisoned tensor between them."""
    memory = torch.full((buffer.nbytes + 2 * _GUARD_BYTES,), _GUARD_VALUE, dtype=torch.uint8, device=device)
    inner = memory[_GUARD_BYTES : _GUARD_BYTES + buffer.nbytes].view(getattr(torch, buffer.dtype)).view(buffer.shape)
    poison(inner)
    return memory, inner


def _untouched(memory: Tensor) -> bool:
    return bool((memory[:_GUARD_BYTES] == _GUARD_VALUE).all() and (memory[-_GUARD_BYTES:] == _GUARD_VALUE).all())
