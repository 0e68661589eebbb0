"""Bad arguments name themselves, their value and what is expected; other devices are composed."""

import pytest
import torch

import normtune
from normtune.kernels.qk_norm.function import ForwardFormula

QKV, WEIGHT = torch.ones(3, 4 * 8), torch.ones(8)
COS, POSITIONS = torch.ones(5, 4), torch.tensor([0, 4, 2])


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"qkv": [1.0]}, TypeError, "qkv is [1.0]: expected a tensor"),
        ({"qkv": torch.ones(3, 32).int()}, ValueError, "qkv is torch.int32: expected bfloat16, float16, float32 or"),
        (
            {"qkv": torch.ones(3, 33)},
            ValueError,
            "qkv has 33 columns: expected (..., heads * 8), with at least 2 + 1 heads",
        ),
        (
            {"qkv": torch.ones(3, 16)},
            ValueError,
            "qkv has 16 columns: expected (..., heads * 8), with at least 2 + 1 heads",
        ),
        ({"qkv": torch.ones(())}, ValueError, "qkv has no dimension: expected (..., heads * head)"),
        ({"weight_q": None}, TypeError, "weight_q is None: expected a tensor"),
        ({"weight_q": torch.ones(2, 8)}, ValueError, "weight_q has shape (2, 8): expected (head,)"),
        (
            {"weight_q": torch.ones(0), "weight_k": torch.ones(0)},
            ValueError,
            "weight_q is empty: expected (head,)",
        ),
        ({"weight_k": torch.ones(4)}, ValueError, "weight_k has shape (4,): expected (8,), as weight_q"),
        ({"weight_k": WEIGHT.to("meta")}, ValueError, "weight_k is on meta and qkv on cpu: expected one device"),
        ({"heads_q": 2.0}, TypeError, "heads_q is 2.0: expected an integer"),
        ({"heads_k": True}, TypeError, "heads_k is True: expected an integer"),
        ({"heads_k": 0}, ValueError, "heads_k is 0: expected at least 1"),
        ({"eps": "1"}, TypeError, "eps is '1': expected a number"),
        ({"offset": float("inf")}, ValueError, "offset is inf: expected a finite number"),
        ({"cos": None, "positions": None}, ValueError, "sin is given without cos: expected both or none"),
        ({"sin": None, "positions": None}, ValueError, "cos is given without sin: expected both or none"),
        ({"cos": None, "sin": None}, ValueError, "positions is given without cos: expected both or none"),
        ({"cos": None, "sin": None, "positions": None, "rotary_dim": 8}, ValueError, "rotary_dim is given without cos"),
        ({"cos": 1.0}, TypeError, "cos is 1.0: expected a tensor"),
        ({"cos": torch.ones(5, 3)}, ValueError, "cos has 3 columns: expected 4 or 8, one for each pair or element"),
        ({"cos": torch.ones(1, 5, 4)}, ValueError, "cos has shape (1, 5, 4): expected (positions, 4)"),
        ({"cos": COS.to("meta")}, ValueError, "cos is on meta and qkv on cpu: expected one device"),
        ({"sin": torch.ones(5, 8)}, ValueError, "sin has 8 columns: expected 4, as cos"),
        ({"sin": torch.ones(3, 4)}, ValueError, "sin has shape (3, 4): expected (5, 4), as cos"),
        ({"weight_q": torch.ones(())}, ValueError, "weight_q has no dimension: expected (..., head)"),
        ({"heads_q": [2]}, TypeError, "heads_q is [2]: expected an integer"),
        ({"sin": COS.int()}, ValueError, "sin is torch.int32: expected bfloat16"),
        ({"positions": None}, ValueError, "cos has shape (5, 4): expected a row for each token, (3, 4), or positions"),
        ({"positions": 7}, TypeError, "positions is 7: expected a tensor"),
        (
            {"positions": POSITIONS.float()},
            ValueError,
            "positions is torch.float32 with shape (3,): expected torch.int32",
        ),
        ({"positions": POSITIONS[:2]}, ValueError, "positions is torch.int64 with shape (2,): expected torch.int32 or"),
        ({"rotary_dim": 7}, ValueError, "rotary_dim is 7: expected an even number from 2 to 8, the length of a head"),
        ({"rotary_dim": 10}, ValueError, "rotary_dim is 10: expected an even number from 2 to 8"),
        ({"rotary_dim": 8.0}, TypeError, "rotary_dim is 8.0: expected an integer or None"),
        ({"rotary_dim": 2}, ValueError, "cos has 4 columns: expected 1 or 2, one for each pair or element"),
        ({"rotary_style": "llama"}, ValueError, "rotary_style is 'llama': expected one of neox, gptj"),
        ({"rotary_style": True}, TypeError, "rotary_style is True: expected one of neox, gptj"),
        ({"casting": "none"}, ValueError, "casting is 'none': expected one of gemma, llama"),
        ({"rotation": "bfloat16"}, ValueError, "rotation is 'bfloat16': expected one of float32, products"),
        ({"in_place": 1}, TypeError, "in_place is 1: expected True or False"),
        ({"batch_invariant": "yes"}, TypeError, "batch_invariant is 'yes': expected True, False or None"),
        (
            {"in_place": True, "weight_q": torch.ones(8, requires_grad=True)},
            ValueError,
            "qk_norm in place has no gradients: expected inputs that need none, or in_place=False",
        ),
    ],
)
def test_bad_arguments_are_named(monkeypatch, given, error, text):
    monkeypatch.setattr(ForwardFormula, "forward", lambda *_: pytest.fail("computed"))
    arguments = {
        **{"qkv": QKV, "weight_q": WEIGHT, "weight_k": WEIGHT, "heads_q": 2, "heads_k": 1},
        **{"cos": COS, "sin": COS, "positions": POSITIONS},
    }
    with pytest.raises(error) as caught:
        normtune.qk_norm(**arguments | given)
    assert text in str(caught.value)


