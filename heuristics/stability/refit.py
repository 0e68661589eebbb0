"""The functions of a table with their cases, to fit each again to other times.

In: a fit and its evidence. Out: `Fitted`, and the tree of the same fit for another timing matrix, from `spread` or
`benchmarks/two_sweeps.py`.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from normtune.errors import NormtuneError
from normtune.heuristics.fitting.baseline import Incumbents
from normtune.heuristics.fitting.case import Case, FitArguments, TableEntry
from normtune.heuristics.fitting.function import fit_function
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import used
from normtune.heuristics.fitting.result import Fit, Function
from normtune.heuristics.fitting.same_bits import same_bits
from normtune.heuristics.regret.matrix import TimingMatrix, timing_matrix
from normtune.heuristics.regret.weights import Weighting
from normtune.kernels.operator import operator
from normtune.kernels.problem import split_key
from normtune.kernels.tablefile.tree import Tree
from normtune.kernels.target import target_for

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence


class Fitted(NamedTuple):
    """A function of a table, and the case that it was fitted to."""

    function: Function
    case: Case


def fitted(evidence: "Evidence", fit: Fit, options: FitOptions, incumbents: Incumbents | None = None) -> list[Fitted]:
    """The functions of a fit that depend on rows and hidden, in its order.

    Args:
        evidence: of the fit.
        fit: the fit.
        options: of the fit.
        incumbents: its baseline.
    """
    target = target_for(fit.device.target, fit.device.sms)
    asked = FitArguments(target, options, incumbents, {}, {}, same_bits(options.same_bits_as, target))
    functions = [function for function in fit.functions if function.beside is None]
    kinds = [(function.operator, function.variant, function.dtype) for function in functions]
    return [
        Fitted(function, asked.case(operator(function.operator), matrix).serving(function.dtypes))
        for function, matrix in zip(functions, weighted(evidence, options, kinds), strict=True)
    ]


def weighted(
    evidence: "Evidence", options: FitOptions, kinds: Iterable[tuple[str, str, str]]
) -> Sequence[TimingMatrix]:
    """The weighted timing matrices of some (operator, variant, dtype) with times, as a fit makes them.

    Raises:
        NormtuneError: one of them has no times.
    """
    data = used(evidence, options.operators)
    device = data.devices()[0]
    target, weighting = target_for(device.target, device.sms), Weighting(options.weights)
    matrices = []
    for name, variant, dtype in kinds:
        spec = operator(name)
        matrix = timing_matrix(data, spec, variant, dtype, target)
        if matrix is None:
            raise NormtuneError(f"no times of {name} {variant} {dtype} on {device.label}: sweep them first")
        matrices.append(weighting.weighted(spec, matrix))
    return matrices


def refitted(fitted: Fitted, matrix: TimingMatrix) -> Tree | None:
    """Tree of the same fit to other times, with the same number of leaves; None if there is no legal tree.

    Args:
        fitted: the function.
        matrix: of the same problems and configs.
    """
    function = fitted.function
    known = TableEntry(function.key, function.dtype, function.figures._replace(strict=False))
    try:
        return fit_function(fitted.case.on(matrix, known)).tree
    except NormtuneError:
        return None


def server(fit: Fit, key: str, dtype: str) -> Function | None:
    """The function of a fit that answers for a key and dtype; None if there is none."""
    donor = next(
        (function.donor for function in fit.shared if (function.key, function.dtype) == (key, dtype)), (key, dtype)
    )
    for name, kind in (donor, (split_key(key)[0], dtype)):
        for function in fit.functions:
            if function.key == name and kind in function.dtypes and function.beside is None:
                return function
    return None
