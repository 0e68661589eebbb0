"""A stored timing belongs to the compiled code of its config, for any path and name of its sources."""

import inspect
import shutil

import pytest

from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.writing.emit import module_text
from normtune.kernels import alignment, fingerprint, operator
from normtune.kernels.config import COPY
from normtune.kernels.rms_norm import kernels as forward
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.kernels.tiles import launch
from normtune.results.api import export_data
from normtune.results.database.store import Store
from normtune.results.evidence import Evidence
from normtune.results.exchange.parquet_csv import read_parquet, write_parquet
from normtune.results.exchange.recorded_code import cell_of, code_of, pairs_of
from normtune.results.records import Coverage, TimedCode, launch_digest
from normtune.tests.heuristics.made_up import as_command
from normtune.tests.results.stores import alter
from normtune.tests.tuner.benches import DEVICE, search_of, sweep
from normtune.tuner.checking.offline import check
from normtune.tuner.device.bench import Bench
from normtune.tuner.plan.plan import Plan, Task, candidates
from normtune.tuner.plan.resume import previous_of, stale_plan
from normtune.tuner.search.adaptive import Adaptive
from normtune.tuner.staleness import stored
from normtune.tuner.staleness.recorded import difference, record
from normtune.tuner.staleness.stored import OTHER_CODE, Comparison, compare

TARGET = TARGETS["sm_90"]
KERNELS = inspect.getsource(forward)  # what `toy` begins with
# Other sources of the same code.
REFACTORED = KERNELS.replace("FORWARD_RUNTIME", "FORWARD_SIZES")
ROW, PERSISTENT, SPLIT = CONFIGS = (
    RMSNormConfig("row", num_warps=4),
    RMSNormConfig("persistent", num_warps=4, programs_per_sm=2),
    RMSNormConfig("split", num_warps=8, programs_per_sm=2, block_col=1024),
)
SHAPES = ((64, 2048), (4096, 2048))


@pytest.fixture
def bench(tmp_path):
    opened = []

    def make():
        opened.append(Bench(("normtune.tests.tuner.compiling_engine", "CompilingEngine", ((), str(tmp_path)))))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """Where the first test keeps a complete store for the others."""
    return tmp_path_factory.mktemp("complete") / "store.db"


@pytest.fixture
def measured(toy, bench, tmp_path, complete):
    """A store that is complete."""
    if not complete.exists():
        with Store.open(f"sqlite:///{complete}") as store:
            assert sweep(bench(), store, whole(), Adaptive).problems == len(SHAPES)
    shutil.copy(complete, tmp_path / "store.db")
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        assert missing(whole(), store.coverage(DEVICE)) == []
        yield store


def whole() -> Plan:
    spec = operator.operator("toy")
    problems = [spec.problem(rows, hidden, "bfloat16") for rows, hidden in SHAPES]
    return Plan(tuple(Task(one, tuple(candidates(spec, CONFIGS, one, TARGET)[0])) for one in problems), {})


def missing(plan: Plan, stored) -> list[Task]:
    """What an adaptive search would still measure."""
    return list(Adaptive(plan.tasks, previous_of(stored, {"toy"})).pending())


def renew(store: Store) -> Comparison:
    """Compare all that a store holds, and correct the stored fingerprints, as a sweep does."""
    found = compare(store.coverage(DEVICE), TARGET)
    store.set_fingerprints(DEVICE, found.fingerprints)
    return found


def asked(tasks) -> set[str]:
    return {candidate.config.schedule for task in tasks for candidate in task.candidates}


@pytest.mark.slow
def test_kernels_that_move_to_another_module_are_the_same(toy, measured):
    toy.kernels("toy_kernels_moved", KERNELS)
    assert missing(whole(), measured.coverage(DEVICE)) == []
    assert renew(measured) == Comparison((), (), {}, {}, ())
    assert stale_plan(measured.coverage(DEVICE), TARGET).tasks == ()


@pytest.mark.slow
def test_after_a_refactoring_nothing_is_measured_again(toy, measured, bench):
    renamed = KERNELS.replace("b_residual", "b_added").replace("def _rms_norm", "def _plain_norm")
    toy.kernels("toy_kernels", renamed.replace("(_rms_norm", "(_plain_norm"))
    before = measured.coverage(DEVICE)
    assert asked(missing(whole(), before)) == {"row", "persistent", "split"}
    found = compare(before, TARGET)
    assert (len(found.same), found.changed, +found.undecided) == (len(SHAPES) * len(CONFIGS), (), {})
    assert not search_of(whole(), Adaptive, found.applied(before)).pending() and measured.coverage(DEVICE) == before
    assert renew(measured).lines == (
        "the kernels' sources changed, the compiled code of 6 stored measurements did not: kept",
    )
    assert sweep(bench(), measured, whole(), Adaptive).problems == 0
    assert stale_plan(measured.coverage(DEVICE), TARGET).tasks == ()
    evidence = measured.load()
    assert len(evidence.current().frame) == len(evidence.frame) and COPY.to_json() in set(evidence.frame["config"])
    # Now the sources are known, and nothing is compiled to see it.
    assert renew(measured).lines == ()
    toy.kernels("toy_kernels", KERNELS)
    assert len(renew(measured).same) == 6
    assert missing(whole(), measured.coverage(DEVICE)) == []


