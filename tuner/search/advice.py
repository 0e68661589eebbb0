"""What the GPU's tables answer now: the first configs that a search of large spaces measures.

In: tasks, the device. Out: a config of each problem that a table serves. The tables are those that a call would find:
NORMTUNE_TABLE, the installed one, those that ship, and that for any GPU.
"""

from collections.abc import Iterable

from normtune.errors import NormtuneError
from normtune.heuristics.tablefile import locate
from normtune.kernels.config import Config
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem, join_key
from normtune.kernels.target import Target
from normtune.results.records import Device
from normtune.tuner.plan.plan import Task


def advice(tasks: Iterable[Task], device: Device, target: Target) -> dict[Problem, Config]:
    """The candidate of each task that launches what a table answers; nothing where it is not a candidate.

    A table that cannot be read advises nothing: the sweep may be to replace it.
    """
    try:
        tables = locate.select(device.name, device.target, device.sms, device.l2_bytes)
        found = {}
        for task in tasks:
            problem = task.problem
            key = join_key(problem.operator, problem.variant)
            answer = tables.serving(key).answer(key, problem.dtype)
            if answer is None:
                continue
            config = answer(problem.rows, problem.hidden)
            launch = operator(problem.operator).launch_of(config, problem, target)
            for candidate in task.candidates:
                if launch is not None and candidate.launch == launch:
                    found[problem] = candidate.config
        return found
    except NormtuneError:
        return {}
