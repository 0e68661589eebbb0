"""Norms of Hugging Face's models and the modules in their place: the same state, the same bits, arguments in repr."""

from importlib import import_module

import pytest
import torch

from normtune import FusedAddRMSNorm, RMSNorm, RMSNormGated

pytest.importorskip("transformers")
HIDDEN = 192
EPS = 1e-5
LLAMA = {"casting": "llama"}
GEMMA = {"offset": 1.0}
# By the name of a class: the model that has it and the arguments of ours.
NORMS = {
    "LlamaRMSNorm": ("llama", LLAMA),
    "MistralRMSNorm": ("mistral", LLAMA),
    "Qwen2RMSNorm": ("qwen2", LLAMA),
    "Qwen3RMSNorm": ("qwen3", LLAMA),
    "GemmaRMSNorm": ("gemma", GEMMA),
    "Gemma2RMSNorm": ("gemma2", GEMMA),
    "Gemma3RMSNorm": ("gemma3", GEMMA),
    "Qwen3NextRMSNorm": ("qwen3_next", GEMMA),
}
GATE_FIRST = {"norm_before_gate": False, "rounding": "hugging_face"}
# The same, with further arguments of theirs.
GATED = [
    ("Qwen3NextRMSNormGated", "qwen3_next", {}, {"rounding": "hugging_face"}),
    ("MambaRMSNormGated", "mamba2", {"group_size": HIDDEN}, {**GATE_FIRST, "group_size": HIDDEN}),
    ("MambaRMSNormGated", "mamba2", {"group_size": 64}, {**GATE_FIRST, "group_size": 64}),
]


def theirs_of(name, model, **arguments):
    """A module of theirs in bfloat16, with a weight of random numbers."""
    kind = getattr(import_module(f"transformers.models.{model}.modeling_{model}"), name)
    made = kind(HIDDEN, eps=EPS, **arguments).bfloat16()
    torch.nn.init.normal_(made.weight, generator=torch.Generator().manual_seed(0))
    return made


def rows(seed):
    return 3 * torch.randn(5, 7, HIDDEN, generator=torch.Generator().manual_seed(seed)).bfloat16()


def exchanged(theirs, ours):
    """Load the state of theirs into ours and back into theirs, and compare new weights and old ones."""
    new = theirs.weight.clone()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    torch.nn.init.zeros_(theirs.weight)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    assert torch.equal(theirs.weight, new) and torch.equal(ours.weight, new)
    assert list(ours.state_dict()) == list(theirs.state_dict()) and ours.weight.dtype == theirs.weight.dtype


@pytest.mark.parametrize("name", NORMS)
def test_rms_norm_has_their_state_and_bits(name):
    model, options = NORMS[name]
    theirs, ours = theirs_of(name, model), RMSNorm(HIDDEN, EPS, dtype=torch.bfloat16, **options)
    exchanged(theirs, ours)
    x = rows(1)
    assert torch.equal(ours(x), theirs(x))
    told = "".join(f", {key}={value!r}" for key, value in options.items())
    assert repr(ours) == f"RMSNorm(({HIDDEN},), eps=1e-05, elementwise_affine=True{told})"


@pytest.mark.parametrize("name", NORMS)
def test_the_fused_addition_has_their_state_and_bits(name):
    model, options = NORMS[name]
    order = {"rounding": "llama"} if options is LLAMA else {"rounding": "sum", **options}
    theirs, ours = theirs_of(name, model), FusedAddRMSNorm(HIDDEN, EPS, dtype=torch.bfloat16, **order)
    exchanged(theirs, ours)
    x, residual = rows(1), rows(2)
    y, s = ours(x, residual)
    assert torch.equal(s, x + residual) and torch.equal(y, theirs(x + residual))
    shape = f"({HIDDEN},), eps=1e-05, elementwise_affine=True"
    offset = ", offset=1.0" if options is GEMMA else ""
    assert repr(ours) == f"FusedAddRMSNorm({shape}{offset}, rounding={order['rounding']!r})"


@pytest.mark.parametrize(("name", "model", "arguments", "options"), GATED)
def test_rms_norm_gated_has_their_state_and_bits(name, model, arguments, options):
    theirs, ours = theirs_of(name, model, **arguments), RMSNormGated(HIDDEN, EPS, dtype=torch.bfloat16, **options)
    exchanged(theirs, ours)
    x, z = rows(1), rows(2)
    assert torch.equal(ours(x, z), theirs(x, z))
    told = {name: options[name] for name in ("norm_before_gate", "group_size", "rounding") if name in options}
    assert repr(ours) == f"RMSNormGated({HIDDEN}, eps=1e-05{''.join(f', {key}={told[key]!r}' for key in told)})"


@pytest.mark.parametrize("name", NORMS)
def test_new_modules_start_as_theirs(name):
    model, options = NORMS[name]
    kind = getattr(import_module(f"transformers.models.{model}.modeling_{model}"), name)
    assert torch.equal(RMSNorm(HIDDEN, **options).weight, kind(HIDDEN).weight)