@pytest.mark.slow
@pytest.mark.long
def test_the_code_of_imported_measurements_is_known(toy, measured, tmp_path):
    file = tmp_path / "export.parquet"
    export_data(file, measured)
    with Store.open(f"sqlite:///{tmp_path}/other.db") as other:
        assert other.merge(read_parquet(file)) == len(measured.load().frame)
        toy.kernels("moved", REFACTORED)
        assert len(renew(other).same) == 6
        assert missing(whole(), other.coverage(DEVICE)) == []


@pytest.mark.slow
def test_a_table_of_exported_evidence_is_judged_by_the_code_of_its_configs(toy, measured, tmp_path):
    source = measured.load()
    assert code_of(source) == record(source, {cell_of(*pair) for pair in pairs_of(source)})
    write_parquet(source, tmp_path / "data.parquet")
    table = tmp_path / "table.py"
    table.write_text(module_text(fit(source), as_command("normtune fit --evidence data.parquet --out table.py")))
    assert check(table).stale == ()
    toy.kernels("moved", REFACTORED)
    found = check(table)
    assert (found.failures, found.stale) == ((), ())
    assert any("the compiled code of the table's" in note for note in found.notes)
    toy.kernels("moved", KERNELS.replace("b_y = rounded(", "b_y = 2.0 * rounded("))
    (line,) = check(table).stale
    assert line.startswith("the compiled code of ") and "configs of toy changed since they were measured" in line


@pytest.mark.slow
def test_measurements_of_which_some_have_no_code_are_judged_by_their_sources(toy, measured):
    items = measured.load().measurements()
    partly = Evidence.from_measurements(
        [item._replace(code=None) if item.problem.rows == 64 else item for item in items], measured.load().runs
    )
    toy.kernels("moved", REFACTORED)
    cells = {cell_of(*pair) for pair in pairs_of(partly)}
    assert code_of(partly).cells == {}
    some = code_of(measured.load())
    found = difference(some._replace(cells=dict([*some.cells.items()][:1])), partly, cells)
    assert found.suspects == ("toy",)
    assert found.undecided == "2 of the table's 3 configs by hidden size have no digest of their code"


@pytest.mark.long
@pytest.mark.slow
def test_what_a_change_of_arithmetic_touches_is_measured_again_and_nothing_else(toy, measured, bench):
    before, after = (
        "_store_rstd(args, b_rstd, at.o_row, at.m_row, is_first",
        "_store_rstd(args, 2.0 * b_rstd, at.o_row, at.m_row, is_first",
    )
    assert KERNELS.count(before) == 1  # in the kernel of split
    toy.kernels("toy_kernels", KERNELS.replace(before, after))
    found = renew(measured)
    assert {config for _, config in found.changed} == {SPLIT} and {config for _, config in found.same} == {
        ROW,
        PERSISTENT,
    }
    assert found.lines[1] == f"the compiled code of 2 stored measurements changed: {SPLIT}"
    assert asked(stale_plan(measured.coverage(DEVICE), TARGET).tasks) == {"split"}
    tasks = missing(whole(), measured.coverage(DEVICE))
    assert [len(task.candidates) for task in tasks] == [2, 2]  # one more as an anchor
    assert sweep(bench(), measured, whole(), Adaptive).problems == 2
    assert missing(whole(), measured.coverage(DEVICE)) == []
    current = measured.load().current().frame
    assert len(current) == len(measured.load().frame) - 2
    assert renew(measured).lines == ()


