"""Problems like others."""

from normtune.kernels.problem import Problem


def changed(problem: Problem, **columns: object) -> Problem:
    """A problem with other columns: operator, dtype or variant."""
    names = ("operator", "rows", "hidden", "dtype", "variant")
    return Problem.of(**dict(zip(names, problem.columns, strict=True)) | columns)  # type: ignore[arg-type]
