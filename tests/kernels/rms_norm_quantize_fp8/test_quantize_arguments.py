"""Bad arguments name themselves, their value and what is expected; other devices and lengths are composed."""

import pytest
import torch

import normtune

X, WEIGHT, SCALE = torch.ones(2, 8), torch.ones(8), torch.ones(1)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"x": [1.0]}, TypeError, "x is [1.0]: expected a tensor"),
        ({"x": torch.ones(2, 8, dtype=torch.float64)}, ValueError, "x is torch.float64: expected bfloat16, float16"),
        ({"x": torch.ones(2, 8, dtype=torch.int32)}, ValueError, "x is torch.int32"),
        ({"x": torch.ones(())}, ValueError, "x has shape (): expected (..., hidden), hidden at least 1"),
        ({"x": torch.ones(3, 0), "weight": None}, ValueError, "x has shape (3, 0)"),
        ({"weight": torch.ones(7)}, ValueError, "weight has shape (7,): expected (8,)"),
        ({"weight": 1.0}, TypeError, "weight is 1.0: expected a tensor"),
        ({"weight": torch.ones(8, device="meta")}, ValueError, "weight is on meta and x on cpu"),
        ({"eps": "1"}, TypeError, "eps is '1': expected a number"),
        ({"offset": float("nan")}, ValueError, "offset is nan: expected a finite number"),
        ({"scale": None}, ValueError, "scale is None with scaling 'static': expected a float32 tensor (1,)"),
        ({"scale": 0.5}, TypeError, "scale is 0.5: expected a tensor"),
        ({"scale": torch.ones(2)}, ValueError, "scale is torch.float32 with shape (2,): expected float32, (1,) or ()"),
        ({"scale": SCALE.double()}, ValueError, "scale is torch.float64"),
        ({"scaling": "row"}, ValueError, "scale is given with scaling 'row', which computes scales: expected None"),
        ({"scaling": "token"}, ValueError, "scaling is 'token': expected one of static, row, block, tensor"),
        (
            {"scaling": "tensor"},
            ValueError,
            "scale is given with scaling 'tensor', which computes scales: expected None",
        ),
        (
            {"scaling": "tensor", "scale": None, "amax": torch.zeros(1)},
            ValueError,
            "amax is given with scaling 'tensor'",
        ),
        ({"scaling": ["row"]}, TypeError, "scaling is ['row']: expected one of static, row, block, tensor"),
        ({"dtype": torch.float16}, ValueError, "dtype is torch.float16: expected one of torch.float8_e4m3fn"),
        ({"dtype": "float8_e4m3fn"}, TypeError, "dtype is 'float8_e4m3fn': expected one of torch.float8_e4m3fn"),
        ({"rounding": "bf16"}, ValueError, "rounding is 'bf16': expected one of float32, norm, product"),
        (
            {"scale_format": "e8m0"},
            ValueError,
            "scale_format is 'e8m0': expected one of float32, ue8m0, ue8m0_bytes, ue8m0_packed",
        ),
        ({"scale_format": None}, TypeError, "scale_format is None: expected one of float32, ue8m0"),
        (
            {"scale_format": "ue8m0"},
            ValueError,
            "scale_format is 'ue8m0' with scaling 'static': expected 'row' or 'block'",
        ),
        (
            {"scale_format": "ue8m0_bytes", "scaling": "tensor", "scale": None},
            ValueError,
            "scale_format is 'ue8m0_bytes' with scaling 'tensor': expected 'row' or 'block'",
        ),
        (
            {"scale_layout": "column_major"},
            ValueError,
            "scale_layout is 'column_major' with scaling 'static': expected 'block'",
        ),
        ({"return_amax": 1}, TypeError, "return_amax is 1: expected True or False"),
        ({"return_amax": True, "scaling": "row", "scale": None}, ValueError, "return_amax is True with scaling 'row'"),
        ({"amax": 1.0}, TypeError, "amax is 1.0: expected a tensor"),
        ({"amax": torch.zeros(2)}, ValueError, "amax is torch.float32 with shape (2,): expected float32, (1,) or ()"),
        ({"amax": torch.zeros(1).half()}, ValueError, "amax is torch.float16"),
        ({"amax": torch.zeros(1, device="meta")}, ValueError, "amax is on meta and x on cpu"),
        (
            {"amax": torch.zeros(1, requires_grad=True)},
            ValueError,
            "amax needs a gradient: expected a tensor of its own",
        ),
        ({"amax": SCALE}, ValueError, "amax is the scale, too: expected a tensor of its own"),
        ({"amax": SCALE.view(1)}, ValueError, "amax and scale share memory: expected tensors apart"),
        ({"amax": X.view(-1)[3:4]}, ValueError, "amax and x share memory: expected tensors apart"),
        ({"amax": torch.zeros(1), "scaling": "row", "scale": None}, ValueError, "amax is given with scaling 'row'"),
        ({"round_sum": 1}, TypeError, "round_sum is 1: expected True or False"),
        ({"return_y": None}, TypeError, "return_y is None: expected True or False"),
        ({"return_rstd": 1}, TypeError, "return_rstd is 1: expected True or False"),
        ({"residual": torch.ones(2, 7)}, ValueError, "residual has shape (2, 7): expected (2, 8), as x"),
        ({"residual": torch.ones(2, 8).half()}, ValueError, "residual is torch.float16: expected torch.float32, as x"),
        ({"least_amax": 0.0}, ValueError, "least_amax is 0.0: expected a positive number"),
        ({"batch_invariant": 1}, TypeError, "batch_invariant is 1: expected True, False or None"),
        ({"batch_invariant": "yes"}, TypeError, "batch_invariant is 'yes': expected True, False or None"),
    ],
)
def test_bad_arguments_are_named(given, error, text):
    arguments = {"x": X, "weight": WEIGHT, "scale": SCALE} | given
    with pytest.raises(error) as caught:
        normtune.rms_norm_quantize_fp8(**arguments)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("options", "scale", "dtype"),
    [
        ({"scaling": "row"}, (4, 6, 1), torch.float32),
        ({"scaling": "block"}, (4, 6, 3), torch.float32),
        ({"scaling": "tensor"}, (1,), torch.float32),
        ({"scaling": "block", "scale_format": "ue8m0_bytes"}, (4, 6, 3), torch.float8_e8m0fnu),
        ({"scaling": "block", "scale_format": "ue8m0_packed"}, (4, 6, 1), torch.int32),
    ],
)
def test_tensors_without_memory_have_shapes(options, scale, dtype):
    found = normtune.rms_norm_quantize_fp8(torch.empty(4, 6, 300, device="meta"), **options)
    assert found.q.shape == (4, 6, 300) and found.q.is_meta
    assert found.scale.shape == scale and found.scale.dtype == dtype


def test_a_cpu_composes_rows_of_any_length():
    x = torch.randn(2, 70000).bfloat16()
    found = normtune.rms_norm_quantize_fp8(x, scaling="block", dtype=torch.float8_e5m2fnuz)
    norm = torch.nn.functional.rms_norm(x.float(), (70000,), eps=1e-6)
    back = found.q.float() * found.scale.repeat_interleave(128, -1)[:, :70000]
    torch.testing.assert_close(back, norm, rtol=0.126, atol=1e-3)


@pytest.mark.parametrize("flag", [None, 0, 1])
def test_a_flag_is_checked_where_a_gradient_needs_what_it_asks_for(flag):
    with pytest.raises(TypeError, match=f"return_rstd is {flag}: expected True or False"):
        normtune.rms_norm_quantize_fp8(X.clone().requires_grad_(), scale=SCALE, return_y=True, return_rstd=flag)


def test_a_number_is_no_flag_after_a_call_with_the_flag_that_it_equals():
    normtune.rms_norm_quantize_fp8(X, scale=torch.tensor(1.0), return_amax=True)
    with pytest.raises(TypeError, match="return_amax is 1: expected True or False"):
        normtune.rms_norm_quantize_fp8(X, scale=torch.tensor(1.0), return_amax=1)
