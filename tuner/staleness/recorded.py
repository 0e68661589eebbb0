"""Measurements of a recording or an exported file, compared with the code that the present kernels launch.

In: measurements, the digests of their code, and the cells to compare. Out: `CodeChange`: the cells whose code changed,
or the reason why that cannot be decided.
"""

from collections.abc import Collection
from typing import NamedTuple

from normtune.errors import NormtuneError
from normtune.kernels.fingerprint import changed
from normtune.kernels.operator import operator
from normtune.kernels.target import target_for
from normtune.results.evidence import Evidence
from normtune.results.exchange.recorded_code import Cell, Pair, RecordedCode, cell_of, joined, pairs_of
from normtune.tuner.staleness.code import REFUSED, triton_version
from normtune.tuner.staleness.stored import UNDIGESTED, assemblies_of


class CodeChange(NamedTuple):
    """Result of comparing the code of measurements with the present code.

    Attributes:
        suspects: operators whose sources changed.
        changed: the compared cells whose code changed.
        undecided: why code could not be compared; empty if it was compared, or if no operator is suspect.
    """

    suspects: tuple[str, ...]
    changed: tuple[Cell, ...] = ()
    undecided: str = ""


def difference(code: RecordedCode, evidence: Evidence, cells: Collection[Cell]) -> CodeChange:
    """Compare cells of measurements with what the present sources compile to.

    Args:
        code: the digests of the measurements.
        evidence: the measurements, of one device.
        cells: the cells to compare.

    Raises:
        NormtuneError: no process that compiles can start.
    """
    suspects = tuple(changed(evidence.fingerprints()))
    of_suspects = {cell for cell in cells if cell.key.operator in suspects}
    if not suspects:
        return CodeChange(())
    triton = triton_version()
    if not code.cells:
        return CodeChange(suspects, undecided="the measurements have no digests of their code")
    if not triton:
        return CodeChange(suspects, undecided="triton, which compiles the kernels, is not installed")
    if undigested := len(of_suspects.difference(code.cells)):
        reason = f"{undigested} of the table's {len(of_suspects)} configs by hidden size have no digest of their code"
        return CodeChange(suspects, undecided=reason)
    pairs = [pair for pair in pairs_of(evidence) if cell_of(*pair) in of_suspects]
    present = joined(pairs, _present(evidence, pairs))
    if len(present) < len(of_suspects):
        return CodeChange(suspects, undecided=UNDIGESTED)
    others = tuple(sorted(cell for cell in of_suspects if present[cell] != code.cells[cell]))
    if others and code.triton != triton:
        return CodeChange(
            suspects, undecided=f"the digests of their code are of Triton {code.triton}, here is {triton}"
        )
    return CodeChange(suspects, others)


def record(evidence: Evidence, cells: Collection[Cell]) -> RecordedCode:
    """The digests of cells of a recording, computed from the sources that it was measured with.

    Raises:
        NormtuneError: the present sources are others, Triton refuses a kernel, or no process that compiles can start.
    """
    for name in changed(evidence.fingerprints()):
        raise NormtuneError(f"the kernels of {name} changed since they were recorded: use the sources of that time")
    pairs = [pair for pair in pairs_of(evidence) if cell_of(*pair) in cells]
    digests = _present(evidence, pairs)
    if refused := [cell_of(*pair) for pair, digest in digests.items() if digest in (b"", REFUSED)]:
        raise NormtuneError(f"{len(refused)} launches have no digest of their code, of {min(refused)} among them")
    return RecordedCode(triton_version(), joined(pairs, digests))


def _present(evidence: Evidence, pairs: Collection[Pair]) -> dict[Pair, bytes]:
    """`assemblies_of` what the present sources launch on the device of the measurements."""
    (device,) = evidence.devices()
    target = target_for(device.target, device.sms)
    return assemblies_of(
        {pair: operator(pair[0].operator).launch_of(pair[1], pair[0], target) for pair in pairs}, target
    )
