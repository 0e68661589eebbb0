"""The spec of measured operators: the registered one, or for unpaired times of another operator one made from them."""

from typing import TYPE_CHECKING

from normtune.heuristics.regret.legality import registered
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec, find, operator
from normtune.kernels.undeclared import undeclared_spec

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence


def spec_of(data: "Evidence", name: str) -> OperatorSpec:
    """The spec of an operator with measurements; `data` is `Evidence.current`.

    Raises:
        UsageError: the operator is not registered, and normtune measured it, so a file with its declaration exists.
    """
    if (spec := find(name)) or name not in data.unpaired():
        return spec or operator(name)
    frame, order = data.frame[data.frame["operator"] == name], {run.id: number for number, run in enumerate(data.runs)}
    newest = max(frame["run"].unique(), key=order.__getitem__)
    config = Config.from_json(frame.loc[frame["run"] == newest, "config"].iloc[0])
    return undeclared_spec(name, type(config), tuple(sorted(frame["dtype"].unique())))


def undeclared_note(spec: OperatorSpec) -> list[str]:
    """A note on an operator without a declaration."""
    if spec.kernel_calls:
        return []
    knobs = ", ".join(spec.config._fields)
    return [f"{spec.name} is not registered: its knobs are {knobs}, and every config counts as legal at every shape"]


def spec_of_key(data: "Evidence", key: Key) -> OperatorSpec | None:
    """The spec of a measured key; None if the file that declares the operator is not loaded."""
    entry = registered(key)
    if entry:
        return entry.spec
    return spec_of(data, key.operator) if key.operator in data.unpaired() and not find(key.operator) else None
