"""What placing row thresholds by interpolated times gains between measured row counts.

In: the shipped H200 recording, its plain operators. Out: lines of Markdown. No GPU, 3 minutes. Every other row count is
left out of a fit of 64 leaves, then the others; the tree with its thresholds where times cross, and with those of the
grid, are scored at what was left out.

    python benchmarks/rows_left_out.py
"""

from collections.abc import Sequence

import numpy as np

from normtune.heuristics.fitting.case import FitArguments, TableEntry
from normtune.heuristics.fitting.figures import Figures, Loss
from normtune.heuristics.fitting.function import fit_function
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.regret.matrix import TimingMatrix, timing_matrix
from normtune.heuristics.regret.weights import DECADES, Weighting
from normtune.heuristics.solver.bins import bins, losses
from normtune.heuristics.solver.crossing import uncrossed
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec, operator
from normtune.kernels.tablefile.tree import Tree
from normtune.kernels.target import target_for
from normtune.results.exchange.recording import load_recording

H200 = target_for("sm_90", 132)
LEAVES = 64
OPTIONS = FitOptions(leaves=LEAVES, tie_percent=0.05)
# Of an earlier fit, else cross-validation would take most of the time.
DECIDED = TableEntry(Key.of("", "", ""), Figures(LEAVES, LEAVES, 0, Loss(0, 0, 0, 0, 0), 0))


def scored(spec: OperatorSpec, matrix: TimingMatrix, left_out: Sequence[int]) -> str:
    """Cells of a line: shapes left out, mean and worst regret there with the thresholds of the grid and as fitted."""
    kinds = [
        matrix.of_problems([place for place, shape in enumerate(matrix.problems) if (shape[0] in left_out) == wanted])
        for wanted in (False, True)
    ]
    known = {matrix.key: DECIDED}
    case = FitArguments(H200, OPTIONS, None, known, {}).case(spec, Weighting(DECADES).weighted(spec, kinds[0]))
    tree = fit_function(case).tree
    plain = uncrossed(case.matrix, bins(case.matrix, case.legality).axes, tree)
    return " | ".join([str(len(kinds[1].problems)), *(_lost(kinds[1], one) for one in (plain, tree))])


def _lost(matrix: TimingMatrix, tree: Tree) -> str:
    known = [loss for loss in losses(matrix.assumed, tree) if loss is not None]
    return f"{np.mean(known) / 1e4:.2f} % ({max(known) / 1e4:.0f} %)"


def main() -> None:
    print("| operator | dtype | left out from | shapes | thresholds of the grid | where times cross |")
    print("|---|---|---:|---:|---:|---:|")
    evidence = load_recording("nvidia-h200")
    for name in ("rms_norm_forward", "rms_norm_backward"):
        spec = operator(name)
        for dtype in ("bfloat16", "float16", "float32"):
            matrix = timing_matrix(evidence, spec, spec.key(dtype), H200)
            assert matrix is not None
            rows = sorted({shape[0] for shape in matrix.problems})
            for first in (1, 2):
                cells = scored(spec, matrix, rows[first:-1:2])
                print(f"| {name} | {dtype} | {rows[first]} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
