"""The operations of the family: what they read and return, and calls that need a gradient or more than memory."""

import inspect

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import normtune
from normtune.kernels.rms_norm_quantize_fp8.function import QUANTIZE, _checked_choices


def operation(scaling, variant=""):
    return QUANTIZE.operation_of(scaling, variant)


def test_inputs_and_outputs_are_those_of_the_variant():
    static, block = operation("static", "with_residual"), operation("block", "column_major+with_y")
    assert (static.inputs, static.outputs) == (("x", "weight", "residual", "scale"), ("sum", "q", "amax"))
    assert (block.inputs, block.outputs) == (("x", "weight"), ("q", "scale", "y"))
    assert static.axes["scale"] == static.axes["amax"] == block.axes["scale"] == ""
    assert (static.results, block.results) == (3, 3)
    adding = operation("static", "amax_in_place")
    assert (adding.inputs, adding.outputs, adding.written) == (("x", "weight", "scale", "amax"), ("q",), ("amax",))
    made = block.outputs_at({"x": torch.empty(2, 3, 300, dtype=torch.float16, device="meta")})
    assert made == {
        "q": ((2, 3, 300), torch.float8_e4m3fn),
        "scale": ((8 * 3,), torch.float32),
        "y": ((2, 3, 300), torch.float16),
    }


@pytest.mark.parametrize(("has_residual", "variant"), [(True, "with_residual+rounded_sum"), (False, "")])
def test_a_sum_that_is_rounded_is_another_operation_only_where_there_is_one(has_residual, variant):
    choice = ("row", torch.float8_e4m3fn, "float32", "float32", "row_major", True, *4 * (False,), has_residual, False)
    assert _checked_choices(*choice) == ("row", variant)


@pytest.mark.parametrize("scaling", ["static", "row", "block"])
def test_without_y_inputs_that_need_gradients_are_detached(scaling):
    x, weight = torch.randn(3, 40, requires_grad=True), torch.ones(40, requires_grad=True)
    scale = torch.ones(1, requires_grad=True) if scaling == "static" else None
    found = normtune.rms_norm_quantize_fp8(x, weight, scaling=scaling, scale=scale, residual=x, return_rstd=True)
    assert not any(tensor.requires_grad for tensor in found if tensor is not None and tensor is not scale)


def test_fake_tensors_are_checked():
    with FakeTensorMode():
        x = torch.empty(4, 6, 300)
        found = normtune.rms_norm_quantize_fp8(x, torch.empty(300), scaling="block", residual=x)
        assert [tensor.shape for tensor in (found.q, found.scale, found.sum)] == [(4, 6, 300), (4, 6, 3), (4, 6, 300)]
        with pytest.raises(ValueError, match=r"weight has shape \(299,\): expected \(300,\)"):
            normtune.rms_norm_quantize_fp8(x, torch.empty(299), scaling="block")
        with pytest.raises(TypeError, match="eps is '1': expected a number"):
            normtune.rms_norm_quantize_fp8(x, None, "1", scaling="block")


class Intercepting(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is normtune.rms_norm_quantize_fp8:
            return args, kwargs
        return super().__torch_function__(function, types, args, kwargs or {})


def test_a_tensor_that_intercepts_functions_receives_all_arguments():
    x, weight = torch.ones(2, 8).as_subclass(Intercepting), torch.ones(8)
    (first, second), named = normtune.rms_norm_quantize_fp8(x, weight, 0.5, scaling="row", return_y=True)
    assert first is x and second is weight
    parameters = inspect.signature(normtune.rms_norm_quantize_fp8).parameters
    defaults = {name: one.default for name, one in parameters.items() if name not in ("x", "weight")}
    assert named == defaults | {"eps": 0.5, "scaling": "row", "return_y": True}
