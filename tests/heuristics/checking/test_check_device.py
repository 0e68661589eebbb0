"""`normtune check --device` from end to end, on the recorded H200: fresh tables pass, planted ones are found."""

import json
import random
import re
import shutil
from pathlib import Path
from unittest.mock import Mock
from xml.etree import ElementTree

import pytest
from typer.testing import Result

from normtune.benchmarks import planted, staleness
from normtune.benchmarks.replays import Replay, own_table
from normtune.errors import Terminated
from normtune.heuristics.rules import liger
from normtune.kernels.config import COPY
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.header import Gpu, parse
from normtune.kernels.tablefile.tree import choose, configs_of
from normtune.results.database.store import Store
from normtune.results.exchange.recording import load_recording
from normtune.results.records import Outcome
from normtune.tests.commands import main
from normtune.tests.heuristics.made_up import rehashed
from normtune.tests.tuner.benches import MadeUp
from normtune.tuner.checking import api as check_api
from normtune.tuner.checking import subject
from normtune.tuner.checking.recheck import ProbeSearch, measure
from normtune.tuner.checking.session import CheckSession, ProbeRequest
from normtune.tuner.checking.verdict import AMBIGUOUS, OK, promises_little
from normtune.tuner.plan.plan import Plan
from normtune.tuner.sweep.work import Work

H200 = locate.SHIPPED / "nvidia_h200.py"
REPLAY = "replay:nvidia-h200"


def check(*arguments: str) -> Result:
    return main("check", *arguments)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped table, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(H200, tmp_path / "heuristics.py"))


def rewritten(table: Path, *, thresholds: float = 1, **header: object) -> Path:
    """The table with its thresholds scaled and its header changed, as if it had been fitted so."""

    def scaled(found: re.Match[str]) -> str:
        return f"{found[1]}{max(1, round(int(found[2]) * thresholds))}:"

    changed = re.sub(r"(    if (?:rows >=|hidden <=) )(\d+):", scaled, table.read_text())
    table.write_text(rehashed(changed, **header))
    return table


def shared(table: Path) -> Path:
    """The table, in which float16 forward has the function of bfloat16."""
    entry = '("rms_norm_forward", "float16"): '
    text, changed = re.subn(re.escape(entry) + r"\w+,", f"{entry}rms_norm_forward_bfloat16,", table.read_text())
    assert changed == 1
    table.write_text(rehashed(text))
    return table


def verdict(result: Result) -> str:
    return re.search(r" on NVIDIA H200 \(replay\): (\w+)", result.stdout)[1]  # type: ignore[index]


@pytest.mark.slow
def test_the_shipped_table_still_fits_and_nothing_is_kept(table: Path) -> None:
    # It ends when no function needs more; within the usual budget a slow machine does not reach all.
    result = check("--device", REPLAY, str(shared(table)), "--budget", "24h")
    assert (result.exit_code, verdict(result)) == (0, "OK")
    lines = result.stdout.splitlines()
    unsure = 0
    for one in subject.read(table).functions:
        for line in [line for line in lines if line.startswith(f"  {one.key}: ")]:
            # What batch invariance costs differs much between shapes: forty may not tell the mean from the limit, and
            # do not reach each of its leaves.
            assert one.key.is_batch_invariant
            assert re.fullmatch(
                rf"{AMBIGUOUS}: (the mean loss may be on either side of the limit|no shape of \d+ leaves was measured)",
                line.partition(": ")[2],
            )
            unsure += 1
    count = len(subject.read(table).functions)
    few = rf", {unsure} AMBIGUOUS" if unsure else ""
    assert re.fullmatch(rf"  {count - unsure} of {count} functions OK{few}; \d+ shapes, \d+ timings, \d+ s", lines[2])
    assert [path.name for path in table.parent.iterdir()] == ["heuristics.py"]


@pytest.mark.slow
@pytest.mark.long
def test_moved_thresholds_are_found_in_the_file(table: Path) -> None:
    result = check("--device", REPLAY, rewritten(table, thresholds=0.25).name, "--budget", "120s")
    assert (result.exit_code, verdict(result)) == (1, "STALE")
    assert re.search(r"STALE, because of (\S+ \w+)(, \S+ \w+)*$", result.stdout, re.MULTILINE)
    assert re.search(r"^  \S+ \S+: STALE: .* loses more (than|on average than) the worst", result.stdout, re.MULTILINE)
    assert re.search(r"^    \d+ x \d+: [\d.]+ % slower than ", result.stdout, re.MULTILINE)
    assert re.search(r"\d+ of \d+ functions OK, \d+ STALE", result.stdout.splitlines()[2])
    assert result.stdout.endswith(
        "  Next: sweep its operators, then fit with its options; all figures: --format json\n"
    )


