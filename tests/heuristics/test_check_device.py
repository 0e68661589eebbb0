"""`normtune check --device` from end to end, on the recorded H200: fresh tables pass, planted ones are found."""

import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner, Result

from normtune import cli
from normtune.benchmarks import staleness
from normtune.errors import Terminated
from normtune.heuristics import check_command, locate, suspect
from normtune.heuristics.course import Question
from normtune.heuristics.header import body_hash, parse
from normtune.heuristics.rules import liger
from normtune.heuristics.tree import choose
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.kernels.target import TARGETS
from normtune.results.store import Store

H200 = locate.SHIPPED / "nvidia_h200.py"
REPLAY = "replay:nvidia-h200"


def check(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["check", *map(str, arguments)])


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped table, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NORMTUNE_STORE", raising=False)
    return Path(shutil.copy(H200, tmp_path / "heuristics.py"))


def rewritten(table: Path, *, thresholds: float = 1, **header: object) -> Path:
    """The table with its thresholds scaled and its header changed, as if it had been fitted so."""
    known, body = parse(table.read_text(), "table")

    def scaled(found: re.Match[str]) -> str:
        return f"{found[1]}{max(1, round(int(found[2]) * thresholds))}:"

    body = re.sub(r"(    if (?:rows >=|hidden <=) )(\d+):", scaled, body)
    table.write_text(f"{known._replace(body=body_hash(body), **header).text()}\n{body}")  # type: ignore[arg-type]
    return table


def shared(table: Path) -> Path:
    """The table, in which float16 forward has the function of bfloat16."""
    known, body = parse(table.read_text(), "table")
    entry = '("rms_norm_forward", "float16"): '
    body, changed = re.subn(re.escape(entry) + r"\w+,", f"{entry}rms_norm_forward_bfloat16,", body)
    assert changed == 1
    table.write_text(f"{known._replace(body=body_hash(body)).text()}\n{body}")
    return table


def verdict(result: Result) -> str:
    return re.search(r" on NVIDIA H200 \(replay\): (\w+), ", result.stdout)[1]  # type: ignore[index]


def test_the_shipped_table_still_fits_and_nothing_is_kept(table: Path) -> None:
    result = check("--device", REPLAY, str(shared(table)))
    assert (result.exit_code, verdict(result)) == (0, "OK")
    lines = result.stdout.splitlines()
    for one in suspect.read(table).functions:
        (told,) = [line for line in lines if line.startswith(f"  {one.key} {one.dtype}: ")]
        assert re.search(r": OK, 9\d\.\d % sure; \d+ shapes lose -?[\d.]+ %, promised -?[\d.]+ % \(OK under", told)
    assert "    answers for rms_norm_forward float16, too" in lines
    assert re.search(r"^    \d+ x \d+: loses [\d.]+ % \(-?[\d.]+ % to [\d.]+ %\) with \w+", result.stdout, re.MULTILINE)
    assert [path.name for path in table.parent.iterdir()] == ["heuristics.py"]


def test_moved_thresholds_are_found_in_the_file(table: Path) -> None:
    result = check("--device", REPLAY, str(rewritten(table, thresholds=0.25)), "--seed", "3")
    assert (result.exit_code, verdict(result)) == (1, "STALE")
    assert re.search(r"^  \S+ \S+: STALE, (99\.\d|100) % sure; \d+ shapes lose \d", result.stdout, re.MULTILINE)
    assert "; best " in result.stdout


def test_no_time_is_ambiguous_and_says_so(table: Path) -> None:
    result = check("--device", REPLAY, "heuristics.py", "--budget", "0.1s")
    assert (result.exit_code, verdict(result)) == (3, "AMBIGUOUS")
    assert "no shape was measured" in result.stdout
    assert re.search(r"the time was used up with \d+ shapes to go: --budget gives it more", result.stdout)


def test_a_table_of_another_gpu_is_measured_all_the_same(table: Path) -> None:
    rewritten(table, device="NVIDIA A100", target="sm_80", sms=108, kernels={"rms_norm_forward": "sha256:old"})
    result = check("--device", REPLAY, "heuristics.py")
    assert (result.exit_code, verdict(result)) == (0, "OK")
    assert (
        "the table was made for NVIDIA A100 with 108 SMs, measured was NVIDIA H200 (replay) with 132" in result.stdout
    )
    assert (
        "the kernels of rms_norm_forward changed since the table was fitted; measured are the present" in result.stdout
    )


