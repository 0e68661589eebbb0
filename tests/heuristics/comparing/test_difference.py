"""`normtune diff`: shapes with different configs, losses and gains of each side, output and refusals."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import normtune
from normtune.heuristics.comparing.contenders import Side, side
from normtune.heuristics.comparing.difference import Difference, SideAnswer, difference, parts_of
from normtune.heuristics.comparing.gains import ConfidenceInterval
from normtune.heuristics.comparing.report import difference_lines, mark, summary_lines
from normtune.heuristics.fitting.figures import Loss
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.rules.rule import Autotuned
from normtune.heuristics.writing.emit import module_text
from normtune.kernels.key import Key
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf, Split, Tree, choose
from normtune.kernels.target import TARGETS
from normtune.results.database.store import Store
from normtune.tests.commands import refused, succeed
from normtune.tests.heuristics.made_up import as_command, rounds_of, timed
from normtune.tests.results.stores import loaded, record

H200 = TARGETS["sm_90"]
ROW, WIDE, BLOCK = RMSNormConfig("row", 1, 4), RMSNormConfig("row", 1, 16), RMSNormConfig("block_row", 16, 4)
BEST = [2_000, 4_000, 10_000, 100_000]
L2 = 60 << 20


@pytest.fixture
def matrix() -> TimingMatrix:
    """Four shapes at which all configs have times, but for the wide one at the last; no rounds are kept."""
    problems = ((1, 64), (4096, 512), (32768, 256), (65536, 8192))
    regret = np.array([[0, 0, 9], [300_000, 0, 9], [5, 100_000, 9], [400_000, 0, 0]], np.int64)
    usable = np.array([[True, True, True]] * 3 + [[True, False, False]])
    return TimingMatrix(Key.of("rms_norm_forward", "", "bfloat16"), problems, (ROW, BLOCK, WIDE), regret, usable)


def compared(matrix: TimingMatrix, first: str | Side | Autotuned, second: str | Side | Autotuned) -> Difference:
    sides = [side(one) if isinstance(one, str) else one for one in (first, second)]
    return difference(operator(matrix.key.operator), timed(matrix, BEST[: len(matrix.problems)]), H200, *sides)


def table(name: str, tree: Tree) -> Side:
    return Side(name, lambda problem, target: choose(tree, problem.shape), lambda key: tree)


def test_shapes_at_which_the_proposal_differs_and_what_each_loses(matrix: TimingMatrix) -> None:
    found = compared(matrix, "liger", "liger_1238")
    assert found.names == ("liger", "liger_1238")
    assert set(found.pairs) - found.same == {(4096, 512)}
    assert found.pairs[4096, 512] == (SideAnswer(ROW, 300_000, 0), SideAnswer(BLOCK, 0, 1))
    first, second = Loss(133_333, 133_333, 300_000, 300_000, 3), Loss(33_333, 33_333, 100_000, 100_000, 3)
    assert found.common() == (first, second)
    # Both answer the wide config at the last shape, which loses 9 at the others.
    assert found.loss(0) == first._replace(untimed=1, bound=(400_000 + 9) // 4)
    assert found.loss(1) == second._replace(untimed=1, bound=(100_000 + 9) // 4)
    assert [found.without_time(which) for which in (0, 1)] == [1, 1]
    assert [found.without_answer(which) for which in (0, 1)] == [0, 0]
    assert found.worst(0, 2) == [
        ((4096, 512), (SideAnswer(ROW, 300_000, 0), SideAnswer(BLOCK, 0, 1))),
        ((32768, 256), (SideAnswer(BLOCK, 100_000, 1), SideAnswer(BLOCK, 100_000, 1))),
    ]


def test_what_is_gained_by_what_bounds_a_kernel(matrix: TimingMatrix) -> None:
    found = compared(matrix, "liger_1238", "liger")
    # 1 x 64 moves 388 bytes; 4096 x 512 and 32768 x 256 move 8 and 34 MB; 65536 x 8192 moves 2 GB and has no time.
    assert found.parts == (0, 1, 1, 2)
    assert parts_of(found) == [0, 1]
    assert found.common(1) == (
        Loss(50_000, 50_000, 100_000, 100_000, 2),
        Loss(200_000, 200_000, 300_000, 300_000, 2),
    )
    assert found.common(2) is None and found.gain(2) is None
    everywhere, between = found.gain(), found.gain(1)
    assert everywhere is not None and between is not None
    assert (everywhere.shapes, everywhere.log) == (3, ConfidenceInterval(100_000, None, None))
    assert between.log.mean == 150_000
    # Row instead of block at 4096 x 512 costs e^0.3 - 1 of 4 us; at 32768 x 256 both launch blocks.
    assert between.saved.mean == pytest.approx(4 * math.expm1(0.3) / 2)


def test_weights_count_in_every_mean(matrix: TimingMatrix) -> None:
    first = table("new.py", Split("hidden", 300, Leaf(ROW), Leaf(BLOCK)))
    second = table("old.py", Split("hidden", 300, Leaf(BLOCK), Leaf(ROW)))
    for weights in ((1, 1, 1), (1, 1, 8)):
        weighed = replace(matrix, weights=np.array([*weights, 1], np.int64))
        found = compared(weighed, first, second)
        losses = found.common()
        assert losses is not None
        assert losses[0].mean == 5 * weights[2] // sum(weights)
        assert losses[1].mean == (300_000 * weights[1] + 100_000 * weights[2]) // sum(weights)


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
    choices = (SideAnswer(*first),) * 4, (SideAnswer(*second),) * 4
    found = Difference(matrix, ("a", "b"), choices, frozenset({(1, 64)}), (0, 1, 1, 2))
    assert mark(found, (4096, 512)) == expected
    assert mark(found, (1, 64)) == "="


def test_a_config_that_launches_as_a_measured_one_has_its_time() -> None:
    # 64 rows of 1024 are lowered to 16, which 4 warps hold.
    matrix = TimingMatrix(
        Key.of("rms_norm_forward", "", "bfloat16"), ((4096, 1024),), (BLOCK,), np.array([[700]]), np.array([[True]])
    )
    taller = Side("taller", lambda problem, target: RMSNormConfig("block_row", 64, 4))
    wider = Side("wider", lambda problem, target: RMSNormConfig("block_row", 64, 8))
    found = compared(matrix, taller, Side("block", lambda problem, target: BLOCK))
    assert found.choices[0] == (SideAnswer(RMSNormConfig("block_row", 64, 4), 700, 0),)
    assert found.same == {(4096, 1024)}
    assert compared(matrix, taller, wider).choices[1][0].loss is None


def test_a_rule_without_an_answer_is_neither_the_same_nor_without_a_time(matrix: TimingMatrix) -> None:
    found = compared(matrix, "aiter", "aiter")
    assert found.without_answer(0) == 1  # the longest rows
    assert found.without_time(0) == 3
    assert found.same == {(1, 64), (4096, 512), (32768, 256)}
    assert found.common() is None and found.gain() is None


def test_an_autotuner_picks_the_least_median_of_what_was_timed() -> None:
    # The least regret is that of the block, the least median over all rounds that of the row, which was lucky in them.
    logs = np.array([[[50, 50, 50, 50, 0, 0], [40, 40, 60, 60, 99, 99], [90] * 6]], np.int32)
    matrix = TimingMatrix(
        *(Key.of("rms_norm_forward", "", "bfloat16"), ((4096, 1024),), (ROW, BLOCK, WIDE)),
        *(np.array([[7, 0, 30]]), np.array([[True] * 3]), rounds_of(np.arange(6, dtype=np.int32)[None], logs)),
    )
    unknown, illegal = RMSNormConfig("row", 1, 32), RMSNormConfig("split", 1, 4)
    tuned = Autotuned("t", "", "", lambda problem, target: (illegal, unknown, WIDE, BLOCK, ROW))
    found = compared(matrix, tuned, "liger")
    assert found.choices[0] == (SideAnswer(ROW, 7, 0, (3, 4)),)
    assert found.tuned(0) == (1, 0, 1) and found.tuned(1) is None
    note = "A picks only among timed configs: all of its list at 0 of 1 shapes, so it may do better"
    assert note in difference_lines(found, 80, L2, False)
    twice = note.replace("0 of 1 ", "0 of 2 ")
    assert list(summary_lines([found, found], False))[-2:] == ["", twice]
    assert list(summary_lines([found], True))[-1] == f"- {note}"
    assert compared(matrix, Autotuned("t", "", "", lambda problem, target: (WIDE, BLOCK)), "liger").tuned(0) == (
        1,
        1,
        1,
    )
    for configs, expected in (
        ((unknown,), SideAnswer(unknown, None, None, (0, 1))),
        ((illegal,), SideAnswer(None, None)),
    ):
        assert compared(matrix, Autotuned("t", "", "", lambda *_, c=configs: c), "liger").choices[0] == (expected,)


def test_it_reads_as_text_and_as_markdown(matrix: TimingMatrix) -> None:
    found = compared(matrix, "liger_1238", "liger")
    assert list(summary_lines([found], False)) == [
        "                             shapes  A loses  worst   B loses  worst   faster  us a call",
        "  rms_norm_forward bfloat16  3 of 4  3.39 %   10.5 %  14.26 %  35.0 %  10.5 %  0.47",
    ]
    lines = list(difference_lines(found, 80, L2, False))
    note = "a sweep with the space full times most of what other libraries launch"
    assert lines[: lines.index("Where liger_1238 loses most:")] == [
        "rms_norm_forward bfloat16: other launches at 1 of 4 shapes",
        "",
        "                 shapes  A loses  worst   B loses  worst   faster  us a call",
        "  to 1 MB moved  1       0.00 %   0.0 %   0.00 %   0.0 %   0.0 %   0.00",
        "  1 to 60 MB     2       5.13 %   10.5 %  22.14 %  35.0 %  16.2 %  0.70",
        "",
        f"A has no time at 1 of 4 shapes; it loses 3.39 % where it has, with estimates 2.53 % at most; {note}",
        f"B has no time at 1 of 4 shapes; it loses 14.26 % where it has, with estimates 10.52 % at most; {note}",
        "",
        "       rows",
        "hidden 1 4k 32k 64k",
        "    64 =  .   .   .",
        "   256 .  .   =   .",
        "   512 .  A   .   .",
        "    8k .  .   .   =",
        "",
        " = the same launch",
        " A liger_1238 is faster",
        " . no config was measured",
        "",
    ]
    marked = list(difference_lines(found, 80, L2, True))
    assert marked[0] == "<details><summary>rms_norm_forward bfloat16: other launches at 1 of 4 shapes</summary>"
    assert marked[1:3] == ["", "|  | shapes | A loses | worst | B loses | worst | faster | us a call |"]
    assert marked[3] == "|" + " --- |" * 8
    assert marked[marked.index("```") + 1] == "       rows"
    assert "- `=` the same launch" in marked
    assert "| 4096 | 512 | 0.0 % | block_row block_row=16 warps=4 | 35.0 % | row warps=4 |" in marked
    assert marked[-1] == "</details>"


def test_blocks_of_markdown_stand_apart_as_github_wants_them(matrix: TimingMatrix) -> None:
    first = table("new.py", Split("rows", 4096, Leaf(ROW), Leaf(BLOCK)))
    lines = list(difference_lines(compared(matrix, first, table("old.py", Leaf(ROW))), 80, L2, True))
    for place, line in enumerate(lines[1:], 1):
        before = lines[place - 1]
        if line.startswith("|") and not before.startswith("|"):
            assert before == ""  # a table needs a blank line before it
        if before.startswith("|") and not line.startswith("|"):
            assert line == ""
        if line == "</details>" or before.startswith("<details>"):
            assert "" in (before, line)


def test_a_map_of_one_mark_is_a_line(matrix: TimingMatrix) -> None:
    lines = list(difference_lines(compared(matrix, "liger", "liger"), 80, L2, False))
    assert "Everywhere: the same launch." in lines
    assert not any(line.startswith("hidden") for line in lines)


@pytest.mark.slow
def test_two_tables_of_a_store(store: str) -> None:
    evidence = loaded(f"sqlite:///{store}")
    for leaves in (1, 3):
        Path(f"{leaves}.py").write_text(
            module_text(fit(evidence, FitOptions(leaves=leaves)), as_command("normtune fit"))
        )
    output = succeed("diff", "3.py", "1.py", "--store", store, "--details")
    lines = output.splitlines()
    assert lines[0] == "Test GPU, sm_90, 132 SMs: A is 3.py, B is 1.py"
    assert lines[5:7] == ["", lines[6]] and lines[6].startswith("toy bfloat16: other launches at ")
    assert " A 3.py is faster" in lines
    (summary,) = [line for line in lines if line.startswith("  toy bfloat16  35 of 35")]
    better, _, worse, _, faster, saved, low, high = map(float, re.findall(r"-?[\d.]+", summary)[3:])
    assert better < worse
    assert low < saved < high
    assert faster == pytest.approx(100 * ((100 + worse) / (100 + better) - 1), abs=0.3)
    verdict = succeed("diff", "3.py", "1.py", "--store", store).splitlines()
    assert verdict[:3] == [lines[0], "", f"toy bfloat16: A is {faster:.0f} % faster than B on average over 35 shapes"]
    (row,) = normtune.diff("3.py", "1.py", store).frame().to_dict("records")
    assert (row["operator"], row["shapes"]) == ("toy", 35) and 100 * row["faster"] == pytest.approx(faster, abs=0.06)
    both = succeed("diff", "3.py", "1.py", "3.py", "--store", store)
    assert both.startswith("\n".join(verdict[:4])) and "A is 3.py, B is 3.py" in both
    assert re.search(r"  other launches at \d+ of 35 shapes: 1 x 64, .* and \d+ more", both)
    # What fit says of a table beside the one it is compared with is what diff says of the two.
    told = succeed("fit", "--store", store, "--leaves", "3", "--baseline", "1.py", "--out", "again.py")
    again = succeed("diff", "again.py", "1.py", "--store", store).splitlines()[2]
    (number,) = re.findall(r"\n  (\d+ % faster) than ", told)
    assert number in again
    same = succeed("diff", "3.py", "3.py", "--store", store, "--markdown").splitlines()
    assert same[0] == "## Test GPU, sm_90, 132 SMs: A is `3.py`, B is `3.py`"
    assert "<details><summary>toy bfloat16: other launches at 0 of 35 shapes</summary>" in same
    assert "Everywhere: the same launch." in same


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["liger_1238", "triton.autotune"])
def test_a_rule_and_the_shipped_table_on_the_shipped_recording(rule: str) -> None:
    words = ("--store", "nvidia-h200", "--operator", "rms_norm_forward:no_rstd", "--dtype", "bfloat16")
    lines = (output := succeed("diff", "nvidia-h200", rule, *words, "--details")).splitlines()
    assert lines[0] == f"NVIDIA H200, sm_90, 132 SMs: A is nvidia-h200, B is {rule}"
    found = re.search(r"^  rms_norm_forward:no_rstd bfloat16 +(\d+) of 302 (.*)", output, re.MULTILINE)
    timed, figures = found.groups()
    assert int(timed) > 0.9 * 302
    better, _, worse, _, faster, saved, least, most = map(float, re.findall(r"-?[\d.]+", figures))
    assert better < worse and faster > 0
    # Printed to a hundredth of a microsecond, an estimate may fall on an end of its interval.
    assert 0 < least < most and least <= saved <= most
    assert [line.split("  ")[1] for line in lines if " MB" in line] == [
        "to 1 MB moved",
        "1 to 60 MB",
        "over 60 MB, the L2",
    ]
    assert ("B picks only among timed configs" in output) == (rule == "triton.autotune")


def test_what_is_neither_a_rule_nor_a_table_is_refused_before_anything_is_read(store: str) -> None:
    assert refused("diff", "liger", "te", "--store", "none.db") == (
        "te is no file, rule or shipped table: expected a table that `normtune fit --out` wrote, or one of liger, "
        "liger_1238, te_rocm, te_cuda, aiter, tilegym, atom, vllm, vllm_gated, sglang, quack, "
        "triton.autotune, te_rocm.autotune, nvidia-h100-80gb-hbm3, nvidia-h200, "
        "nvidia-h200-fused-add-rms-norm, nvidia-h200-qk-norm, "
        "nvidia-h200-rms-norm-gated, nvidia-h200-rms-norm-quantize-fp8, "
        "nvidia-h200-rms-norm-quantize-fp8-tensor, portable, portable-fused-add-rms-norm, portable-rms-norm-gated"
    )
    assert refused("diff", "x" * 5000, "liger").startswith("xxx")
    assert refused("diff", "\0", "liger").startswith("'\\x00' is no file")
    Path("other.py").write_text("print('harm')\n")
    assert "other.py" in refused("diff", "other.py", "liger", "--store", store)
    assert refused("diff", ".", "liger", "--store", store).startswith("table . is no regular file")


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--operator", "other", "--operator is 'other'"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(store: str, option: str, value: str, expected: str) -> None:
    assert expected in refused("diff", "liger", "quack", "--store", store, option, value)


def test_an_empty_store_says_what_to_do(tmp_path: Path) -> None:
    Store.open(f"sqlite:///{tmp_path}/empty.db").close()
    assert succeed("diff", "liger", "quack", "--store", f"{tmp_path}/empty.db") == (
        "there are no measurements yet: sweep first\n"
    )


def test_measurements_of_kernels_that_changed_are_told(measure, penalty, run, tmp_path: Path) -> None:
    record(f"sqlite:///{tmp_path}/old.db", run, measure(penalty, [(64, 64)], fingerprint="sha256:0"))
    verdict = succeed("diff", "liger", "quack", "--store", f"{tmp_path}/old.db").splitlines()
    assert verdict[1:4] == [
        "the kernels of toy changed since: a sweep with --stale measures them again",
        "",
        "toy bfloat16: no shape has times of both",
    ]
    lines = succeed("diff", "liger", "quack", "--details", "--store", f"{tmp_path}/old.db").splitlines()
    assert lines[3] == "the kernels of toy changed since: a sweep with --stale measures them again"
    assert "toy bfloat16: other launches at 1 of 1 shapes" in lines
    assert "Everywhere: one has no answer." in lines