@pytest.mark.slow
@pytest.mark.long
def test_a_promise_off_the_grid_is_told_as_such(table: Path) -> None:
    header, _ = parse(table.read_text(), "table")
    functions = [one | {"figures": one["figures"] | {"plain_validated": 12225}} for one in header.functions]
    result = check("--device", REPLAY, str(rewritten(table, functions=tuple(functions))), "--budget", "0.1s")
    assert "promised" not in result.stdout
    result = check("--device", REPLAY, str(table), "--budget", "15s", "--format", "json")
    (told,) = json.loads(result.stdout)["tables"]
    assert {round(one["promised"], 4) for one in told["functions"] if one["promised"] is not None} == {0.0123}


@pytest.mark.slow
@pytest.mark.long
def test_variants_that_were_not_measured_do_not_matter_and_stale_ones_do(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only(plain: bool, *, fail: bool = False) -> Result:
        def measure(session: CheckSession, *_: object) -> Work:
            for probe in session.probes:
                if session.functions[probe.function].is_plain or not plain:
                    rounds = tuple(range(16))
                    fails = fail and not session.functions[probe.function].is_plain
                    own = Outcome("wrong_result", "y is off") if fails else Outcome("ok", "", rounds, (1000,) * 16)
                    session.learn(probe, probe.config, {probe.config: own})
            return Work.of(Plan((), {}), ProbeSearch((), session, {}), {})

        monkeypatch.setattr(check_api, "measure", measure)
        return check("--device", REPLAY, "heuristics.py")

    plain = only(True)
    assert (plain.exit_code, verdict(plain)) == (0, "OK")
    assert plain.stdout.splitlines()[2].startswith("  4 of 12 functions OK, 8 NOT MEASURED; ")
    failing = only(False, fail=True)
    assert (failing.exit_code, verdict(failing)) == (1, "STALE")
    assert failing.stdout.splitlines()[2].startswith("  4 of 12 functions OK, 8 STALE; ")
    assert "STALE, because of rms_norm_backward:no_dweight bfloat16" in failing.stdout


@pytest.mark.slow
def test_no_time_is_ambiguous_and_says_so(table: Path) -> None:
    result = check("--device", REPLAY, "heuristics.py", "--budget", "0.1s")
    assert (result.exit_code, verdict(result)) == (3, "AMBIGUOUS")
    assert result.stdout.splitlines()[2].startswith("  0 of 12 functions OK, 12 NOT MEASURED; 0 shapes, 0 timings, ")
    assert re.search(r"the budget ended with \d+ shapes left: --budget gives more time", result.stdout)


@pytest.mark.slow
@pytest.mark.long
def test_a_table_of_another_gpu_is_measured_all_the_same(table: Path) -> None:
    rewritten(table, device=Gpu("NVIDIA A100", "sm_80", 108), kernels={"rms_norm_forward": "sha256:old"})
    result = check("--device", REPLAY, "heuristics.py")
    assert (result.exit_code, verdict(result)) == (0, "OK")
    assert (
        "the table was made for NVIDIA A100 with 108 SMs, but was measured on NVIDIA H200 (replay) with 132"
        in result.stdout
    )
    assert (
        "the kernels of rms_norm_forward changed since they were measured: sweep with --stale, then fit; "
        "the present kernels were measured"
    ) in " ".join(result.stdout.split())
    assert (
        "compiled code changed is not known: its measurements are of other kernels than those in its facts"
        in " ".join(result.stdout.split())
    )


@pytest.mark.slow
@pytest.mark.long
def test_strict_fails_where_kernels_changed(table: Path) -> None:
    rewritten(table, kernels={"rms_norm_forward": "sha256:old"})
    assert check("--device", REPLAY, "heuristics.py", "--strict", "--budget", "0.1s").exit_code == 1


@pytest.mark.slow
@pytest.mark.long
def test_sources_that_compile_to_the_measured_code_are_no_change(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_api, "changed", lambda kernels: ["rms_norm_forward"])
    found = check_api.check_on_device(table, REPLAY, budget_seconds=0.1)
    assert not found.kernels_changed and "its kernels are those that were measured" in found.notes


@pytest.mark.slow
@pytest.mark.long
def test_a_store_keeps_what_was_measured(table: Path) -> None:
    with Store.open("sqlite:///kept.db") as store:
        done = check_api.check_on_device(table, REPLAY, budget_seconds=15, store=store)
        frame = store.load().frame
    assert len(frame[["operator", "variant", "dtype", "rows", "hidden"]].drop_duplicates()) == done.shapes
    assert sum(map(len, frame["samples"])) == done.timings


def test_functions_that_ask_for_one_shape_share_a_race() -> None:
    problem = Problem.of("rms_norm_forward", 4096, 1024, "bfloat16")
    few, more, most = (RMSNormConfig("row", 1, warps) for warps in (2, 4, 8))
    session, bench = (
        Mock(
            probes=(
                ProbeRequest(0, problem, few, (most,), 0, False),
                ProbeRequest(1, problem, more, (most,), 0, False),
            )
        ),
        MadeUp(),
    )
    measure(session, bench, None)
    (task,) = bench.measured
    assert {candidate.config for candidate in task.candidates} == {few, more, most}
    told = [call.args[:2] for call in session.learn.call_args_list]
    assert told == [(session.probes[0], few), (session.probes[1], more)]
    assert {*session.learn.call_args.args[2]} == {COPY, few, more, most}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--device", "gpu7"], r"unknown device 'gpu7': expected cuda:N or replay:NAME"),
        (["--device", "replay:nothing"], r"unknown recording 'nothing': expected one of nvidia-h100"),
        (["--device", REPLAY, "--budget", "soon"], r"--budget is 'soon': expected a positive time such as 90s"),
        (["--budget", "60s"], r"--budget is given without --device"),
    ],
)
def test_a_wrong_call_is_told_in_one_line(table: Path, arguments: list[str], says: str) -> None:
    result = check("heuristics.py", *arguments)
    assert result.exit_code == 2
    assert re.fullmatch(rf"normtune: error: .*{says}.*\n", result.stderr)
    assert [path.name for path in table.parent.iterdir()] == ["heuristics.py"]


