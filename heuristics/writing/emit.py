"""A fitted table as Python: a module that stands alone and reads as if it were written by hand.

In: a `Fit` and the command that repeats it. Out: the text of the module: Python 3.9, standard library, no work at
import except naming configs. Formatted as black and ruff do at any width from 88 columns on, as far as the depth of
trees leaves room. The caller writes the file.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from normtune.errors import NormtuneError
from normtune.heuristics.fitting.figures import Cost, Figures
from normtune.heuristics.fitting.result import Fit, FromData, TableFunction
from normtune.heuristics.regret.fixed_log import percent, percent_up
from normtune.kernels.config import Config, Knob
from normtune.kernels.problem import split_batch_invariant
from normtune.kernels.tablefile import template
from normtune.kernels.tablefile.header import Header, body_hash
from normtune.kernels.tablefile.relative_tree import RelativeTree
from normtune.kernels.tablefile.tree import Leaf, Split, Tree, counted_leaves


def module_text(fit: Fit, regenerate: str) -> str:
    """The whole module.

    Args:
        fit: the content.
        regenerate: the command that writes it again.

    Raises:
        NormtuneError: two operators or configs would get the same name in the code.
    """
    body = body_text(fit.functions)
    header = header_of(fit, regenerate, (fit.device.label, fit.device.target, fit.device.sms), _regret(fit), body)
    shared = (f"{key} {dtype}: uses {donor}, as it has no data of its own" for key, dtype, donor in fit.without_data())
    header = header._replace(
        shared=tuple(shared),
        replaced=any(function.replacing for function in fit.functions),
        searched=fit.searched,
    )
    return f"{header.text()}\n{body}"


def header_of(fit: FromData, regenerate: str, gpu: tuple[str, str, int], regret: Iterable[str], body: str) -> Header:
    """The header of a table for one GPU or for any, without the lines that only one kind has.

    Args:
        fit: the facts on its data.
        regenerate: the command that writes the table again.
        gpu: label, target and multiprocessors of the GPU that the table is for.
        regret: its lines of figures.
        body: the text after the header.
    """
    rows_from, rows_to, hidden_from, hidden_to = fit.measured
    device, target, sms = gpu
    return Header(
        regenerate=regenerate,
        device=device,
        target=target,
        sms=sms,
        software=", ".join(f"{name} {fit.software.get(name, 'unknown')}" for name in ("triton", "torch")),
        data=f"{fit.digest} ({fit.extent})",
        kernels=fit.fingerprints,
        measured=f"rows {rows_from} to {rows_to}, hidden {hidden_from} to {hidden_to}",
        regret=tuple(regret),
        shared=(),
        body=body_hash(body),
    )


def _regret(fit: Fit) -> Iterable[str]:
    """One line per function, each followed by one for every variant or dtype that shares it."""
    for function in fit.functions:
        figures = function.figures
        change = f" (of {figures.asked}{f', {figures.kept} kept' if figures.kept else ''})"
        parts = [
            counted_leaves(figures.leaves) + (change if figures.kept or figures.asked != figures.leaves else ""),
            f"{figures.configs} config{'s' * (figures.configs != 1)}",
            *_lost(figures),
            certificate(figures),
            *_percents("cross-validated", figures.cross_validated),
            *_percents("plain cross-validated", figures.plain_validated),
            *_percents("extrapolated", figures.extrapolated),
            *unmeasured(figures),
            *untimed(figures),
            *slower(figures),
            *([beside(function.beside, split_batch_invariant(function.key)[0])] if function.beside else []),
        ]
        yield f"{function.key} {function.dtype}: {', '.join(parts)}"
        for other in fit.shared:
            if other.donor == (function.key, function.dtype):
                cost = f"sharing costs {percent(other.cost)} on {other.figures.loss.problems} problems"
                parts = [f"as {function.key} {function.dtype}", *_lost(other.figures), cost]
                yield f"{other.key} {other.dtype}: {', '.join(parts)}"


def certificate(figures: Figures) -> str:
    """The proved gap of a tree: `within 0.05 % of the best 8-leaf tree on this grid`."""
    if figures.joined:
        return "its nearest sizes not told apart, so nothing is proved of this grid"
    text = f"{_within(figures.gap)}the best {figures.leaves}-leaf tree{figures.limits} on this grid"
    if figures.few:
        bound, mean = figures.few
        text += f", these configs {_within(mean - bound)}the best {figures.configs}"
    return text


def unmeasured(figures: Figures) -> list[str]:
    """Leaves without a measured config: `1 leaf of the default config, where none that was measured is legal`."""
    if not figures.unmeasured:
        return []
    return [f"{counted_leaves(figures.unmeasured)} of the default config, where none that was measured is legal"]


def untimed(figures: Figures) -> list[str]:
    """Shapes without a time: `3 shapes not timed, which count as the slowest there`."""
    count = figures.untimed
    return [f"{count} shape{'s' * (count != 1)} not timed, counted as the slowest there"] if count else []


def slower(figures: Figures) -> list[str]:
    """Shapes that regress against the baseline, or may: `3 shapes up to 5.1 % slower than what was in use`."""
    parts = []
    if figures.slower:
        count, most = figures.slower
        parts.append(f"{count} shape{'s' * (count != 1)} up to {percent(most, 1)} slower than what was in use")
    if count := figures.uncompared:
        parts.append(f"{count} shape{'s' * (count != 1)} not compared with what was in use")
    return parts


def beside(cost: Cost, usual: str) -> str:
    """Cost of a batch-invariant function: `costs 1.68 % (worst 13.7 %) beside rms_norm_forward`."""
    text = f"costs {percent(cost.mean)} (worst {percent(cost.worst, 1)}) beside {usual}"
    return text + (f", at most, as {cost.bounded} of {cost.problems} shapes are bounds" if cost.bounded else "")


def _within(gap: int) -> str:
    return f"within {percent_up(gap)} of " if gap > 0 else ""


def _percents(name: str, value: int | None) -> list[str]:
    return [] if value is None else [f"{name} {percent(value)}"]


def _lost(figures: Figures) -> list[str]:
    loss = figures.loss
    parts = [f"mean {percent(loss.mean)}", f"plain mean {percent(loss.plain)}", f"worst {percent(loss.worst, 1)}"]
    return [*parts, f"means low by at most {percent_up(loss.luck)}"] if loss.luck else parts


def body_text(functions: Sequence[TableFunction], of: template.Form = template.ONE_GPU) -> str:
    """The text after the header.

    Args:
        functions: in the order of the code.
        of: the form of the module, for this kind of trees.

    Raises:
        NormtuneError: two operators or configs would get the same name in the code.
    """
    classes = _classes(functions)
    constants = []
    code = []
    names_in_code = [_name(function) for function in functions]
    names: dict[tuple[tuple[Knob, ...], Config], str] = {}
    for name, knobs in classes.items():
        prefix = f"{name.removesuffix('Config').upper()}_" if len(classes) > 1 else ""
        for config in sorted(
            {config for function in functions for config in _configs(function.tree) if config.knobs == knobs}
        ):
            names[knobs, config] = f"{prefix}{config.constant_name()}"
            constants.append(template.in_parentheses(f"{names[knobs, config]} = {name}", _arguments(config), ""))
    for function in functions:
        knobs_used = {config.knobs for config in _configs(function.tree)}
        answer = template.any_of({name: knobs for name, knobs in classes.items() if knobs in knobs_used})
        code.append("\n".join([of.function(_name(function), answer), *_branches(function.tree, 1, names)]))
    names_in_code += names.values()
    _check_unique(names_in_code)
    entries = "\n".join(
        template.in_parentheses("    ", [json.dumps(function.key), json.dumps(dtype)], f": {_name(function)},")
        for function in functions
        for dtype in function.dtypes
    )
    parts = [
        of.opening(classes),
        "\n".join(constants),
        *code,
        f"{of.tables(classes)} {{\n{entries}\n}}\n{of.closing(classes)}",
    ]
    return "\n\n\n".join(parts)


# The name of each config in the code, by its knobs and itself: configs of two classes may be equal as tuples.
Names = Mapping[tuple[tuple[Knob, ...], Config], str]


def _branches(tree: Tree | RelativeTree, depth: int, names: Names) -> list[str]:
    indent = "    " * depth
    if isinstance(tree, Leaf):
        return _returned(indent, names[tree.config.knobs, tree.config])
    first: Tree | RelativeTree
    rest: Tree | RelativeTree
    if (tree.axis if isinstance(tree, Split) else tree.size) == "hidden":
        test, first, rest = f"hidden <= {tree.threshold}", tree.low, tree.high
    elif isinstance(tree, Split):
        test, first, rest = f"rows >= {tree.threshold}", tree.high, tree.low
    else:
        test = f"{_times(tree.times, 'rows')} >= {_times(tree.threshold, 'sms')}"
        first, rest = tree.high, tree.low
    return [f"{indent}if {test}:", *_branches(first, depth + 1, names), *_branches(rest, depth, names)]


def _returned(indent: str, name: str) -> list[str]:
    """A leaf; formatters put a name into parentheses if only that brings it within the width."""
    gained = len("return ") - len("    ")
    if template.WIDTH < len(f"{indent}return {name}") <= template.WIDTH + gained:
        return [f"{indent}return (", f"{indent}    {name}", f"{indent})"]
    return [f"{indent}return {name}"]


def _times(factor: int, name: str) -> str:
    return name if factor == 1 else f"{factor} * {name}"


def _configs(tree: Tree | RelativeTree) -> Iterable[Config]:
    if isinstance(tree, Leaf):
        yield tree.config
    else:
        yield from _configs(tree.low)
        yield from _configs(tree.high)


def _classes(functions: Sequence[TableFunction]) -> dict[str, tuple[Knob, ...]]:
    """The classes of configs that a table defines: `Config` if one is enough, else each by its own name.

    Raises:
        NormtuneError: two classes with different knobs have the same name.
    """
    names: dict[tuple[Knob, ...], str] = {}
    for function in functions:
        for config in _configs(function.tree):
            names.setdefault(config.knobs, type(config).__name__)
    if len(names) == 1:
        return {template.ONE_CLASS: next(iter(names))}
    _check_unique([*names.values()])
    return {name: knobs for knobs, name in names.items()}


def _arguments(config: Config) -> list[str]:
    """The values in order, without trailing defaults; num_warps is always written."""
    values, knobs = list(config), config.knobs
    while values and values[-1] == knobs[len(values) - 1].default and knobs[len(values) - 1].name != "num_warps":
        values.pop()
    return [template.literal(value) for value in values]


def _name(function: TableFunction) -> str:
    return "_".join(_identifier(part) for part in (function.operator, function.variant, function.dtype) if part)


def _identifier(text: str) -> str:
    return re.sub(r"\W", "_", text, flags=re.ASCII)


def _check_unique(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise NormtuneError(f"two operators or configs would both be named {name} in the code: rename one")
