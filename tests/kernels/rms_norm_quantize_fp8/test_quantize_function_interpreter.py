"""The public function in the interpreter: values, layouts, kept launches, torch.compile, strides."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import normtune
from normtune.kernels.calling import eager
from normtune.kernels.rms_norm_quantize_fp8.function import QUANTIZE, ROUNDINGS
from normtune.kernels.rms_norm_quantize_fp8.launch import LARGEST

pytestmark = pytest.mark.interpreter

DTYPES = {getattr(torch, name): largest for name, largest in LARGEST.items() if "fnuz" not in name}


def norm_of(x, weight, eps, offset, rounding, dtype):
    """The norm as a user would write it, float32, for x of a dtype."""
    wide = x.float()
    norm = wide / torch.sqrt(wide.square().mean(-1, keepdim=True) + eps)
    if rounding == "product":
        norm = norm.to(dtype).float()
    norm = norm if weight is None else norm * (weight.float() + offset)
    return norm if rounding == "float32" else norm.to(dtype).float()


def in_blocks(scale, hidden):
    return scale.repeat_interleave(128, -1)[..., :hidden]


def close(q, norm, scale, dtype, largest):
    """Whether q is the norm over the scale, or a neighbour in FP8 where rounding of the norm decides."""
    wanted = norm / scale
    slack = 2.0 ** -(3 if dtype == torch.float8_e4m3fn else 2) / 2
    least = 2.0 ** -(10 if dtype == torch.float8_e4m3fn else 17)
    saturated = wanted.clamp(-largest, largest)
    # Of bfloat16 norms one in a hundred thousand is rounded the other way: a neighbour of that, 2^-8.
    return ((q.float() - saturated).abs() <= saturated.abs() * (slack + 2**-7) + least).all()


@st.composite
def cases(draw):
    leading = draw(st.lists(st.integers(1, 5), max_size=2))
    hidden = draw(st.sampled_from([1, 7, 64, 127, 128, 129, 300, 512]))
    dtype = draw(st.sampled_from([torch.bfloat16, torch.float16, torch.float32]))
    x = torch.randn(*leading, hidden + draw(st.sampled_from([0, 0, 1, 16])), dtype=dtype)[..., :hidden]
    if draw(st.booleans()) and x.dim() > 1:
        x = x.flip(0) if draw(st.booleans()) else x.transpose(0, -2)
    weight_dtype = draw(st.sampled_from([dtype, torch.float32, None]))
    weight = None if weight_dtype is None else (1 + torch.rand(hidden)).to(weight_dtype)
    options = {
        "scaling": draw(st.sampled_from(["static", "row", "block", "tensor"])),
        "dtype": draw(st.sampled_from(list(DTYPES))),
        "rounding": draw(st.sampled_from(list(ROUNDINGS))),
        "return_y": draw(st.booleans()),
        "offset": draw(st.sampled_from([0.0, 1.0])),
    }
    if options["scaling"] == "static":
        options |= {"scale": torch.tensor([0.02]), "return_amax": draw(st.booleans())}
    elif options["scaling"] == "block":
        options |= {"scale_layout": draw(st.sampled_from(["row_major", "column_major"]))}
    if draw(st.booleans()):
        options |= {"residual": torch.randn(x.shape, dtype=dtype), "round_sum": draw(st.booleans())}
    return x, weight, options


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(case=cases())
def test_any_layout_gives_what_a_user_would_write(case):
    x, weight, options = case
    found = normtune.rms_norm_quantize_fp8(x, weight, 1e-5, **options)
    source = x
    if "residual" in options:
        source = x.float() + options["residual"].float()
        assert torch.equal(found.sum, source.to(x.dtype))
        source = source.to(x.dtype) if options["round_sum"] else source
    norm = norm_of(source, weight, 1e-5, options["offset"], options["rounding"], x.dtype)
    dtype, largest = options["dtype"], DTYPES[options["dtype"]]
    hidden = x.shape[-1]
    assert found.q.shape == x.shape and found.q.dtype == dtype and found.q.is_contiguous()
    step = 1e-5 if options["rounding"] == "float32" else 2 * torch.finfo(x.dtype).eps
    if options["scaling"] == "block":
        rows = x.shape[:-1].numel()
        assert found.scale.shape == (*x.shape[:-1], -(-hidden // 128))
        if options["scale_layout"] == "column_major" and x.dim() == 2:
            assert found.scale.stride() == (1, -(-rows // 4) * 4)
        scale = in_blocks(found.scale, hidden)
        blocks = torch.nn.functional.pad(norm.abs(), (0, -hidden % 128)).unflatten(-1, (-1, 128)).amax(-1)
        torch.testing.assert_close(found.scale * largest, blocks, rtol=step, atol=1e-6)
    elif options["scaling"] == "tensor":
        scale = found.scale
        torch.testing.assert_close(scale * largest, norm.abs().amax().reshape(1), rtol=step, atol=1e-6)
    elif options["scaling"] == "row":
        scale = found.scale
        torch.testing.assert_close(scale * largest, norm.abs().amax(-1, keepdim=True), rtol=step, atol=1e-6)
    else:
        scale = options["scale"]
        assert found.scale is scale
        if options["return_amax"]:
            torch.testing.assert_close(found.amax, norm.abs().amax().reshape(1), rtol=step, atol=1e-6)
    assert close(found.q, norm, scale, dtype, largest)
    assert (found.y is None) == (not options["return_y"])
    if found.y is not None:
        torch.testing.assert_close(found.y, norm.to(x.dtype))


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(
    ("scaling", "scales"),
    [
        ("static", {}),
        ("row", {}),
        ("row", {"scale_format": "ue8m0_bytes"}),
        ("block", {}),
        ("block", {"scale_format": "ue8m0"}),
        ("block", {"scale_format": "ue8m0_bytes", "scale_layout": "column_major"}),
        ("block", {"scale_format": "ue8m0_packed"}),
        ("block", {"scale_format": "ue8m0_packed", "scale_layout": "column_major"}),
        ("tensor", {}),
    ],
)
def test_the_composition_computes_what_the_kernels_do(scaling, scales, rounding, monkeypatch):
    """Bit for bit where the sum of squares is exact; rows of zeros, too."""
    x = torch.randint(-4, 5, (5, 256)).to(torch.bfloat16)
    x[1] = 0
    weight = torch.rand(256).to(torch.bfloat16)
    options = {"scaling": scaling, "rounding": rounding, "return_y": True, **scales}
    if scaling == "static":
        options |= {"scale": torch.tensor([0.013]), "return_amax": True}
    launched = normtune.rms_norm_quantize_fp8(x, weight, 2.0**-20, **options)
    monkeypatch.setattr(eager, "takes_kernels", lambda *_: False)
    normtune.use_table("auto")
    made = normtune.rms_norm_quantize_fp8(x, weight, 2.0**-20, **options)
    for one, other in zip(launched, made, strict=True):
        if one is not None and one.element_size() == 1:
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
        elif one is not None:
            assert torch.equal(one, other)


def kept():
    """The launches that are kept, of all scalings and variants."""
    return [plan for member in QUANTIZE._ops.values() for plan in member.operation.plans.values()]


def test_launches_are_kept_and_hold_no_tensor():
    x, weight = torch.randn(4, 64), torch.ones(64)
    normtune.use_table("auto")
    first = normtune.rms_norm_quantize_fp8(x, weight, scaling="row")
    assert len(kept()) == 1
    again = normtune.rms_norm_quantize_fp8(2 * x, weight, scaling="row")
    assert len(kept()) == 1 and again.scale.data_ptr() != first.scale.data_ptr()
    torch.testing.assert_close(again.scale, first.scale, rtol=1e-5, atol=0)
    normtune.rms_norm_quantize_fp8(x, weight, 1e-5, scaling="row")
    normtune.rms_norm_quantize_fp8(x, weight, scaling="block")
    assert len(kept()) == 3
    normtune.use_table("auto")
    assert not kept()


def test_a_weightless_call_is_kept_and_reads_ones():
    x = torch.randn(3, 40)
    found = [normtune.rms_norm_quantize_fp8(x, offset=5.0, scaling="row") for _ in range(2)]
    wanted = normtune.rms_norm_quantize_fp8(x, torch.ones(40), scaling="row")
    assert all(torch.equal(one.scale, wanted.scale) for one in found)


def test_amax_is_cleared_by_the_call():
    weight, scale = torch.ones(32), torch.tensor([0.1])
    for factor in (100.0, 1.0):
        x = torch.ones(2, 32)
        x[0, 0] = factor
        found = normtune.rms_norm_quantize_fp8(x, weight, scale=scale, return_amax=True)
        torch.testing.assert_close(found.amax, norm_of(x, weight, 1e-6, 0.0, "float32", x.dtype).amax().reshape(1))


@pytest.mark.parametrize("shape", [(0, 16), (3, 0, 16)])
def test_no_rows(shape):
    for scaling, options in (("static", {"scale": torch.ones(1), "return_amax": True}), ("row", {}), ("block", {})):
        found = normtune.rms_norm_quantize_fp8(torch.ones(shape), torch.ones(16), scaling=scaling, **options)
        assert found.q.shape == shape and found.q.dtype == torch.float8_e4m3fn
        if scaling == "static":
            assert found.amax.item() == 0
        else:
            assert found.scale.shape == (*shape[:-1], 1)


@pytest.mark.slow
def test_a_compiled_function_holds_one_operator():
    graphs = []

    def keep(graph, _):
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph

    def asked(x, weight):
        return normtune.rms_norm_quantize_fp8(x, weight, scaling="row", return_y=True)

    torch._dynamo.reset()
    compiled = torch.compile(asked, backend=keep, fullgraph=True)
    x, weight = torch.randn(4, 64), torch.ones(64)
    found, wanted = compiled(x, weight), asked(x, weight)
    assert sum("rms_norm_quantize_fp8" in name for name in graphs[0]) == 1
    assert torch.equal(found.q.view(torch.uint8), wanted.q.view(torch.uint8)) and torch.equal(found.scale, wanted.scale)
    assert torch.equal(found.y, wanted.y)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("scaling", "variant", "scale"),
    [
        ("static", "", torch.ones(1)),
        ("row", "with_y", None),
        ("block", "with_residual+rounded_sum", None),
        ("block", "column_major+ue8m0_packed", None),
        ("tensor", "with_rstd", None),
    ],
)
def test_the_operator_keeps_the_rules_of_the_dispatcher(scaling, variant, scale):
    residual = torch.randn(3, 160) if "residual" in variant else None
    arguments = (torch.randn(3, 160), torch.ones(160), residual, scale, 1e-6, 0.0, 1e-10, scaling, variant, None)
    torch.library.opcheck(torch.ops.normtune.rms_norm_quantize_fp8.default, arguments)


def test_rows_have_the_same_bits_in_every_batch():
    x, weight = torch.randn(9, 300), torch.rand(300)
    whole = normtune.rms_norm_quantize_fp8(x, weight, scaling="block", batch_invariant=True)
    part = normtune.rms_norm_quantize_fp8(x[3:5], weight, scaling="block", batch_invariant=True)
    assert torch.equal(whole.scale[3:5], part.scale)
    assert torch.equal(whole.q.view(torch.uint8)[3:5], part.q.view(torch.uint8))
