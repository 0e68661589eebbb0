"""RMSNorm kernels whose launch is looked up in tables that were measured, and the tool that measures them.

In: attribute access. Out: the public names, each imported on its first use, so that `import normtune` and
`normtune --help` load neither torch nor triton.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normtune.errors import NormtuneError, UsageError
    from normtune.kernels.batch_invariant import batch_invariant, use_batch_invariant
    from normtune.kernels.config import Config
    from normtune.kernels.dispatch import use_table
    from normtune.kernels.operator import OperatorSpec, register
    from normtune.kernels.rms_norm import rms_norm
    from normtune.kernels.rms_norm_module import RMSNorm
    from normtune.kernels.short_form import kernel_operator
    from normtune.kernels.warmup import warmup

__version__ = "0.1.0"

__all__ = [
    "Config",
    "NormtuneError",
    "OperatorSpec",
    "RMSNorm",
    "UsageError",
    "__version__",
    "batch_invariant",
    "kernel_operator",
    "register",
    "rms_norm",
    "use_batch_invariant",
    "use_table",
    "warmup",
]

_HOMES = {
    "register": "normtune.kernels.operator",
    "kernel_operator": "normtune.kernels.short_form",
    "OperatorSpec": "normtune.kernels.operator",
    "Config": "normtune.kernels.config",
    "NormtuneError": "normtune.errors",
    "RMSNorm": "normtune.kernels.rms_norm_module",
    "UsageError": "normtune.errors",
    "batch_invariant": "normtune.kernels.batch_invariant",
    "rms_norm": "normtune.kernels.rms_norm",
    "use_batch_invariant": "normtune.kernels.batch_invariant",
    "use_table": "normtune.kernels.dispatch",
    "warmup": "normtune.kernels.warmup",
}


def __getattr__(name: str) -> Any:
    """The public object of that name, imported from its home and kept.

    Raises:
        AttributeError: normtune has no such name.
    """
    if name not in _HOMES:
        raise AttributeError(f"module 'normtune' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
