"""Operators that are registered for as long as a patch lasts."""

import pytest

from normtune.kernels import load_file, operator
from normtune.kernels.operator import OperatorSpec


def registered(patch: pytest.MonkeyPatch, spec: OperatorSpec, name: str = "") -> None:
    """Register a spec under its name or another one, whatever has that name."""
    operator.operators()
    patch.setitem(operator._OPERATORS, name or spec.name, spec)


def forgetting(patch: pytest.MonkeyPatch) -> None:
    """Forget operators that are registered, and files that are loaded for them, from now on."""
    operator.operators()
    for module, name in ((operator, "_OPERATORS"), (operator, "_FAMILIES"), (load_file, "_FILES")):
        patch.setattr(module, name, dict(getattr(module, name)))
