"""Gated RMSNorm as operations, one for each mode.

In: nothing. Out: `OPERATIONS` by (norm_before_gate, has_gate, rounds_once).
"""

from itertools import product

from normtune.kernels.calling.operation import Operation
from normtune.kernels.calling.wide import keeps_subnormal, machine_epsilon
from normtune.kernels.rms_norm_gated.composed import Composed
from normtune.kernels.rms_norm_gated.spec import rms_norm_gated_backward, rms_norm_gated_forward


def _operation(norm_before_gate: bool, has_gate: bool, rounds_once: bool) -> Operation:
    flags = {"norm_before_gate": norm_before_gate, "has_gate": has_gate, "rounds_once": rounds_once}
    off = [flag.off for flag in rms_norm_gated_forward.flags if not flags.get(flag.name, True)]
    return Operation(
        name="_".join(("rms_norm_gated", *off)),
        forward=rms_norm_gated_forward,
        backward=rms_norm_gated_backward,
        formula=Composed(norm_before_gate, has_gate, rounds_once),
        defaults={"eps": 1e-6, "offset": 0.0},
        derived={"eps": machine_epsilon},
        compiler_options=keeps_subnormal,
        flags=flags,
        is_grouped=True,
    )


# Without a gate there is no order of norm and gate.
OPERATIONS = {
    mode: _operation(*mode) for mode in product((True, False), (True, False), (True, False)) if mode[0] or mode[1]
}
