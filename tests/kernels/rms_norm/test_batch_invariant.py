"""The switch of the batch-invariant mode, its lookups, and the independence of a row's arithmetic from rows."""

import threading
import warnings
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import normtune
from normtune.errors import UsageError
from normtune.kernels.alignment import alignment_of
from normtune.kernels.box import Box
from normtune.kernels.calling import batch_invariant, dispatch, layout
from normtune.kernels.key import Key
from normtune.kernels.operator import operator, operators
from normtune.kernels.problem import AXES, MAX_ROWS, Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.loaded import LoadedTable
from normtune.kernels.tablefile.locate import selection_of
from normtune.kernels.tablefile.tree import Leaf, Split
from normtune.kernels.target import TARGETS

H200 = TARGETS["sm_90"]
FORWARD, BACKWARD = operator("rms_norm_forward"), operator("rms_norm_backward")
SPECS = list(operators().values())
row_counts = st.integers(1, MAX_ROWS)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv(batch_invariant.VARIABLE, raising=False)
    normtune.use_batch_invariant(None)
    normtune.use_table()
    yield
    normtune.use_batch_invariant(None)
    normtune.use_table()


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(data=st.data(), spec=st.sampled_from(SPECS), target=st.sampled_from(list(TARGETS.values())))
def test_a_config_works_on_a_row_in_the_same_way_whatever_the_number_of_rows(data, spec, target):
    dtype, variant = data.draw(st.sampled_from(spec.dtypes)), data.draw(st.sampled_from(spec.variants))
    hidden = data.draw(st.integers(1, 65536) | st.integers(1, spec.max_hidden))
    problem = Problem.of(spec.name, data.draw(row_counts), hidden, dtype, variant)
    other = problem._replace(rows=data.draw(row_counts))
    alignment = data.draw(st.sampled_from([None, 1, 2, 16]))
    configs = [*spec.space("full", problem, target), spec.default_config(problem, target)]
    config = data.draw(st.sampled_from(configs))
    if spec.is_legal(config, problem, target) and spec.is_legal(config, other, target):
        found = [spec.resolve(config, one, target, alignment).row_sum for one in (problem, other)]
        assert found[0] == found[1]


def row_sum(spec, hidden, *config, dtype="float32", alignment=None, rows=4096):
    return spec.resolve(RMSNormConfig(*config), spec.problem(rows, hidden, dtype), H200, alignment).row_sum


def test_what_sums_a_row_in_another_order_is_told_apart():
    whole = row_sum(FORWARD, 1000, "block_row", 4, 8)
    for other in (("block_row", 4, 4), ("row", 1, 4), ("split", 1, 8, 1, 0, "none", 256)):
        assert row_sum(FORWARD, 1000, *other) != whole, other
    assert row_sum(FORWARD, 1000, "block_row", 4, 8, alignment=1) != whole
    assert row_sum(FORWARD, 1000, "block_row", 4, 8, rows=3) == whole
    # 16 bytes are 8 elements of 16 bits, and a thread of a row alone has 4.
    assert row_sum(FORWARD, 1000, "row", 1, 8, dtype="bfloat16") != row_sum(
        FORWARD, 1000, "block_row", 4, 8, dtype="bfloat16"
    )
    cluster = row_sum(BACKWARD, 16384, "cluster_4", 1, 16, 1, 0, "columns", 32, rows=64)
    assert cluster != row_sum(BACKWARD, 16384, "split", 1, 16, 1, 1, "reduce", 4096)


def test_loops_rows_of_a_tile_and_warps_beside_a_row_leave_its_order_as_it_is():
    whole = row_sum(FORWARD, 1000, "row", 1, 8)
    for other in (("block_row", 4, 8), ("persistent", 1, 8, 4, 2), ("parts", 1, 8, 1, 2)):
        assert row_sum(FORWARD, 1000, *other, rows=3) == whole, other
    assert row_sum(FORWARD, 64, "block_row", 16, 8) == row_sum(FORWARD, 64, "block_row", 8, 4)
    looped = row_sum(BACKWARD, 4096, "persistent", 1, 8, 3, 2, "dependent")
    assert row_sum(BACKWARD, 4096, "row", 1, 8, 1, 0, "columns", 16) == looped


def test_the_switch_here_comes_before_that_of_the_process_and_of_the_environment(monkeypatch):
    assert not batch_invariant.is_batch_invariant()
    normtune.use_batch_invariant()
    assert batch_invariant.is_batch_invariant()
    with normtune.batch_invariant(False):
        assert not batch_invariant.is_batch_invariant()
        with normtune.batch_invariant():
            assert batch_invariant.is_batch_invariant()
        assert not batch_invariant.is_batch_invariant()
    assert batch_invariant.is_batch_invariant()
    monkeypatch.setenv(batch_invariant.VARIABLE, "1")
    normtune.use_batch_invariant(False)
    assert not batch_invariant.is_batch_invariant()
    normtune.use_batch_invariant(None)
    assert batch_invariant.is_batch_invariant()