@pytest.mark.slow
def test_a_file_that_is_no_table_does_not_keep_the_others_from_being_checked(table: Path) -> None:
    Path("other.py").write_text("print('hello')\n")
    result = check("--device", REPLAY, "other.py", "missing.py", "heuristics.py", "--budget", "0.1s")
    assert (result.exit_code, verdict(result)) == (2, "AMBIGUOUS")
    assert [line.split(":")[2].split()[0] for line in result.stderr.splitlines()] == ["table", "other.py"]


@pytest.mark.slow
@pytest.mark.parametrize(("end", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_an_end_before_the_verdict_says_that_there_is_none(
    table: Path, monkeypatch: pytest.MonkeyPatch, end: type[BaseException], code: int
) -> None:
    def ended(*_: object) -> None:
        raise end

    monkeypatch.setattr(check_api, "measure", ended)
    result = check("--device", REPLAY, "heuristics.py")
    assert result.exit_code == code
    assert result.stderr == "\nnormtune: ended: no verdict on heuristics.py\n"
    assert not re.search("^heuristics.py on", result.stdout, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.usefixtures("operators_forgotten")
def test_a_recording_without_the_functions_of_a_table_is_named(tmp_path: Path) -> None:
    examples = Path(__file__).parents[3] / "examples"
    result = main("check", "--device", REPLAY, "--load", examples / "softmax.py", examples / "softmax_h200.py")
    assert result.exit_code == 3
    assert "  1 of 1 functions could not be measured: NVIDIA H200 (replay) has times of none of their shapes\n" in (
        result.stdout
    )


@pytest.mark.slow
@pytest.mark.parametrize(("format_", "level"), [("github", "error"), ("junit", "failure"), ("json", "")])
def test_a_stale_table_fails_a_pull_request(
    table: Path, monkeypatch: pytest.MonkeyPatch, format_: str, level: str
) -> None:
    def measure(session: CheckSession, *_: object) -> Work:
        for probe in session.probes:
            session.learn(probe, probe.config, {probe.config: Outcome("wrong_result", "y is off")})
        return Work.of(Plan((), {}), ProbeSearch((), session, {}), {})

    monkeypatch.setattr(check_api, "measure", measure)
    result = check("--device", REPLAY, "heuristics.py", "--format", format_)
    assert result.exit_code == 1
    if format_ == "github":
        assert f"\n::{level} file=heuristics.py,title=normtune check::heuristics.py on NVIDIA H200" in result.stdout
        (line,) = [line for line in result.stdout.splitlines() if line.startswith("::")]
        assert "%0A0 of 12 functions OK, 12 STALE" in line
    elif format_ == "junit":
        (case,) = ElementTree.fromstring(result.stdout).iter("testcase")
        (failure,) = case
        assert (case.get("name"), failure.tag) == ("heuristics.py", level)
        assert "fails: wrong_result: y is off" in (failure.text or "")
    else:
        (found,) = json.loads(result.stdout)["tables"]
        assert (found["table"], found["verdict"], len(found["functions"])) == ("heuristics.py", "STALE", 12)
        assert {one["verdict"] for one in found["functions"]} == {"STALE"}
        assert found["functions"][0]["shapes"][0]["failure"] == "wrong_result: y is off"


@pytest.fixture(scope="module")
def replay() -> Replay:
    return Replay("nvidia-h200", load_recording("nvidia-h200"))


def checks_of(replay: Replay, kind: str, count: int) -> list[dict[str, object]]:
    case = staleness.Case("shipped", subject.read(H200), replay, None)
    return [staleness.replayed(case, kind, seed, 44) for seed in range(2000, 2000 + count)]


@pytest.mark.slow
@pytest.mark.long
def test_fresh_tables_are_ok(replay: Replay) -> None:
    found = staleness.rates(checks_of(replay, "fresh", 3))
    assert found == staleness.Rates(3, 0, 0, 0, 0, 0)
    assert found.are_kept()


@pytest.mark.long
@pytest.mark.parametrize("kind", [kind for kind in staleness.DEFAULT_KINDS if kind != "fresh"])
@pytest.mark.slow
def test_planted_functions_are_not_called_ok(kind: str, replay: Replay) -> None:
    """Those that lose over twice the promise and over 3 %, of ten of each kind."""
    found = staleness.rates(checks_of(replay, kind, 10))
    assert found.stale_ok <= 1
    if kind in ("config_100", "liger"):
        assert found.stale - found.stale_ambiguous > 0


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "verdict"), [(1, OK), (2, AMBIGUOUS), (56, AMBIGUOUS)])
def test_a_fresh_table_of_own_shapes_is_not_stale(seed: int, verdict: str, replay: Replay) -> None:
    """With the worst of the grid as a bound, the last two are."""
    table, own = own_table(load_recording("nvidia-h200"), "rms_norm_backward", seed)
    (one,) = table.functions
    case = staleness.Case("own", table, replay, lambda one, shape: shape not in own)
    assert 3 <= len(own) <= 30 and case.shapes(one) and not own & set(case.shapes(one) or ())
    assert promises_little(one.promise)
    assert staleness.replayed(case, "fresh", seed, 44)["verdict"] == verdict


def test_a_kind_of_which_one_in_twenty_was_called_ok_is_named() -> None:
    missed, found = ({"kind": "swapped", "stale": True, "verdict": verdict} for verdict in (OK, AMBIGUOUS))
    assert staleness.missed([missed] * 2 + [found] * 38) == []
    assert staleness.missed([missed] * 3 + [found] * 37) == ["swapped"]
    assert staleness.missed([missed]) == [] and staleness.missed([missed] * 2) == ["swapped"]


@pytest.mark.slow
def test_what_is_planted_is_what_it_says() -> None:
    table = subject.read(H200)
    one = next(one for one in table.functions if one.key.text == "rms_norm_backward")
    for rows, hidden in ((1, 64), (32768, 256), (32767, 256), (65536, 257), (4096, 16384), (262144, 64)):
        assert choose(planted.of_liger(one), (rows, hidden)) == liger.choose("rms_norm_backward", rows, hidden)
        up = planted.KINDS["up"](one, [(1, 64)], table, random.Random(0)).tree
        assert choose(up, (2 * rows, 2 * hidden)) == choose(one.tree, (rows, hidden))


def test_swapped_configs_answer_in_each_others_place() -> None:
    table = subject.read(H200)
    one = table.functions[0]
    shapes = [(rows, hidden) for rows in (1, 64, 4096, 65536) for hidden in (64, 512, 4096, 16384)]
    tree = planted.KINDS["swapped"](one, shapes, table, random.Random(0)).tree
    pairs = {(before, after) for before, after in zip(configs_of(one.tree), configs_of(tree), strict=True)}
    changed = {pair for pair in pairs if pair[0] != pair[1]}
    assert len(changed) == 2
    assert {after for _, after in changed} == {before for before, _ in changed}


def test_a_slow_config_is_slow_as_a_rival_and_drops_out_of_the_race() -> None:
    fast, slow = RMSNormConfig("row", 1, 2), RMSNormConfig("row", 1, 4)
    rounds = tuple(range(16))
    answers = {fast: Outcome("ok", "", rounds, [100] * 16), slow: Outcome("ok", "", rounds, [101] * 16)}
    found = planted.raced({slow: 2.0}, answers)
    assert found[fast] == answers[fast]
    assert (found[slow].nanoseconds, found[slow].rounds) == ([202] * 6, rounds[:6])
    assert planted.raced({slow: 1.05}, answers)[slow].nanoseconds == [106] * 16


def test_a_slow_leaf_is_slow_where_it_answers() -> None:
    table = subject.read(H200)
    one = table.functions[0]
    plant = planted.KINDS["leaf_50"](one, [(1, 64)], table, random.Random(0))
    assert plant.slow == choose(one.tree, (1, 64))
    assert plant.scale(Problem(one.key, 1, 64), plant.slow) == 1.5
    assert plant.scale(Problem(one.key, 65536, 16384), plant.slow) == 1.0
