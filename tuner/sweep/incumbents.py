"""The configs that every sweep times at each of its shapes: those of the present tables, and the default.

In: problems, the device, a baseline table. Out: by problem, the configs that a fit compares its table with. The tables
are those that calls use: NORMTUNE_TABLE, the installed table, and the shipped ones.
"""

import os
from collections.abc import Callable, Collection, Iterable
from functools import cache, partial

from normtune.errors import NormtuneError
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.tablefile import locate
from normtune.kernels.target import Target
from normtune.results.records import REPLAY_PREFIX, Device
from normtune.tuner.plan.plan import ConfigsOf

_Answer = Callable[..., Config | None]


def always(
    problems: Iterable[Problem], device: Device, target: Target, baseline: str | os.PathLike[str] | None = None
) -> ConfigsOf:
    """The configs of the GPU's tables, of the baseline and the operator's default at each problem, in this order.

    Unreadable tables are ignored, because the sweep may be for a replacement. A replay has no default.

    Args:
        problems: of the sweep.
        device: of the sweep.
        target: limits of the device.
        baseline: a further table, by file or name.

    Raises:
        UsageError: the baseline is not a table.
    """
    finders = [cache(partial(_in_use, device))]
    if baseline is not None:
        finders.append(cache(locate.load_table(baseline).function))
    configs_of = {}
    for problem in problems:
        spec = operator(problem.operator)
        answers = [answer for find in finders if (answer := find(problem.key))]
        # Read in the operator's class: the table may be of another version, with other knobs.
        of_tables = [config for answer in answers if (config := answer(*problem.shape)) is not None]
        configs = [spec.read_config(config.to_json()) for config in of_tables]
        if not device.uuid.startswith(REPLAY_PREFIX):  # recordings do not have it everywhere
            configs.append(spec.default_config(problem, target))
        configs_of[problem] = [*filter(spec.knows, dict.fromkeys(configs))]
    return configs_of


def always_on_any(
    problems: Collection[Problem], device: Device, target: Target, baseline: str | os.PathLike[str] | None = None
) -> ConfigsOf:
    """As `always`, for whatever GPU of the architecture the sweep will run on: with the configs of all their tables."""
    names = {header.label for header in locate.shipped().values() if header.target == target.name}
    of_gpus = [always(problems, device._replace(name=name), target, baseline) for name in sorted({device.name, *names})]
    return {problem: [*dict.fromkeys(config for one in of_gpus for config in one[problem])] for problem in problems}


def _in_use(device: Device, key: Key) -> _Answer | None:
    """The function of the tables that calls use now; None if one of them cannot be used."""
    try:
        return locate.select(device.name, device.target, device.sms).answer(key)
    except NormtuneError:
        return None
