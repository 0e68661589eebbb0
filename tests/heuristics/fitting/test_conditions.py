"""`normtune fit` under conditions, on the command line: its output, its files, and the agreement of `check`."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import normtune
from normtune.errors import NormtuneError
from normtune.heuristics.writing.entries import comment, entries
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.key import Key
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.parse import trees
from normtune.kernels.tablefile.tree import choose, distinct, leaves
from normtune.tests.commands import invoke, refused, succeed
from normtune.tests.heuristics.made_up import SHAPES, rehashed
from normtune.tests.results.stores import record

KEY = Key.parse("toy", "bfloat16")


def fit(*arguments: str, out: str = "table.py") -> str:
    """Fit the store, with the data that `check` needs."""
    return succeed("fit", "--store", "measured.db", *arguments, "--out", out, "--evidence", "data.parquet")


def fit_within(tie_percent: float, out: str = "table.py", **options: str) -> None:
    """The same as `fit` of at most three leaves, with a tie."""
    table = normtune.fit("measured.db", leaves=3, tie_percent=tie_percent, **options)
    table.save(out, evidence="data.parquet")


def checked(path: str = "table.py") -> str:
    told = succeed("check", "--strict", path)
    assert f"{path}: OK" in told
    assert "byte for byte" in told
    return told


def failed(path: str = "table.py") -> str:
    result = invoke("check", path)
    assert result.exit_code == 1
    return result.output


def slowdowns(tree, law: Callable, shapes=SHAPES) -> list[float]:
    """By the law that the times were made of: how much longer the table's config takes than the best."""
    from normtune.kernels.problem import Problem

    return [1 + law(choose(tree, shape), Problem.of("toy", *shape, "bfloat16")) for shape in shapes]


