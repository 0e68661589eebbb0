"""`normtune sweep` from the command line, without a GPU."""

import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from normtune.errors import UsageError
from normtune.kernels.operator import operator
from normtune.results.database.store import Store
from normtune.tests.commands import PATIENCE, main, one_line, python, refused, succeed
from normtune.tests.kernels.registry import registered
from normtune.tuner.plan.grids import GRIDS
from normtune.tuner.sweep import api
from normtune.tuner.sweep.options import SweepOptions, parse_budget, parse_shapes
from normtune.tuner.sweep.request import Effort, Request
from normtune.tuner.sweep.summary import Summary

REPLAY = ("sweep", "--device", "replay:nvidia-h200", "--shapes", "1,512,4096x256,4096")


def normtune(*arguments, **environment):
    """The command as a process that sees no GPU."""
    return python("-m", "normtune", *arguments, env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment})


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("8m", 480), ("1.5h", 5400)])
def test_budgets(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-3m", "8 minutes", "m", "1d"])
def test_bad_budgets(text):
    with pytest.raises(UsageError, match="expected a positive time such as 90s, 8m or 1h"):
        parse_budget(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("", {}),
        (
            "--device cuda:1 --operator qk_norm --operator rms_norm_forward --dtype float16 --dtype float32 "
            "--effort quick --shapes 1,64x768 --baseline nvidia-h200 --budget 8m "
            "--cache binaries --dry-run --store a.db",
            {
                "device": "cuda:1",
                "operators": ("qk_norm", "rms_norm_forward"),
                "dtypes": ("float16", "float32"),
                "effort": "quick",
                "shapes": [(1, 768), (64, 768)],
                "baseline": "nvidia-h200",
                "budget_seconds": 480.0,
                "cache": Path("binaries"),
                "dry_run": True,
                "store": "a.db",
            },
        ),
        ("--shapes s.csv", {"shapes": Path("s.csv")}),
        ("--stale", {"stale": True}),
    ],
)
def test_what_is_typed_is_what_python_gives(words, options, monkeypatch):
    typed, given = asked_for(monkeypatch, ("sweep", *words.split()), options)
    assert typed == given == Request(**options)
    assert {name: getattr(typed, name) for name in options} == options


def asked_for(monkeypatch, words, options):
    """The requests of a command and of the Python function."""
    asked = []
    monkeypatch.setattr(api, "run", lambda request, *_: asked.append(request) or api.SweepResult(None, Summary()))
    assert main(*words).exit_code == 0
    api.sweep(**options)
    return asked


def test_compile_is_a_sweep_with_a_target_and_a_folder(monkeypatch):
    words = "compile sm_90 b --operator qk_norm --dtype float16 --effort quick --shapes 1,64x128"
    options = {"target": "sm_90", "out": Path("b"), "operators": ("qk_norm",), "dtypes": ("float16",)}
    options |= {"effort": "quick", "shapes": [(1, 128), (64, 128)]}
    typed, given = asked_for(monkeypatch, words.split(), options)
    assert typed == given == Request(**options)


def test_an_option_is_declared_once():
    names = [field.name for field in fields(SweepOptions)]
    assert sorted(inspect.signature(api.sweep).parameters) == sorted(names)
    assert [field.name for field in fields(Request)] == names
    for field in fields(SweepOptions):
        parameter = inspect.signature(api.sweep).parameters[field.name]
        assert (parameter.annotation, parameter.default) == (field.type, field.default)
        assert f"\n    {field.name}: " in api.sweep.__doc__


