import pickle

from hypothesis import given
from hypothesis import strategies as st

from normtune.kernels.key import Key

# Of the letters of the language, so that most texts mean something in it.
texts = st.text("ab=.:+01_", max_size=20) | st.text()
words = st.lists(st.text("abc_", min_size=1), max_size=3)


@given(texts | texts.map(lambda text: f"{text}+batch_invariant"), texts)
def test_any_text_is_read_back(text: str, dtype: str) -> None:
    key = Key.parse(text, dtype)
    assert (key.text, key.dtype, str(key)) == (text, dtype, f"{text} {dtype}")
    assert pickle.loads(pickle.dumps(key)) == key


@given(texts, texts, texts)
def test_any_columns_are_read_back(operator: str, variant: str, dtype: str) -> None:
    assert Key.of(operator, variant, dtype).columns == (operator, variant, dtype)


@given(st.text("abc_", min_size=1), words, st.booleans())
def test_a_key_is_that_of_its_text(operator: str, modes: list[str], is_batch_invariant: bool) -> None:
    key = Key(operator, (("n", 8), ("k", 2)), tuple(modes), "float16", is_batch_invariant)
    assert Key.parse(key.text, "float16") == key
    assert key.batch_invariant.usual == key.usual == Key.of(key.operator, "+".join(modes), "float16")
    assert key.names == (key, key.without_modes)[: 1 + bool(modes)]


@given(st.lists(st.tuples(texts, texts)))
def test_keys_are_ordered_as_their_texts_and_dtypes(pairs: list[tuple[str, str]]) -> None:
    assert [(key.text, key.dtype) for key in sorted(Key.parse(*pair) for pair in pairs)] == sorted(pairs)


def test_the_parts_of_a_text() -> None:
    key = Key.parse("norm.heads=8.group=64:no_rstd+batch_invariant", "float16")
    assert key == ("norm", (("heads", 8), ("group", 64)), ("no_rstd",), "float16", True)
    assert (key.operator, key.variant) == ("norm.heads=8.group=64", "no_rstd+batch_invariant")
    assert not Key.parse("my_batch_invariant", "float16").is_batch_invariant
    for other in ("norm.heads=08", "norm.heads=x", "norm.heads", "norm.heads=" + "9" * 10):
        assert Key.parse(other, "float16")[:2] == (other, ())


def nearest(text: str, *others: str) -> str:
    return Key.parse(text, "float16").nearest(Key.parse(other, "float16") for other in others).text


def test_the_nearest_named_integers_answer() -> None:
    others = [f"gated.heads={heads}.group=64:no_rstd" for heads in (1, 2, 32)]
    assert nearest("gated.heads=6.group=100:a", *others) == "gated.heads=2.group=64:a"
    for other in ("gated.heads=6", "plain", "other.heads=6.group=64", "gated.heads=0.group=64"):
        assert nearest(other, *others, "gated.heads=0.group=0") == other
    assert Key.parse("gated.heads=1.group=64", "float32").nearest([Key.parse(others[1], "float16")]).sizes[0][1] == 1
