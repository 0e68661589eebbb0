"""The form of a table for any GPU: a written table parses to the same trees, and no other code is run."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.any_gpu.result import AnyGpuFunction
from normtune.heuristics.writing.emit import body_text
from normtune.kernels.key import Key
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.tablefile import locate, template
from normtune.kernels.tablefile.parse import relative_trees, trees
from normtune.kernels.tablefile.relative_tree import (
    BYTES_PER_L2,
    HIDDEN,
    ROWS_PER_SM,
    RelativeSplit,
    RelativeTree,
    choose_on,
)
from normtune.kernels.tablefile.tree import Leaf
from normtune.tests.heuristics.made_up import everywhere, rehashed

SHIPPED = locate.SHIPPED / locate.ANY_GPU
numbers = st.integers(1, 1 << 40)
leaves = st.integers(1, 5).map(lambda warps: Leaf(RMSNormConfig("row", 1, 1 << warps)))


def cuts(parts: st.SearchStrategy[RelativeTree]) -> st.SearchStrategy[RelativeTree]:
    return st.builds(RelativeSplit, st.just(HIDDEN), st.just(1), numbers, parts, parts) | st.builds(
        RelativeSplit, st.just(ROWS_PER_SM), numbers, numbers, parts, parts
    )


def written(tree: RelativeTree) -> str:
    functions = [AnyGpuFunction(Key.of("toy", "", "bfloat16"), tree, ("bfloat16",), 1, ())]
    return body_text(functions, everywhere(functions), template.ANY_GPU)


def older(text: str) -> str:
    """The text of a table as it was written when thresholds could be in bytes of L2 cache: the even ones are."""
    return re.sub(r"rows >= (\d*[02468] \* )sms:", r"rows * hidden >= \1l2_bytes:", text)


def in_bytes(tree: RelativeTree) -> RelativeTree:
    """The tree of `older`."""
    if isinstance(tree, Leaf):
        return tree
    is_older = tree.size == ROWS_PER_SM and tree.threshold % 2 == 0
    return tree._replace(size=BYTES_PER_L2 if is_older else tree.size, low=in_bytes(tree.low), high=in_bytes(tree.high))


@pytest.mark.long
@given(st.recursive(leaves, cuts, max_leaves=8), numbers, st.integers(1, 65536), st.integers(1, 400), numbers)
def test_what_is_written_is_read_back_and_answers_alike(
    tree: RelativeTree, rows: int, hidden: int, sms: int, l2_bytes: int
) -> None:
    assert relative_trees(written(tree)) == {Key.parse("toy", "bfloat16"): tree}
    text, tree = older(written(tree)), in_bytes(tree)
    assert relative_trees(text) == {Key.parse("toy", "bfloat16"): tree}
    names: dict[str, object] = {"__name__": "table"}
    exec(text, names)
    lookup = names["lookup"]
    assert callable(lookup)
    assert RMSNormConfig(*lookup("toy", "bfloat16", rows, hidden, sms, l2_bytes)) == choose_on(
        tree, (rows, hidden), sms, l2_bytes
    )


def test_it_reads_as_by_hand() -> None:
    few, many, large = (Leaf(RMSNormConfig("row", 1, warps)) for warps in (1, 2, 4))
    tree = RelativeSplit(
        ROWS_PER_SM, 1, 31, RelativeSplit(ROWS_PER_SM, 8, 1, few, many), RelativeSplit(ROWS_PER_SM, 3, 200, many, large)
    )
    text = written(tree)
    for line in ("if rows >= 31 * sms:", "if 3 * rows >= 200 * sms:", "if 8 * rows >= sms:"):
        assert line in text


def test_the_two_forms_are_told_apart() -> None:
    with pytest.raises(NormtuneError, match="a form that normtune does not write"):
        trees(SHIPPED.read_text())
    with pytest.raises(NormtuneError, match="a form that normtune does not write"):
        relative_trees((locate.SHIPPED / "nvidia_h200.py").read_text())


@pytest.mark.parametrize(
    "test",
    [
        "rows >= 8",
        "rows >= 8 * l2_bytes",
        "rows * sms >= 8",
        "rows > 8 * sms",
        "8 * sms <= rows",
        "rows >= 8 * sms * sms",
        "rows >= sms * 8",
        "rows >= -8 * sms",
        "rows >= 0 * sms",
        "rows >= True * sms",
        "rows >= 8.0 * sms",
        "rows >= 8 * sms >= 1",
        "rows >= print('x')",
        "rows ** 99999999 >= sms",
        "rows * rows >= l2_bytes",
        "rows * hidden >= sms",
        "hidden <= 8 * sms",
        "2 * hidden <= 8",
        "hidden >= 8",
        "(rows := 8) >= sms",
        "True",
    ],
)
def test_hostile_comparisons_are_refused(test: str, tmp_path: Path) -> None:
    text = SHIPPED.read_text()
    found = re.search(r"if rows >= \d+ \* sms:", text)
    assert found
    path = tmp_path / "table.py"
    path.write_text(rehashed(text[: found.start()] + f"if {test}:" + text[found.end() :]))
    with pytest.raises(UsageError, match="a form that normtune does not write"):
        locate.load(path)


@pytest.mark.parametrize("name", ["rows", "hidden", "sms", "l2_bytes"])
def test_no_config_has_the_name_of_a_size(name: str) -> None:
    text = re.sub(r"\bROW_WARPS_1\b", name, written(Leaf(RMSNormConfig("row", 1, 1))))
    with pytest.raises(NormtuneError, match="a part is missing"):
        relative_trees(text)
