"""What calls refuse, the constructors of modules refuse with the same words, before there is a weight."""

import re

import pytest
import torch

import normtune

HIDDEN = 8
X, WEIGHT = torch.ones(2, HIDDEN), torch.ones(HIDDEN)
# Each module with its function's call of further arguments by name.
PAIRS = {
    normtune.RMSNorm: lambda **named: normtune.rms_norm(X, WEIGHT, **named),
    normtune.FusedAddRMSNorm: lambda **named: normtune.fused_add_rms_norm(X, X, WEIGHT, **named),
    normtune.RMSNormGated: lambda **named: normtune.rms_norm_gated(X, WEIGHT, X, **named),
}
OF_ALL = [
    *({"eps": value} for value in ("1e-6", True, 32, 1.0, float("nan"), float("inf"), WEIGHT)),
    *({"offset": value} for value in ("0", None, False, float("nan"), 1e39)),
    *({"batch_invariant": value} for value in (1, "yes", 0.0)),
    *({"reuse_dy": value} for value in (1, None, "no")),
]
OF_ONE = [
    *((normtune.RMSNorm, {"casting": value}) for value in ("qwen", None, ["llama"])),
    *((normtune.FusedAddRMSNorm, {"rounding": value}) for value in ("gemma", None, ["llama"])),
    *((normtune.RMSNormGated, {"rounding": value}) for value in ("llama", None, {})),
    *((normtune.RMSNormGated, {"norm_before_gate": value}) for value in (1, None)),
    *((normtune.RMSNormGated, {"group_size": value}) for value in (True, 2.0, "4")),
    (normtune.RMSNormGated, {"rounding": "hugging_face", "offset": 1.0}),
]


@pytest.mark.parametrize(("module", "named"), [*((module, named) for module in PAIRS for named in OF_ALL), *OF_ONE])
def test_a_module_refuses_what_its_call_refuses(module, named):
    with pytest.raises((TypeError, ValueError)) as of_call:
        PAIRS[module](**named)
    with pytest.raises(type(of_call.value), match=re.escape(str(of_call.value))):
        module(HIDDEN, **named)
    assert "\n" not in str(of_call.value) and next(iter(named)) in str(of_call.value)


@pytest.mark.parametrize("module", PAIRS)
@pytest.mark.parametrize(
    ("named", "error", "text"),
    [
        ({"dtype": torch.int32}, ValueError, "dtype is torch.int32: expected torch.bfloat16"),
        ({"dtype": "bfloat16"}, TypeError, "dtype is 'bfloat16': expected torch.bfloat16"),
        ({"device": 0.0}, TypeError, "device is 0.0: expected a device, such as 'cuda', or None"),
    ],
)
def test_a_weight_that_no_call_takes_is_refused(module, named, error, text):
    with pytest.raises(error, match=text):
        module(HIDDEN, **named)


@pytest.mark.parametrize("module", PAIRS)
@pytest.mark.parametrize("size", [True, 2.0, "8", None, -1])
def test_a_length_that_is_none_is_refused(module, size):
    with pytest.raises((TypeError, ValueError), match=re.escape(f" is {size!r}: expected")):
        module(size)


@pytest.mark.parametrize("enabled", [1, "yes", 0])
def test_the_batch_invariant_mode_is_on_or_off(enabled):
    for switch in (normtune.use_batch_invariant, lambda value: normtune.batch_invariant(value).__enter__()):
        with pytest.raises(TypeError, match=re.escape(f"enabled is {enabled!r}: expected True or False")):
            switch(enabled)


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        lambda eps: normtune.rms_norm_quantize_fp8(X, WEIGHT, eps, scaling="row"),
        lambda eps: normtune.qk_norm(torch.ones(2, 24), WEIGHT, WEIGHT, 1, 1, eps),
        torch.compile(lambda eps: normtune.rms_norm_quantize_fp8(X, WEIGHT, eps, scaling="row"), backend="eager"),
    ],
)
@pytest.mark.parametrize("eps", [True, 2])
def test_calls_without_a_module_refuse_them_too(call, eps):
    with pytest.raises(Exception, match=f"eps is {eps}: expected"):
        call(eps)
