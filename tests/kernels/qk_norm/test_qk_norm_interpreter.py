"""Values, bits, strides and gradients of `qk_norm`, with its kernel run by Triton's interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import normtune
from normtune.kernels.qk_norm.function import BackwardFormula, ForwardFormula

pytestmark = pytest.mark.interpreter


@pytest.fixture
def only_kernels(monkeypatch):
    """The formula in torch's operations fails."""
    for formula in (ForwardFormula, BackwardFormula):
        monkeypatch.setattr(formula, "forward", lambda *_: pytest.fail("computed without the kernel"))


def whole(tables, style):
    """Tables with a column for each rotated element."""
    if tables is None:
        return None
    return tuple(torch.cat([t, t], -1) if style == "neox" else t.repeat_interleave(2, -1) for t in tables)


def exact(by_hugging_face, qkv, weights, heads, eps, offset, tables, style, positions=None):
    """The function without roundings, in float64."""
    wide = whole(tables, style)
    if wide is not None:
        rows = [table if positions is None else table[positions.long().reshape(-1)] for table in wide]
        wide = tuple(row.double().view(*qkv.shape[:-1], row.shape[-1]) for row in rows)
    weights = tuple(weight.double() for weight in weights)
    return by_hugging_face(qkv.double(), weights, heads, eps, offset, wide, style)


@pytest.mark.one_in(4)
@pytest.mark.usefixtures("only_kernels")
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("style", ["neox", "gptj"])
@pytest.mark.parametrize(
    ("heads", "others", "head", "rotary"),
    [
        *(((4, 2), 2, head, head) for head in (64, 128, 192, 256)),
        *(((3, 1), 1, 100, 40), ((1, 1), 0, 7, 6), ((5, 3), 4, 33, 2), ((2, 2), 2, 80, 0), ((1, 1), 0, 1, 0)),
    ],
)
def test_values_are_those_of_float64(by_hugging_face, made, heads, others, head, rotary, style, in_place):
    qkv, weights, tables = made((5,), sum(heads) + others, head, rotary, rows=9)
    positions = torch.tensor([3, 0, 8, 8, 1]) if rotary else None
    expected = exact(by_hugging_face, qkv, weights, heads, 1e-5, 0.5, tables, style, positions)
    before = qkv.clone()
    options = {"rotary_style": style, "in_place": in_place}
    if rotary:
        options |= {"cos": tables[0], "sin": tables[1], "positions": positions, "rotary_dim": rotary}
    out = normtune.qk_norm(qkv, *weights, *heads, 1e-5, 0.5, **options)
    assert (out is qkv) == in_place and out.dtype == qkv.dtype and out.shape == qkv.shape
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    end = sum(heads) * head
    assert torch.equal(out[:, end:], before[:, end:])
    assert in_place or torch.equal(qkv, before)


@pytest.mark.slow
@pytest.mark.usefixtures("only_kernels", "rounded_bfloat16")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("casting", ["gemma", "llama"])
@pytest.mark.parametrize("rotation", ["float32", "products"])
@pytest.mark.parametrize("style", ["neox", "gptj"])
def test_roundings_are_met_bit_by_bit_where_sums_are_exact(by_hugging_face, made, dtype, casting, rotation, style):
    """Squares of small integers have exact sums, and those of a head of 4 ** n a mean that is one."""
    _, weights, tables = made((), 0, 64, 48, dtype, rows=40)
    generator = torch.Generator().manual_seed(2)
    qkv = torch.randint(-16, 17, (40, 8 * 64), generator=generator).to(dtype)
    tables = whole(tables, style)
    options = {"cos": tables[0], "sin": tables[1], "rotary_dim": 48, "rotary_style": style}
    out = normtune.qk_norm(qkv, *weights, 4, 2, 1e-6, 1.0, casting=casting, rotation=rotation, **options)
    expected = by_hugging_face(qkv, weights, (4, 2), 1e-6, 1.0, tables, style, casting, rotation)
    assert torch.equal(out.view(torch.int16), expected.view(torch.int16))
    others = {("gemma", "float32"), ("llama", "float32"), ("gemma", "products"), ("llama", "products")}
    for other in others - {(casting, rotation)}:
        differing = by_hugging_face(qkv, weights, (4, 2), 1e-6, 1.0, tables, style, *other) != out
        assert differing[:, : 6 * 64].float().mean() > 0.005


