"""`normtune diff`: which shapes count as different, what each side loses, what is printed and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.diff_command import register
from normtune.heuristics.difference import Choice, Difference, Side, difference, side
from normtune.heuristics.difference_text import difference_lines, mark
from normtune.heuristics.emit import module_text
from normtune.heuristics.figures import Loss
from normtune.heuristics.fitting import fit
from normtune.heuristics.matrix import TimingMatrix
from normtune.kernels.config import Config
from normtune.kernels.target import TARGETS
from normtune.results.store import Store

H200 = TARGETS["sm_90"]
ROW, WIDE, BLOCK = Config("row", 1, 4), Config("row", 1, 16), Config("block_row", 16, 4)


@pytest.fixture
def matrix() -> TimingMatrix:
    """Four shapes at which all configs have times, but for the wide one at the last."""
    problems = ((1, 64), (4096, 512), (32768, 256), (65536, 8192))
    regret = np.array([[0, 0, 9], [300_000, 0, 9], [5, 100_000, 9], [400_000, 0, 0]], np.int64)
    usable = np.array([[True, True, True]] * 3 + [[True, False, False]])
    return TimingMatrix("rms_norm_forward", "", "bfloat16", problems, (ROW, BLOCK, WIDE), regret, usable)


def compared(matrix: TimingMatrix, first: str, second: str) -> Difference:
    return difference(matrix, H200, side(first), side(second))


def test_shapes_at_which_the_proposal_differs_and_what_each_loses(matrix: TimingMatrix) -> None:
    found = compared(matrix, "liger", "liger_1238")
    assert found.names == ("liger", "liger_1238")
    assert set(found.pairs) - found.same == {(4096, 512)}
    assert found.pairs[4096, 512] == (Choice(ROW, 300_000), Choice(BLOCK, 0))
    assert found.loss(0) == Loss(133_333, 300_000, 300_000, 3)
    assert found.loss(1) == Loss(33_333, 100_000, 100_000, 3)
    assert found.common() == (found.loss(0), found.loss(1))
    assert [found.without_time(which) for which in (0, 1)] == [1, 1]
    assert [found.without_answer(which) for which in (0, 1)] == [0, 0]
    assert found.worst(0, 2) == [
        ((4096, 512), (Choice(ROW, 300_000), Choice(BLOCK, 0))),
        ((32768, 256), (Choice(BLOCK, 100_000), Choice(BLOCK, 100_000))),
    ]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((ROW, 5), (BLOCK, 9_956), "A"),
        ((ROW, 5), (BLOCK, 9_955), "~"),
        ((ROW, 9_956), (BLOCK, 5), "B"),
        ((ROW, None), (BLOCK, 5), "?"),
        ((None, None), (BLOCK, 5), "-"),
        ((None, None), (None, None), "-"),
    ],
)
def test_the_mark_of_a_shape(matrix: TimingMatrix, first, second, expected: str) -> None:
    found = Difference(matrix, ("a", "b"), ((Choice(*first),) * 4, (Choice(*second),) * 4), frozenset({(1, 64)}))
    assert mark(found, (4096, 512)) == expected
    assert mark(found, (1, 64)) == "="


def test_a_config_that_launches_as_a_measured_one_has_its_time() -> None:
    # 64 rows of 1024 are lowered to 16, which 4 warps hold.
    matrix = TimingMatrix(
        "rms_norm_forward", "", "bfloat16", ((4096, 1024),), (BLOCK,), np.array([[700]]), np.array([[True]])
    )
    taller = Side("taller", lambda problem, target: Config("block_row", 64, 4))
    wider = Side("wider", lambda problem, target: Config("block_row", 64, 8))
    found = difference(matrix, H200, taller, Side("block", lambda problem, target: BLOCK))
    assert found.choices[0] == (Choice(Config("block_row", 64, 4), 700),)
    assert found.same == {(4096, 1024)}
    assert difference(matrix, H200, taller, wider).choices[1][0].loss is None


def test_a_rule_without_an_answer_is_neither_the_same_nor_without_a_time(matrix: TimingMatrix) -> None:
    found = compared(matrix, "aiter", "aiter")
    assert found.without_answer(0) == 1  # the longest rows
    assert found.without_time(0) == 3
    assert found.same == {(1, 64), (4096, 512), (32768, 256)}
    assert found.common() is None


def test_it_reads_as_text_and_as_markdown(matrix: TimingMatrix) -> None:
    found = compared(matrix, "liger", "liger_1238")
    assert list(difference_lines(found, 80, False))[:18] == [
        "rms_norm_forward bfloat16: other launches at 1 of 4 shapes",
        "       rows",
        "hidden 1 4k 32k 64k",
        "    64 =  .   .   .",
        "   256 .  .   =   .",
        "   512 .  B   .   .",
        "    8k .  .   .   =",
        "",
        " = the same launch",
        " B liger_1238 is faster",
        " . no config was measured",
        "",
        "     config of   mean loss  worst   no answer  not measured",
        "  A  liger       14.26 %    35.0 %  0.0 %      25.0 %",
        "  B  liger_1238  3.39 %     10.5 %  0.0 %      25.0 %",
        "",
        "Where both have times, 3 shapes, they lose on average: liger 14.26 % and liger_1238 3.39 %.",
        "",
    ]
    marked = list(difference_lines(found, 80, True))
    assert marked[:4] == ["### rms_norm_forward bfloat16: other launches at 1 of 4 shapes", "", "```", "       rows"]
    assert marked[marked.index("```", 3) + 2] == "- `=` the same launch"
    assert "| A | liger | 14.26 % | 35.0 % | 0.0 % | 25.0 % |" in marked
    assert "| 4096 | 512 | 35.0 % | row warps=4 | 0.0 % | block_row block_row=16 warps=4 |" in marked


def invoke(*arguments: str) -> Result:
    app = typer.Typer()
    register(app)
    app.callback()(lambda: None)  # with a single command, Typer would not ask for its name
    return CliRunner().invoke(app, ["diff", *arguments])


def refused(*arguments: str) -> str:
    result = invoke(*arguments)
    assert isinstance(result.exception, NormtuneError), result.output
    return str(result.exception)


def test_two_tables_of_a_store(store: str) -> None:
    with Store.open(f"sqlite:///{store}", create=False) as opened:
        evidence = opened.load()
    for leaves in (1, 3):
        Path(f"{leaves}.py").write_text(module_text(fit(evidence, leaves=leaves, operators=[]), "normtune fit"))
    result = invoke("1.py", "3.py", "--store", store)
    assert result.exit_code == 0, result.exception
    lines = result.output.splitlines()
    assert lines[0] == "Test GPU, sm_90, 132 SMs: 1.py and 3.py"
    assert lines[2].startswith("toy bfloat16: other launches at ")
    assert " B 3.py is faster" in lines
    (common,) = [line for line in lines if line.startswith("Where both have times, 35 shapes")]
    first, second = (float(word) for word in common.split() if word.replace(".", "").isdecimal() and "." in word)
    assert first > second
    same = invoke("3.py", "3.py", "--store", store, "--markdown").output.splitlines()
    assert same[0] == "## Test GPU, sm_90, 132 SMs: 3.py and 3.py"
    assert same[2] == "### toy bfloat16: other launches at 0 of 35 shapes"


def test_a_rule_and_the_shipped_table_on_the_shipped_recording() -> None:
    words = ("--recording", "nvidia-h200", "--operator", "rms_norm_forward:no_rstd", "--dtype", "bfloat16")
    result = invoke("liger_1238", "nvidia-h200", *words)
    assert result.exit_code == 0, result.exception
    (rule,) = [line.split() for line in result.output.splitlines() if line.startswith("  A  ")]
    (fitted,) = [line.split() for line in result.output.splitlines() if line.startswith("  B  ")]
    assert rule[1] == "liger_1238" and fitted[1] == "nvidia-h200"
    assert float(rule[2]) > float(fitted[2])
    assert rule[-2:] == fitted[-2:] == ["0.0", "%"]  # both are in the default space


def test_what_is_neither_a_rule_nor_a_table_is_refused_before_anything_is_read(store: str) -> None:
    assert refused("liger", "te", "--store", "none.db") == (
        "te is no file, rule or shipped table: expected a table that `normtune fit --out` wrote, or one of liger, "
        "liger_1238, te_rocm, aiter, tilegym, atom, vllm, vllm_gated, quack, nvidia-h200"
    )
    assert refused("x" * 5000, "liger").startswith("xxx")
    assert refused("\0", "liger").startswith("'\\x00' is no file")
    Path("other.py").write_text("print('harm')\n")
    assert "other.py" in refused("other.py", "liger", "--store", store)
    assert refused(".", "liger", "--store", store).startswith("table . is no regular file")
    with pytest.raises(UsageError, match="both given"):
        raise invoke("liger", "quack", "--store", store, "--recording", "nvidia-h200").exception or AssertionError


def test_an_empty_store_says_what_to_do(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/empty.db"):
        pass
    assert invoke("liger", "quack", "--store", f"{tmp_path}/empty.db").output == (
        "there are no measurements yet: run `normtune sweep`\n"
    )


def test_measurements_of_kernels_that_changed_are_told(measure, penalty, run, tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/old.db") as opened:
        opened.begin_run(run)
        opened.add(measure(penalty, [(64, 64)], fingerprint="sha256:0"))
    lines = invoke("liger", "quack", "--store", f"{tmp_path}/old.db").output.splitlines()
    assert lines[2] == "the kernels of toy changed since: `normtune sweep --stale` measures them again"
    assert lines[4] == "toy bfloat16: other launches at 1 of 1 shapes"
    assert " - one has no answer" in lines
