"""The table for any GPU as Python: its functions take the GPU's multiprocessors and L2 cache besides the shape.

In: a fit. Out: its module, written as in `writing.emit` with the template's other form; and the text that `fit` prints.
"""

from collections.abc import Iterable

from normtune.heuristics.any_gpu.result import AnyGpuFit, AnyGpuFunction
from normtune.heuristics.fitting.figures import DeviceLoss, Lost
from normtune.heuristics.regret.fixed_log import percent
from normtune.heuristics.writing.emit import body_text, gpu_of, header_of
from normtune.heuristics.writing.entries import AnyGpuEntry, described, ordered, with_lines
from normtune.heuristics.writing.regenerate import Command
from normtune.kernels.key import Key
from normtune.kernels.tablefile import template
from normtune.kernels.tablefile.header import Gpu
from normtune.results.records import Device


def module_text(fit: AnyGpuFit, command: Command) -> str:
    """The module, with the command that writes it again.

    Raises:
        NormtuneError: two operators or configs would get the same name in the code.
    """
    entries = [
        AnyGpuEntry(one.key, one.leaves, one.figures)
        if isinstance(one, AnyGpuFunction)
        else AnyGpuEntry(one.key, 0, one.figures, one.donor, one.cost)
        for one in ordered(fit.functions, fit.shared)
    ]
    body = body_text(fit.functions, fit.measured, template.ANY_GPU)
    header = header_of(fit, command, entries, body)._replace(fitted=tuple(map(_gpu, fit.devices)))
    return f"{with_lines(header).text()}\n{body}"


def _gpu(device: Device) -> Gpu:
    return gpu_of(device)._replace(l2_bytes=device.l2_bytes)


def report(fit: AnyGpuFit) -> Iterable[str]:
    """The output of `fit`: the table's loss on each GPU, also when it is fitted without that GPU."""
    yield f"a table for any GPU, fitted to {len(fit.devices)}: {fit.data.extent}"
    yield from (f"  {described(_gpu(device))}" for device in fit.devices)
    yield "Slower than the best config of each problem, in percent; left out: where the GPU is not in the fit:"
    yield ""
    yield f"{'operator, dtype, GPU':<44}{'leaves':>8}{'mean':>8}{'worst':>8}{'left out':>10}{'worst':>8}"
    for key, leaves, figures in _lines(fit):
        yield str(key)
        for on_device in figures:
            left_out = _cells(on_device.left_out) if on_device.left_out else ("-", "-")
            mean, worst = _cells(on_device.lost)
            yield f"{'  ' + on_device.device:<44}{leaves:>8}{mean:>8}{worst:>8}{left_out[0]:>10}{left_out[1]:>8}"
    yield ""


def _lines(fit: AnyGpuFit) -> list[tuple[Key, str, tuple[DeviceLoss, ...]]]:
    rows = [(function.key, str(function.leaves), function.figures) for function in fit.functions]
    return sorted(rows + [(function.key, "shared", function.figures) for function in fit.shared])


def _cells(lost: Lost) -> tuple[str, str]:
    return percent(lost.mean).removesuffix(" %"), percent(lost.worst, 1).removesuffix(" %")
