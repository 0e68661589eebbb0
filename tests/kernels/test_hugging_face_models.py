"""Models of Hugging Face with normtune's norms in the place of their own: the same bits, forward and backward."""

import pytest
import torch

import normtune
from normtune.kernels.patch import FORMULAS, digest_of

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
    "attn_implementation": "eager",
}
MODELS = ["Llama", "Qwen3", "Mistral", "Phi3", "Gemma2", "Gemma3Text", "Olmo2"]
# A class of each known formula, with the model that has it.
NORMS = [
    ("llama", "LlamaRMSNorm"),
    ("llama4", "Llama4TextRMSNorm"),
    ("llama4", "Llama4TextL2Norm"),
    ("t5", "T5LayerNorm"),
    ("olmo2", "Olmo2RMSNorm"),
    ("helium", "HeliumRMSNorm"),
    ("moshi", "MoshiRMSNorm"),
    ("gemma4", "Gemma4RMSNorm"),
    ("gemma", "GemmaRMSNorm"),
    ("inkling2", "Inkling2UnweightedRMSNorm"),
]


def run(model, tokens):
    logits = model(tokens).logits
    logits.float().square().mean().backward()
    return logits, {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", MODELS)
def test_logits_have_the_same_bits_and_gradients_differ_by_rounding(name):
    config = getattr(transformers, f"{name.removesuffix('Text')}{'Text' * name.endswith('Text')}Config")(**SMALL)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config).to(torch.bfloat16)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    tokens = torch.randint(0, 96, (2, 13))
    expected, gradients = run(model, tokens)
    model.zero_grad()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    report = normtune.patch(model)
    assert len(report.replacements) >= 5 and not report.obstacles
    model.load_state_dict(state)
    logits, ours = run(model, tokens)
    assert torch.equal(logits, expected)
    for key, gradient in gradients.items():
        difference = (ours[key].float() - gradient.float()).norm()
        assert difference <= 0.02 * gradient.float().norm() + 1e-6, key


@pytest.mark.parametrize("model, name", NORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_norms_of_all_formulas_have_the_same_bits(model, name, dtype):
    module = pytest.importorskip(f"transformers.models.{model}.modeling_{model}")
    kind = getattr(module, name)
    norm = (kind() if FORMULAS[digest_of(kind)].has_weight is False else kind(1000)).to(dtype)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    x = 3 * torch.randn(5, 7, 1000, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = norm(x)
    assert normtune.patch(norm).replacements == {"": name}
    assert torch.equal(norm(x), expected) and norm(x).dtype == expected.dtype


def test_each_formula_is_that_of_a_class():
    classes = [
        getattr(pytest.importorskip(f"transformers.models.{model}.modeling_{model}"), name) for model, name in NORMS
    ]
    assert set(map(digest_of, [*classes, torch.nn.RMSNorm])) == set(FORMULAS)
