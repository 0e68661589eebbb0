"""The other form of a fit than a table: lists of configs for `triton.autotune`.

In: a fit. Out: the text of a file. `emit` has the table itself.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from normtune.errors import UsageError
from normtune.heuristics.fitting.figures import summarise
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.result import Fit
from normtune.heuristics.regret.fixed_log import percent
from normtune.heuristics.regret.matrix import TimingMatrix, timing_matrix
from normtune.heuristics.regret.specs import spec_of
from normtune.heuristics.regret.weights import Weighting
from normtune.heuristics.solver.portfolio import fewest, portfolio
from normtune.heuristics.writing.write import WRITTEN
from normtune.kernels.config import COMPILER_KNOBS, Config, Implementation, compiler_options, identifier
from normtune.kernels.tablefile import template
from normtune.kernels.tablefile.header import UNPAIRED
from normtune.kernels.target import plain_letters, target_for
from normtune.results.evidence import Evidence

MODULE = "module"
FORMATS = MODULE, "triton-configs"
_NONE = 1 << 31


def check_format(name: str) -> None:
    """Refuse an unknown format.

    Raises:
        UsageError: the format is not in `FORMATS`.
    """
    if name not in FORMATS:
        raise UsageError(f"unknown format {name!r}: expected one of {', '.join(FORMATS)}")


def triton_configs(fit: Fit, evidence: Evidence, options: FitOptions) -> str:
    """A module with a list of `triton.Config` for each operator, for an autotuner that times them at each shape.

    The list is the best with at most `max_configs` configs; by default the shortest within the tie of the best.

    Raises:
        UsageError: no list of so many configs runs at every shape.
    """
    matrices = _matrices(fit, evidence, options)
    lines = [
        f"# {WRITTEN} fit --format triton-configs. Data: {fit.data.digest}{f' ({UNPAIRED})' * fit.data.unpaired}",
        f'"""Configs for `triton.autotune`, fitted to {plain_letters(fit.device.label)}, {fit.device.target}."""',
        *("", "from triton import Config"),
    ]
    for name in sorted({matrix.key.operator for matrix in matrices}):
        lines += ["", *_list(name, [matrix for matrix in matrices if matrix.key.operator == name], options)]
    return "\n".join([*lines, ""])


def _matrices(fit: Fit, evidence: Evidence, options: FitOptions) -> list[TimingMatrix]:
    """The times behind each function of a fit, with its weights."""
    weighting, device = Weighting(options.weights), fit.device
    specs = [(key, spec_of(evidence, key.operator)) for key in evidence.function_keys()]
    target = target_for(device.target, device.sms)
    found = ((spec, timing_matrix(evidence, spec, key, target)) for key, spec in specs)
    return [weighting.weighted(spec, matrix) for spec, matrix in found if matrix]


def _list(name: str, matrices: Sequence[TimingMatrix], options: FitOptions) -> list[str]:
    """The lines of an operator's list, from its matrices of all dtypes."""
    configs = sorted({one for matrix in matrices for one in matrix.configs if not isinstance(one, Implementation)})
    parts = [_regret(matrix, configs) for matrix in matrices]
    barred = np.concatenate([part == _NONE for part in parts])
    weights = np.concatenate([matrix.weight for matrix in matrices])
    cost = np.concatenate(parts) * weights[:, None]
    if options.max_configs is None:
        least = int(np.where(barred, np.iinfo(np.int64).max, cost).min(axis=1).sum())
        found = fewest(cost, barred, least + options.tie * int(weights.sum()))
    else:
        found = portfolio(cost, options.max_configs, barred)
    if found is None:
        raise UsageError(f"--max-configs is {options.max_configs}: {name} needs more configs to run at every shape")
    lines = []
    for matrix, part in zip(matrices, parts, strict=True):
        loss = summarise(part[:, found.chosen].min(axis=1).tolist(), matrix.weight)
        assert loss
        lines += [
            f"# {matrix.key}: {len(found.chosen)} of {len(matrix.configs)} configs. Their best is slower than the best",
            f"# of all by {percent(max(0, loss.plain))} on average, {percent(max(0, loss.worst), 1)} at worst.",
        ]
    listed = [_triton_config(configs[place]) for place in found.chosen]
    return [*lines, f"{identifier(name).upper()}_CONFIGS = [", *listed, "]"]


def _regret(matrix: TimingMatrix, configs: Sequence[Config]) -> NDArray[np.int64]:
    """Int64 (problems, configs), the regret of each of these configs; `_NONE` without a time."""
    losses = [[matrix.loss(place, config) for config in configs] for place in range(len(matrix.problems))]
    return np.array([[_NONE if loss is None else loss for loss in row] for row in losses], np.int64)


def _triton_config(config: Config) -> str:
    values = dict(zip(config._fields, config, strict=True))
    own = (
        f"{template.literal(name)}: {template.literal(value)}"
        for name, value in values.items()
        if name not in COMPILER_KNOBS
    )
    options = [f"{name}={value}" for name, value in compiler_options(values).items()]
    return template.in_parentheses("    Config", [f"{{{', '.join(own)}}}", *options], ",")
