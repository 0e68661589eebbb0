"""Configs are values: canonical text, order, equality with plain tuples."""

from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normtune.kernels.config import Config
from normtune.kernels.rms_norm.operator import FINISHES, SCHEDULES, RMSNormConfig

configs = st.builds(
    RMSNormConfig,
    st.sampled_from(SCHEDULES),
    st.integers(1, 128),
    st.integers(1, 32),
    st.integers(1, 4),
    st.integers(0, 16),
    st.sampled_from(FINISHES),
    st.integers(0, 8192),
)


@given(configs)
def test_text_round_trip(config):
    assert RMSNormConfig.from_json(config.to_json()) == config
    assert config == tuple(config)


@given(configs, configs)
def test_equal_text_only_for_equal_configs(one, other):
    assert (one.to_json() == other.to_json()) == (one == other)
    assert (str(one) == str(other)) == (one == other)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schedule": 1}', '{"schedule": "row", "warp": 4}', '{"schedule": "row", "num_warps": "4"}'],
)
def test_other_text_is_refused_by_name(text):
    with pytest.raises(ValueError, match="not a config"):
        RMSNormConfig.from_json(text)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, '{"schedule": ' + "9" * 8000 + "}", '{"schedule": "' + "x" * 8000, "x" * 8000],
)
def test_a_text_of_any_length_or_depth_is_refused_in_a_short_line(text):
    for of in (RMSNormConfig, Config):
        with pytest.raises(ValueError, match="not a config") as caught:
            of.from_json(text)
        assert len(str(caught.value)) < 600


def test_one_line_says_what_differs_from_plain():
    assert str(RMSNormConfig("row", 1, 8)) == "row warps=8"
    assert (
        str(RMSNormConfig("persistent", 4, 8, 3, 2, "reduce"))
        == "persistent block_row=4 warps=8 stages=3 programs_per_sm=2 finish=reduce"
    )


def test_a_subclass_has_the_inherited_knobs_first_and_may_change_their_meaning():
    class First(Config):
        rows: Annotated[int, "rows a program."]
        warps: Annotated[int, "warps."] = 4

    class Second(First):
        rows: Annotated[int, "rows a tile."]
        depth: Annotated[int, "stages."] = 1

    assert [(knob.name, knob.meaning) for knob in Second.knobs] == [
        ("rows", "rows a tile."),
        ("warps", "warps."),
        ("depth", "stages."),
    ]
    assert Second(2, depth=3) == (2, 4, 3) and Second(2, 8).warps == 8
    assert [knob.meaning for knob in First.knobs] == ["rows a program.", "warps."]
