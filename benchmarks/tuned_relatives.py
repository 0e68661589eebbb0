"""The shipped tables of the relatives of RMSNorm, each on its recording: a block of docs/results.md.

In: recordings and their tables, which have the same name. Out: the lines of a table. Needs no GPU.
"""

import re
from collections.abc import Iterator
from math import exp, log
from statistics import fmean
from typing import Any

from normtune.benchmarks.against_copy import times_of

# From so many bytes on memory determines the time.
LARGE = 64 * 1000**2


def lines(without: str) -> list[str]:
    """A line for each operator of all recordings but `without`."""
    from normtune.results.exchange.recording import recordings

    return [
        "",
        "| operator | shapes | leaves | mean | worst | cross-validated | default config | over the copy |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *(line for name in recordings() if name != without for line in _of_recording(name)),
        "",
    ]


def _of_recording(name: str) -> Iterator[str]:
    from normtune.heuristics.fitted import figures
    from normtune.heuristics.regret.matrix import timing_matrix
    from normtune.heuristics.tablefile import locate, parse
    from normtune.heuristics.tablefile.tree import leaves
    from normtune.kernels.operator import operator
    from normtune.kernels.target import target_for
    from normtune.results.exchange.recording import load_recording

    evidence, source = load_recording(name), locate.by_name()[name]
    (device,) = evidence.devices()
    target = target_for(device.target, device.sms)
    trees, regret = parse.trees(locate.read(source)), locate.header_of(source).regret
    for key, variant, dtype in evidence.kinds():
        spec, tree = operator(key), trees[key, dtype]
        matrix = timing_matrix(evidence, spec, variant, dtype, target)
        assert matrix is not None and not variant

        def default(_: str, rows: int, hidden: int, spec: Any = spec, dtype: str = dtype) -> Any:
            return spec.default_config(spec.problem(rows, hidden, dtype), target)

        own, untuned = figures.of_tree(matrix, tree), figures.of_rule(matrix, default)
        (line,) = (text for text in regret if text.startswith(f"{key} {dtype}: "))
        validated = re.search(r" cross-validated (-?[\d.]+) %", line)
        over = [log(ours / copy) for ours, copy in _beside_the_copy(evidence.select([key]), tree)]
        cells = [
            *(key.partition(".")[0], str(own.problems), str(leaves(tree)), _percent(own.plain), _percent(own.worst)),
            *(f"{validated[1]} %" if validated else "", _percent(untuned.plain) if untuned else ""),
            f"{exp(fmean(over)):.2f}, {exp(max(over)):.2f} at most ({len(over)} shapes)" if over else "",
        ]
        yield f"| {' | '.join(cells)} |"


def _beside_the_copy(evidence: Any, tree: Any) -> Iterator[tuple[float, float]]:
    """Times of the table's config and of the copy at each shape where at least `LARGE` bytes move."""
    from normtune.heuristics.tablefile.tree import choose
    from normtune.kernels.config import COPY
    from normtune.kernels.operator import operator

    for problem, cells in times_of(evidence).items():
        config = choose(tree, problem.rows, problem.hidden)
        if COPY in cells and config in cells and operator(problem.operator).bytes_moved(problem) >= LARGE:
            yield cells[config], cells[COPY]


def _percent(millionths: int) -> str:
    """Of a log-regret."""
    return f"{100 * (exp(millionths / 1e6) - 1):.1f} %"
