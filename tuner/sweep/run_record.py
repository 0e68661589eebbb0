"""Records of the store, made of outcomes.

In: a bench, a task and its outcomes. Out: a `Run` and `Measurement`s. The caller stores them.
"""

import platform
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from normtune.kernels.config import Config
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import operator
from normtune.results.records import Measurement, Run
from normtune.tuner.device.open import Bench, Outcome
from normtune.tuner.plan.plan import Task


def begun_run(bench: Bench, strategy: str, protocol: Mapping[str, Any] | None = None) -> Run:
    """A run that begins now, with more entries of its protocol; that is completed at the end."""
    return Run(
        id=uuid.uuid4().hex,
        device=bench.device,
        software={"python": platform.python_version(), **bench.software},
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        # A killed sweep leaves only these entries.
        protocol={"strategy": strategy, "regime": bench.regime, **(protocol or {})},
    )


def measurements(task: Task, outcomes: Mapping[Config, Outcome], run: str) -> Sequence[Measurement]:
    """Measurements of a task in a run, with the fingerprint of the current kernels."""
    current = fingerprint(operator(task.problem.operator))
    return [
        Measurement(
            task.problem,
            config,
            run,
            current,
            outcome.status,
            outcome.reason,
            np.asarray(outcome.rounds, dtype=np.int32),
            np.asarray(outcome.nanoseconds, dtype=np.int32),
            outcome.code,
        )
        for config, outcome in sorted(outcomes.items())
    ]
