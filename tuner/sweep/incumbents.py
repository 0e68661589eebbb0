"""The configs that every sweep times at each of its shapes: what calls launch there today, and the default.

In: problems, the device, a table. Out: by problem, the configs that a fit compares its table with. The tables are those
that a call would find: NORMTUNE_TABLE, the installed one, those that ship, and that for any GPU.
"""

import os
from collections.abc import Callable, Iterable
from functools import cache, partial

from normtune.errors import NormtuneError
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.tablefile import locate
from normtune.kernels.target import Target
from normtune.results.records import REPLAY_PREFIX, Device
from normtune.tuner.plan.plan import Always

_Answer = Callable[[int, int], Config]


def always(
    problems: Iterable[Problem], device: Device, target: Target, baseline: str | os.PathLike[str] | None = None
) -> Always:
    """What the GPU's tables, the baseline and the operator's default answer at each problem, in this order.

    Tables that cannot be read answer nothing: the sweep may be to replace them. A replay has no default.

    Args:
        problems: that are swept.
        device: that they are swept on.
        target: its limits.
        baseline: a further table, by file or name.

    Raises:
        UsageError: the baseline is no table.
    """
    finders = [cache(partial(_in_use, device))]
    if baseline is not None:
        finders.append(cache(locate.load_table(baseline).bound(device.sms, device.l2_bytes).answer))
    found = {}
    for problem in problems:
        spec = operator(problem.operator)
        answers = [answer for find in finders if (answer := find(problem.key))]
        # In the operator's class; of other knobs where the table is of another version of it.
        configs = [spec.read_config(answer(*problem.shape).to_json()) for answer in answers]
        if not device.uuid.startswith(REPLAY_PREFIX):  # no recording has it everywhere
            configs.append(spec.default_config(problem, target))
        found[problem] = [*filter(spec.knows, dict.fromkeys(configs))]
    return found


def _in_use(device: Device, key: Key) -> _Answer | None:
    """The function by which calls choose a config today; None without one."""
    try:
        tables = locate.select(device.name, device.target, device.sms, device.l2_bytes)
        return tables.serving(key).answer(key)
    except NormtuneError:
        return None