def tree_of(path: str = "table.py"):
    return trees(Path(path).read_text())[KEY]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--max-slowdown", "nan"), "--max-slowdown is 'nan': expected a number"),
        (("--max-slowdown", "inf"), "--max-slowdown is 'inf': expected a number"),
        (("--max-slowdown", "0"), "max-slowdown is 0"),
        (("--max-slowdown", "-1.2"), "max-slowdown is -1.2"),
        (("--max-slowdown", "0.5"), "expected a ratio of at least 1"),
        (("--max-configs", "0"), "max-configs is 0"),
        (("--max-configs", "-2"), "max-configs is -2"),
        (("--weights", "none.csv"), "none.csv does not exist"),
        (("--weights", ""), "is no regular file"),
        (("--weights", "."), "is no regular file"),
        (("--weights", "odd.csv"), "has no column 'hidden'"),
        (("--weights", "negative.csv"), "negative.csv, line 2: weight is '-1'"),
        (("--weights", "nan.csv"), "nan.csv, line 2: weight is 'nan'"),
        (("--weights", "zero.csv"), "has no weight above 0"),
        (("--weights", "elsewhere.csv"), "has no measured shape"),
        (("--baseline", "nobody"), "baseline nobody is no rule, file or shipped table"),
        (("--baseline", ""), "--baseline is empty"),
        (("--baseline", "odd.csv"), "odd.csv is no table of normtune"),
        (("--baseline", "none.py"), "baseline none.py is no rule"),
        (("--baseline", "sizes.py"), "sizes.py has sizes m, n, k: expected rows, hidden, those of toy"),
        (("--operator", "other"), "no measurements of operator 'other'"),
    ],
)
def test_a_wrong_option_is_one_line_and_writes_nothing(
    store: str, tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    texts = {"odd": "rows,weight\n1,64\n", "negative": "rows,hidden,weight\n1,64,-1\n"}
    texts |= {"nan": "rows,hidden,weight\n1,64,nan\n", "zero": "rows,hidden,weight\n1,64,0\n"}
    texts |= {"elsewhere": "rows,hidden,weight\n7,65,1\n"}
    for name, text in texts.items():
        Path(f"{name}.csv").write_text(text)
    examples = Path(__file__).parents[3] / "examples"
    Path("sizes.py").write_text((examples / "matmul_h200.py").read_text().replace("matmul", "toy"))
    before = sorted(tmp_path.rglob("*"))
    words = ("fit", "--store", store, "--leaves", "2", *arguments, "--out", "t.py", "--evidence", "e.parquet")
    assert told in refused(*words)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_a_cap_holds_at_every_shape_and_is_said(store: str, penalty) -> None:
    fit_within(0)
    assert max(slowdowns(tree_of(), penalty)) < 1.01
    told = fit("--leaves", "2", "--max-slowdown", "1.31", "--details")
    assert max(slowdowns(tree_of(), penalty)) < 1.315
    assert "2-leaf tree with no shape above 1.31\n" in told
    checked()


@pytest.mark.slow
def test_a_cap_that_cannot_be_met_says_what_can(store: str) -> None:
    Path("table.py").write_text("")
    words = ("fit", "--store", store, "--leaves", "2", "--max-slowdown")
    text = refused(*words, "1.05", "--out", "new.py", kind=NormtuneError)
    found = re.search(r"no table of at most 2 leaves keeps every shape of toy bfloat16 within 1.05 .*: (\S+) is", text)
    assert found, text
    assert not Path("new.py").exists()
    fit("--leaves", "2", "--max-slowdown", found[1], out="new.py")


@pytest.mark.slow
def test_the_bound_on_the_worst_decides_before_the_mean(store: str, penalty) -> None:
    """One shape counts nearly all: the mean follows it, the worst takes what is 5 % slower there and 30 % elsewhere."""
    lines = ["rows,hidden,weight", "1,64,1000", *(f"{rows},{hidden},1" for rows, hidden in SHAPES)]
    Path("one.csv").write_text("\n".join(lines))
    fit("--leaves", "2", "--weights", "one.csv", out="mean.py")
    fit("--leaves", "2", "--weights", "one.csv", "--max-slowdown", "1.06")
    mean, worst = (slowdowns(tree_of(name), penalty) for name in ("mean.py", "table.py"))
    assert (mean[0], max(mean)) == (1.0, 1.3)
    assert (worst[0], max(worst)) == (1.05, 1.05)
    checked()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("count", [1, 2])
def test_few_configs_with_their_certificate(store: str, count: int) -> None:
    told = fit("--leaves", "6", "--max-configs", str(count), "--details")
    assert len(distinct(tree_of())) <= count
    assert re.search(rf"-leaf tree of these configs, these configs (within \S+ % of )?the best {count}\n", told), told
    (entry,) = entries(locate.load("table.py").header)
    assert entry.figures.configs == count and entry.figures.few
    checked()


@pytest.mark.slow
def test_weights_of_a_file_decide_and_are_found_from_the_tables_folder(store: str, penalty) -> None:
    Path(".git").mkdir()
    Path("library").mkdir()
    Path("mine.csv").write_text("rows,hidden,weight\n65536,64,5\n65536,512,1\n")
    fit("--leaves", "1", out="all.py")
    succeed(
        *("fit", "--store", store, "--leaves", "2", "--weights", "mine.csv"),
        *("--out", "library/table.py", "--evidence", "library/data.parquet"),
    )
    assert locate.load("library/table.py").header.command["options"]["weights"] == "../mine.csv"
    assert slowdowns(tree_of("library/table.py"), penalty, [(65536, 64)]) == [1.0]
    checked("library/table.py")
    Path("mine.csv").write_text("rows,hidden,weight\n1,4096,5\n")
    assert "mine.csv has no measured shape" in failed("library/table.py")
    Path("mine.csv").unlink()
    assert "mine.csv, which does not exist" in failed("library/table.py")


@pytest.mark.slow
def test_a_table_as_baseline_is_found_from_the_tables_folder(store: str, penalty) -> None:
    """One leaf is slower than three, and one was asked for: that is told. Three are not, and all is as it was."""
    Path(".git").mkdir()
    Path("library").mkdir()
    fit_within(0, out="best.py")
    succeed(
        *("fit", "--store", store, "--leaves", "1", "--baseline", "best.py"),
        *("--out", "library/table.py", "--evidence", "library/data.parquet"),
    )
    table = locate.load("library/table.py")
    assert table.header.command["options"]["baseline"] == "../best.py"
    (line,) = comment(table.header).split("\n")[3:]
    assert re.match(r"# toy bfloat16: 1 region, .*; \d+ shapes up to \S+ % slower than the baseline", line)
    checked("library/table.py")
    succeed("fit", "--store", store, "--leaves", "3", "--baseline", "best.py", "--out", "library/three.py")
    assert max(slowdowns(tree_of("library/three.py"), penalty)) < 1.01
    assert "baseline" not in comment(locate.load("library/three.py").header).split("\n")[3]
    Path("best.py").unlink()
    assert "baseline ../best.py is no rule" in invoke("check", "library/table.py").output


def test_a_rule_as_baseline(store: str) -> None:
    fit("--leaves", "1", "--baseline", "liger")
    assert locate.load("table.py").header.command["options"]["baseline"] == "liger"
    checked()


def test_the_table_that_is_replaced_is_no_baseline(store: str) -> None:
    fit("--leaves", "1")
    before = Path("table.py").read_bytes()
    words = ("--leaves", "2", "--baseline", "./table.py", "--out", "table.py")
    assert "which is replaced: copy it, and name the copy" in refused("fit", "--store", store, *words)
    assert Path("table.py").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [(), ("--leaves", "3"), ("--leaves", "2", "--max-slowdown", "1.4"), ("--max-configs", "2")],
)
def test_a_fit_over_the_table_it_wrote_changes_nothing(store: str, options: tuple[str, ...]) -> None:
    fit(*options)
    before = Path("table.py").read_bytes()
    fit(*options)
    assert Path("table.py").read_bytes() == before


