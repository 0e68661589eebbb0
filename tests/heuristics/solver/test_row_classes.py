"""Classes of configs that sum a row in the same order: over all sizes of a bin, dtypes, variants and rows."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.solver.bins import Bins
from normtune.heuristics.solver.grid import Axis
from normtune.heuristics.solver.row_classes import RowClasses, representatives
from normtune.kernels.alignment import alignment_of
from normtune.kernels.operator import IllegalConfigError, operator
from normtune.kernels.problem import MAX_ROWS
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf, Split
from normtune.kernels.target import TARGETS

pytestmark = pytest.mark.long

H200 = TARGETS["sm_90"]
FORWARD, BACKWARD = operator("rms_norm_forward"), operator("rms_norm_backward")
OTHERS = (operator("fused_add_rms_norm_backward"), operator("rms_norm_quantize_fp8_transpose"))
GATED = operator("rms_norm_gated_forward"), operator("rms_norm_gated_backward")
ROW, BLOCK, WIDE = (RMSNormConfig("row", 1, 4), RMSNormConfig("block_row", 2, 8), RMSNormConfig("row", 1, 8))


def classes_of(configs, spec=FORWARD, dtypes=("bfloat16",), hidden=(512, 1024), variants=("",), measured=()):
    """Of each config its class in the bin above each size, up to the next."""
    axis, shape = Axis("hidden", hidden, False), (len(configs), 1, len(hidden))
    none = np.zeros(shape, bool)
    in_bins = Bins((Axis("rows", (MAX_ROWS,), False), axis), configs, np.zeros(shape, np.int64), none, ~none)
    return RowClasses(Legality(spec, H200, dtypes, variants)).of(in_bins, measured)[:, 1:].T.tolist()


def test_configs_of_a_class_are_so_at_measured_sizes_and_at_aligned_ones():
    # At 1024 both hold a row in 4 warps with 8 elements a thread; at an odd size the second spreads it over 8.
    for dtype in ("bfloat16", "float32"):
        launches = [FORWARD.resolve(one, FORWARD.problem(64, 1024, dtype), H200, None) for one in (ROW, BLOCK)]
        assert (launches[0].row_sum == launches[1].row_sum) == (dtype == "bfloat16")
    assert classes_of((ROW, BLOCK), hidden=(1023, 1024)) == [[0, 0]]
    assert classes_of((ROW, BLOCK), hidden=(1022, 1024)) == [[0, 0]]
    assert classes_of((ROW, BLOCK), hidden=(1022, 1024), measured=(1003, 1024)) == [[0, 0]]
    assert classes_of((ROW, BLOCK), hidden=(1022, 1024), measured=(1023,)) == [[0, 1]]
    assert classes_of((ROW, BLOCK), hidden=(1022, 1023)) == [[0, 1]]  # where no size is aligned, all count
    assert classes_of((ROW, BLOCK), hidden=(1023, 1024), dtypes=("bfloat16", "float32")) == [[0, 1]]


def test_few_rows_may_have_another_config_than_many():
    looped = RMSNormConfig("persistent", 1, 8, 3, 2, "dependent")
    columns = RMSNormConfig("row", 1, 8, 1, 0, "columns", 16)
    narrow = RMSNormConfig("row", 1, 4, 1, 0, "columns", 16)
    assert classes_of((looped, columns, narrow), BACKWARD, hidden=(2048, 4096)) == [[0, 0, 1]]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_no_size_of_a_bin_tells_apart_what_its_representatives_do_not(seed):
    draw = np.random.default_rng(seed)
    least = int(draw.integers(1, (20_000, 600)[seed % 2]))
    most = least + int(draw.integers(0, (9_000, 300)[seed % 2]))
    asked = [size for alike in representatives(least, most) for size in alike]
    assert {alignment_of(size) for size in asked} == {alignment_of(size) for size in range(least, most + 1)}
    for spec in (FORWARD, BACKWARD, *GATED, *OTHERS):
        problem = spec.problem(64, most, "bfloat16")
        configs = tuple(one for one in spec.space("default", problem, H200) if spec.is_legal(one, problem, H200))
        drawn = [*draw.integers(least, most + 1, 40).tolist(), *asked[::7]]
        for measured, compared in (((), [size for size in drawn if size % 8 == 0]), (asked, drawn)):
            classes = classes_of(configs, spec, hidden=(least - 1, most), measured=measured)[0]
            for size, number in product(compared, {*classes} - {-1}):
                problem = spec.problem(1, size, "bfloat16")
                alike = [one for one, own in zip(configs, classes, strict=True) if own == number]
                assert len({spec.resolve(one, problem, H200, None).row_sum for one in alike}) == 1, size


def test_what_depends_on_rows_or_is_unknown_has_no_class(monkeypatch, spec):
    resolve = spec.resolve

    def resolved(config, problem, target, alignment=None):
        if config.num_warps == 8 and problem.rows > 1000:
            raise IllegalConfigError("too many rows")
        launch = resolve(config, problem, target, alignment)
        return launch._replace(block_row=2) if config.num_warps == 16 and problem.rows > 4000 else launch

    object.__setattr__(spec, "resolve", resolved)
    configs = tuple(RMSNormConfig("row", 1, warps) for warps in (8, 16, 32))
    assert classes_of(configs, spec, hidden=(64, 128)) == [[0, -1, 1]]
    unknown = SimpleNamespace(grid=1, workspace=0)
    object.__setattr__(spec, "resolve", lambda *arguments: unknown)
    assert classes_of(configs, spec, hidden=(64, 128)) == [[-1, -1, -1]]


def test_a_tree_of_several_classes_is_found_by_the_sizes_at_which_it_has_them():
    found = RowClasses(Legality(FORWARD, H200, ("bfloat16",), ("",)))
    by_rows = Split("rows", 64, Leaf(ROW), Leaf(WIDE))
    assert list(found.mixed(Split("hidden", 512, Leaf(ROW), by_rows))) == [("hidden", 513, FORWARD.max_hidden)]
    assert list(found.mixed(Split("hidden", 512, Leaf(ROW), Leaf(WIDE)))) == []
    alike = Split("rows", 64, Leaf(WIDE), Leaf(RMSNormConfig("persistent", 1, 8, 4, 2)))
    assert list(found.mixed(Split("hidden", 4096, Split("hidden", 2048, Leaf(ROW), alike), Leaf(WIDE)))) == []
