from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normtune.heuristics.regret.legality import Legality, all_variants
from normtune.kernels.config import Config
from normtune.kernels.operator import IllegalConfigError, operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.kernels.tiles.launch import Launch

pytestmark = pytest.mark.long

CONFIGS = tuple(RMSNormConfig("row", 1, warps) for warps in (1, 2, 4))


@st.composite
def areas(draw: st.DrawFn) -> tuple[list[int], list[int], dict[Config, list[int]]]:
    """Sizes, and for each config how many of the rows it takes at each hidden size, never more as hidden grows."""
    rows = sorted(draw(st.sets(st.integers(1, 100), min_size=1, max_size=8)))
    hidden = sorted(draw(st.sets(st.integers(1, 100), min_size=1, max_size=8)))
    edges = {
        config: sorted(
            draw(st.lists(st.integers(0, len(rows)), min_size=len(hidden), max_size=len(hidden))), reverse=True
        )
        for config in CONFIGS
    }
    return rows, hidden, edges


@pytest.mark.slow
@given(areas())
@settings(max_examples=200, deadline=None)
def test_the_legal_area_is_found_from_its_edge(area) -> None:
    rows, hidden, edges = area

    def resolve(config, problem, target, alignment=None):
        if config not in CONFIGS or rows.index(problem.rows) >= edges[config][hidden.index(problem.hidden)]:
            raise IllegalConfigError("beyond the edge")
        return Launch(False, 1, 1, 1, config.num_warps, 1, 16, False, 0)

    spec = replace(operator("rms_norm_forward"), resolve=resolve)
    found = Legality(spec, TARGETS["sm_90"], ("bfloat16",), ("",)).over(CONFIGS, rows, hidden)
    expected = np.array([[[row < edge for edge in edges[config]] for row in range(len(rows))] for config in CONFIGS])
    assert (found == expected).all()


def test_a_region_needs_every_dtype_that_is_served() -> None:
    spec = operator("rms_norm_forward")
    config = RMSNormConfig("row", 1, 4)
    alone, both = (
        Legality(spec, TARGETS["sm_90"], dtypes, ("",)) for dtypes in (("bfloat16",), ("bfloat16", "float32"))
    )
    sizes = [2**power for power in range(4, 16)]
    assert (both.over([config], [1], sizes) <= alone.over([config], [1], sizes)).all()
    assert [alone.reaches(config, (1, size)) for size in sizes] == alone.over([config], [1], sizes)[0, 0].tolist()


@pytest.mark.parametrize(("target", "variant"), [("sm_90", ""), ("gfx942", "fnuz")])
def test_variants_that_a_target_has_no_kernel_for_forbid_nothing(target, variant):
    spec = operator("rms_norm_quantize_fp8_static")
    config = spec.default_config(spec.problem(64, 1024, "bfloat16", variant), TARGETS[target])
    legality = Legality(spec, TARGETS[target], ["bfloat16"], all_variants(spec))
    assert legality.reaches(config, (64, 1024))
    assert any("fnuz" in key.variant for key in legality.served) == (target == "gfx942")
