"""Names of operators on heads."""

from normtune.kernels.key import with_sizes
from normtune.kernels.qk_norm.launch import FAMILY, SIZES


def operator_name(heads_q: int, heads_k: int, heads: int, rotary_dim: int, family: str = FAMILY) -> str:
    """The name of an operator at these named integers."""
    return with_sizes(family, dict(zip(SIZES, (heads_q, heads_k, heads, rotary_dim), strict=True)))
