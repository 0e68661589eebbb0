"""Comparison of measurements with the present kernels, by compiled code.

In: measurements, their digests, the cells that matter. Out: the cells whose code changed, or the reason why that is
undecided.
"""

from collections.abc import Collection, Iterable

from normtune.errors import NormtuneError
from normtune.kernels.config import Config
from normtune.kernels.fingerprint import is_current
from normtune.kernels.operator import AnyLaunch, operators
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target, target_for
from normtune.results.evidence import Evidence
from normtune.results.exchange.recorded_code import (
    Cell,
    CodeChange,
    RecordedCode,
    cell_digest,
    cell_of,
    launches_digest,
    pairs_of,
)
from normtune.tuner.compiling.pool import UNDIGESTED, codes_of
from normtune.tuner.device.identity import triton_version


def record(evidence: Evidence) -> RecordedCode:
    """The digests of a recording, by the present sources, which must be its own.

    Raises:
        NormtuneError: the kernels changed since the recording, or Triton refuses one.
    """
    fingerprints, target = evidence.fingerprints(), _target(evidence)
    known = operators()
    for name, measured in fingerprints.items():
        if not is_current(known[name], measured):
            raise NormtuneError(f"the kernels of {name} changed since they were recorded: take the sources of then")
    pairs = pairs_of(evidence)
    cells = _digests(pairs, target)
    if missing := {cell_of(*pair) for pair in pairs} - {cell for cell, digest in cells.items() if digest}:
        raise NormtuneError(f"{len(missing)} cells cannot be launched or compiled, {min(missing)} among them")
    launches = {name: _launches(name, pairs, target) for name in fingerprints}
    return RecordedCode(triton_version(), fingerprints, launches, cells)


def difference(code: RecordedCode | None, evidence: Evidence, asked: Collection[Cell]) -> CodeChange:
    """Compare cells of measurements with the launches of the present sources.

    Args:
        code: the digests of the measurements; None where there are none.
        evidence: the measurements, of one device.
        asked: the cells that matter.

    Raises:
        NormtuneError: no process that compiles can start.
    """
    known, target = operators(), _target(evidence)
    fingerprints = {name: measured for name, measured in evidence.fingerprints().items() if name in known}
    pairs = pairs_of(evidence)
    known_launches = code.launches if code else {}
    suspects = tuple(
        name
        for name, measured in fingerprints.items()
        if not is_current(known[name], measured)
        or (name in known_launches and _launches(name, pairs, target) != known_launches[name])
    )
    if not suspects:
        return CodeChange(())
    wanted = {cell for cell in asked if cell.operator in suspects}
    digests: dict[Cell, bytes] = {}
    if not (reason := _undecidable(code, wanted)):
        digests = _digests([pair for pair in pairs if cell_of(*pair) in wanted], target)
        reason = UNDIGESTED if b"" in digests.values() else ""
    if reason:
        by_sources = tuple(name for name in suspects if not is_current(known[name], fingerprints[name]))
        return CodeChange(by_sources, undecided=reason if by_sources else "")
    assert code is not None
    return CodeChange(suspects, tuple(sorted(cell for cell in wanted if digests.get(cell) != code.cells[cell])))


def _undecidable(code: RecordedCode | None, wanted: Collection[Cell]) -> str:
    present = triton_version()
    if code is None:
        return "the measurements have no digests of their code"
    if not present:
        return "there is no triton here to compile what it launches"
    if present != code.triton:
        return f"the digests of their code are of Triton {code.triton}, here is {present}"
    if missing := sum(cell not in code.cells for cell in wanted):
        return (
            f"{missing} of the table's {len(wanted)} configs by hidden size were timed without a digest of their code"
        )
    return ""


def _target(evidence: Evidence) -> Target:
    (device,) = evidence.devices()
    return target_for(device.target, device.sms)


def _launches(name: str, pairs: Iterable[tuple[Problem, Config]], target: Target) -> str:
    launch_of = operators()[name].launch_of
    return launches_digest(launch_of(config, problem, target) for problem, config in pairs if problem.operator == name)


def _digests(pairs: Iterable[tuple[Problem, Config]], target: Target) -> dict[Cell, bytes]:
    """The digests of cells, given all of their pairs, empty where a pair has none.

    Cells that cannot be launched or compiled are left out.
    """
    known = operators()
    launches: dict[Cell, list[tuple[Problem, AnyLaunch | None]]] = {}
    for problem, config in pairs:
        launch = known[problem.operator].launch_of(config, problem, target)
        launches.setdefault(cell_of(problem, config), []).append((problem, launch))
    codes = codes_of(
        ((problem, launch) for pairs_of_cell in launches.values() for problem, launch in pairs_of_cell if launch),
        target.name,
    )
    cells = {}
    for cell, pairs_of_cell in launches.items():
        parts = [codes.get((problem, launch)) if launch else None for problem, launch in pairs_of_cell]
        if None not in parts:
            cells[cell] = b"" if b"" in parts else cell_digest(part for part in parts if part)
    return cells