def test_shapes_are_sizes_of_each_axis_or_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("1x1").touch()
    assert parse_shapes("1, 64x128,256") == [(1, 128), (1, 256), (64, 128), (64, 256)]
    assert parse_shapes("1x2x3,4") == [(1, 2, 3), (1, 2, 4)]
    assert [parse_shapes(text) for text in ("missing.csv", "1x1")] == [Path("missing.csv"), Path("1x1")]
    for text in ("", "64", "0x64", "-1x64", "1.5x64", "ax64", "1,,2x64", "64x"):
        with pytest.raises(UsageError, match=rf"--shapes is '{re.escape(text)}': expected positive sizes such as"):
            parse_shapes(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 1, "there is no GPU to measure: "),
        (("--device", "cuda:3"), 1, "device 'cuda:3' cannot be measured: "),
        (("--device", "tpu"), 2, "unknown device 'tpu': expected cuda:N or replay:NAME"),
    ],
)
@pytest.mark.one_in(2)
def test_a_device_that_is_not_there_gets_one_line_and_its_exit_code(arguments, code, message, tmp_path):
    store = tmp_path / "store.db"
    done = normtune("sweep", "--store", str(store), *arguments)
    assert done.returncode == code
    assert message in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.removeprefix("normtune: planning, a few seconds ...\n").splitlines()) == 1
    assert not store.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--baseline", "vllm"), "vllm is no file or shipped table: expected a table"),
        (("--baseline", "nvidia-h200", "--stale"), "--baseline and --stale are both given"),
        (("--device", "cuda:x"), "unknown device 'cuda:x'"),
        (("--device", "replay:nothing"), "unknown recording 'nothing'"),
        (("--operator", "layer_norm"), "unknown operator 'layer_norm': expected one of rms_norm_forward"),
        (("--dtype", "int8"), "unknown dtype 'int8'"),
        (("--shapes", "64x0"), "--shapes is '64x0'"),
        (("--shapes", "64,x"), "--shapes is '64,x'"),
        (("--shapes", "1x2097152"), "hidden is 2097152: rms_norm_forward takes 1 to 65536"),
        (("--shapes", "1048576x4096"), "every shape given is too large, the first is 1048576 x 4096"),
        (("--budget", "soon"), "--budget is 'soon'"),
        (("--effort", "none"), "unknown effort 'none': expected one of quick, default, full"),
        (
            ("--shapes", "none.csv"),
            "none.csv does not exist: expected a CSV file whose first line names the columns",
        ),
    ],
)
def test_bad_input_gets_one_line(arguments, message, tmp_path):
    store = tmp_path / "store.db"
    result = main("sweep", "--store", str(store), *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not store.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"effort": "quick", "seed": 3}, "seed is given, but strategy adaptive is not random: leave it out"),
        ({"strategy": "plane", "seed": -1}, "seed is -1: expected an integer from 0 to"),
        ({"grid": "huge"}, "unknown grid 'huge'"),
        ({"space": "tiny"}, "unknown space 'tiny'"),
        ({"space": "recorded"}, "unknown space 'recorded'"),
        ({"strategy": "lucky"}, "unknown strategy 'lucky': expected one of adaptive, exhaustive"),
        ({"device": "replay:nvidia-h200", "space": "tiny"}, "unknown space 'tiny'"),
    ],
)
def test_a_bad_keyword_gets_one_line(options, message, tmp_path):
    with one_line(UsageError, re.escape(message)):
        api.sweep(**options, dry_run=True, store=tmp_path / "store.db")
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_dry_run_says_what_would_be_done():
    done = normtune("sweep", "--dry-run", "--shapes", "1,64x64,4096")
    assert done.returncode == 0, done.stderr
    assert "nothing is measured" in done.stdout
    assert "8 problems" in done.stdout and "binaries" in done.stdout
    assert "same launch as another config" in done.stdout


def test_what_is_given_wins_over_what_effort_implies():
    assert Request().chosen == Effort("default", "full", "plane", None)
    assert Request(effort="full").chosen == Effort("recording", "full", "plane", None)
    assert Request(effort="quick").chosen == Effort("default", "portfolio", "adaptive", 60.0)
    for strategy, space in (("plane", "full"), ("adaptive", "default"), ("optuna:TPESampler", "default")):
        assert Request(strategy=strategy).chosen == Effort("default", space, strategy, None)
    assert Request(effort="quick", strategy="plane").chosen == Effort("default", "portfolio", "plane", 60.0)
    assert Request(space="default").chosen == Effort("default", "default", "plane", None)
    for of_given in ({"stale": True}, {"refine": "nvidia_h200"}):
        assert Request(**of_given).chosen == Effort("default", "default", "adaptive", None)
    replay = {"device": "replay:nvidia-h200"}
    assert Request(**replay).chosen == Effort("default", "recorded", "adaptive", None)
    assert Request(**replay, effort="quick").chosen == Effort("default", "portfolio", "adaptive", 60.0)
    assert Request(**replay, space="full", strategy="plane").chosen == Effort("default", "full", "plane", None)
    given = Request(effort="quick", grid="recording", space="full", strategy="exhaustive", budget_seconds=120.0)
    assert given.chosen == Effort("recording", "full", "exhaustive", 120.0)


