"""The amax of a caller: what launches make of it, and what autograd and compilers are told."""

import pytest
import torch

import normtune
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm_quantize_fp8.function import QUANTIZE
from normtune.kernels.rms_norm_quantize_fp8.launch import operator_name
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import outputs_of
from normtune.tuner.plan.plan import candidates

pytestmark = pytest.mark.interpreter

TARGET = TARGETS["sm_89"]._replace(sms=3)
NAN = float("nan")


def case(amax=1.0, largest=3.0):
    """Rows of ones and minus ones with a weight, so that the amax is the weight's largest magnitude."""
    x, weight = torch.ones(4, 64), torch.ones(64)
    x[1::2], weight[5] = -1, -largest
    return x, weight, {"eps": 0.0, "scale": torch.full((1,), 0.1), "amax": torch.full((1,), amax)}


@pytest.mark.parametrize("kind", ["static", "transpose"])
@pytest.mark.parametrize("before", [0.0, 2.5, 3.0, 7.5, NAN, float("inf")])
def test_each_launch_makes_it_the_maximum_of_both(kind, before):
    x, weight, options = case(before)
    spec = operator(operator_name(kind))
    problem = spec.problem(4, 64, "float32", "amax_in_place")
    kept, _ = candidates(spec, spec.space("default", problem, TARGET), problem, TARGET)
    kinds = {one.config.schedule: one.launch for one in kept}
    assert {"row", "block_row"} <= kinds.keys()
    wanted = torch.maximum(torch.tensor([before]), torch.tensor([3.0]))
    for launch in kinds.values():
        inputs = {"x": x, "weight": weight, "scale": options["scale"], "amax": options["amax"]}
        found = outputs_of(spec, problem, launch, inputs, eps=0.0, offset=0.0)
        assert torch.equal(found["amax"].view(torch.int32), wanted.view(torch.int32)) or wanted.isnan().all()
        assert found["amax"].isnan().all() == wanted.isnan().all()


def test_it_takes_one_launch_less():
    spec = operator(operator_name("static"))
    counts = {}
    for variant in ("", "amax_in_place"):
        problem = spec.problem(4, 64, "float32", variant)
        launch = spec.launch(spec.default_config(problem, TARGET), problem, TARGET)
        tensors = {one.name: torch.empty(one.shape) for one in spec.buffers(problem)}
        counts[variant] = len(spec.calls(launch, problem, tensors, None, spec.scalars))
    assert counts == {"": 2, "amax_in_place": 1}


def test_calls_accumulate_and_return_the_tensor_itself():
    x, weight, options = case()
    seen = []
    for factor in (0.5, 2.0, 1.0):
        version = options["amax"]._version
        found = normtune.rms_norm_quantize_fp8(x, factor * weight, **options)
        assert found.amax is options["amax"] and found.amax._version == version + 1
        seen.append(found.amax.item())
    assert seen == [1.5, 6.0, 6.0]
    history = torch.zeros(3, 2)
    normtune.rms_norm_quantize_fp8(x, weight, **options | {"amax": history[1, 1]})
    assert history.tolist() == [[0, 0], [0, 3], [0, 0]]
    normtune.rms_norm_quantize_fp8(x[:0], weight, **options)
    assert options["amax"].item() == 6


def test_other_outputs_are_those_of_a_call_without_it():
    x, weight, options = case()
    asked = {"residual": x, "return_y": True, "return_rstd": True, "return_transpose": True}
    found = normtune.rms_norm_quantize_fp8(x, weight, **options, **asked)
    del options["amax"]
    wanted = normtune.rms_norm_quantize_fp8(x, weight, **options, **asked, return_amax=True)
    for name, one in found._asdict().items():
        other = getattr(wanted, name)
        assert one.dtype == other.dtype and torch.equal(one.float(), other.float()), name


def test_what_was_saved_of_it_is_refused():
    x, weight, options = case()
    leaf = torch.ones(1, requires_grad=True)
    product = leaf * options["amax"]
    normtune.rms_norm_quantize_fp8(x, weight, **options)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    with torch.inference_mode():
        of_inference = torch.zeros(1)
    with pytest.raises(ValueError, match="amax is an inference tensor"):
        normtune.rms_norm_quantize_fp8(x, weight, **options | {"amax": of_inference})


@pytest.mark.parametrize("again", [False, True], ids=["new", "kept"])
def test_shared_memory_is_refused_before_a_launch(again):
    x, weight, options = case()
    if again:
        normtune.rms_norm_quantize_fp8(x, weight, **options)
    for name, given in (("x", x), ("weight", weight)):
        before = given.clone()
        with pytest.raises(ValueError, match=f"amax and {name} share memory"):
            normtune.rms_norm_quantize_fp8(x, weight, **options | {"amax": given.view(-1)[:1]})
        assert torch.equal(given, before)


@pytest.mark.parametrize("again", [False, True], ids=["new", "kept"])
@pytest.mark.parametrize("made", [lambda: torch._neg_view(torch.zeros(1)), lambda: torch._efficientzerotensor(1)])
def test_what_has_no_memory_of_its_own_is_refused(made, again):
    x, weight, options = case()
    if again:
        normtune.rms_norm_quantize_fp8(x, weight, **options)
    with pytest.raises(ValueError, match="amax is a negated or zero tensor without memory of its own"):
        normtune.rms_norm_quantize_fp8(x, weight, **options | {"amax": made()})


@pytest.mark.slow
@pytest.mark.parametrize("trains", [False, True])
def test_compilers_see_the_change(trains):
    x, weight, options = case()
    weight = weight.requires_grad_(trains)

    def call(amax):
        found = normtune.rms_norm_quantize_fp8(x, weight, **options | {"amax": amax}, return_y=True)
        return found.y, found.q.float(), amax + 1

    torch._dynamo.reset()
    wanted, found = torch.zeros(1), torch.zeros(1)
    y, q, more = torch.compile(call, backend="aot_eager", fullgraph=True)(found)
    assert all(map(torch.equal, (y, q, more), call(wanted)))
    assert found.item() == wanted.item() == 3 and y.requires_grad == trains
    schema = str(torch.ops.normtune.rms_norm_quantize_fp8_amax_in_place.default._schema)
    assert "Tensor(a!) amax" in schema and schema.count("!") == 1


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["amax_in_place", "with_y+with_rstd+amax_in_place"])
def test_the_operator_keeps_the_rules_of_the_dispatcher(variant):
    x, weight, options = case()
    tensors = (x, weight, None, options["scale"], options["amax"])
    torch.library.opcheck(
        torch.ops.normtune.rms_norm_quantize_fp8_amax_in_place.default,
        (*tensors, 1e-6, 0.0, 1e-10, "static", variant, None),
    )
    assert QUANTIZE.outputs_of("static", variant)[0] == "q"
