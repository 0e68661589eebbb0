"""What there is: numbers of measurements by device, operator, dtype and regime, for `normtune data list`.

In: counts by run, problem and status. Out: a dictionary for each row of the list. Needs no pandas.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from normtune.kernels.problem import Problem
from normtune.results.records import Counted

COLUMNS = (
    *("device", "sms", "operator", "dtype", "regime", "unpaired"),
    *("problems", "measurements", "runs", "statuses"),
)


def overview(counts: Iterable[Counted]) -> list[dict[str, Any]]:
    """The rows of the list, by `COLUMNS`: see `api.list_data`."""
    kinds: dict[str, tuple[Any, ...]] = {}
    parts: dict[tuple[Any, ...], tuple[set[Problem], set[str], Counter[str]]] = defaultdict(
        lambda: (set(), set(), Counter())
    )
    for run, problem, status, measurements in counts:
        if run.id not in kinds:
            kinds[run.id] = (*run.device.kind, run.regime, run.is_unpaired)
        problems, runs, statuses = parts[kinds[run.id], problem.key]
        problems.add(problem)
        runs.add(run.id)
        statuses[status] += measurements
    rows = []
    for ((label, sms, regime, unpaired), key), (problems, runs, statuses) in parts.items():
        ordered = {status: statuses[status] for status in sorted(statuses, key=lambda status: (status != "ok", status))}
        numbers = len(problems), statuses.total(), len(runs)
        values = label, sms, key.text, key.dtype, regime, unpaired, *numbers, ordered
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return sorted(rows, key=lambda row: [row[name] for name in COLUMNS[:6]])
