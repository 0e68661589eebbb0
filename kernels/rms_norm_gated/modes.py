"""The modes of gated RMSNorm, beside the outputs. Part of the kernels' fingerprint."""

from normtune.kernels.mode import Mode


class Order(Mode):
    """Whether the gate multiplies the norm, or x before it is normalized."""

    NORM_FIRST = ""
    GATE_FIRST = "gate_first"


class Gate(Mode):
    """Whether there is a gate."""

    PRESENT = ""
    NONE = "no_gate"


class Roundings(Mode):
    """Whether y is rounded once, or wherever Hugging Face's formula rounds."""

    ONCE = ""
    HUGGING_FACE = "hugging_face"