@pytest.mark.usefixtures("only_kernels")
def test_a_view_of_a_larger_tensor_is_written_where_it_is(by_hugging_face, made):
    wide, weights, tables = made((6,), 9, 20, 20)
    for first, gap in ((0, 40), (20, 20), (3, 37), (60, 0)):
        memory = wide.clone()
        qkv = memory[:, first : 180 - gap][:, :120]
        expected = exact(by_hugging_face, qkv, weights, (3, 2), 1e-6, 0.0, tables, "neox")
        pointer = qkv.data_ptr()
        out = normtune.qk_norm(qkv, *weights, 3, 2, cos=tables[0], sin=tables[1], in_place=True)
        assert out.data_ptr() == pointer
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
        memory[:, first : first + 100] = wide[:, first : first + 100]
        assert torch.equal(memory, wide)


@pytest.mark.usefixtures("only_kernels")
def test_every_second_token_is_written_where_it_is(by_hugging_face, made):
    wide, weights, _ = made((8,), 4, 16)
    memory = wide.clone()
    normtune.qk_norm(memory[1::2], *weights, 2, 1, in_place=True)
    assert torch.equal(memory[::2], wide[::2])
    expected = exact(by_hugging_face, wide[1::2], weights, (2, 1), 1e-6, 0.0, None, "neox")
    torch.testing.assert_close(memory[1::2].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("only_kernels")
def test_views_without_a_stride_between_tokens_are_written(by_hugging_face, made):
    wide, weights, _ = made((4, 3), 4, 8)
    for qkv in (wide.transpose(0, 1), wide.transpose(1, 2).contiguous().transpose(1, 2)):
        expected = exact(by_hugging_face, qkv.clone(), weights, (2, 1), 1e-6, 0.0, None, "neox")
        before = qkv.clone()
        assert normtune.qk_norm(qkv, *weights, 2, 1, in_place=True) is qkv
        torch.testing.assert_close(qkv.double(), expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(qkv[..., 24:], before[..., 24:])


@pytest.mark.slow
@pytest.mark.usefixtures("only_kernels")
def test_tables_of_other_forms_give_the_same_bits(made):
    qkv, weights, (cos, sin) = made((2, 3), 4, 16, 12, rows=6)
    cache = torch.cat([cos, sin], -1)
    forms = [
        {"cos": cos, "sin": sin},
        {"cos": cos.view(2, 3, 6), "sin": sin.view(2, 3, 6)},
        dict(zip(("cos", "sin"), cache.chunk(2, -1), strict=True)),
        {"cos": cos.double(), "sin": sin.double()},
        {"cos": cos.T.contiguous().T, "sin": sin},
        {"cos": torch.cat([cos, cos], -1), "sin": torch.cat([sin, sin], -1)},
        *(
            {"cos": cos.flip(0), "sin": sin.flip(0), "positions": torch.arange(5, -1, -1, dtype=dtype).view(2, 3)}
            for dtype in (torch.int32, torch.int64)
        ),
    ]
    found = [normtune.qk_norm(qkv, *weights, 2, 1, rotary_dim=12, **form) for form in forms]
    assert all(torch.equal(found[0], one) for one in found[1:])
    same = {"cos": cos[:3], "sin": sin[:3]}  # of each sequence
    repeated = {"cos": cos[:3].repeat(2, 1), "sin": sin[:3].repeat(2, 1)}
    assert torch.equal(*(normtune.qk_norm(qkv, *weights, 2, 1, rotary_dim=12, **form) for form in (same, repeated)))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    leading=st.lists(st.integers(0, 4), min_size=0, max_size=3),
    heads=st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(0, 3)),
    head=st.integers(1, 70),
    style=st.sampled_from(["neox", "gptj"]),
    in_place=st.booleans(),
    is_rotated=st.booleans(),
)
def test_shapes_are_free(by_hugging_face, made, data, leading, heads, head, style, in_place, is_rotated):
    rotary = 2 * data.draw(st.integers(1, head // 2)) if is_rotated and head > 1 else 0
    qkv, weights, tables = made(tuple(leading), sum(heads), head, rotary, rows=7)
    options = {"rotary_style": style, "in_place": in_place}
    positions = None
    if rotary:
        positions = torch.randint(7, leading, generator=torch.Generator().manual_seed(head))
        options |= {"cos": tables[0], "sin": tables[1], "positions": positions, "rotary_dim": rotary}
    expected = exact(by_hugging_face, qkv, weights, heads[:2], 1e-6, 1.0, tables, style, positions)
    before = qkv.clone()
    out = normtune.qk_norm(qkv, *weights, *heads[:2], 1e-6, 1.0, **options)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    end = sum(heads[:2]) * head
    assert torch.equal(out[..., end:], before[..., end:])


@pytest.mark.slow
@pytest.mark.usefixtures("only_kernels")
def test_value_heads_keep_any_bits(made):
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    qkv = bits.view(torch.float16).repeat_interleave(1).view(512, 128).repeat(1, 3).contiguous()
    for in_place in (True, False):
        out = normtune.qk_norm(qkv.clone(), *(torch.ones(128).half() for _ in range(2)), 1, 1, in_place=in_place)
        assert torch.equal(out[:, 256:].contiguous().view(torch.int16).view(-1), bits)


def test_nan_and_infinities_stay_in_their_head(made):
    qkv, weights, (cos, sin) = made((3,), 4, 8, 8)
    qkv[0, 3], qkv[1, 9], qkv[2, 17] = float("nan"), float("inf"), -float("inf")
    out = normtune.qk_norm(qkv, *weights, 2, 1, cos=cos, sin=sin).view(3, 4, 8)
    assert out[0, 0].isnan().all() and out[1, 1].isnan().any() and out[2, 2].isnan().any()
    touched = torch.zeros(3, 4, dtype=torch.bool)
    touched[[0, 1, 2], [0, 1, 2]] = True
    assert out[~touched].isfinite().all()


def test_zeros_stay_zeros_without_eps_in_the_way(made):
    _, weights, (cos, sin) = made((1,), 3, 8, 8)
    assert not normtune.qk_norm(torch.zeros(5, 24), *weights, 1, 1, cos=cos, sin=sin).any()


@pytest.mark.slow
@pytest.mark.usefixtures("only_kernels")
def test_a_kept_launch_serves_other_tensors(by_hugging_face, made):
    for seed in range(3):
        qkv, weights, tables = made((5,), 6, 32, 32, seed=seed)
        expected = exact(by_hugging_face, qkv, weights, (3, 2), 1e-6, 0.0, tables, "neox")
        for in_place in (False, True):
            out = normtune.qk_norm(qkv, *weights, 3, 2, cos=tables[0], sin=tables[1], in_place=in_place)
            torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


def test_batch_invariant_tokens_have_the_same_bits(made):
    wide, weights, (cos, sin) = made((9,), 6, 48, 48)
    misaligned = torch.empty(9 * 289).as_strided((9, 288), (289, 1)).copy_(wide)
    options = {"cos": cos, "sin": sin, "batch_invariant": True}
    out = normtune.qk_norm(misaligned, *weights, 3, 2, **options)
    one = normtune.qk_norm(wide[4:5].clone(), *weights, 3, 2, cos=cos[4:5], sin=sin[4:5], batch_invariant=True)
    assert torch.equal(out[4:5], one)
    with normtune.batch_invariant():
        assert normtune.qk_norm(misaligned, *weights, 3, 2, cos=cos, sin=sin, in_place=True) is misaligned
    assert torch.equal(misaligned, out)


@pytest.mark.slow
@pytest.mark.parametrize("style", ["neox", "gptj"])
@pytest.mark.parametrize("rotary", [0, 8, 12])
def test_gradients_are_those_of_float64(by_hugging_face, made, style, rotary):
    qkv, weights, tables = made((2, 5), 6, 12, rotary)
    options = {"cos": tables[0], "sin": tables[1], "rotary_dim": rotary} if rotary else {}
    leaves = [tensor.clone().requires_grad_() for tensor in (qkv, *weights)]
    wide = [tensor.double().requires_grad_() for tensor in (qkv, *weights)]
    out = normtune.qk_norm(*leaves, 3, 2, 1e-3, 1.0, rotary_style=style, **options)
    expected = exact(by_hugging_face, wide[0], wide[1:], (3, 2), 1e-3, 1.0, tables, style)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(5))
    first = torch.autograd.grad(out, leaves, dout, create_graph=True)
    wanted = torch.autograd.grad(expected, wide, dout.double(), create_graph=True)
    for found, exactly in zip(first, wanted, strict=True):
        torch.testing.assert_close(found.double(), exactly, rtol=1e-4, atol=1e-4)
    second = torch.autograd.grad(sum(one.square().sum() for one in first), leaves)
    wanted = torch.autograd.grad(sum(one.square().sum() for one in wanted), wide)
    for found, exactly in zip(second, wanted, strict=True):
        torch.testing.assert_close(found.double(), exactly, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("only_kernels")
@pytest.mark.parametrize("style", ["neox", "gptj"])
@pytest.mark.parametrize(("head", "rotary"), [(128, 128), (33, 6), (7, 0)])
def test_first_gradients_are_launched(by_hugging_face, made, style, head, rotary):
    """With positions, of a view of a larger tensor, by gradients of any strides, twice."""
    wide, weights, tables = made((3, 4), 8, head, rotary, rows=6)
    positions = torch.randint(6, (3, 4), generator=torch.Generator().manual_seed(1)) if rotary else None
    options = {"rotary_style": style, "positions": positions}
    options |= {"cos": tables[0], "sin": tables[1], "rotary_dim": rotary} if rotary else {}
    leaves = [tensor.clone().requires_grad_() for tensor in (wide, *weights)]
    exactly = [tensor.double().requires_grad_() for tensor in (wide, *weights)]
    part = slice(head, 7 * head)
    out = normtune.qk_norm(leaves[0][..., part], *leaves[1:], 3, 2, 1e-3, 1.0, **options)
    exact_out = exact(
        *(by_hugging_face, exactly[0][..., part], exactly[1:], (3, 2), 1e-3, 1.0, tables, style, positions)
    )
    dout = torch.randn(4, 3, 6 * head, generator=torch.Generator().manual_seed(5)).transpose(0, 1)
    wanted = torch.autograd.grad(exact_out, exactly, dout.double())
    for _ in range(2):
        for found, correct in zip(torch.autograd.grad(out, leaves, dout, retain_graph=True), wanted, strict=True):
            torch.testing.assert_close(found.double(), correct, rtol=1e-4, atol=1e-4)


def test_a_backward_has_the_mode_of_its_forward(monkeypatch, made):
    from normtune.kernels.calling import eager

    modes = []
    resolve = eager.bind_from_table
    monkeypatch.setattr(
        eager, "bind_from_table", lambda request: modes.append(request.batch_invariant) or resolve(request)
    )
    qkv, weights, _ = made((11,), 4, 24)
    with normtune.batch_invariant():
        out = normtune.qk_norm(qkv.requires_grad_(), *weights, 2, 1)
    out.sum().backward()
    assert modes == [True, True]


@pytest.mark.usefixtures("only_kernels")
def test_gradients_of_a_part(made):
    """A frozen weight; a gradient that is not contiguous; 16 bits."""
    qkv, weights, (cos, sin) = made((4,), 4, 16, 16, torch.float16)
    weights[1].requires_grad_()
    out = normtune.qk_norm(qkv, *weights, 2, 1, cos=cos, sin=sin)
    out[:, ::2].sum().backward()
    assert weights[1].grad.dtype == torch.float16 and weights[0].grad is None
    with torch.no_grad():
        assert torch.equal(normtune.qk_norm(qkv, *weights, 2, 1, cos=cos, sin=sin), out)
