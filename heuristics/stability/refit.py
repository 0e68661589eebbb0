"""The functions of a table with what they were fitted to, so that each can be fitted again to other times.

In: a fit and its evidence. Out: `Case`, and the tree that the same fit finds in another timing matrix. Which matrix
that is, is left to `stability` and `two_sweeps`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from normtune.errors import NormtuneError
from normtune.heuristics.fitting.baseline import Incumbent, Incumbents
from normtune.heuristics.fitting.function import fit_function
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import used
from normtune.heuristics.fitting.result import Fit, Function
from normtune.heuristics.regret.legality import Legality, all_variants
from normtune.heuristics.regret.matrix import TimingMatrix, timing_matrix
from normtune.heuristics.regret.weights import Weighting
from normtune.heuristics.tablefile.header import Known
from normtune.heuristics.tablefile.tree import Tree
from normtune.kernels.operator import operator
from normtune.kernels.problem import split_key
from normtune.kernels.target import target_for

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence


class Case(NamedTuple):
    """A function, and all that it was made of.

    Attributes:
        function: of a table.
        matrix: that it was fitted to, weighted.
        legality: for all that it serves.
        options: what the user asked for.
        incumbent: what it must not be slower than.
    """

    function: Function
    matrix: TimingMatrix
    legality: Legality
    options: FitOptions
    incumbent: Incumbent | None

    @property
    def name(self) -> str:
        """Its key and dtype."""
        return f"{self.function.key} {self.function.dtype}"


def cases(evidence: "Evidence", fit: Fit, options: FitOptions, incumbents: Incumbents | None = None) -> list[Case]:
    """The functions of a fit that look at rows and hidden, in its order.

    Args:
        evidence: that was fitted.
        fit: of it.
        options: that it was given.
        incumbents: likewise.
    """
    target = target_for(fit.device.target, fit.device.sms)
    kinds = [(one.operator, one.variant, one.dtype) for one in fit.functions if one.beside is None]
    functions = [one for one in fit.functions if one.beside is None]
    found = []
    for function, matrix in zip(functions, weighted(evidence, options, kinds), strict=True):
        spec = operator(function.operator)
        variants = (function.variant,) if function.variant else all_variants(spec)
        own = function.operator, function.variant, function.dtype
        incumbent = incumbents.of(*own, target) if incumbents else None
        found.append(Case(function, matrix, Legality(spec, target, function.dtypes, variants), options, incumbent))
    return found


def weighted(
    evidence: "Evidence", options: FitOptions, kinds: Iterable[tuple[str, str, str]]
) -> Sequence[TimingMatrix]:
    """The weighted timing matrices of some (operator, variant, dtype) that have times, as a fit makes them.

    Raises:
        NormtuneError: one of them has no times.
    """
    data = used(evidence, options.operators)
    device = data.devices()[0]
    target, weighting = target_for(device.target, device.sms), Weighting(options.weights)
    found = []
    for name, variant, dtype in kinds:
        spec = operator(name)
        matrix = timing_matrix(data, spec, variant, dtype, target)
        if matrix is None:
            raise NormtuneError(f"no times of {name} {variant} {dtype} on {device.label}: sweep them first")
        found.append(replace(matrix, weights=weighting.of(spec, variant, dtype, matrix.problems)))
    return found


def refitted(case: Case, matrix: TimingMatrix) -> Tree | None:
    """What the same fit finds in other times, its number of leaves as it is; None where it finds no legal tree.

    Args:
        case: the function.
        matrix: of the same problems and configs.
    """
    known = Known(case.function.figures.asked, None)
    try:
        return fit_function(matrix, case.legality, case.options, known, case.incumbent).tree
    except NormtuneError:
        return None


def server(fit: Fit, key: str, dtype: str) -> Function | None:
    """The function of a fit that answers for a key and dtype; None where there is none."""
    donor = next((one.donor for one in fit.shared if (one.key, one.dtype) == (key, dtype)), (key, dtype))
    for name, kind in (donor, (split_key(key)[0], dtype)):
        for one in fit.functions:
            if one.key == name and kind in one.dtypes and one.beside is None:
                return one
    return None
