"""The fit for any GPU, on GPUs whose best thresholds are known."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.any_gpu import emit
from normtune.heuristics.any_gpu.joint import Joint, Part, between
from normtune.heuristics.any_gpu.legality import EveryGpu, targets_of
from normtune.heuristics.any_gpu.pipeline import fit_all
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.regret.legality import all_variants, served_variants
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.kernels import operator as door
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec, operator
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.parse import relative_trees
from normtune.kernels.tablefile.relative_tree import BYTES_PER_L2, ROWS_PER_SM, RelativeSplit, choose_on
from normtune.kernels.tablefile.tree import Leaf
from normtune.kernels.target import TARGETS, Target
from normtune.results.database.store import Store
from normtune.results.evidence import Evidence
from normtune.results.exchange.parquet_csv import write_parquet
from normtune.results.records import Measurement
from normtune.tests.commands import invoke
from normtune.tests.heuristics.made_up import as_command
from normtune.tests.kernels.problems import changed
from normtune.tuner.checking.offline import check

FEW, MANY = RMSNormConfig("row", 1, 16), RMSNormConfig("block_row", 4, 16)
ROWS = [1 << power for power in range(0, 19)]


def part(sms: int, l2_mb: int, best: Callable[[Target, int, int], Config]) -> Part:
    """A GPU on which a law names the config that is best; the other loses 30 %."""
    target = TARGETS["sm_90"]._replace(sms=sms, l2_bytes=l2_mb << 20)
    shapes = tuple((rows, hidden) for rows in ROWS for hidden in (64, 512))
    configs = tuple(sorted((FEW, MANY)))
    regret = np.array([[0 if one == best(target, *shape) else 262_364 for one in configs] for shape in shapes])
    return Part(
        target, TimingMatrix(Key.of("toy", "", "bfloat16"), shapes, configs, regret, np.ones_like(regret, bool))
    )


def legal(spec: OperatorSpec) -> EveryGpu:
    return EveryGpu(spec, targets_of(["sm_90"]), ("bfloat16",), all_variants(spec))


def by_rows(target: Target, rows: int, hidden: int) -> Config:
    return MANY if rows >= 8 * target.sms else FEW


def test_a_threshold_in_rows_per_multiprocessor_is_found(spec: OperatorSpec) -> None:
    parts = [part(sms, l2, by_rows) for sms, l2 in ((132, 60), (36, 32), (84, 6))]
    joint = Joint(parts, legal(spec), 4)
    assert (joint.least(1), joint.least(2)) != (0, 0) and joint.least(2) == 0
    assert joint.tree(4) == RelativeSplit(ROWS_PER_SM, 1, 10, Leaf(FEW), Leaf(MANY))


def test_each_gpu_has_the_same_weight(spec: OperatorSpec) -> None:
    always = part(132, 60, lambda *_: MANY)
    never = part(36, 32, lambda *_: FEW)
    fewer = never.matrix.problems[:4]
    small = replace(never.matrix, problems=fewer, regret=never.matrix.regret[:4], usable=never.matrix.usable[:4])
    joint = Joint([always, Part(never.target, small)], legal(spec), 1)
    # One leaf: each config is 30 % slower on one of the two. What lies beyond the measured sizes adds next to nothing.
    assert abs((joint.least(1) or 0) - 262_364 // 2) <= 1


@pytest.mark.slow
@settings(deadline=None)
@given(st.fractions(Fraction(1, 1 << 30), 1 << 30), st.fractions(Fraction(1, 1 << 30), 1 << 30))
def test_a_threshold_lies_between_its_sizes(one: Fraction, other: Fraction) -> None:
    low, high = sorted((one.limit_denominator(10**6), other.limit_denominator(10**6)))
    if low <= 0 or low == high:
        return
    assert low < between(low, high) <= high


def test_thresholds_read_well() -> None:
    found = [between(Fraction(low, 132), Fraction(high, 132)) for low, high in ((1, 2), (64, 128), (512, 1024))]
    assert found == [Fraction(1, 100), Fraction(2, 3), 5]
    assert between(Fraction(5), Fraction(7)) == 6
    assert between(Fraction(9, 16), Fraction(11, 16)) == Fraction(3, 5)


TABLE = relative_trees((locate.SHIPPED / locate.ANY_GPU).read_text())
sizes = st.integers(1, MAX_ROWS) | st.integers(1, 31).map(lambda bit: min(MAX_ROWS, 1 << bit)) | st.integers(1, 9000)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(sizes, st.integers(1, 65536) | st.integers(0, 16).map(lambda bit: 1 << bit))
def test_the_shipped_table_is_legal_on_every_gpu_of_nvidia(rows: int, hidden: int) -> None:
    for key, tree in TABLE.items():
        spec = operator(key.operator)
        for target in TARGETS.values():
            config = choose_on(tree, (rows, hidden), target.sms, target.l2_bytes)
            problem = Problem(key, rows, hidden)
            if target.name.startswith("sm_"):
                assert spec.is_legal(config, problem, target), (key, target.name, config)
            # Elsewhere dispatch launches the default config, as on any GPU with smaller limits.
            assert spec.is_legal(config, problem, target) or spec.is_legal(
                spec.default_config(problem, target), problem, target
            )


def test_the_shipped_table_is_proved_legal_for_all_integers() -> None:
    for key, tree in TABLE.items():
        spec = operator(key.operator)
        variants = served_variants(spec, key)
        for target in (*targets_of(["sm_90"]), *(one for one in TARGETS.values() if one.name.startswith("sm_"))):
            assert not list(EveryGpu(spec, [target], [key.dtype], variants).breaches(tree)), (key, target.name)


def test_an_illegal_leaf_is_found(spec: OperatorSpec) -> None:
    narrow = Leaf(RMSNormConfig("row", 1, 1))  # at most 64 elements a thread
    breaches = legal(spec).breaches
    assert [box[1].most for _, _, box in breaches(narrow)][:1] == [spec.max_hidden]
    wide = Leaf(RMSNormConfig("row", 1, 16))
    assert not list(breaches(RelativeSplit("hidden", 1, 1024, narrow, wide)))
    # Few bytes are few columns only where there are rows: one row of many columns has few bytes, too.
    assert list(breaches(RelativeSplit(BYTES_PER_L2, 2, 1, narrow, wide)))


def test_one_device_says_that_nothing_was_left_out(evidence: Evidence) -> None:
    fit = fit_all(evidence, FitOptions(leaves=3, weights="equal"))
    (function,) = fit.functions
    assert function.leaves <= 3
    assert [(one.device, one.left_out) for one in function.figures] == [("Test GPU", None)]
    assert "is unknown" in fit.notes[-1]
    text = emit.module_text(fit, as_command("normtune fit --all-devices"))
    assert "(left out unknown)" in text and "# Device:   any GPU" in text


def test_two_devices_are_each_left_out(evidence: Evidence, measure, penalty, run) -> None:
    device = run.device._replace(name="Half GPU", sms=66, uuid="GPU-2")
    other = run._replace(id="run2", device=device)
    shapes = sorted(set(zip(evidence.frame["rows"], evidence.frame["hidden"], strict=True)))
    halved = measure(lambda c, p: penalty(c, p._replace(rows=2 * p.rows)), shapes, run="run2")
    both = Evidence.from_measurements([*evidence.measurements(), *halved], [run, other])
    fit = fit_all(both, FitOptions(weights="equal"))
    assert [device.label for device in fit.devices] == ["Half GPU", "Test GPU"]
    for one in fit.functions[0].figures:
        assert one.left_out is not None and one.left_out.mean >= 0
    assert not any("unknown" in note for note in fit.notes)
    assert fit.digest == both.digest()


def test_a_device_with_times_of_earlier_kernels_counts_and_is_named(evidence: Evidence, measure, penalty, run) -> None:
    device = run.device._replace(name="Early GPU", uuid="GPU-2")
    early, earliest = (
        run._replace(id="run2", device=device),
        run._replace(id="run0", started="2020-01-01T00:00:00+00:00"),
    )
    shapes = sorted(set(zip(evidence.frame["rows"], evidence.frame["hidden"], strict=True)))
    there = [one._replace(fingerprint="sha256:early") for one in measure(penalty, shapes, run="run2")]
    before = [one._replace(fingerprint="sha256:earliest") for one in measure(penalty, shapes[:1], run="run0")]
    here = evidence.measurements()
    runs = [earliest, early._replace(started="2020-01-02T00:00:00+00:00"), run]
    fit = fit_all(Evidence.from_measurements([*before, *there, *here], runs), FitOptions(weights="equal"))
    assert [device.label for device in fit.devices] == ["Early GPU", "Test GPU"]
    assert fit.measurements == len(here) + len(there)
    assert fit.notes == (
        f"left out {len(before)} measurements of older kernels: a sweep with --stale repeats them",
        "Early GPU has times of earlier kernels of toy: a sweep with --stale repeats them",
    )


def test_a_function_that_loses_more_than_the_default_config_on_other_gpus_is_left_out(measure, run) -> None:
    """Each GPU has a config of its own that is best, and is slow on the other; the default is between both."""
    other = run._replace(id="run2", device=run.device._replace(name="Other GPU", uuid="GPU-2"))
    shapes = [(rows, hidden) for rows in (1, 64, 4096, 65536) for hidden in (64, 512)]
    here, there = RMSNormConfig("block_row", 4, 16), RMSNormConfig("block_row", 16, 16)
    configs = (here, there, RMSNormConfig("row", 1, 16))

    def both(slow: float) -> Evidence:
        costs = {"run1": {here: 0.0, there: slow}, "run2": {there: 0.0, here: slow}}
        parts = [
            measure(lambda config, _, run=name: costs[run].get(config, 0.1), shapes, run=name, configs=configs)
            for name in costs
        ]
        return Evidence.from_measurements([*parts[0], *parts[1]], [run, other])

    assert not [note for note in fit_all(both(0.05)).notes if "default config" in note]
    with pytest.raises(NormtuneError, match=r"on GPUs left out of the fit it is .* % slower than the default config"):
        fit_all(both(0.3))


def test_a_config_that_one_gpu_alone_has_timed_is_not_chosen(measure, run) -> None:
    """What it loses on a GPU that is left out is unknown, however fast it is on its own."""
    other = run._replace(id="run2", device=run.device._replace(name="Other GPU", uuid="GPU-2"))
    shapes = [(rows, hidden) for rows in (1, 64, 4096, 65536) for hidden in (64, 512)]
    fast, common = RMSNormConfig("block_row", 4, 16), RMSNormConfig("row", 1, 16)
    here = measure(lambda config, _: 0.0 if config == fast else 0.3, shapes, run="run1", configs=(fast, common))
    there = measure(lambda *_: 0.0, shapes, run="run2", configs=(common,))
    (function,) = fit_all(Evidence.from_measurements([*here, *there], [run, other])).functions
    assert function.tree == Leaf(common)


def test_what_is_for_one_gpu_is_refused(evidence: Evidence) -> None:
    with pytest.raises(UsageError, match=r"--max-slowdown 1\.1 is for the table of one GPU"):
        fit_all(evidence, FitOptions(max_slowdown=1.1))
    with pytest.raises(NormtuneError, match="no measurements to fit"):
        fit_all(evidence.select(["other"]))
    with pytest.raises(UsageError, match="no measurements of operator 'other': measured are toy"):
        fit_all(evidence, FitOptions(operators=("other",)))


@pytest.fixture
def narrow(spec: OperatorSpec, measure, penalty, monkeypatch: pytest.MonkeyPatch) -> list[Measurement]:
    """Measurements of an operator `narrow`, of a config that is illegal on long rows."""
    monkeypatch.setitem(door._OPERATORS, "narrow", replace(spec, name="narrow"))
    measured = measure(penalty, [(rows, 64) for rows in (1, 64, 4096)], configs=[RMSNormConfig("row", 1, 1)])
    return [one._replace(problem=changed(one.problem, operator="narrow")) for one in measured]


LEFT_OUT = "left out narrow bfloat16: no table of at most 24 leaves covers narrow bfloat16"


def test_an_operator_without_a_function_costs_no_other_its_own(evidence: Evidence, narrow, run) -> None:
    both = Evidence.from_measurements([*evidence.measurements(), *narrow], [run])
    fit = fit_all(both)
    assert [function.key.text for function in fit.functions] == ["toy"]
    assert [note for note in fit.notes if "narrow" in note and note.startswith(LEFT_OUT)]
    assert fit.functions == fit_all(evidence).functions
    with pytest.raises(NormtuneError, match=f"there is no table: {LEFT_OUT}"):
        fit_all(both, FitOptions(operators=("narrow",)))


def test_an_operator_measured_at_one_problem_is_named(evidence: Evidence, narrow, run) -> None:
    one_problem = [one for one in narrow if one.problem.rows == 64]
    reason = "left out narrow bfloat16: a function needs comparable times of two problems on one device"
    assert reason in fit_all(Evidence.from_measurements([*evidence.measurements(), *one_problem], [run])).notes
    with pytest.raises(NormtuneError, match=f"there is no table: {reason}"):
        fit_all(Evidence.from_measurements(one_problem, [run]))


def test_the_command_names_what_it_leaves_out_on_stderr(store: str, narrow, tmp_path: Path) -> None:
    with Store.open(store) as opened:
        opened.add(narrow)
    result = invoke("fit", "--store", store, "--all-devices", "--out", "any.py")
    assert result.exit_code == 0, result.output or result.exception
    (line,) = (line for line in result.stderr.splitlines() if "narrow" in line)
    assert line.startswith(f"normtune: {LEFT_OUT}") and "narrow" not in result.stdout
    assert [key.text for key in relative_trees((tmp_path / "any.py").read_text())] == ["toy"] * 3


def test_a_table_and_its_data_pass_check_and_an_edit_does_not(evidence: Evidence, tmp_path: Path) -> None:
    command = "normtune fit --store x.db --leaves 4 --weights equal --all-devices --out t.py --evidence t.parquet"
    write_parquet(evidence, tmp_path / "t.parquet")
    path = tmp_path / "t.py"
    path.write_text(emit.module_text(fit_all(evidence, FitOptions(leaves=4, weights="equal")), as_command(command)))
    assert check(path).failures == ()
    path.write_text(path.read_text().replace("sms, 60 MB", "sms, 61 MB").replace(" MB of L2", " MB  of L2"))
    assert any("differs from a fit of t.parquet" in line for line in check(path).failures)
