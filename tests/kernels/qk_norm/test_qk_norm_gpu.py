"""`qk_norm` on a GPU: bits of other orders, wide tensors, graphs, streams, and the gate at odd heads."""

import pytest
import torch

import normtune
from normtune.kernels.operator import operator
from normtune.kernels.qk_norm.launch import BACKWARD, FAMILY
from normtune.kernels.qk_norm.operator import qk_norm, qk_norm_backward
from normtune.tests.kernels.qk_norm.heads import operator_name

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda", 0)


def whole(tables, style):
    return tuple(torch.cat([t, t], -1) if style == "neox" else t.repeat_interleave(2, -1) for t in tables)


@pytest.mark.parametrize("style", ["neox", "gptj"])
@pytest.mark.parametrize("casting", ["gemma", "llama"])
@pytest.mark.parametrize("rotation", ["float32", "products"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("heads", "head", "rotary"), [((32, 8, 8), 128, 128), ((5, 1, 1), 192, 64), ((3, 2, 0), 33, 10)]
)
def test_bits_are_those_of_the_formula_but_for_sums(
    by_hugging_face, made, heads, head, rotary, dtype, rotation, casting, style
):
    for tokens in (1, 77, 4099):
        qkv, weights, tables = made((tokens,), sum(heads), head, rotary, dtype, device="cuda")
        tables = whole(tables, style)
        expected = by_hugging_face(qkv, weights, heads[:2], 1e-6, 1.0, tables, style, casting, rotation)
        options = {"cos": tables[0], "sin": tables[1], "rotary_dim": rotary, "rotary_style": style}
        options |= {"casting": casting, "rotation": rotation}
        out = normtune.qk_norm(qkv, *weights, *heads[:2], 1e-6, 1.0, **options)
        # The last bit of a float32 sum decides few roundings.
        assert (out != expected).float().mean() < 2e-3
        torch.testing.assert_close(out, expected, rtol=2**-6, atol=2**-6)
        end = sum(heads[:2]) * head
        assert torch.equal(out[:, end:], qkv[:, end:])
        assert normtune.qk_norm(qkv, *weights, *heads[:2], 1e-6, 1.0, **options, in_place=True) is qkv
        assert torch.equal(qkv, out)


@pytest.mark.parametrize("hidden", [64, 80, 128, 192, 256, 5, 1000])
@pytest.mark.parametrize("sizes", [(32, 8, 48, 128), (5, 3, 9, 24)])
def test_the_default_space_passes_the_gate(sizes, hidden):
    from normtune.kernels.calling.device import describe
    from normtune.tuner.plan.plan import candidates
    from normtune.tuner.timing.gate import gate

    target = describe(0)
    cases = [(FAMILY, off) for off in (*qk_norm.variants, "out_of_place+gptj+whole_tables")]
    cases += [(BACKWARD, off) for off in qk_norm_backward.variants]
    for family, variant in cases:
        spec = operator(operator_name(*sizes, family))
        problem = spec.problem(4099, hidden, "bfloat16", variant)
        kept, _ = candidates(spec, spec.space("default", problem, target), problem, target)
        for candidate in kept[:: max(1, len(kept) // 3)]:
            gate(spec, problem, candidate, target, DEVICE)


def test_views_and_tables_of_a_server(by_hugging_face, made):
    """The cos_sin_cache of vLLM, tokens inside of a wider tensor, kept launches at other addresses."""
    wide, weights, (cos, sin) = made((300,), 60, 128, 128, torch.bfloat16, rows=4096, device="cuda")
    cos, sin = torch.cat([cos, sin], -1).chunk(2, -1)
    for dtype in (torch.int32, torch.int64):
        for first in (0, 128, 7):
            memory = wide.clone()
            qkv = memory[:, first : first + 48 * 128]
            positions = torch.randint(4096, (300,), device="cuda", dtype=dtype)
            tables = whole((cos[positions.long()], sin[positions.long()]), "neox")
            expected = by_hugging_face(qkv, weights, (32, 8), 1e-6, 0.0, tables, rotation="float32")
            normtune.qk_norm(qkv, *weights, 32, 8, cos=cos, sin=sin, positions=positions, in_place=True)
            assert (qkv != expected).float().mean() < 2e-3
            memory[:, first : first + 40 * 128] = wide[:, first : first + 40 * 128]
            assert torch.equal(memory, wide)


@pytest.mark.filterwarnings("ignore:.*no batch-invariant function")
def test_a_graph_replays_and_the_mode_gives_tokens_the_same_bits(made):
    qkv, weights, (cos, sin) = made((512,), 48, 128, 128, torch.bfloat16, device="cuda")
    expected = normtune.qk_norm(qkv, *weights, 32, 8, cos=cos, sin=sin)
    graph, memory = torch.cuda.CUDAGraph(), qkv.clone()
    normtune.qk_norm(memory, *weights, 32, 8, cos=cos, sin=sin, in_place=True)
    with torch.cuda.graph(graph):
        normtune.qk_norm(memory, *weights, 32, 8, cos=cos, sin=sin, in_place=True)
    memory.copy_(qkv)
    graph.replay()
    assert torch.equal(memory, expected)
    options = {"batch_invariant": True}
    whole_batch = normtune.qk_norm(qkv, *weights, 32, 8, cos=cos, sin=sin, **options)
    for tokens in (slice(0, 1), slice(5, 8), slice(100, 400)):
        part = normtune.qk_norm(qkv[tokens], *weights, 32, 8, cos=cos[tokens], sin=sin[tokens], **options)
        assert torch.equal(part, whole_batch[tokens])


def test_offsets_beyond_two_to_the_31_elements(made):
    head, heads, tokens = 128, 48, (1 << 31) // (128 * 48) + 9
    qkv = torch.zeros(tokens, heads * head, device="cuda", dtype=torch.bfloat16)
    tail, weights, (cos, sin) = made((9,), heads, head, head, torch.bfloat16, device="cuda")
    qkv[-9:] = tail
    positions = torch.zeros(tokens, device="cuda", dtype=torch.int32)
    positions[-9:] = torch.arange(9, device="cuda")
    expected = normtune.qk_norm(tail, *weights, 32, 8, cos=cos, sin=sin)
    normtune.qk_norm(qkv, *weights, 32, 8, cos=cos, sin=sin, positions=positions, in_place=True)
    torch.testing.assert_close(qkv[-9:], expected)


def test_gradients_are_those_of_float64(by_hugging_face, made):
    qkv, weights, tables = made((300,), 12, 128, 64, device="cuda")
    leaves = [tensor.clone().requires_grad_() for tensor in (qkv, *weights)]
    wide = [tensor.double().requires_grad_() for tensor in (qkv, *weights)]
    out = normtune.qk_norm(*leaves, 8, 2, cos=tables[0], sin=tables[1], rotary_dim=64)
    tables = tuple(table.double() for table in whole(tables, "neox"))
    expected = by_hugging_face(wide[0], wide[1:], (8, 2), 1e-6, 0.0, tables)
    dout = torch.randn_like(out)
    for found, exact in zip(
        torch.autograd.grad(out, leaves, dout), torch.autograd.grad(expected, wide, dout.double()), strict=True
    ):
        torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=1e-3)
