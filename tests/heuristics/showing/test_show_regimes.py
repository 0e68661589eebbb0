"""Two regimes in one store: maps and lists are of one of them, and `diff` compares the tables of both."""

import pytest

import normtune
from normtune.errors import UsageError
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.results.evidence import Evidence
from normtune.tests.commands import one_line, succeed
from normtune.tests.results.stores import merge

SHAPES = [(rows, hidden) for rows in (1, 64, 1024, 4096) for hidden in (64, 128, 256, 512)]
FEW, SOME, MANY = (RMSNormConfig("row", 1, warps) for warps in (1, 4, 16))
CONFIGS = (FEW, SOME, MANY)


def cold_law(config, problem):
    """Few warps are best; many lose 30 %, but where rows are many, 0.4 %."""
    return {FEW: 0.0, SOME: 0.005, MANY: 0.004 if problem.rows == 4096 else 0.3}[config]


def warm_law(config, problem):
    """As cold; of short rows few warps lose 20 %, and of rows of 128, in the middle, many are the only good ones."""
    if problem.hidden > 128 or problem.rows == 1:
        return cold_law(config, problem)
    return {FEW: 0.2, SOME: 0.1 if problem.hidden == 128 else 0.0, MANY: 0.0 if problem.hidden == 128 else 0.3}[config]


@pytest.fixture
def both(measure, run, spec, tmp_path, monkeypatch):
    """A store of both regimes, with warm times of one more shape; commands write beside it."""
    monkeypatch.chdir(tmp_path)
    for law, regime, shapes in ((cold_law, "cold", SHAPES[:-1]), (warm_law, "warm", SHAPES)):
        taken = run._replace(id=regime, protocol={"regime": regime})
        items = measure(law, shapes, configs=CONFIGS, run=taken.id, fingerprint=fingerprint(spec))
        merge(f"sqlite:///{tmp_path}/both.db", Evidence.from_measurements(items, [taken]))
    return f"{tmp_path}/both.db"


def test_maps_and_lists_are_of_one_regime(both):
    assert succeed("show", "--store", both).splitlines()[0] == "Test GPU, sm_90, 132 SMs: 45 measurements"
    assert len(normtune.show(both, regime="warm")) == 48
    rows = normtune.show(both, regime="warm", sort="median_us").query("rows == 64 and hidden == 128")
    assert rows["num_warps"].tolist() == [16, 4, 1]


def test_the_tables_of_two_regimes_are_compared_on_the_times_of_one(both):
    for regime in ("cold", "warm"):
        normtune.fit(both, regime=regime, leaves=6).save(f"{regime}.py")
    lines = [*normtune.diff("cold.py", "warm.py", both, regime="warm").details(80)]
    assert "toy bfloat16: other launches at 6 of 16 shapes" in lines
    at = lines.index("hidden 1 64 1k 4k")
    # Warm, few warps lose 20 % of short rows, unless there is only one.
    assert lines[at + 1 : at + 5] == [
        "    64 =  B  B  B",
        "   128 =  B  B  B",
        "   256 =  =  =  =",
        "   512 =  =  =  =",
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("regime", "message"),
    [
        ("hot", "unknown regime 'hot'"),
        ("eager", "the store has no times of regime eager, but of cold, warm"),
    ],
)
def test_a_regime_without_times_is_refused_in_one_line(both, regime, message):
    with one_line(UsageError, message):
        normtune.show_map(both, regime=regime)
