"""CPU time and memory of planning and searching a large space at many shapes, without a GPU.

In: a decorated operator, whose launches are recorded, with the configs and the made-up times of a landscape
(`lib.landscapes`, rough). Out: benchmarks/results/strategies/large_spaces.json and .md: for each search, in a process
of its own, seconds of one core, memory, and how often the operator was asked; once with every config asked.

    python benchmarks/large_spaces.py [--configs 50000 --shapes 100]
"""

import argparse
import json
import math
import resource
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, cast

from normtune.benchmarks.landscapes import TIMINGS, strategy
from normtune.benchmarks.lib.landscapes import DEFAULT, Landscape, Tile
from normtune.benchmarks.lib.simulation import simulate
from normtune.benchmarks.places import RESULTS, write
from normtune.kernels.config import Config
from normtune.kernels.operator import IllegalConfigError, OperatorSpec
from normtune.kernels.problem import Problem
from normtune.kernels.target import TARGETS, Target
from normtune.tuner.plan.plan import plan, warm_start
from normtune.tuner.search.protocol import Search

PLACE = RESULTS / "strategies" / "large_spaces.json"
# The space as a list, and as a function that draws from it; the last is planned with every config asked, at one shape.
CASES = (("list", "plane"), ("list", "random"), ("function", "plane"), ("list", "all"))
_H200 = TARGETS["sm_90"]


def made(landscape: Landscape, kind: str, asked: dict[str, int]) -> OperatorSpec:
    """The operator of a landscape, whose launches are counted in `asked`."""
    import torch
    import triton
    import triton.language as tl

    from normtune import kernel_operator

    @triton.jit  # type: ignore[untyped-decorator]
    def kernel(x_ptr, y_ptr, rows, hidden, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GROUP, ORDER):
        pass

    def legal(config: Config, problem: Problem, target: Target) -> bool:
        asked["legal"] += 1
        return True  # so that the best config of the landscape can be found

    def drawn(trial: Any, problem: Problem) -> Tile:
        tile = Tile(*(trial.suggest_categorical(name, values) for name, values in landscape.values.items()))
        if tile not in landscape.index:
            raise IllegalConfigError("the landscape does not have it")
        return tile

    @kernel_operator(
        name="made_up",
        config=Tile,
        space=landscape.tiles if kind == "list" else drawn,
        buffers={"x": "input", "y": "output"},
        reference=lambda x: x,
        legal=legal,
        default=DEFAULT,
    )
    def made_up(x: torch.Tensor, y: torch.Tensor, config: Tile) -> None:
        asked["launches"] += 1
        rows, hidden = x.shape
        grid = triton.cdiv(rows, config.block_m) * triton.cdiv(hidden, config.block_n), config.split
        tile = {"M": config.block_m, "N": config.block_n, "K": config.block_k, "GROUP": config.group}
        launch = {"num_warps": config.warps, "num_stages": config.stages}
        kernel[grid](x, y, rows, hidden, **tile, ORDER=config.order, **launch)

    return made_up.spec


def run(configs: int, shapes: int, kind: str, name: str) -> dict[str, Any]:
    """Plan and search on one landscape."""
    landscape = Landscape("rough", configs, 1 if name == "all" else shapes, 1)
    asked = {"legal": 0, "launches": 0}
    spec = made(landscape, kind, asked)
    losses = [landscape.logs(problem) for problem in landscape.problems]  # before the clock: the times are no search's
    asked.update(legal=0, launches=0)
    memory, begun = _megabytes(), time.process_time()
    always = {problem: [spec.default_config(problem, _H200)] for problem in landscape.problems}
    chosen = plan(landscape.problems, "full", _H200, always, is_sampled=name != "all")
    planned = time.process_time()
    entry = {"configs": configs, "shapes": len(losses), "space": kind, "search": name}
    if name != "all":
        advice = warm_start(chosen, always, _H200)
        tasks = {task.problem: task for task in chosen.tasks}
        spaces = [one._replace(task=tasks[one.task.problem]) for one in landscape.spaces()]
        searches: Callable[..., Search] = strategy(name, 1, TIMINGS)
        search = partial(searches, advice=advice)
        found = simulate(search, spaces, 1, math.inf)
        best = {moment.problem: cast(Tile, moment.best) for moment in found.moments}
        entry |= {"timings": round(found.timed / shapes, 1)}
        entry |= {"loss": round(100 * math.expm1(landscape.losses(best).mean()), 2)}
    return entry | {
        "plan_seconds": round(planned - begun, 1),
        "search_seconds": round(time.process_time() - planned, 1),
        "megabytes_before": memory,
        "megabytes": _megabytes(),
        **asked,
    }


def _megabytes() -> int:
    """The most memory so far; what torch and Triton take is in it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def markdown(runs: list[Mapping[str, Any]]) -> str:
    """The table."""
    lines = [
        "`python benchmarks/large_spaces.py`: seconds of one core beside the GPU's own; MB at the end, and before the",
        "plan; how often `legal` and the launcher were asked; configs timed a shape, and the mean loss of the best.",
        "",
        "| configs x shapes | space | search | plan s | search s | MB | before | legal | launches | timed | loses |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in runs:
        quality = (f"{one['timings']:.0f}", f"{one['loss']:.2f} %") if "loss" in one else ("", "")
        cells = (
            *(f"{one['configs']} x {one['shapes']}", one["space"], one["search"]),
            *(one[name] for name in ("plan_seconds", "search_seconds", "megabytes", "megabytes_before")),
            *(one["legal"], one["launches"], *quality),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    """Run all cases, and write after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=int, default=50_000)
    parser.add_argument("--shapes", type=int, default=100)
    options = parser.parse_args()
    runs: list[Mapping[str, Any]] = []
    with ProcessPoolExecutor(1, max_tasks_per_child=1) as process:
        for case in CASES:
            runs.append(process.submit(run, options.configs, options.shapes, *case).result())
            print(json.dumps(runs[-1]), flush=True)
            write(PLACE, {"runs": runs}, markdown(runs))
    print(markdown(runs))


if __name__ == "__main__":
    main()