def edited(change: Callable[[str], str]) -> None:
    """Change the table by hand, and mend its hash, as a merge of two might."""
    Path("table.py").write_text(rehashed(change(Path("table.py").read_text())))


@pytest.fixture
def replacing(store: str) -> str:
    """A table that replaced another one, by which nothing of it is decided."""
    fit_within(0)
    fit("--leaves", "3")
    assert leaves(tree_of()) == 3
    return store


@pytest.mark.slow
def test_a_table_that_replaced_another_passes_check(replacing: str) -> None:
    assert "equal, byte for byte, to a fit of data.parquet" in checked()


def test_it_stays_as_it_is_when_it_is_fitted_again(replacing: str) -> None:
    before = Path("table.py").read_bytes()
    fit("--leaves", "3")
    assert Path("table.py").read_bytes() == before


@pytest.mark.long
def test_baseline_none_compares_with_nothing_not_even_with_the_table_that_is_replaced(replacing: str) -> None:
    fit_within(50, baseline="none")
    header = locate.load("table.py").header
    assert header.command["options"]["baseline"] == "none"
    assert leaves(tree_of()) == 1
    Path("none").write_text("no table\n")  # the word comes before a file, as the name of a rule does
    assert "byte for byte" in checked()


def test_an_edit_of_it_fails(replacing: str) -> None:
    text = Path("table.py").read_text()
    Path("table.py").write_text(text.replace("hidden <= 512", "hidden <= 1024"))
    assert "edited by hand" in failed()


@pytest.mark.slow
def test_an_edit_with_a_mended_hash_fails_by_its_figures(replacing: str) -> None:
    edited(lambda text: text.replace("hidden <= 512", "hidden <= 1024"))
    assert "it differs from a fit of data.parquet" in failed()


def test_a_figure_that_was_edited_fails(replacing: str) -> None:
    text = Path("table.py").read_text()
    (worst,) = re.findall(r'"worst": \d+', text)
    Path("table.py").write_text(text.replace(worst, '"worst": 1234').replace("worst 0.0 %", "worst 0.1 %"))
    assert worst in failed()


@pytest.mark.long
def test_a_change_of_its_data_fails(replacing: str, run, measure, penalty, spec) -> None:
    record("sqlite:///other.db", run, measure(lambda config, problem: 0.1, SHAPES, fingerprint=fingerprint(spec)))
    succeed("fit", "--store", "other.db", "--leaves", "1", "--out", "other.py", "--evidence", "data.parquet")
    assert "data.parquet holds other measurements than the table was fitted to" in failed()
