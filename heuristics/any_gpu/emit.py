"""The shared table as Python: a module whose functions take the GPU's multiprocessors and L2 cache besides the shape.

In: an `AnyGpuFit` and the command that repeats it. Out: the text of the module, and what is printed of it. Names and
code are made as in `emit`, of which this is the other form.
"""

from collections.abc import Iterable, Sequence

from normtune.heuristics.any_gpu.result import AnyGpuFit, Lost, OnDevice
from normtune.heuristics.fitting.emit import body_text, header_of
from normtune.heuristics.regret.fixed_log import percent
from normtune.heuristics.tablefile import template
from normtune.heuristics.tablefile.header import ANY_GPU
from normtune.heuristics.tablefile.tree import counted_leaves
from normtune.results.records import Device


def module_text(fit: AnyGpuFit, regenerate: str) -> str:
    """The whole module.

    Args:
        fit: what it says.
        regenerate: the command that writes it again, in one line.

    Raises:
        NormtuneError: two operators or configs would get the same name in the code.
    """
    body = body_text(fit.functions, template.ANY_GPU)
    header = header_of(fit, regenerate, (ANY_GPU, "", 0), _regret(fit), body)
    header = header._replace(fitted=tuple(map(described, fit.devices)))
    return f"{header.text()}\n{body}"


def described(device: Device) -> str:
    """A GPU by all that a shared table asks of it."""
    return f"{device.label}, {device.target}, {device.sms} SMs, {device.l2_bytes >> 20} MB of L2 cache"


def told(fit: AnyGpuFit) -> Iterable[str]:
    """What `fit` prints: what the table loses on each GPU, fitted with it and without it."""
    yield f"a table for any GPU, fitted to {len(fit.devices)}: {fit.extent}"
    yield from (f"  {described(device)}" for device in fit.devices)
    yield "Slower than the best config of each problem, in percent; left out: where the GPU is not in the fit:"
    yield ""
    yield f"{'operator, dtype, GPU':<44}{'leaves':>8}{'mean':>8}{'worst':>8}{'left out':>10}{'worst':>8}"
    for key, dtype, leaves, figures in _lines(fit):
        yield f"{key} {dtype}"
        for one in figures:
            left_out = _cells(one.left_out) if one.left_out else ("-", "-")
            mean, worst = _cells(one.lost)
            yield f"{'  ' + one.device:<44}{leaves:>8}{mean:>8}{worst:>8}{left_out[0]:>10}{left_out[1]:>8}"
    yield ""
    yield from fit.notes


def _lines(fit: AnyGpuFit) -> list[tuple[str, str, str, tuple[OnDevice, ...]]]:
    own = [(one.key, one.dtype, str(one.leaves), one.figures) for one in fit.functions]
    return sorted(own + [(one.key, one.dtype, "shared", one.figures) for one in fit.shared])


def _cells(lost: Lost) -> tuple[str, str]:
    return percent(lost.mean).removesuffix(" %"), percent(lost.worst, 1).removesuffix(" %")


def _regret(fit: AnyGpuFit) -> Iterable[str]:
    """A line for each function, and one for each that shares it right behind."""
    for one in fit.functions:
        yield f"{one.key} {one.dtype}: {counted_leaves(one.leaves)}, {_on_devices(one.figures)}"
        for other in fit.shared:
            if other.donor == (one.key, one.dtype):
                cost = f"sharing costs {percent(other.cost)}"
                yield f"{other.key} {other.dtype}: as {one.key} {one.dtype}, {cost}, {_on_devices(other.figures)}"


def _on_devices(figures: Sequence[OnDevice]) -> str:
    return ", ".join(
        f"{one.device} mean {percent(one.lost.mean)} worst {percent(one.lost.worst, 1)} "
        + (f"(left out {percent(one.left_out.mean)})" if one.left_out else "(left out unknown)")
        for one in figures
    )