def test_a_context_is_left_by_errors_and_is_of_one_thread():
    with pytest.raises(KeyError), normtune.batch_invariant():
        raise KeyError
    assert not batch_invariant.is_batch_invariant()
    found = []
    with normtune.batch_invariant():
        thread = threading.Thread(target=lambda: found.append(batch_invariant.is_batch_invariant()))
        thread.start()
        thread.join()
    normtune.use_batch_invariant()
    thread = threading.Thread(target=lambda: found.append(batch_invariant.is_batch_invariant()))
    thread.start()
    thread.join()
    assert found == [False, True]


@pytest.mark.parametrize(("value", "wanted"), [("1", True), ("0", False), ("", False)])
def test_the_environment_says_it(monkeypatch, value, wanted):
    monkeypatch.setenv(batch_invariant.VARIABLE, value)
    assert batch_invariant.is_batch_invariant() is wanted


def test_another_value_in_the_environment_is_refused(monkeypatch):
    monkeypatch.setenv(batch_invariant.VARIABLE, "yes")
    with pytest.raises(UsageError, match=r"NORMTUNE_BATCH_INVARIANT is 'yes': expected 1"):
        normtune.rms_norm(torch.zeros(2, 8), torch.ones(8))


def configs(spec, rows, hidden, variant="", **mode):
    return [
        dispatch.config_for(spec, spec.problem(count, hidden, "float32", variant), H200, 0, **mode) for count in rows
    ]


def test_the_mode_takes_its_own_functions_at_every_number_of_rows(write_table):
    normtune.use_table(write_table(True))
    few, many = RMSNormConfig("row", 1, 2), RMSNormConfig("split", 1, 2, 1, 0, "none", 64)
    assert configs(FORWARD, (1, 16, MAX_ROWS), 512) == [few, many, many]
    assert configs(FORWARD, (1, 16, MAX_ROWS), 512, batch_invariant=True) == [few] * 3
    assert configs(FORWARD, (1, 16, MAX_ROWS), 513, batch_invariant=True) == [many] * 3
    assert configs(FORWARD, (1, 16), 512, "no_rstd", batch_invariant=True) == [few] * 2


def test_a_table_without_such_functions_gives_the_default_and_says_so_once(write_table):
    normtune.use_table(write_table(False))
    with pytest.warns(
        UserWarning, match=r"table_False\.py has no batch-invariant function of rms_norm_forward float32"
    ):
        found = configs(FORWARD, (1, 16, 4096), 512, batch_invariant=True)
    problem = FORWARD.problem(7, 512, "float32")
    assert found == [FORWARD.default_config(problem, H200)] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        configs(FORWARD, (2,), 768, batch_invariant=True)
        configs(BACKWARD, (2,), 768, batch_invariant=True)
        normtune.use_table(None)
        assert configs(FORWARD, (1, 4096), 512, batch_invariant=True) == found[:2]


def test_what_is_illegal_for_large_batches_is_not_launched_for_small_ones(monkeypatch):
    columns = RMSNormConfig("row", 1, 4, 1, 0, "columns", 16)
    problem = BACKWARD.problem(8, 1024, "bfloat16")
    assert BACKWARD.is_legal(columns, problem, H200)
    assert not BACKWARD.is_legal(columns, problem._replace(rows=MAX_ROWS), H200)
    monkeypatch.setattr(dispatch, "config_for", lambda *arguments: columns)
    assert dispatch._resolve(BACKWARD, problem, H200, 0, 16) == BACKWARD.resolve(columns, problem, H200, 16)
    wanted = BACKWARD.resolve(BACKWARD.default_config(problem, H200), problem, H200, 16)
    assert dispatch._resolve(BACKWARD, problem, H200, 0, 16, True) == wanted


@pytest.fixture
def of_tree(monkeypatch):
    """Makes a tree the function of the mode for the backward in bfloat16."""

    def use(tree):
        name = Key.parse("rms_norm_backward:batch_invariant", "bfloat16")
        box = Box.of(rows=(1, 262144), hidden=(64, 16384))
        table = LoadedTable(locate.SHIPPED, SimpleNamespace(), {name: tree}, {name: box}, AXES)
        answer_from(selection_of(table), monkeypatch)

    yield use
    normtune.use_table()


def answer_from(tables, monkeypatch):
    """Let these tables be those of every device, until `use_table` chooses again."""
    monkeypatch.setattr(locate, "selection_of", lambda *arguments: tables)
    monkeypatch.setattr(locate, "select", lambda *arguments: tables)
    normtune.use_table(locate.SHIPPED / "nvidia_h200.py")


def launches(hidden, target=H200):
    """Of the mode, at few rows, at many, and at all."""
    alignment = alignment_of(hidden)
    return [
        dispatch._resolve(BACKWARD, BACKWARD.problem(rows, hidden, "bfloat16"), target, 0, alignment, True)
        for rows in (64, 5000, MAX_ROWS)
    ]