def test_true_is_no_number_of_heads_after_a_call_with_one():
    assert normtune.qk_norm(QKV, WEIGHT, WEIGHT, 2, 1).shape == QKV.shape
    with pytest.raises(TypeError, match="heads_k is True: expected an integer"):
        normtune.qk_norm(QKV, WEIGHT, WEIGHT, 2, True)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_gradients_may_be_batched(batch_invariant):
    leaves = [torch.randn(3, 32, requires_grad=True), WEIGHT.clone().requires_grad_()]
    out = normtune.qk_norm(*leaves, WEIGHT, 2, 1, batch_invariant=batch_invariant)
    douts = torch.randn(2, *out.shape)
    batched = torch.autograd.grad(out, leaves, douts, is_grads_batched=True, retain_graph=True)
    for index, dout in enumerate(douts):
        for many, one in zip(batched, torch.autograd.grad(out, leaves, dout, retain_graph=True), strict=True):
            torch.testing.assert_close(many[index], one)


@pytest.mark.parametrize("name", ["vmap", "jvp"])
def test_transforms_are_composed_and_refuse_to_write(name):
    qkv = torch.randn(2, 3, 32)

    def call(one, **options):
        return normtune.qk_norm(one, WEIGHT, WEIGHT, 2, 1, **options)

    def transformed(**options):
        if name == "vmap":
            return torch.vmap(lambda one: call(one, **options))(qkv)
        return torch.func.jvp(lambda one: call(one, **options), (qkv,), (torch.ones_like(qkv),))[0]

    torch.testing.assert_close(transformed(), call(qkv))
    with pytest.raises(ValueError, match="in_place is on inside of a transform"):
        transformed(in_place=True)


def test_a_cpu_composes_float64_and_epsilon():
    qkv = torch.randn(3, 32).double()
    found = normtune.qk_norm(qkv, WEIGHT, 2 * WEIGHT, 2, 1, None)
    norm = torch.nn.functional.rms_norm(qkv.view(3, 4, 8)[:, :3], (8,))
    torch.testing.assert_close(found.view(3, 4, 8)[:, :2], norm[:, :2])
    torch.testing.assert_close(found.view(3, 4, 8)[:, 2:3], 2 * norm[:, 2:])


def test_tensors_without_memory_have_shapes():
    qkv, weight = torch.empty(2, 7, 48, device="meta"), torch.empty(8, device="meta")
    assert normtune.qk_norm(qkv, weight, weight, 3, 2).shape == (2, 7, 48)
    assert normtune.qk_norm(qkv, weight, weight, 3, 2, in_place=True) is qkv


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [pytest.param(True, marks=pytest.mark.slow), False])
def test_torchs_own_checks_of_an_operator(in_place):
    assert callable(normtune.qk_norm)  # loads the module that registers the operators
    options = (1e-6, 0.5, 2, 1, 4, 8, "" if in_place else "out_of_place", None)
    tensors = (torch.randn(3, 32), WEIGHT.clone(), WEIGHT.clone(), COS, COS, POSITIONS)
    if in_place:
        torch.library.opcheck(torch.ops.normtune.qk_norm_in_place.default, (*tensors, *options))
        return
    leaves = [
        tensor.requires_grad_() if tensor.is_floating_point() and number < 3 else tensor
        for number, tensor in enumerate(tensors)
    ]
    torch.library.opcheck(torch.ops.normtune.qk_norm.default, (*leaves, *options))
    for variant in ("", "no_dweight"):
        dout = torch.randn(3, 32, requires_grad=True)
        torch.library.opcheck(
            torch.ops.normtune.qk_norm_backward.default, (dout, *leaves, 1e-6, 0.5, 2, 1, 4, 8, variant, None)
        )


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_function_has_no_graph_break_and_takes_any_number_of_tokens(in_place):
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()

    @torch.compile(fullgraph=True, dynamic=True, backend=counter)
    def function(qkv, positions):
        out = normtune.qk_norm(
            *(qkv * 2, WEIGHT, WEIGHT, 2, 1), cos=COS, sin=COS, positions=positions, in_place=in_place
        )
        return out + 1

    for tokens in (3, 5, 9):
        qkv, positions = torch.randn(tokens, 32), torch.arange(tokens) % 5
        expected = normtune.qk_norm(qkv * 2, WEIGHT, WEIGHT, 2, 1, cos=COS, sin=COS, positions=positions) + 1
        torch.testing.assert_close(function(qkv, positions), expected)
    assert counter.frame_count == 1


@pytest.mark.long
def test_a_compiled_function_has_gradients():
    def loss(qkv, weight):
        return normtune.qk_norm(qkv, weight, WEIGHT, 2, 1, cos=COS[:3], sin=COS[:3]).square().sum()

    found = []
    for call in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        leaves = [torch.arange(96.0).view(3, 32).sin().requires_grad_(), WEIGHT.clone().requires_grad_()]
        found.append(torch.autograd.grad(call(*leaves), leaves))
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, eager)
