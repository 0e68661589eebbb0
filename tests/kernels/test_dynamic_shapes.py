"""Every public function under `torch.compile` and `torch.export` with any number of rows; on a CPU."""

import pytest
import torch

import normtune

HIDDEN = 192
WEIGHT = torch.linspace(0.5, 1.5, HIDDEN)
SCALE = torch.full((1,), 0.25)
HEAD = torch.linspace(0.5, 1.5, 32)
COS = torch.arange(64.0).view(4, 16).cos()


class OfSum(normtune.FusedAddRMSNorm):
    def forward(self, x):
        return super().forward(x, x.cos())[0]


def quantize(**options):
    def call(x):
        scale = SCALE if options.get("scaling", "static") == "static" else None
        residual = 2 * x if "round_sum" in options else None
        found = normtune.rms_norm_quantize_fp8(x, WEIGHT, scale=scale, residual=residual, **options)
        return [tensor.float() for tensor in found if tensor is not None]

    return call


def quantize_to_train(x):
    found = normtune.rms_norm_quantize_fp8(x, WEIGHT, scaling="row", residual=x.cos(), return_y=True)
    return found.y + 2 * found.sum


def fused_in_place(x):
    x, residual = x * 2, x.cos()
    y, s = normtune.fused_add_rms_norm(x, residual, WEIGHT, in_place=True)
    return y + s


def heads_in_place(x):
    return normtune.qk_norm(x * 2, HEAD, HEAD, 2, 1, in_place=True) + 1


def heads_of_positions(x):
    positions = torch.zeros(x.shape[:-1], dtype=torch.int64)
    return normtune.qk_norm(x, HEAD, HEAD, 2, 1, cos=COS, sin=COS, positions=positions)


def heads_in_order(x):
    tables = x[..., :16].cos()
    return normtune.qk_norm(x, HEAD, HEAD, 2, 1, cos=tables, sin=tables)


def transposed(x):
    return normtune.transpose_fp8(x.flatten(0, -2).to(torch.float8_e4m3fn)).float()


CALLS = {
    "rms_norm": lambda x: normtune.rms_norm(x, WEIGHT),
    "rms_norm as torch's": lambda x: normtune.rms_norm(x, (HIDDEN,), WEIGHT),
    "rms_norm over two": lambda x: normtune.rms_norm(x.unflatten(-1, (12, 16)), (12, 16), WEIGHT.view(12, 16)),
    "rms_norm llama": lambda x: normtune.rms_norm(x, WEIGHT, casting="llama", reuse_dy=True),
    "rms_norm none": lambda x: normtune.rms_norm(x, casting="none", batch_invariant=True),
    "RMSNorm": normtune.RMSNorm(HIDDEN),
    "fused_add_rms_norm": lambda x: normtune.fused_add_rms_norm(x, x.cos(), WEIGHT)[0],
    "fused_add_rms_norm in place": fused_in_place,
    "FusedAddRMSNorm": OfSum(HIDDEN, rounding="llama"),
    "rms_norm_gated": lambda x: normtune.rms_norm_gated(x, WEIGHT, x.cos()),
    "rms_norm_gated groups": lambda x: normtune.rms_norm_gated(
        x, WEIGHT, x.cos(), group_size=48, norm_before_gate=False
    ),
    "RMSNormGated": normtune.RMSNormGated(HIDDEN, group_size=64, rounding="hugging_face"),
    "quantize static": quantize(return_amax=True, return_y=True, return_transpose=True),
    "quantize static, residual": quantize(round_sum=True),
    "quantize row": quantize(scaling="row", rounding="product"),
    "quantize tensor": quantize(scaling="tensor", return_transpose=True),
    "quantize block": quantize(scaling="block"),
    "quantize block, column-major": quantize(scaling="block", scale_layout="column_major"),
    "quantize block, bytes": quantize(scaling="block", scale_format="ue8m0_bytes"),
    "quantize block, packed": quantize(scaling="block", scale_format="ue8m0_packed", scale_layout="column_major"),
    "training in FP8": quantize_to_train,
    "transpose_fp8": transposed,
    "qk_norm": lambda x: normtune.qk_norm(x, HEAD, HEAD, 2, 1),
    "qk_norm in place": heads_in_place,
    "qk_norm of positions": heads_of_positions,
    "qk_norm in order": heads_in_order,
}


SECOND_MODES = {
    *("rms_norm as torch's", "rms_norm over two", "rms_norm llama", "rms_norm_gated groups", "quantize row"),
    *("quantize static, residual", "qk_norm in order"),
}


class Module(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x)


NAMES = [pytest.param(name, marks=pytest.mark.slow if name in SECOND_MODES else ()) for name in CALLS]
# Those without a gradient.
CONSTANT = {name for name in CALLS if name.startswith(("quantize", "transpose")) or name.endswith("in place")}


def rows(*leading):
    return torch.randn(*leading, HIDDEN, generator=torch.Generator().manual_seed(sum(leading)))


def results(call, name, leading):
    """The results of a call, and the gradient of its rows."""
    x = rows(leading).requires_grad_(name not in CONSTANT)
    y = call(x)
    return y if name in CONSTANT else [y, *torch.autograd.grad(y.sin().sum(), x)]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_compiled_twice_for_all_numbers_of_rows(request, name):
    """The first graph is for its number of rows alone until others come; Dynamo gives up at the ninth."""
    from torch._dynamo.testing import CompileCounterWithBackend  # a second, which no other test of the module needs

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    request.addfinalizer(normtune.use)
    normtune.use(compiled="kernel")  # the way with the bits of eager calls
    compiled = torch.compile(CALLS[name], fullgraph=True, backend=counter)
    for leading in (4, 6, 9, 17, 2, 31, 64, 100, 128, 7, 15):
        torch.testing.assert_close(
            results(compiled, name, leading), results(CALLS[name], name, leading), rtol=0, atol=0
        )
    assert counter.frame_count == 2


@pytest.mark.one_in(10)
@pytest.mark.long
@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_exported_for_any_numbers_of_rows(name, strict):
    batch, tokens = torch.export.Dim("batch", min=2, max=4096), torch.export.Dim("tokens", min=2, max=4096)
    exported = torch.export.export(
        Module(CALLS[name]), (rows(4, 6),), dynamic_shapes=[{0: batch, 1: tokens}], strict=strict
    ).module()
    for leading in ((4, 6), (2, 33), (17, 3)):
        torch.testing.assert_close(exported(rows(*leading)), CALLS[name](rows(*leading)), rtol=0, atol=0)
