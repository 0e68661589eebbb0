"""Builders of runs and measurements, and the databases of the store's tests."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.results.database import schema
from normtune.results.database.url import StoreUrl
from normtune.results.evidence import Evidence
from normtune.results.records import Device, Measurement, Run
from normtune.results.runs import anonymous
from normtune.tests.kernels.problems import changed
from normtune.tests.results.stores import merge

DEVICE = Device("NVIDIA H200", "sm_90", 132, 60 << 20, 140 << 30, "GPU-0", "570.1")
PROBLEM = Problem.of("rms_norm_forward", 4096, 1024, "bfloat16")
CONFIG = RMSNormConfig("row", num_warps=8)


def build_run(
    number: int = 0,
    started: str = "2026-11-21T10:00:00+00:00",
    protocol: dict[str, Any] | None = None,
    **device: Any,
) -> Run:
    software = {"torch": "2.11.0", "triton": "3.6.0"}
    told = {"regime": "cold", "void_rounds": 0} if protocol is None else protocol
    # As what leaves a store, so that it compares with what was stored.
    return anonymous(Run(f"{number:032x}", DEVICE._replace(**device), software, started, told))


def build_measurement(
    times: Sequence[int] = (3000, 3100),
    first: int = 0,
    *,
    problem: Problem = PROBLEM,
    config: Config = CONFIG,
    run: Run | None = None,
    fingerprint: str = "sha256:aa",
    status: str | None = None,
    reason: str | None = None,
) -> Measurement:
    """An `ok` measurement of these times in consecutive rounds, or a failure where there is none."""
    found = status or ("ok" if times else "timeout")
    told = reason if reason is not None else ("" if times else "took over 10 s")
    rounds = np.arange(first, first + len(times), dtype=np.int32)
    run_id = (run or build_run()).id
    return Measurement(problem, config, run_id, fingerprint, found, told, rounds, np.array(times, dtype=np.int32))


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Run]:
    return build_run


@pytest.fixture(scope="session")
def make() -> Callable[..., Measurement]:
    return build_measurement


@pytest.fixture(scope="session")
def plain_rows() -> Callable[[Sequence[Measurement]], list[tuple[Any, ...]]]:
    """Measurements as values that compare and sort."""

    def convert(measurements: Sequence[Measurement]) -> list[tuple[Any, ...]]:
        return sorted(
            (*item[:6], item.rounds.tolist(), item.samples.tolist(), item.code or ()) for item in measurements
        )

    return convert


@pytest.fixture(scope="session")
def varied() -> Evidence:
    """Two devices, two operators, a variant, failures, a later first round, a yardstick."""
    runs = [build_run(1), build_run(2, "2026-11-21T11:00:00+00:00"), build_run(3, name="NVIDIA B200", sms=148)]
    backward = Problem.of("rms_norm_backward", 64, 96, "float32", "no_dweight")
    items = [
        build_measurement((3000, 3100, 2900), run=runs[0]),
        build_measurement((3050,), 6, run=runs[0]),
        build_measurement((3001, 3101), run=runs[1], fingerprint="sha256:bb"),
        build_measurement((), run=runs[1], config=RMSNormConfig("row", num_warps=32), reason="a\nb\0c"),
        build_measurement(
            (70, 80), run=runs[1], problem=backward, config=RMSNormConfig("persistent", 4, 1, 3, 2, "reduce")
        ),
        build_measurement((60, 61), run=runs[1], problem=backward, config=RMSNormConfig("copy", num_warps=0)),
        build_measurement((9,), run=runs[2], problem=changed(PROBLEM, dtype="float16")),
    ]
    return Evidence.from_measurements(items, runs)


@pytest.fixture
def server() -> Iterator[str]:
    """The URL of an empty PostgreSQL database, whose role may make others."""
    url = os.environ.get("NORMTUNE_TEST_POSTGRES")
    if not url:
        pytest.skip("NORMTUNE_TEST_POSTGRES names no PostgreSQL database")
    engine = sa.create_engine(StoreUrl.of(url).url)
    schema.metadata.drop_all(engine)
    yield url
    schema.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a store that does not exist yet."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'store.db'}"
        return
    yield request.getfixturevalue("server")


@pytest.fixture
def stored(tmp_path, varied):
    """The file of a SQLite store that holds `varied`."""
    path = tmp_path / "store.db"
    merge(f"sqlite:///{path}", varied)
    return path
