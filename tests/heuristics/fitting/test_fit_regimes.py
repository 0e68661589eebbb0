"""Tables of a regime: fitted to its times alone, with its name in the header, checked against these times."""

from pathlib import Path

import pytest

import normtune
from normtune.errors import UsageError
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.key import Key
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.tree import choose
from normtune.results.evidence import Evidence
from normtune.results.exchange import recording
from normtune.results.exchange.recording import write_recording
from normtune.tests.commands import main, one_line
from normtune.tests.results.stores import merge

SHAPES = [(rows, hidden) for rows in (1, 64, 1024, 4096) for hidden in (64, 128, 256, 512)]
FEW, MANY = RMSNormConfig("row", 1, 1), RMSNormConfig("row", 1, 16)


@pytest.fixture
def mixed(measure, run, spec):
    """Few warps are best cold, many are warm; the warm run is the newer one."""
    runs = [run, run._replace(id="warm", started="2026-11-21T10:00:00", protocol={"regime": "warm"})]
    items = []
    for one, best in zip(runs, (FEW, MANY), strict=True):
        items += measure(
            lambda config, problem, best=best: 0.0 if config == best else 0.25,
            SHAPES,
            configs=(FEW, MANY),
            run=one.id,
            fingerprint=fingerprint(spec),
        )
    return Evidence.from_measurements(items, runs)


@pytest.fixture
def store(mixed, here: Path) -> str:
    merge(f"sqlite:///{here}/mixed.db", mixed)
    return "mixed.db"


def test_times_of_several_regimes_are_not_fitted_together(mixed):
    with pytest.raises(UsageError, match="times of regimes cold, warm are never compared: a table is fitted to one"):
        fit(mixed, FitOptions(leaves=2))
    for regime, best in (("cold", FEW), ("warm", MANY)):
        fitted = fit(mixed.regime(regime), FitOptions(leaves=2))
        assert (fitted.data.regime or "cold", choose(fitted.functions[0].tree, (64, 128))) == (regime, best)


@pytest.mark.parametrize(("regime", "best", "told"), [("cold", FEW, ""), ("warm", MANY, ", warm")])
def test_a_table_is_of_one_regime_and_its_header_says_which(store, regime, best, told):
    normtune.fit(store, regime=regime, leaves=2).save("table.py", evidence="data.parquet")
    header = locate.load("table.py").header
    measured = f": 32 measurements, 2026-11-{'21' if told else '20'}{told}"
    assert Path("table.py").read_text().split("\n")[2].endswith(measured)
    assert locate.load("table.py").function(Key.parse("toy", "bfloat16"))(64, 128) == best
    assert FitOptions.of_facts(header.command["options"]).regime == regime
    done = main("fit", "--like", "table.py")
    assert done.stdout.splitlines()[0].endswith(told or "2026-11-20")
    assert " normtune table install table.py" in done.output
    checked = main("check", "--strict", "table.py")
    assert checked.exit_code == 0 and "equal, byte for byte, to a fit of data.parquet" in checked.output


@pytest.mark.slow
def test_a_warm_table_is_checked_against_the_warm_times_of_its_recording(mixed, store, tmp_path, monkeypatch):
    write_recording(mixed, "test-gpu", tmp_path)
    monkeypatch.setattr(recording, "FOLDER", tmp_path)
    for regime in ("cold", "warm"):
        normtune.fit("test-gpu", regime=regime, leaves=2).save(f"{regime}.py")
    checked = main("check", "cold.py", "warm.py")
    assert checked.exit_code == 0 and checked.output.count("equal, byte for byte, to a fit of recording") == 2
    text = Path("warm.py").read_text()
    Path("warm.py").write_text(text.replace('"regime": "warm"', '"regime": "cold"'))
    assert main("check", "warm.py").exit_code == 1


@pytest.mark.parametrize(
    ("regime", "told"),
    [
        ("hot", "unknown regime 'hot': expected one of cold, warm, eager"),
        (
            "eager",
            "the store has no times of regime eager, but of cold, warm: name one of these",
        ),
    ],
)
def test_a_regime_that_cannot_be_had_is_refused(store, regime, told):
    with one_line(UsageError, told):
        normtune.fit(store, regime=regime)
