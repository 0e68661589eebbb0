"""Measurements that nothing compares with the others once changed kernels are measured again.

Runs at a shape are compared through the configs that they share. A search times few, and where all of them changed, the
rest of its run is left out of every fit: it has to be measured again with them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from normtune.heuristics.regret.measurements import unlinked_configs
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import find
from normtune.kernels.problem import Problem
from normtune.tuner.staleness.stored import Pair

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence
    from normtune.tuner.plan.resume import Stored

# Why these measurements are stale, as `Coverage.why_stale` says it.
UNLINKED = "nothing compares its times with others"


def without_links(stored: "Stored", evidence: "Evidence", corrected: Mapping[Pair, tuple[str, str]]) -> "Stored":
    """The coverage of measurements of the present kernels that nothing links, with `why_stale`.

    Args:
        stored: coverage of a device, after a comparison of the code.
        evidence: the measurements of that device.
        corrected: (old, new) fingerprint of measurements, which `evidence` may not know yet.
    """
    names = evidence.frame["operator"].unique()
    present = {name: fingerprint(spec) for name in names if (spec := find(name))}
    is_current = []
    for row in evidence.measurements():
        pair = row.problem, row.config
        old, new = corrected.get(pair, ("", ""))
        mark = new if row.fingerprint == old else row.fingerprint
        is_current.append(mark == present.get(row.problem.operator) and not stored[pair].why_stale)
    current = evidence.where(~evidence.unpaired_rows() & np.array(is_current, np.bool_)).current()
    pairs = [
        (Problem.at(key, shape), config)
        for key in current.measured_keys()
        if (spec := find(key.operator))
        for shape, configs in unlinked_configs(current, spec, key).items()
        for config in configs
    ]
    return {pair: stored[pair]._replace(why_stale=UNLINKED) for pair in pairs}
