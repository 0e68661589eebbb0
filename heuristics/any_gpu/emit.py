"""The table for any GPU as Python: its functions take the GPU's multiprocessors and L2 cache besides the shape.

In: an `AnyGpuFit` and the command that repeats it. Out: the text of the module, and the output of `fit`. Names and code
are those of `fitting.emit`, in the other form of the template.
"""

from collections.abc import Iterable, Sequence

from normtune.heuristics.any_gpu.result import AnyGpuFit, DeviceLoss, Lost
from normtune.heuristics.regret.fixed_log import percent
from normtune.heuristics.writing.emit import body_text, header_of
from normtune.kernels.tablefile import template
from normtune.kernels.tablefile.header import ANY_GPU
from normtune.kernels.tablefile.tree import counted_leaves
from normtune.results.records import Device


def module_text(fit: AnyGpuFit, regenerate: str) -> str:
    """The whole module.

    Args:
        fit: the content.
        regenerate: the command that writes it again, in one line.

    Raises:
        NormtuneError: two operators or configs would get the same name in the code.
    """
    body = body_text(fit.functions, template.ANY_GPU)
    header = header_of(fit, regenerate, (ANY_GPU, "", 0), _regret(fit), body)
    header = header._replace(fitted=tuple(map(described, fit.devices)))
    return f"{header.text()}\n{body}"


def described(device: Device) -> str:
    """A GPU by the facts that this table depends on."""
    return f"{device.label}, {device.target}, {device.sms} SMs, {device.l2_bytes >> 20} MB of L2 cache"


def told(fit: AnyGpuFit) -> Iterable[str]:
    """Output of `fit`: the loss of the table on each GPU, fitted with it and without it."""
    yield f"a table for any GPU, fitted to {len(fit.devices)}: {fit.extent}"
    yield from (f"  {described(device)}" for device in fit.devices)
    yield "Slower than the best config of each problem, in percent; left out: where the GPU is not in the fit:"
    yield ""
    yield f"{'operator, dtype, GPU':<44}{'leaves':>8}{'mean':>8}{'worst':>8}{'left out':>10}{'worst':>8}"
    for key, dtype, leaves, figures in _lines(fit):
        yield f"{key} {dtype}"
        for on_device in figures:
            left_out = _cells(on_device.left_out) if on_device.left_out else ("-", "-")
            mean, worst = _cells(on_device.lost)
            yield f"{'  ' + on_device.device:<44}{leaves:>8}{mean:>8}{worst:>8}{left_out[0]:>10}{left_out[1]:>8}"
    yield ""


def _lines(fit: AnyGpuFit) -> list[tuple[str, str, str, tuple[DeviceLoss, ...]]]:
    own = [(function.key, function.dtype, str(function.leaves), function.figures) for function in fit.functions]
    return sorted(own + [(function.key, function.dtype, "shared", function.figures) for function in fit.shared])


def _cells(lost: Lost) -> tuple[str, str]:
    return percent(lost.mean).removesuffix(" %"), percent(lost.worst, 1).removesuffix(" %")


def _regret(fit: AnyGpuFit) -> Iterable[str]:
    """One line per function, each followed by one for every variant or dtype that shares it."""
    for function in fit.functions:
        yield f"{function.key} {function.dtype}: {counted_leaves(function.leaves)}, {_on_devices(function.figures)}"
        for share in fit.shared:
            if share.donor == (function.key, function.dtype):
                cost = f"as {function.key} {function.dtype}, sharing costs {percent(share.cost)}"
                yield f"{share.key} {share.dtype}: {cost}, {_on_devices(share.figures)}"


def _on_devices(figures: Sequence[DeviceLoss]) -> str:
    return ", ".join(
        f"{figure.device} mean {percent(figure.lost.mean)} worst {percent(figure.lost.worst, 1)} "
        + (f"(left out {percent(figure.left_out.mean)})" if figure.left_out else "(left out unknown)")
        for figure in figures
    )