@pytest.mark.long
def test_json_is_one_object_whatever_happens(tmp_path):
    words = ("sweep", "--device", "replay:nvidia-h200-fused-add-rms-norm", "--operator", "fused_add_rms_norm_forward")
    words += ("--shapes", "1,256,4096,16384x256,4096", "--store", f"{tmp_path}/store.db", "--json")
    planned, first, again = (json.loads(main(*words, *more).stdout) for more in (["--dry-run"], [], []))
    assert planned["plan"]["problems"] == first["plan"]["problems"] == first["sweep"]["problems_measured"] == 8
    sweep = first["sweep"]
    assert planned["plan"]["configs"] == sweep["configs_timed"] + sum(
        failure["configs"] for failure in sweep["failures"]
    )
    assert sweep["configs_timed"] > 100 and planned["sweep"] is None
    assert "not_recorded" not in {failure["status"] for failure in sweep["failures"]}
    assert again["plan"] is None and again["sweep"]["problems_known"] == 8
    assert planned["device"] == first["device"] and first["device"]["uuid"] == words[2]


@pytest.mark.slow
def test_the_shapes_of_a_file_are_measured_and_what_is_too_large_is_told(tmp_path):
    file = tmp_path / "model.csv"
    file.write_text("name,rows,hidden\nattention,4096,256\nqueries,512,4096\nagain,4096,256\nhuge,1048576,4096\n")
    words = ("sweep", "--device", "replay:nvidia-h200", "--shapes", str(file), "--store", f"{tmp_path}/store.db")
    told = main(*words, "--dry-run").stdout
    assert "4 problems, " in told and "left out: 2 problems of over 268435456 elements" in told
    done = json.loads(main(*words, "--json").stdout)
    assert (done["plan"]["problems"], done["plan"]["problems_too_large"]) == (4, 2)
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        frame = store.load().frame
    assert {*zip(frame["rows"], frame["hidden"], strict=True)} == {(4096, 256), (512, 4096)}


@pytest.mark.slow
def test_a_dry_run_counts_what_is_stored_and_makes_no_store(tmp_path):
    store = ("--store", f"{tmp_path}/store.db")
    assert main(*REPLAY, *store, "--dry-run").exit_code == 0
    assert not (tmp_path / "store.db").exists()
    half = (*REPLAY[:4], "1,512,4096x256", *store)
    assert main(*half).exit_code == 0
    assert "6 problems, " in (told := main(*REPLAY, *store, "--dry-run").stdout)
    assert "; 6 more problems are stored already" in told
    whole = main(*half, "--dry-run").stdout.splitlines()
    assert whole[1] == "nothing to measure: all 6 problems are stored already"
    assert not any(line.startswith("expected") for line in whole)


