"""Models of Hugging Face with normtune's norms in the place of their own: the same bits, forward and backward."""

import pytest
import torch

from normtune import RMSNorm

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "attn_implementation": "eager",
}
# Of each: its config, the name of its norm, and the norm that rounds at the same places.
MODELS = {
    "Llama": ("LlamaRMSNorm", {"casting": "llama"}),
    "Qwen3": ("Qwen3RMSNorm", {"casting": "llama"}),
    "Mistral": ("MistralRMSNorm", {"casting": "llama"}),
    "Gemma2": ("Gemma2RMSNorm", {"casting": "gemma", "offset": 1.0}),
    "Gemma3Text": ("Gemma3RMSNorm", {"casting": "gemma", "offset": 1.0}),
}


def with_our_norms(model, norm, options):
    """The model with each of its norms replaced, and their number."""
    names = [name for name, module in model.named_modules() if type(module).__name__ == norm]
    for name in names:
        parent, _, last = name.rpartition(".")
        theirs = model.get_submodule(name)
        eps = getattr(theirs, "variance_epsilon", None) or theirs.eps
        ours = RMSNorm(theirs.weight.shape[0], eps, dtype=theirs.weight.dtype, **options)
        ours.load_state_dict(theirs.state_dict())
        setattr(model.get_submodule(parent), last, ours)
    return len(names)


def run(model, tokens):
    logits = model(tokens).logits
    logits.float().square().mean().backward()
    return logits, {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", MODELS)
def test_logits_have_the_same_bits_and_gradients_differ_by_rounding(name):
    norm, options = MODELS[name]
    config = getattr(transformers, f"{name.removesuffix('Text')}{'Text' * name.endswith('Text')}Config")(**SMALL)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config).to(torch.bfloat16)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    tokens = torch.randint(0, 96, (2, 13))
    expected, gradients = run(model, tokens)
    model.zero_grad()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    assert with_our_norms(model, norm, options) >= 5
    model.load_state_dict(state)
    logits, ours = run(model, tokens)
    assert torch.equal(logits, expected)
    for key, gradient in gradients.items():
        difference = (ours[key].float() - gradient.float()).norm()
        assert difference <= 0.02 * gradient.float().norm() + 1e-6, key
