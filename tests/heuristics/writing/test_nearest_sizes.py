"""Modules of operators with named integers answer for others as launches do."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from normtune.heuristics.writing.emit import body_text
from normtune.kernels.key import Key
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.parse import trees
from normtune.kernels.tablefile.tree import Leaf, regions
from normtune.kernels.target import target_for
from normtune.tests.heuristics.made_up import everywhere

QK_NORM = locate.SHIPPED / "nvidia_h200_qk_norm.py"


def module(keys: list[Key]) -> dict[str, Any]:
    """The names of an emitted module, in which each key has a config of its own."""
    functions = [
        SimpleNamespace(key=key, served=(key,), tree=Leaf(RMSNormConfig("row", index + 1, 4)))
        for index, key in enumerate(keys)
    ]
    text = body_text(functions, everywhere(functions))  # type: ignore[arg-type]
    assert set(trees(text)) == {*keys}
    names: dict[str, Any] = {}
    exec(compile(text, "table", "exec"), names)
    return names


def drawn(draw: random.Random, most: int) -> Key:
    """A key of two named integers, small ones so that many ratios are equal, in one of three variants."""
    sizes = ".".join(f"{name}={draw.randint(1, most)}" for name in ("heads", "group"))
    return Key.parse(f"norm.{sizes}{draw.choice(('', ':no_rstd', ':batch_invariant'))}", draw.choice(("a", "b")))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(20))
def test_a_module_chooses_the_nearest_named_integers_as_launches_do(seed: int) -> None:
    draw = random.Random(seed)
    keys = sorted({drawn(draw, 16) for _ in range(draw.randint(1, 12))})
    lookup = module(keys)["lookup"]
    answered = 0
    for _ in range(200):
        key = drawn(draw, 40)
        near = key if key in keys else key.nearest(keys)
        if near in keys:
            assert lookup(key.text, key.dtype, 1, 64).block_row == keys.index(near) + 1
            answered += 1
        else:
            with pytest.raises(ValueError, match="no table for"):
                lookup(key.text, key.dtype, 1, 64)
    assert answered > 20


def test_ties_go_to_the_smaller_integers() -> None:
    keys = [Key.parse(f"norm.heads={heads}", "a") for heads in (4, 16, 9)]
    lookup = module(keys)["lookup"]
    assert [lookup(f"norm.heads={heads}", "a", 1, 64).block_row for heads in (8, 12, 6, 1, 1000)] == [3, 3, 1, 1, 2]
    keys = [Key.parse(f"norm.heads={heads}.group=1", "a") for heads in (16, 4)]  # both a factor of 2 from 8
    assert module(keys)["lookup"]("norm.heads=8.group=1", "a", 1, 64).block_row == 2
    assert Key.parse("norm.heads=8.group=1", "a").nearest(keys) == keys[1]


@pytest.mark.parametrize(
    "name", ["norm.heads=0", "norm.heads=x", "norm.heads", "norm", "other.heads=4", "norm.tails=4"]
)
def test_names_without_such_integers_have_no_table(name: str) -> None:
    with pytest.raises(ValueError, match="no table for"):
        module([Key.parse("norm.heads=4", "a")])["lookup"](name, "a", 1, 64)


def test_modules_without_named_integers_do_not_carry_the_choice() -> None:
    assert "_nearest" not in module([Key.parse("norm", "a")])
    for path in locate.shipped():
        assert ("def _nearest" in path.read_text()) == (path == QK_NORM)


@pytest.mark.slow
def test_answers_for_other_heads_are_legal_at_every_shape() -> None:
    """So a module needs no default config for named integers that were not measured."""
    table, draw = locate.load(QK_NORM), random.Random(0)
    target = target_for(table.header.target, table.header.sms)
    for _ in range(100):
        heads_q, heads_k = draw.randint(1, 256), draw.randint(1, 256)
        heads = heads_q + heads_k + draw.randint(0, 256)
        for key, tree in table.trees.items():
            sizes = {"heads_q": heads_q, "heads_k": heads_k, "heads": heads, "rotary_dim": 2 * draw.randint(1, 128)}
            spec = operator(key._replace(sizes=tuple(sizes.items())).operator)
            for config, box in regions(tree, spec.whole):
                problem = Problem(spec.key(key.dtype, "+".join(key.modes)), *box.largest)
                assert spec.is_legal(spec.config(*config), problem, target)
