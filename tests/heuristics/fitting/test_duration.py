"""The announced duration of a fit: near to measured ones, and of what it depends on."""

from pathlib import Path

import pytest

from normtune.heuristics import tables
from normtune.heuristics.fitting import duration as module
from normtune.heuristics.fitting.duration import duration
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.writing.entries import decisions
from normtune.kernels.tablefile import locate
from normtune.results.evidence import Evidence
from normtune.results.exchange.recording import load_recording
from normtune.tests.heuristics.conftest import CONFIGS
from normtune.tests.heuristics.made_up import SHAPES

TABLES = Path(tables.__file__).parent


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cores", lambda: 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "measured"),  # seconds on one core of an EPYC, of all processes together
    [
        ("nvidia-h100-80gb-hbm3", {}, 343),
        ("nvidia-h100-80gb-hbm3", {"leaves": 64}, 248),
        ("nvidia-h200", {"leaves": 64, "batch_invariant": True}, 322),
        ("nvidia-h200-rms-norm-gated", {}, 51),
    ],
)
def test_it_is_within_a_factor_of_two_of_a_measured_one(name: str, options: dict, measured: int) -> None:
    told = duration(load_recording(name), FitOptions(**options), {})
    assert told is not None and measured / 2 < told < 2 * measured


def test_small_data_are_not_announced() -> None:
    assert duration(load_recording("nvidia-h200-reduce-partials"), FitOptions(leaves=9), {}) is None


def test_a_refit_has_no_folds() -> None:
    """A check keeps the numbers of leaves: one optimum for each key in place of thirteen."""
    data = load_recording("nvidia-h200-rms-norm-gated")
    known = decisions(locate.load(TABLES / "nvidia_h200_rms_norm_gated.py").header)
    again, first = (duration(data, FitOptions(leaves=64), entries) or 0 for entries in (known, {}))
    assert again * 3 < first


def test_more_cores_share_the_folds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_recording("nvidia-h200-rms-norm-gated")
    told = []
    for count in (1, 2, 1000):
        monkeypatch.setattr(module, "cores", lambda count=count: count)
        monkeypatch.setattr(module, "_BRIEF", 0.0)
        told.append(duration(data, FitOptions(), {}) or 0)
    one, two, many = told
    assert one / 2 <= two + 1 < one
    assert 0 < many < two


def test_configs_and_shapes_count_and_not_measurements(measure, penalty, run, spec, monkeypatch) -> None:
    """Half of the measurements, of all configs at all shapes, leave the matrix as large as it was."""
    monkeypatch.setattr(module, "_BRIEF", 0.0)
    monkeypatch.setattr(module, "_LAUNCH", 1.0)
    cells = measure(penalty, SHAPES)
    every, half, few = (
        Evidence.from_measurements(part, [run])
        for part in (cells, cells[::2], [cell for cell in cells if cell.config == CONFIGS[-1]])
    )
    assert len(half.frame) < len(every.frame)
    told = [duration(evidence, FitOptions(leaves=3), {}) for evidence in (every, half, few)]
    assert told == [len(CONFIGS) * len(SHAPES)] * 2 + [len(SHAPES)]
