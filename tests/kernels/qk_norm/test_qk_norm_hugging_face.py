"""`qk_norm` beside the attention layers of transformers: what reaches their attention function, bit for bit."""

import pytest
import torch

import normtune

transformers = pytest.importorskip("transformers")

# Of each: the module, the class of the layer, the layer's extra arguments, and its order of rounding.
MODELS = {
    "Qwen3": ("qwen3", (), {"casting": "llama"}),
    "Gemma3": ("gemma3", ("full_attention",), {"casting": "gemma", "offset": 1.0}),
}


@pytest.mark.parametrize("rows", [(2, 7), (1, 5)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("head", "heads", "heads_k"), [(64, 6, 2), (128, 4, 4), (20, 3, 1)])
@pytest.mark.parametrize("name", ["Qwen3", "Gemma3"])
def test_queries_keys_and_values_have_the_bits_of_the_layer(monkeypatch, name, head, heads, heads_k, dtype, rows):
    folder, layer_types, options = MODELS[name]
    module = pytest.importorskip(f"transformers.models.{folder}.modeling_{folder}")
    seen = {}

    def attention(_, query, key, value, *args, **kwargs):
        seen.update(query=query, key=key, value=value)
        return value.transpose(1, 2).repeat(1, 1, query.shape[1] // value.shape[1], 1), None

    monkeypatch.setattr(module, "eager_attention_forward", attention)
    config = getattr(transformers, "Qwen3Config" if name == "Qwen3" else "Gemma3TextConfig")(
        **{"hidden_size": 96, "num_attention_heads": heads, "num_key_value_heads": heads_k, "head_dim": head},
        **{"num_hidden_layers": 6, "attn_implementation": "eager"},
    )
    torch.manual_seed(0)
    layer = getattr(module, f"{name}Attention")(config, 5).to(dtype).eval()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    hidden = torch.randn(*rows, 96).to(dtype)
    positions = torch.randint(0, 4096, (1, rows[1]))
    cos, sin = getattr(module, f"{name}RotaryEmbedding")(config)(hidden, positions, *layer_types)
    with torch.no_grad():
        layer(hidden, (cos, sin), None)
        qkv = torch.cat([projection(hidden) for projection in (layer.q_proj, layer.k_proj, layer.v_proj)], -1)
        norms = layer.q_norm, layer.k_norm
        weights = [norm.weight for norm in norms]
        eps = getattr(norms[0], "variance_epsilon", None) or norms[0].eps
        for in_place in (False, True):
            out = normtune.qk_norm(
                *(qkv, *weights, heads, heads_k, eps),
                **options,
                cos=cos,
                sin=sin,
                rotation="products",
                in_place=in_place,
            )
            found = out.unflatten(-1, (-1, head)).split([heads, heads_k, heads_k], -2)
            for ours, theirs in zip(found, seen.values(), strict=True):
                assert torch.equal(ours, theirs.transpose(1, 2))


def test_gradients_through_a_layer_are_those_of_the_layer():
    module = pytest.importorskip("transformers.models.qwen3.modeling_qwen3")
    torch.manual_seed(0)
    norm_q, norm_k = (module.Qwen3RMSNorm(32) for _ in range(2))
    for norm in (norm_q, norm_k):
        torch.nn.init.normal_(norm.weight, 1.0, 0.3)
    qkv = torch.randn(2, 5, 6 * 32, requires_grad=True)
    angles = torch.randn(1, 5, 16).repeat(1, 1, 2)
    q, k, v = qkv.unflatten(-1, (6, 32)).split([3, 2, 1], -2)
    q, k = module.apply_rotary_pos_emb(norm_q(q), norm_k(k), angles.cos(), angles.sin(), unsqueeze_dim=2)
    theirs = torch.cat([q, k, v], -2).flatten(-2)
    ours = normtune.qk_norm(
        *(qkv, norm_q.weight, norm_k.weight, 3, 2), cos=angles.cos(), sin=angles.sin(), casting="llama"
    )
    torch.testing.assert_close(ours, theirs)
    dout = torch.randn(theirs.shape)
    leaves = qkv, norm_q.weight, norm_k.weight
    for found, wanted in zip(*(torch.autograd.grad(out, leaves, dout) for out in (ours, theirs)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_one_head_of_each_is_the_norm_of_olmo2():
    module = pytest.importorskip("transformers.models.olmo2.modeling_olmo2")
    norms = [module.Olmo2RMSNorm(96) for _ in range(2)]
    torch.manual_seed(0)
    for norm in norms:
        torch.nn.init.normal_(norm.weight)
    qkv = torch.randn(3, 5, 3 * 96).bfloat16()
    out = normtune.qk_norm(qkv, *(norm.weight.detach() for norm in norms), 1, 1, norms[0].variance_epsilon)
    for number, norm in enumerate(norms):
        part = slice(96 * number, 96 * (number + 1))
        assert torch.equal(out[..., part], norm(qkv[..., part]))
