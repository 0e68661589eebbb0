"""In place of a missing GPU, for plans: the identity and the speed of an H200."""

from normtune.kernels.target import TARGETS
from normtune.results.records import Device
from normtune.tuner.device.engine import Identity
from normtune.tuner.plan.estimate import H200, Speed


class AbsentGpu(Identity):
    """The limits of an H200, without the device."""

    def speed(self) -> Speed:
        """Speed measured on an H200."""
        return H200


def absent_gpu(regime: str) -> AbsentGpu:
    """An absent GPU, for a regime of the timing."""
    target = TARGETS["sm_90"]
    device = Device("no GPU here, planned as for an H200", "sm_90", target.sms, target.l2_bytes, 0, "absent", "none")
    return AbsentGpu(device, target, {}, None, False, regime)