@pytest.mark.slow
def test_other_launches_of_the_same_sources_are_noticed(toy, measured, bench, monkeypatch):
    before = measured.coverage(DEVICE)
    with monkeypatch.context() as patch:  # other arguments, which the compiler turns into the same code
        patch.setattr(launch, "alignment_of", lambda *extents: alignment.alignment_of(8, *extents))
        assert (len(renew(measured).same), renew(measured).changed) == (6, ())
    with monkeypatch.context() as patch:
        patch.setattr(launch, "alignment_of", lambda *extents: alignment.alignment_of(1, *extents))
        found = renew(measured)
        assert (found.same, len(found.changed), found.fingerprints) == ((), 6, {})
        assert {found.applied(before)[pair].why_stale for pair in found.changed} == {OTHER_CODE}
        assert asked(missing(whole(), found.applied(before))) == {"row", "persistent", "split"}
        assert asked(stale_plan(found.applied(before), TARGET).tasks) == {"row", "persistent", "split"}
        assert sweep(bench(), measured, whole(), Adaptive, stored=found.applied(before)).problems == len(SHAPES)
        assert renew(measured).changed == () and missing(whole(), measured.coverage(DEVICE)) == []
    evidence = measured.load()
    newest = [row for row in evidence.measurements() if row.config == COPY or row.run == evidence.runs[-1].id]
    assert len(evidence.frame) > len(newest) == len(evidence.current().frame)
    assert len(renew(measured).changed) == 6
    assert compare(before, TARGET).lines == () and missing(whole(), before) == []


@pytest.mark.long
def test_without_triton_the_sources_decide_and_the_reason_is_told(toy, measured, monkeypatch):
    monkeypatch.setattr(stored, "triton_version", lambda: "")
    assert renew(measured).lines == ()
    toy.kernels("moved", REFACTORED)
    (line,) = renew(measured).lines
    assert line == (
        "the kernels' sources changed, 6 stored measurements count as stale by them: triton, which compiles the "
        "kernels, is not installed"
    )
    assert asked(missing(whole(), measured.coverage(DEVICE))) == {"row", "persistent", "split"}


@pytest.mark.long
def test_stores_without_codes_are_judged_by_their_sources(toy, measured, tmp_path):
    alter(tmp_path / "store.db", "UPDATE measurement SET launch = NULL, assembly = NULL")
    assert renew(measured).lines == ()
    toy.kernels("moved", REFACTORED)
    (line,) = renew(measured).lines
    assert line.endswith("they were stored without a digest of their code")


@pytest.mark.slow
def test_a_changed_fingerprint_leaves_measurements_whole(toy, measured):
    digest = measured.load().frame["samples"].map(bytes).tolist()
    toy.kernels("moved", REFACTORED)
    renew(measured)
    assert measured.load().frame["samples"].map(bytes).tolist() == digest and not measured.damage


def test_what_another_triton_compiled_is_compared_where_asked_for(monkeypatch):
    spec = operator.operator("rms_norm_forward")
    problem = spec.problem(64, 256, "bfloat16")
    same, other, undigested, present, old = (RMSNormConfig("row", num_warps=warps) for warps in (1, 2, 4, 8, 16))
    current = fingerprint.fingerprint(spec)
    launch_of = {one: spec.launch_of(one, problem, TARGET) for one in (same, other, undigested, present, old)}
    code_of = {one: TimedCode(launch_digest(launch), b"x" * 16) for one, launch in launch_of.items()}
    held = {
        (problem, same): Coverage("ok", current, 16, 10, code_of[same], "0.1"),
        (problem, other): Coverage("ok", current, 16, 10, code_of[other]._replace(assembly=b"y" * 16), "0.1"),
        (problem, undigested): Coverage("ok", current, 16, 10, code_of[undigested]._replace(assembly=b""), "0.1"),
        (problem, present): Coverage("ok", current, 16, 10, code_of[present], "9.9"),
        (problem, old): Coverage("ok", "sha256:old", 16, 10, code_of[old], "0.1"),
        (problem, COPY): Coverage("ok", current, 16, 10),
    }
    compiled = []

    def codes_of(pairs, *_):
        compiled.extend(pairs)
        return {(problem, launch): TimedCode(launch_digest(launch), b"x" * 16) for problem, launch in compiled}

    monkeypatch.setattr(stored, "triton_version", lambda: "9.9")
    monkeypatch.setattr(stored, "codes_of", codes_of)
    found = compare(held, TARGET, across_tritons=True)
    assert {launch for _, launch in compiled} == {launch_of[same], launch_of[other], launch_of[old]}
    assert found.same == ((problem, same), (problem, old))
    assert found.changed == ((problem, other), (problem, undigested))
    assert found.fingerprints == {(problem, old): ("sha256:old", current)}
    assert {pair[1]: one.why_stale for pair, one in found.applied(held).items() if one.why_stale} == {
        other: OTHER_CODE,
        undigested: OTHER_CODE,
    }
    assert found.lines[:2] == (
        "the kernels' sources changed, the compiled code of 1 stored measurement did not: kept",
        "Triton 9.9 compiles 1 of 3 stored measurements to the same code",
    )
    assert found.lines[-1] == "1 by another Triton without a digest of their code are measured again"
    # Without being asked, a sweep compares what has other sources alone.
    assert compare(held, TARGET).same == ((problem, old),) and compare(held, TARGET).changed == ()
    assert "they are of 1 binaries" in compare(held, TARGET, most_binaries=0).undecided