def test_few_rows_have_a_config_of_their_own_if_it_sums_a_row_in_the_same_order(of_tree):
    few = Leaf(RMSNormConfig("row", 1, 8, 1, 0, "columns", 16))
    of_tree(Split("rows", 2048, few, Leaf(RMSNormConfig("persistent", 1, 8, 3, 2, "dependent"))))
    found = launches(4096)
    assert [launch.finish for launch in found] == ["columns", "dependent", "dependent"]
    assert len({launch.row_sum for launch in found}) == 1
    problem, first = BACKWARD.problem(1, 4096, "bfloat16"), torch.empty(0)
    assert dispatch.row_bounds(problem, dispatch.target_of(first), 0, True) == [
        1,
        2048,
        524289,
    ]  # where a warmup looks for binaries
    assert dispatch.row_bounds(problem, dispatch.target_of(first), 0, False) == [1]
    # In 4 warps a row is summed otherwise, and the config of many rows serves all.
    of_tree(Split("rows", 2048, few, Leaf(RMSNormConfig("persistent", 1, 4, 3, 2, "dependent"))))
    found = launches(4096)
    assert [launch.finish for launch in found] == ["dependent"] * 3 and found[0].num_warps == 4


def test_a_row_has_the_same_order_of_its_sum_whichever_table_answers(monkeypatch):
    name, header = Key.parse("rms_norm_backward:batch_invariant", "bfloat16"), SimpleNamespace()

    def table(config, most):
        box = Box.of(rows=(1, most), hidden=(64, 16384))
        return LoadedTable(locate.SHIPPED, header, {name: Leaf(config)}, {name: box}, AXES)

    few = table(RMSNormConfig("row", 1, 8, 1, 0, "columns", 16), 32)
    for warps, finishes in ((8, ["columns", "dependent", "dependent"]), (4, ["dependent"] * 3)):
        many = table(RMSNormConfig("persistent", 1, warps, 3, 2, "dependent"), 262144)
        answer_from(selection_of(few, "", selection_of(many)), monkeypatch)
        found = launches(4096)  # at 64 rows, twice those of the first table, at 5000 and at all
        assert [launch.finish for launch in found] == finishes
        assert len({launch.row_sum for launch in found}) == 1


def test_a_config_that_is_illegal_for_some_of_its_rows_is_launched_for_none(of_tree):
    few, many = (
        RMSNormConfig("row", 1, 8, 1, 0, "columns", 16),
        RMSNormConfig("persistent", 1, 8, 3, 2, "dependent"),
    )
    of_tree(Split("rows", 5000, Leaf(few), Leaf(many)))  # a program of columns walks through 4096 rows at most
    assert [launch.finish for launch in launches(4096)] == ["dependent"] * 3
    of_tree(Split("rows", 2048, Leaf(many), Leaf(few)))
    wanted = BACKWARD.default_config(BACKWARD.problem(1, 4096, "bfloat16"), H200)
    assert {launch.num_warps for launch in launches(4096)} == {wanted.num_warps}
    assert [launch.finish for launch in launches(4096)] == [wanted.finish] * 3


def test_what_is_alike_at_one_hidden_size_may_differ_at_another(of_tree):
    # At 1024 both hold a row in 4 warps with 8 elements a thread; at an odd size the second spreads it over 8.
    one, two = (RMSNormConfig("persistent", rows, warps, 1, 2, "reduce") for rows, warps in ((1, 4), (2, 8)))
    of_tree(Split("rows", 2048, Leaf(one), Leaf(two)))
    assert [launch.num_warps for launch in launches(1024)] == [4, 8, 8]
    assert [launch.num_warps for launch in launches(1023)] == [8, 8, 8]


def test_views_are_copied_where_their_rows_lie_otherwise_than_those_of_a_new_tensor():
    whole = torch.randn(9 * 100 + 1)
    aligned = whole[:900].view(9, 100)
    assert batch_invariant.well_aligned(aligned) is aligned
    padded = torch.randn(9, 104)[:, :100]
    assert batch_invariant.well_aligned(padded) is padded
    for view in (whole[1:901].view(9, 100), torch.randn(9, 103)[:, :100], torch.randn(9, 104)[:, 1:101]):
        found = batch_invariant.well_aligned(view)
        assert found.is_contiguous() and found.data_ptr() % 16 == 0 and found.stride() == (100, 1)
        assert torch.equal(found, view)


def test_a_single_row_has_the_stride_of_any_other_whatever_it_was_cut_from():
    padded = torch.randn(9, 103)[:, :100]
    assert padded[4:5].is_contiguous() and padded[4:5].stride(0) == 103
    row = layout.rows_of("x", padded[4:5], False)
    assert row.stride() == (100, 1) and row.data_ptr() == padded[4:5].data_ptr()
    rows = layout.rows_of("x", padded, False)
    assert rows.stride() == padded.stride() and rows.data_ptr() == padded.data_ptr()
