"""`sweep(refine=...)` on the recording: loss of the table at shapes that chose nothing, before and after.

In: the shipped H200 recording, its plain operators in bfloat16. Out: benchmarks/results/strategies/refine.json and .md.
No GPU. A table is fitted to the default grid. Of the other recorded shapes a third is held out; refining measures some
of the rest, and so does a draw of random shapes for as many seconds of the device. Both tables are fitted again to all
that was measured, and scored at the shapes held out.

    python benchmarks/refine.py
"""

from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

import numpy as np

from normtune.benchmarks.lib.simulation import Simulated, Space, simulate, stored
from normtune.benchmarks.places import RESULTS, write
from normtune.benchmarks.recorded_spaces import recorded
from normtune.benchmarks.table_after import evidence
from normtune.heuristics.regret.legality import Legality, all_variants
from normtune.heuristics.regret.matrix import timing_matrix
from normtune.heuristics.solver.bins import solve
from normtune.kernels.key import Key
from normtune.kernels.operator import operator
from normtune.kernels.tablefile.tree import Tree, choose
from normtune.kernels.target import TARGETS
from normtune.results.evidence import Evidence
from normtune.tuner.plan.grids import GRIDS
from normtune.tuner.plan.plan import Task
from normtune.tuner.search.adaptive import Adaptive
from normtune.tuner.search.protocol import Previous
from normtune.tuner.search.refine import Refine, Refinement

LEAVES = 48
SEED = 0
UNTIL = 0.002
# Of timing on the device, after the start; the last ends by itself.
SECONDS = (5.0, 10.0, 20.0)
DRAWS = 3  # of random shapes


class Shuffled(Adaptive):
    """`adaptive` at the tasks in random order."""

    def __init__(self, tasks: Sequence[Task], previous: Previous, seed: int) -> None:
        super().__init__(tasks, previous)
        self._seed = seed

    def ask(self) -> Iterator[Task]:
        left = sorted(self.pending())
        Random(self._seed).shuffle(left)
        return iter(left)


def fitted(*parts: Simulated) -> dict[Key, Tree]:
    """The trees of a table that is fitted to all measurements of some simulations."""
    found = [evidence(part, float("inf")) for part in parts if part.measured]
    whole = Evidence.from_measurements([one for part in found for one in part.measurements()], found[0].runs)
    return {key: _tree(whole, key) for key in whole.measured_keys()}


def _tree(whole: Evidence, key: Key) -> Tree:
    """The best tree of `LEAVES` leaves for a function."""
    spec, target = operator(key.operator), TARGETS["sm_90"]
    matrix = timing_matrix(whole, spec, key, target)
    assert matrix
    tree = solve(matrix, Legality(spec, target, (key.dtype,), all_variants(spec)), LEAVES).tree(LEAVES)
    assert tree
    return tree


def loss(trees: dict[Key, Tree], spaces: Sequence[Space]) -> dict[str, float]:
    """Mean loss at these shapes, percent, by operator. A config that was not recorded takes the time of its launch."""
    losses: dict[str, list[float]] = {}
    for space in spaces:
        problem = space.task.problem
        launch = partial(operator(problem.operator).launch_of, problem=problem, target=TARGETS["sm_90"])
        logs = {launch(config): float(np.log(one).mean()) for config, one in space.blocks.items()}
        config = choose(trees[problem.key], problem.shape)
        if launch(config) in logs:
            losses.setdefault(problem.operator, []).append(logs[launch(config)] - min(logs.values()))
    return {name: round(100 * float(np.mean(one)), 3) for name, one in losses.items()}


def markdown(document: dict[str, Any]) -> str:
    lines = [
        "`python benchmarks/refine.py`",
        "",
        f"Held out: {document['held_out']} shapes, measured in none of these.",
        "",
        "Expected, real: at the shapes that were neither measured nor held out, as the search says and as the new table"
        " loses.",
        "",
        "| measured after the default grid | GPU s | problems | forward loses | backward loses | expected, real "
        "forward | expected, real backward |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in document["tables"]:
        names = sorted(one["loses_percent"], reverse=True)
        loses = [f"{one['loses_percent'][name]} %" for name in names]
        told = [", ".join(f"{value} %" for value in one["expected_real_percent"].get(name, ())) for name in names]
        lines.append(
            f"| {' | '.join([one['after'], str(one['device_seconds']), str(one['problems']), *loses, *told])} |"
        )
    return "\n".join(lines)


def main() -> None:
    spaces = [space._replace(overhead=dict.fromkeys(space.overhead, 0.0)) for space in recorded()]
    on_grid = set(GRIDS["default"])
    start = [space for space in spaces if _shape(space) in on_grid]
    others = sorted({_shape(space) for space in spaces} - on_grid)
    held = set(Random(SEED).sample(others, len(others) // 3))
    pool = [space for space in spaces if _shape(space) not in on_grid | held]
    scored = [space for space in spaces if _shape(space) in held]
    first = simulate(Adaptive, start, SEED, float("inf"))
    trees = fitted(first)
    tables: list[dict[str, Any]] = []

    def add(after: str, parts: Sequence[Simulated], search: Refine | None = None) -> None:
        new = [fitted(first, one) for one in parts]
        losses = [loss(one, scored) for one in new]
        measured = {task.problem for one in parts for task, _ in one.measured}
        real = loss(new[0], [space for space in pool if space.task.problem not in measured]) if search else {}
        expected = search.expected() if search else {}
        tables.append(
            {
                "after": after,
                "device_seconds": round(float(np.mean([one.device for one in parts])), 1),
                "problems": round(float(np.mean([len(one.measured) for one in parts]))),
                "expected_real_percent": {
                    key.operator: [round(100 * value, 2), round(real[key.operator], 2)]
                    for key, value in expected.items()
                    if value is not None and key.operator in real
                },
                "loses_percent": {name: round(float(np.mean([one[name] for one in losses])), 3) for name in losses[0]},
            }
        )
        print(tables[-1], flush=True)

    add("nothing", [first._replace(device=0.0, measured=[])])
    shapes = {key: [_shape(one) for one in pool if one.task.problem.operator == key.operator] for key in trees}
    refinement = Refinement(trees, UNTIL, shapes)
    for seconds in SECONDS:
        searches: list[Refine] = []

        def strategy(tasks: Sequence[Task], _: Previous, searches: list[Refine] = searches) -> Refine:
            searches.append(Refine(tasks, stored(first), refinement))
            return searches[-1]

        refined = simulate(strategy, pool, SEED, seconds)
        add("refined" + ("" if refined.is_done else " so far"), [refined], searches[-1])
        add(
            f"random shapes, mean of {DRAWS} draws",
            [simulate(partial(Shuffled, seed=seed), pool, SEED, refined.device) for seed in range(DRAWS)],
        )
    document = {"leaves": LEAVES, "until_percent": 100 * UNTIL, "held_out": len(held), "tables": tables}
    write(RESULTS / "strategies" / "refine.json", document, markdown(document))
    print(markdown(document))


def _shape(space: Space) -> tuple[int, int]:
    return space.task.problem.rows, space.task.problem.hidden


if __name__ == "__main__":
    main()
