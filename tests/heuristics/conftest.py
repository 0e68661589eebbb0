"""A small operator with simple laws, and measurements of it, for tests of the fit."""

import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.writing import installing
from normtune.kernels.config import Config
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.mode import Mode
from normtune.kernels.operator import IllegalConfigError, OperatorSpec
from normtune.kernels.problem import Buffer, Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile.header import Gpu
from normtune.kernels.target import TARGETS, Target
from normtune.kernels.tiles.launch import Launch
from normtune.results.evidence import Evidence
from normtune.results.exchange import recording
from normtune.results.records import Device, Measurement, Run
from normtune.tests.heuristics.made_up import SHAPES
from normtune.tests.kernels.registry import registered
from normtune.tests.results.stores import record

DEVICE = Device("Test GPU", "sm_90", 132, 60 << 20, 100 << 30, "GPU-1", "570.1")
RUN = Run("run1", DEVICE, {"triton": "3.6.0", "torch": "2.11.0"}, "2026-11-20T10:00:00", {})
CONFIGS = (
    *(RMSNormConfig("row", 1, warps) for warps in (1, 2, 4, 8, 16)),
    *(RMSNormConfig("block_row", rows, warps) for rows in (4, 16) for warps in (1, 4)),
)


class Keep(Mode):
    """A mode of the toy."""

    ALL = ""
    NONE = "no_keep"


Law = Callable[[RMSNormConfig, Problem], float]


def resolve(config: Config, problem: Problem, target: Target, alignment: int | None = None) -> Launch:
    """At most 64 elements a thread; block_row is lowered until it fits."""
    block_col = 1 << (problem.hidden - 1).bit_length()
    threads = config.num_warps * target.warp_size
    block_row = config.block_row
    while block_row > 1 and block_row * block_col > 64 * threads:
        block_row //= 2
    if block_col > 64 * threads * (1 if problem.dtype != "float32" else 0.5):
        raise IllegalConfigError("too many elements a thread")
    grid = -(-problem.rows // block_row)
    return Launch(False, grid, block_row, block_col, config.num_warps, 1, 16, block_col != problem.hidden, 0)


@pytest.fixture(autouse=True)
def gpus_here(monkeypatch: pytest.MonkeyPatch) -> list[Gpu]:
    """The GPUs of this machine, to which a test may add."""
    found: list[Gpu] = []
    monkeypatch.setattr(installing, "gpus_here", lambda: found)
    return found


def buffers(problem: Problem) -> tuple[Buffer, ...]:
    """Of `toy`."""
    return (Buffer("x", (problem.rows, problem.hidden), problem.dtype, "input"),)


@pytest.fixture
def spec(monkeypatch: pytest.MonkeyPatch) -> OperatorSpec:
    """The operator `toy`, registered while a test runs."""
    toy = OperatorSpec(
        name="toy",
        modes=(Keep,),
        config=RMSNormConfig,
        dtypes=("bfloat16", "float16", "float32"),
        max_hidden=16384,
        buffers=buffers,
        space=lambda name, problem, target: list(CONFIGS),
        resolve=resolve,
        default_config=lambda problem, target: RMSNormConfig("row", 1, 16),
        kernel_calls="normtune.kernels.none:calls",
        reference_module="normtune.kernels.none",
    )
    registered(monkeypatch, toy)
    return toy


def _penalty(config: Config, problem: Problem) -> float:
    """Three regimes: many warps for long rows, blocks of rows for many short ones, else few warps."""
    ideal = 4 if problem.hidden <= 512 else 16
    if problem.hidden <= 512 and problem.rows >= 4096:
        return 0.0 if (config.schedule, config.block_row, config.num_warps) == ("block_row", 4, 4) else 0.3
    return float(0.1 * abs(np.log2(config.num_warps / ideal)) + 0.05 * (config.schedule != "row"))


def _measure(
    law: Law,
    shapes: Iterable[tuple[int, int]],
    *,
    variant: str = "",
    dtype: str = "bfloat16",
    configs: Iterable[Config] = CONFIGS,
    run: str = RUN.id,
    fingerprint: str = "sha256:0",
) -> list[Measurement]:
    """Measurements of `toy` whose time is 1 + law of a base, times a noise of the round, times one of the sample."""
    found = []
    rounds = np.arange(16, dtype=np.int32)
    for rows, hidden in shapes:
        problem = Problem.of("toy", rows, hidden, dtype, variant)
        # Only products of doubles and random(), which are the same on every machine, so that a golden file can be kept.
        draw = random.Random(str(problem))
        of_round = [0.95 + 0.1 * draw.random() for _ in rounds]
        for config in configs:
            try:
                resolve(config, problem, TARGETS["sm_90"])
            except IllegalConfigError:
                continue
            base = 1e6 * (1 + law(config, problem))
            samples = np.array([int(base * slow * (0.997 + 0.006 * draw.random())) for slow in of_round], np.int32)
            found.append(Measurement(problem, config, run, fingerprint, "ok", "", rounds, samples))
    return found


@pytest.fixture
def penalty() -> Law:
    """The law of `evidence`."""
    return _penalty


@pytest.fixture
def measure(spec: OperatorSpec) -> Callable[..., list[Measurement]]:
    """Measures `toy` by a law."""
    return _measure


@pytest.fixture
def run() -> Run:
    """The run of `measure`."""
    return RUN


@pytest.fixture
def evidence(spec: OperatorSpec) -> Evidence:
    """`toy` in bfloat16 on a grid with a hole, with three regimes."""
    return Evidence.from_measurements(_measure(_penalty, SHAPES[:-1]), [RUN])


@pytest.fixture
def legality(spec: OperatorSpec) -> Legality:
    """What is legal for `toy` in bfloat16."""
    return Legality(spec, TARGETS["sm_90"], ("bfloat16",), ("",))


@pytest.fixture
def record_as(monkeypatch: pytest.MonkeyPatch) -> Callable[[Evidence], Evidence]:
    """Lets evidence be the one recording, `test-gpu`."""
    load = recording.load_recording

    def put(evidence: Evidence) -> Evidence:
        monkeypatch.setattr(recording, "recordings", lambda: ["test-gpu"])
        monkeypatch.setattr(
            recording, "load_recording", lambda name, *given: evidence if name == "test-gpu" else load(name, *given)
        )
        return evidence

    return put


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, one of the test; what is installed goes to one beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture(scope="session")
def first_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first test that asks for `store` puts it, for the others to copy."""
    return tmp_path_factory.mktemp("store") / "measured.db"


@pytest.fixture
def store(measure, penalty, run, spec, here: Path, first_store: Path) -> str:
    """The path of a store with measurements of `toy` on `SHAPES`."""
    if not first_store.exists():
        record(f"sqlite:///{first_store}", run, measure(penalty, SHAPES, fingerprint=fingerprint(spec)))
    return str(shutil.copy(first_store, here))
