"""RMSNorm kernels whose launches are looked up in measured tables, and the tool that measures them.

Each public name is imported on its first use, so that `import normtune` and `normtune --help` load neither torch nor
triton. docs/python.md introduces them.
"""

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normtune.errors import NormtuneError, UsageError
    from normtune.heuristics.api.diff import diff
    from normtune.heuristics.api.fit import Table, fit
    from normtune.heuristics.api.maps import show_map
    from normtune.heuristics.api.report import Report, report
    from normtune.heuristics.api.show import show
    from normtune.heuristics.fitting.options import FitOptions
    from normtune.heuristics.writing.installing import uninstall
    from normtune.heuristics.writing.triton_configs import export_table
    from normtune.kernels.calling.batch_invariant import batch_invariant, use_batch_invariant
    from normtune.kernels.calling.compiled import use
    from normtune.kernels.calling.dispatch import use_table
    from normtune.kernels.config import Config
    from normtune.kernels.custom_op.autotuned import from_autotuned
    from normtune.kernels.custom_op.decorator import kernel_operator
    from normtune.kernels.fused_add_rms_norm.function import FusedAddRMSNorm, fused_add_rms_norm, rms_norm_backward
    from normtune.kernels.operator import IllegalConfigError, OperatorSpec, register
    from normtune.kernels.patch import Patch, patch, unpatch
    from normtune.kernels.qk_norm.function import qk_norm
    from normtune.kernels.rms_norm.function import RMSNorm, rms_norm
    from normtune.kernels.rms_norm_gated.function import RMSNormGated, rms_norm_gated
    from normtune.kernels.rms_norm_quantize_fp8.function import rms_norm_quantize_fp8
    from normtune.kernels.tablefile.locate import load_table
    from normtune.kernels.transpose_fp8.function import transpose_fp8
    from normtune.kernels.warmup import warmup
    from normtune.results.api import export_data, export_recording, list_data, merge_data
    from normtune.results.database.store import Store
    from normtune.tuner.checking.api import check, check_on_device
    from normtune.tuner.doctor.checks import doctor
    from normtune.tuner.inspection.inspect import inspect_operator
    from normtune.tuner.plan.recorded_shapes import ShapeCounts, record_shapes
    from normtune.tuner.sweep.api import sweep

__version__ = "0.1.0"

_HOMES = {
    "Config": "kernels.config",
    "FitOptions": "heuristics.fitting.options",
    "FusedAddRMSNorm": "kernels.fused_add_rms_norm.function",
    "IllegalConfigError": "kernels.operator",
    "NormtuneError": "errors",
    "OperatorSpec": "kernels.operator",
    "Patch": "kernels.patch",
    "RMSNorm": "kernels.rms_norm.function",
    "RMSNormGated": "kernels.rms_norm_gated.function",
    "Report": "heuristics.api.report",
    "ShapeCounts": "tuner.plan.recorded_shapes",
    "Store": "results.database.store",
    "Table": "heuristics.api.fit",
    "UsageError": "errors",
    "batch_invariant": "kernels.calling.batch_invariant",
    "check": "tuner.checking.api",
    "check_on_device": "tuner.checking.api",
    "diff": "heuristics.api.diff",
    "doctor": "tuner.doctor.checks",
    "export_data": "results.api",
    "export_recording": "results.api",
    "export_table": "heuristics.writing.triton_configs",
    "fit": "heuristics.api.fit",
    "from_autotuned": "kernels.custom_op.autotuned",
    "fused_add_rms_norm": "kernels.fused_add_rms_norm.function",
    "inspect_operator": "tuner.inspection.inspect",
    "kernel_operator": "kernels.custom_op.decorator",
    "list_data": "results.api",
    "load_table": "kernels.tablefile.locate",
    "merge_data": "results.api",
    "patch": "kernels.patch",
    "qk_norm": "kernels.qk_norm.function",
    "record_shapes": "tuner.plan.recorded_shapes",
    "register": "kernels.operator",
    "rms_norm": "kernels.rms_norm.function",
    "rms_norm_backward": "kernels.fused_add_rms_norm.function",
    "rms_norm_gated": "kernels.rms_norm_gated.function",
    "rms_norm_quantize_fp8": "kernels.rms_norm_quantize_fp8.function",
    "report": "heuristics.api.report",
    "show": "heuristics.api.show",
    "show_map": "heuristics.api.maps",
    "sweep": "tuner.sweep.api",
    "transpose_fp8": "kernels.transpose_fp8.function",
    "uninstall": "heuristics.writing.installing",
    "unpatch": "kernels.patch",
    "use": "kernels.calling.compiled",
    "use_batch_invariant": "kernels.calling.batch_invariant",
    "use_table": "kernels.calling.dispatch",
    "warmup": "kernels.warmup",
}

__all__ = [
    "Config",
    "FitOptions",
    "FusedAddRMSNorm",
    "IllegalConfigError",
    "NormtuneError",
    "OperatorSpec",
    "Patch",
    "RMSNorm",
    "RMSNormGated",
    "Report",
    "ShapeCounts",
    "Store",
    "Table",
    "UsageError",
    "__version__",
    "batch_invariant",
    "check",
    "check_on_device",
    "diff",
    "doctor",
    "export_data",
    "export_recording",
    "export_table",
    "fit",
    "from_autotuned",
    "fused_add_rms_norm",
    "inspect_operator",
    "kernel_operator",
    "list_data",
    "load_table",
    "merge_data",
    "patch",
    "qk_norm",
    "record_shapes",
    "register",
    "report",
    "rms_norm",
    "rms_norm_backward",
    "rms_norm_gated",
    "rms_norm_quantize_fp8",
    "show",
    "show_map",
    "sweep",
    "transpose_fp8",
    "uninstall",
    "unpatch",
    "use",
    "use_batch_invariant",
    "use_table",
    "warmup",
]


if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """The public object of this name, imported from its module.

        Raises:
            AttributeError: normtune has no such name.
        """
        if name not in _HOMES:
            raise AttributeError(f"module 'normtune' has no attribute {name!r}")
        value = globals()[name] = resolve_name(f"normtune.{_HOMES[name]}:{name}")
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
