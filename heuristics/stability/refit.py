"""Fits the functions of a table again to other times."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from normtune.errors import NormtuneError
from normtune.heuristics.fitting.baseline import Incumbents
from normtune.heuristics.fitting.case import Case, FitArguments, TableEntry
from normtune.heuristics.fitting.function import fit_function
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import used
from normtune.heuristics.fitting.result import Fit, FittedFunction
from normtune.heuristics.fitting.same_bits import same_bits
from normtune.heuristics.regret.matrix import TimingMatrix, timing_matrix
from normtune.heuristics.regret.weights import Weighting
from normtune.kernels.key import Key
from normtune.kernels.operator import operator
from normtune.kernels.tablefile.tree import Tree
from normtune.kernels.target import target_for

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence


class Fitted(NamedTuple):
    """A function of a table, and the case that it was fitted to."""

    function: FittedFunction
    case: Case


def fitted(evidence: "Evidence", fit: Fit, options: FitOptions, incumbents: Incumbents | None = None) -> list[Fitted]:
    """The functions of a fit without the batch-invariant ones, each with its case.

    Evidence, options and the baseline `incumbents` are those of the fit.
    """
    target = target_for(fit.device.target, fit.device.sms)
    arguments = FitArguments(target, options, incumbents, {}, {}, same_bits(options.same_bits_as, target))
    functions = [function for function in fit.functions if function.beside is None]
    keys = [function.key for function in functions]
    return [
        Fitted(function, arguments.case(operator(function.key.operator), matrix).serving(function.dtypes))
        for function, matrix in zip(functions, weighted(evidence, options, keys), strict=True)
    ]


def weighted(evidence: "Evidence", options: FitOptions, keys: Iterable[Key]) -> Sequence[TimingMatrix]:
    """The weighted timing matrices of keys, as in a fit.

    Raises:
        NormtuneError: a key has no times.
    """
    data = used(evidence, options.operators)
    device = data.devices()[0]
    target, weighting = target_for(device.target, device.sms), Weighting(options.weights)
    matrices = []
    for key in keys:
        spec = operator(key.operator)
        matrix = timing_matrix(data, spec, key, target)
        if matrix is None:
            raise NormtuneError(f"no times of {key} on {device.label}: sweep them first")
        matrices.append(weighting.weighted(spec, matrix))
    return matrices


def refitted(fitted: Fitted, matrix: TimingMatrix) -> Tree | None:
    """The tree of the same fit to other times of the same problems and configs, with the same number of leaves.

    None if no legal tree exists.
    """
    function = fitted.function
    known = TableEntry(function.key, function.figures._replace(strict=False))
    try:
        return fit_function(fitted.case.on(matrix, known)).tree
    except NormtuneError:
        return None


def server(fit: Fit, key: Key) -> FittedFunction | None:
    """The function of a fit for a key; None without one."""
    served = {name: function for function in fit.functions for name in function.served}
    donor = {function.key: function.donor for function in fit.shared}.get(key, key)
    return served.get(donor) or served.get(key.plain)