def test_strict_fails_where_kernels_changed(table: Path) -> None:
    rewritten(table, kernels={"rms_norm_forward": "sha256:old"})
    assert check("--device", REPLAY, "heuristics.py", "--strict", "--budget", "0.1s").exit_code == 1


def test_a_store_keeps_what_was_measured(table: Path) -> None:
    result = check("--device", REPLAY, "heuristics.py", "--store", "kept.db")
    assert result.exit_code == 0
    shapes = int(re.search(r"  (\d+) shapes and ", result.stdout)[1])  # type: ignore[index]
    with Store.open("sqlite:///kept.db") as store:
        frame = store.load().frame
    assert len(frame[["operator", "variant", "dtype", "rows", "hidden"]].drop_duplicates()) == shapes
    assert sum(map(len, frame["samples"])) == int(re.search(r"and (\d+) timings", result.stdout)[1])  # type: ignore[index]


def test_functions_that_ask_for_one_shape_share_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem("rms_norm_forward", 4096, 1024, "bfloat16")
    few, more, most = (Config("row", 1, warps) for warps in (2, 4, 8))
    course, bench = Mock(questions=(Question(0, problem, few, (most,)), Question(1, problem, more, (most,)))), Mock()
    bench.target = TARGETS["sm_90"]
    begun = Mock()
    monkeypatch.setattr("normtune.tuner.recheck.recheck", begun)
    check_command.measure(course, bench, None)
    _, (task,), asker, *_ = begun.call_args.args
    assert {candidate.config for candidate in task.candidates} == {few, more, most}
    answers = Mock()
    asker.learn(task, answers)
    told = [call.args for call in course.learn.call_args_list]
    assert told == [(course.questions[0], few, answers), (course.questions[1], more, answers)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--device", "gpu7"], r"unknown device 'gpu7': expected cuda:N or replay:NAME"),
        (["--device", "replay:nothing"], r"unknown recording 'nothing': expected one of nvidia-h200"),
        (["--device", REPLAY, "--budget", "soon"], r"--budget is 'soon': expected a positive time such as 90s"),
        (["--budget", "60s"], r"--budget goes with --device"),
        (["--seed", "1"], r"--seed goes with --device"),
        (["--store", "kept.db"], r"--store goes with --device"),
    ],
)
def test_a_wrong_call_is_told_in_one_line(table: Path, arguments: list[str], says: str) -> None:
    result = check("heuristics.py", *arguments)
    assert result.exit_code == 2
    assert re.fullmatch(rf"normtune: error: .*{says}.*\n", result.stderr)
    assert [path.name for path in table.parent.iterdir()] == ["heuristics.py"]


def test_a_file_that_is_no_table_does_not_keep_the_others_from_being_checked(table: Path) -> None:
    Path("other.py").write_text("print('hello')\n")
    result = check("--device", REPLAY, "other.py", "missing.py", "heuristics.py", "--budget", "0.1s")
    assert (result.exit_code, verdict(result)) == (2, "AMBIGUOUS")
    assert [line.split(":")[2].split()[0] for line in result.stderr.splitlines()] == ["table", "other.py"]


@pytest.mark.parametrize(("end", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_an_end_before_the_verdict_says_that_there_is_none(
    table: Path, monkeypatch: pytest.MonkeyPatch, end: type[BaseException], code: int
) -> None:
    def ended(*_: object) -> None:
        raise end

    monkeypatch.setattr(check_command, "measure", ended)
    result = check("--device", REPLAY, "heuristics.py")
    assert result.exit_code == code
    assert result.stderr == "\nnormtune: ended: no verdict on heuristics.py; what was measured was not kept\n"
    assert not re.search("^heuristics.py on", result.stdout, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [staleness.FRESH, *staleness.DEFAULT_KINDS])
@pytest.mark.parametrize("seed", range(2000, 2003))
def test_planted_tables_are_told_from_the_fresh_one(kind: str, seed: int) -> None:
    found = staleness.checked(suspect.read(H200), kind, REPLAY, seed, 60.0)
    assert staleness.is_right(found), found


def test_what_is_planted_is_what_it_says() -> None:
    one = next(one for one in suspect.read(H200).functions if one.key == "rms_norm_backward")
    for rows, hidden in ((1, 64), (32768, 256), (32767, 256), (65536, 257), (4096, 16384), (262144, 64)):
        assert choose(staleness.of_liger(one), rows, hidden) == liger.choose("rms_norm_backward", rows, hidden)
        assert choose(staleness.KINDS["up"](one), 4 * rows, 4 * hidden) == choose(one.tree, rows, hidden)
