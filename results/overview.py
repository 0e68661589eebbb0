"""What there is: numbers of measurements by device, operator, dtype and regime, for `normtune data list`.

In: counts by run, problem and status. Out: a dictionary for each row of the list. Needs no pandas.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from normtune.results.records import Counted

COLUMNS = (
    *("device", "sms", "operator", "dtype", "regime", "unpaired"),
    *("problems", "measurements", "runs", "statuses"),
)


def overview(counts: Iterable[Counted]) -> list[dict[str, Any]]:
    """The rows of the list, by `COLUMNS`: see `api.list_data`."""
    parts: defaultdict[tuple[Any, ...], list[Counted]] = defaultdict(list)
    for one in counts:
        run, key = one.run, one.problem.key
        parts[run.device.label, run.device.sms, key, run.regime, run.is_unpaired].append(one)
    rows = []
    for (label, sms, key, regime, unpaired), part in parts.items():
        statuses: Counter[str] = Counter()
        for one in part:
            statuses[one.status] += one.measurements
        ordered = {status: statuses[status] for status in sorted(statuses, key=lambda status: (status != "ok", status))}
        numbers = len({one.problem for one in part}), statuses.total(), len({one.run.id for one in part})
        values = label, sms, key.text, key.dtype, regime, unpaired, *numbers, ordered
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return sorted(rows, key=lambda row: [row[name] for name in COLUMNS[:6]])
