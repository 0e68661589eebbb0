"""`normtune lookup`: what it prints is what the loaded table answers."""

import pytest
import torch

from normtune import load_table
from normtune.kernels.key import Key
from normtune.kernels.tablefile.tree import choose
from normtune.results.options import as_names
from normtune.tests.commands import refused, succeed

SHAPES = [(1, 64), (4096, 1024), (65536, 16384)]


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "hidden"), SHAPES)
def test_the_config_is_the_one_of_the_table(rows: int, hidden: int) -> None:
    table = load_table("nvidia-h200")
    for name in ("rms_norm_forward", "rms_norm_backward:no_dweight"):
        answer = table.function(Key.parse(name, "float16"))
        assert answer
        words = ("lookup", "nvidia-h200", name, "float16", f"rows={rows}", f"hidden={hidden}")
        assert succeed(*words) == f"{answer(rows, hidden)}\n"


def test_a_dtype_has_a_short_name() -> None:
    words = ("lookup", "nvidia-h200", "rms_norm_forward"), ("rows=64", "hidden=1024")
    for short, name in (("bf16", "bfloat16"), ("fp16", "float16"), ("half", "float16"), ("fp32", "float32")):
        assert succeed(*words[0], short, *words[1]) == succeed(*words[0], name, *words[1])
    table = load_table("nvidia-h200")
    answers = {table.lookup("rms_norm_forward", dtype, 64, 1024) for dtype in ("bf16", "bfloat16", torch.bfloat16)}
    assert len(answers) == 1
    assert as_names("dtypes", ("bf16", "float32")) == ("bfloat16", "float32")
    assert as_names("operators", "half") == ("half",)


def test_named_integers_choose_the_nearest_functions() -> None:
    words = ["nvidia-h200-qk-norm", "qk_norm", "bfloat16", "rows=512", "hidden=128"]
    sizes = ["heads_q=33", "heads_k=8", "heads=49", "rotary_dim=128"]
    used, table = "qk_norm.heads_q=32.heads_k=8.heads=48.rotary_dim=128", load_table(words[0])
    (tree,) = (tree for name, tree in table.trees.items() if name.text == used and name.dtype == "bfloat16")
    assert succeed("lookup", *words, *sizes) == f"{choose(tree, (512, 128))}\n"
    assert refused("lookup", *words, *sizes[1:]) == "heads_q is missing (a named integer of qk_norm): add heads_q=N"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("rms_norm_forward bfloat16 rows=1", "hidden is missing"),
        ("rms_norm_forward bfloat16 rows=1 hidden=64 sms=132", "unknown size sms: expected rows, hidden"),
        ("rms_norm_forward bfloat16 rows=0 hidden=64", "'rows=0': expected NAME=N"),
        ("rms_norm_forward bfloat16 rows hidden=64", "'rows': expected NAME=N"),
        ("rms_norm_forward bfloat16 rows=1 rows=2 hidden=64", "rows is given twice"),
        (
            "rms_norm_forward bfloat16 rows=1 hidden=64 heads=2",
            "unknown size heads: expected rows, ",
        ),
        (
            "softmax bfloat16 rows=1 hidden=64",
            "nvidia-h200 has no function for softmax bfloat16: expected one of ",
        ),
        ("rms_norm_forward:foo bfloat16 rows=1 hidden=64", "unknown variant 'foo': rms_norm_forward has "),
        ("rms_norm_forward bfloat16 rows=1 hidden=9999999999", "hidden is 9999999999: rms_norm_forward takes 1 to "),
        ("rms_norm_forward int8 rows=1 hidden=64", "nvidia-h200 has no function for rms_norm_forward int8"),
    ],
)
def test_what_is_missing_or_unknown_is_named(words: str, says: str) -> None:
    assert says in refused("lookup", "nvidia-h200", *words.split())


def test_a_table_that_is_not_there_is_named_with_those_that_are() -> None:
    told = refused("lookup", "liger", "rms_norm_forward", "bfloat16", "rows=1", "hidden=64")
    assert told.startswith("liger is no file or shipped table: expected ") and "nvidia-h200, " in told