@pytest.mark.slow
def test_a_quiet_sweep_prints_nothing_but_errors(tmp_path):
    done = normtune(*REPLAY, "--store", f"{tmp_path}/store.db", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    failed = main("sweep", "--device", "replay:nothing", "--quiet")
    assert failed.exit_code == 2 and failed.stdout == "" and "unknown recording" in failed.stderr


@pytest.mark.slow
def test_a_log_has_plain_lines_and_ends_with_what_to_do_next(tmp_path):
    done = normtune(*REPLAY, "--store", f"{tmp_path}/store.db", TERM="xterm-256color")
    assert done.returncode == 0 and "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("replay of the recorded sweep of NVIDIA H200")
    assert lines[-1] == f"complete: `normtune fit --store {tmp_path}/store.db` fits a table to these times"


@pytest.mark.slow
def test_a_budget_shorter_than_the_start_says_so_and_leaves_an_empty_store(tmp_path):
    store = ("--store", f"{tmp_path}/store.db")
    done = main(*REPLAY, *store, "--budget", "0.01s")
    assert done.exit_code == 0 and "nothing was stored" in done.stdout.splitlines()[-1]
    rest = json.loads(main(*REPLAY, *store, "--json").stdout)
    assert (rest["plan"]["problems_known"], rest["sweep"]["problems_measured"]) == (0, 12)


@pytest.mark.slow
def test_a_reader_that_leaves_gets_no_traceback(tmp_path):
    command = [sys.executable, "-m", "normtune", *REPLAY, "--store", f"{tmp_path}/store.db"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    os.close(writing)
    assert done.stderr.removeprefix("normtune: planning, a few seconds ...\n") == ""
    assert main(*REPLAY, "--store", f"{tmp_path}/store.db").exit_code == 0


def test_a_grid_has_the_hidden_sizes_that_an_operator_takes(monkeypatch):
    def sizes(name, **asked):
        return {problem.hidden for problem in Request(operators=(name,), **asked).scope().problems}

    default = {hidden for _, hidden in GRIDS["default"]}
    assert sizes("qk_norm") == sizes("qk_norm_backward", grid="recording") == {64, 80, 96, 112, 128, 160, 192, 256}
    assert sizes("qk_norm", hidden=(512,)) == {512}
    assert sizes("transpose_fp8") == default
    registered(monkeypatch, replace(operator("transpose_fp8"), max_hidden=4096))
    assert sizes("transpose_fp8") == {hidden for hidden in default if hidden <= 4096}
    with pytest.raises(UsageError, match="hidden is 5120: transpose_fp8 takes 1 to 4096"):
        sizes("transpose_fp8", hidden=(64, 5120))


@pytest.mark.slow
def test_a_sweep_of_what_was_not_recorded_fails_every_time_and_is_counted(tmp_path):
    asked = ("sweep", "--device", "replay:nvidia-h200", "--operator", "rms_norm_forward")
    asked = (*asked, "--shapes", "3,5x77", "--effort", "quick", "--store", str(tmp_path / "store.db"))
    for options, known in ((("--json",), 0), ((), 2), (("--json",), 2)):
        done = main(*asked, *options)
        assert done.exit_code == 1 and "complete" not in done.output
        assert "error: nothing could be timed at any of 2 problems, so there is no table to fit: " in done.output
        assert ("a replay has times of recorded shapes alone" in done.output) == (not known)
        if options:
            told = json.loads(done.stdout)["sweep"]
            assert (told["problems_measured"], told["problems_failed"], told["problems_known"]) == (0, 2 - known, known)


@pytest.mark.slow
def test_lists_may_have_commas_and_be_repeated(tmp_path):
    words = ("sweep", "--device", "replay:nvidia-h200", "--dry-run", "--json", "--store", tmp_path / "store.db")
    once = succeed(*words, "--operator", "rms_norm_forward,rms_norm_backward")
    again = ("--operator", "rms_norm_forward", "--operator", "rms_norm_backward")
    assert json.loads(once)["plan"] == json.loads(succeed(*words, *again))["plan"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        "sweep('replay:nvidia-h200', rows=[1], hidden=[64], store='store.db')",
        "sweep(target='sm_90', out='out', rows=[1], hidden=[64])",
    ],
)
def test_a_script_without_a_guard_is_told_what_it_lacks(tmp_path, call):
    (tmp_path / "script.py").write_text(f"import normtune\nnormtune.{call}\n")
    done = python("script.py", cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("normtune.errors.NormtuneError: ") and "`if __name__ == '__main__':`" in last
    assert done.stderr.count("Traceback") == 1


@pytest.mark.slow
def test_a_target_that_the_compiler_does_not_know_is_refused_at_once(tmp_path):
    told = refused("compile", "sm_9000", tmp_path / "out", "--shapes", "1,64x64")
    assert told.startswith("--target is 'sm_9000', for which this Triton cannot compile (")
    assert not [*(tmp_path / "out").rglob("*.json")]


@pytest.mark.slow
def test_problems_without_a_legal_config_are_no_stored_ones(tmp_path, operators_forgotten):
    (tmp_path / "own.py").write_text(
        """
from typing import Annotated
import normtune, triton, triton.language as tl
class C(normtune.Config):
    \"\"\"How it is launched.\"\"\"
    num_warps: Annotated[int, "warps a program."] = 4
@triton.jit
def kernel(x_ptr, y_ptr):
    offsets = tl.program_id(0) * 64 + tl.arange(0, 64)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets))
@normtune.kernel_operator(config=C, space={"num_warps": (1, 2)}, axes={"a": (1, 4), "b": (64, 100)},
    dtypes=("float16",), buffers={"x": "input a,b", "y": "output a,b/64,64"},
    reference=lambda x: x.view(x.shape[0], -1, 64))
def in_blocks(x, y, config):
    kernel[(x.numel() // 64,)](x, y, num_warps=config.num_warps)
"""
    )
    asked = ("sweep", "--load", tmp_path / "own.py", "--operator", "in_blocks", "--dry-run", "--store")
    told = main(*asked, tmp_path / "none.db").stdout  # in float16, as it takes no bfloat16
    assert "2 problems, 4 configs to time (2.0 a problem), 2 binaries; 2 have no legal config" in told
    assert json.loads(main(*asked, tmp_path / "none.db", "--json").stdout)["plan"]["problems_known"] == 0
    done = main(*asked, tmp_path / "none.db", "--dtype", "bfloat16")
    assert done.exit_code == 2 and "unknown dtype 'bfloat16': in_blocks takes float16" in done.output
