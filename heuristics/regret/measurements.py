"""The measurements of a key by shape: levels of the configs, failures, and how the times compare.

In: evidence of one device and one version of the kernels. Out: `MeasuredShape` of each shape, for `matrix`.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.regret.effects import Level, LogSamples, levels, unused
from normtune.heuristics.regret.fixed_log import log_ppm
from normtune.kernels.config import COPY, Config
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Shape
from normtune.results.columns import flatten, split
from normtune.results.records import DECISIVE, WRONG

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence


class Alignment(NamedTuple):
    """How the times behind a timing matrix compare.

    Attributes:
        unused: number of (config, run) pairs left out because no common round or config links them to the others.
        measured: number of all pairs.
        joins: number of times that a run came back to a problem, and its times were aligned with earlier ones.
        doubtful: number of these alignments that disagree in themselves: see `effects.Levels`.
        impossible: the problems with a config that is faster than the best by over three times its error.
    """

    unused: int = 0
    measured: int = 0
    joins: int = 0
    doubtful: int = 0
    impossible: tuple[Shape, ...] = ()


COMPARABLE = Alignment()


class MeasuredShape(NamedTuple):
    """Measurements of one shape.

    Attributes:
        levels: of the configs that did not fail.
        failed: configs without a time whose newest attempt failed, and configs whose newest result was wrong.
        uncompiled: those of them that the compiler refused.
        alignment: of the shape's times.
        unlinked: configs with times, none of which is linked to the others.
        samples: int32, ns, of each config and the copy, from the newest run that timed it.
        broken: configs with a measurement that failed, in any run.
    """

    levels: dict[Config, Level]
    failed: set[Config]
    uncompiled: set[Config]
    alignment: Alignment
    unlinked: set[Config]
    samples: dict[Config, NDArray[np.int32]]
    broken: set[Config]


def unlinked_configs(evidence: "Evidence", spec: OperatorSpec, key: Key) -> dict[Shape, set[Config]]:
    """The configs that a timing matrix leaves out because nothing links their times to the others, by shape."""
    return {
        shape: measured.unlinked
        for shape, measured in measured_shapes(evidence, spec, key).items()
        if measured.unlinked
    }


def measured_shapes(evidence: "Evidence", spec: OperatorSpec, key: Key) -> dict[Shape, MeasuredShape]:
    """The measurements of each shape of a key; those with knobs that the operator no longer has are left out."""
    part = evidence.part(key)
    part = part[part["status"] != "not_recorded"]
    if part.empty:
        return {}
    order = {run.id: index for index, run in enumerate(evidence.runs)}
    parsed = {text: spec.read_config(text) for text in part["config"].unique()}
    other = [text for text, config in parsed.items() if config != COPY and not spec.knows(config)]
    if other:  # recorded with other knobs of the operator
        part = part[~part["config"].isin(other)]
        if part.empty:
            return {}
    unpaired = {order[run.id] for run in evidence.runs if run.is_unpaired}
    configs = [parsed[text] for text in part["config"]]
    numbers = [order[run] for run in part["run"]]
    statuses = part["status"].tolist()
    rounds = part["rounds"].tolist()
    samples = part["samples"].tolist()
    lengths, flat = flatten(samples)
    logs = split(lengths, log_ppm(flat))
    # The frame is ordered by its shapes: measurements of one are adjacent.
    shapes = evidence.shapes(part, key)
    starts = [index for index, shape in enumerate(shapes) if not index or shape != shapes[index - 1]]
    return {
        shapes[start]: _of_shape(
            unpaired,
            *(column[start:end] for column in (configs, numbers, statuses, rounds, logs, samples)),  # type: ignore[arg-type]
        )
        for start, end in pairwise((*starts, len(shapes)))
    }


def _of_shape(
    unpaired: Collection[int],
    configs: Sequence[Config],
    numbers: Sequence[int],
    statuses: Sequence[str],
    rounds: Sequence[NDArray[np.int32]],
    logs: Sequence[NDArray[np.int64]],
    samples: Sequence[NDArray[np.int32]],
) -> MeasuredShape:
    runs: dict[int, dict[Config, LogSamples]] = {number: {} for number in sorted(set(numbers))}
    for config, number, status, own_rounds, own_logs in zip(configs, numbers, statuses, rounds, logs, strict=True):
        if status == "ok":
            by_config, times = runs[number], LogSamples(own_rounds, own_logs)
            by_config[config] = _merged(by_config[config], times) if config in by_config else times
    by_run: dict[tuple[int, Config], list[NDArray[np.int32]]] = {}
    for config, number, status, own_samples in zip(configs, numbers, statuses, samples, strict=True):
        if status == "ok":
            by_run.setdefault((number, config), []).append(own_samples)
    newest_samples = {key[1]: np.concatenate(by_run[key]) for key in sorted(by_run, key=itemgetter(0))}
    broken = {config for config, status in zip(configs, statuses, strict=True) if status != "ok"}
    failed, uncompiled = set[Config](), set[Config]()
    timed = {config for by_config in runs.values() for config in by_config}
    if broken:
        decided = {config for config, status in zip(configs, statuses, strict=True) if status in DECISIVE}
        newest: dict[Config, int] = {}
        for config, number, status in zip(configs, numbers, statuses, strict=True):
            if status in DECISIVE or config not in decided:  # a crash overrides neither a time nor a failure
                newest[config] = max(newest.get(config, -1), number)
        failed = {
            config
            for config, number, status in zip(configs, numbers, statuses, strict=True)
            if status != "ok" and number == newest[config] and (status == WRONG or config not in timed)
        }
        refused = {config for config, status in zip(configs, statuses, strict=True) if status == "compile_error"}
        uncompiled = refused & failed
    numbered = {number: samples for number, samples in runs.items() if samples}
    filled = [*numbered.values()]
    aligned = levels(filled, [place for place, number in enumerate(numbered) if number in unpaired])
    level_of = aligned.of
    measured = sum(config != COPY for samples in filled for config in samples)
    alignment = Alignment(unused(filled, level_of), measured, aligned.joins, aligned.doubtful)
    usable = {config: level for config, level in level_of.items() if config not in failed}
    unlinked = timed - {COPY, *level_of, *failed}
    return MeasuredShape(usable, failed, uncompiled, alignment, unlinked, newest_samples, broken)


def _merged(left: LogSamples, right: LogSamples) -> LogSamples:
    rounds = np.concatenate([left.rounds, right.rounds])
    ascending = np.argsort(rounds, kind="stable")
    return LogSamples(rounds[ascending], np.concatenate([left.logs, right.logs])[ascending])
