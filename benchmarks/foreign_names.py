"""Stand-ins for the modules that other libraries' tests import: a plugin of pytest, which `foreign_tests` runs.

In: the options `--library` and, for some libraries, `--reference`, the file that holds their reference. Out: modules in
`sys.modules` whose RMSNorm and relatives are normtune's, under the library's names. What normtune does not have is
skipped where a test asks for it.
"""

import ast
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.nn import Module, Parameter

import normtune


def pytest_addoption(parser):
    """Options of this plugin, which workers of pytest-xdist get as text."""
    parser.addoption("--library", help="the library whose modules are replaced")
    parser.addoption("--reference", help="the file that holds its reference")


def pytest_configure(config):
    """Install the stand-ins of a library."""
    reference = config.getoption("--reference")
    globals()[config.getoption("--library")](reference and Path(reference))


def stand_in(name, **members):
    """Install a module of that name with these members, and packages above it."""
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:depth]), ModuleType(".".join(parts[:depth])))
        if depth > 1:
            setattr(sys.modules[".".join(parts[: depth - 1])], parts[depth - 1], sys.modules[".".join(parts[:depth])])
    vars(sys.modules[name]).update(members)


def nothing(*arguments, **named):
    """Replacement of what normtune does not have."""
    pytest.skip("normtune has no such function")


def functions_of(file, names, library, **known):
    """Functions from a library's own file, which as a whole imports a compiler.

    Raises:
        SystemExit: there is no file.
    """
    if file is None:
        sys.exit(f"{library}: expected after FILE the file that holds its reference {names[0]}")
    tree = ast.parse(file.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    found: dict[str, Any] = {"torch": torch, **known}
    exec(compile(tree, str(file), "exec"), found)
    return {name: found[name] for name in names}


def liger(_):
    roundings: Any = {"llama": "llama", "gemma": "sum", "none": "sum"}

    def function(x, weight, eps, offset=0.0, casting_mode="llama", *_):
        return normtune.rms_norm(x, weight, eps, offset, casting=casting_mode)

    def liger_rms_norm(X, W, eps, offset=0.0, casting_mode="llama"):
        return function(X, W, eps, offset, casting_mode)

    def fused_add(X, R, W, eps, offset=0.0, casting_mode="llama", in_place=False):
        return normtune.fused_add_rms_norm(X, R, W, eps, offset, rounding=roundings[casting_mode])

    class Norm(Module):
        def __init__(self, hidden_size, eps=1e-06, offset=0.0, casting_mode="llama", elementwise_affine=True, **_):
            super().__init__()
            self.weight = Parameter(torch.ones(hidden_size)) if elementwise_affine else None
            self.eps, self.offset, self.casting_mode = eps, offset, casting_mode

        def forward(self, x):
            return function(x, self.weight, self.eps, self.offset, self.casting_mode)

    class AddNorm(Norm):
        def forward(self, x, residual):
            return fused_add(x, residual, self.weight, self.eps, self.offset, self.casting_mode)

    def close(one, other, atol, rtol, **_):
        torch.testing.assert_close(one, other, atol=atol, rtol=rtol)

    stand_in("test.utils", assert_verbose_allclose=close, set_seed=torch.manual_seed, supports_bfloat16=lambda: True)
    apply = SimpleNamespace(apply=function)
    stand_in(
        "liger_kernel.ops", LigerRMSNormFunction=apply, LigerFusedAddRMSNormFunction=SimpleNamespace(apply=fused_add)
    )
    stand_in("liger_kernel.transformers.functional", liger_rms_norm=liger_rms_norm, liger_fused_add_rms_norm=fused_add)
    stand_in("liger_kernel.transformers.rms_norm", LigerRMSNorm=Norm)
    stand_in("liger_kernel.transformers.fused_add_rms_norm", LigerFusedAddRMSNorm=AddNorm)
    stand_in("liger_kernel.utils", infer_comm_backend=lambda: "nccl", infer_device=_device)


def aiter(_):
    def fwd_with_add(out, x, residual, residual_out, weight, eps, **named):
        offset = 1.0 if named.get("gemma_norm") else 0.0
        y, total = normtune.fused_add_rms_norm(x, residual, weight, eps, offset, rounding="sum")
        with torch.no_grad():
            out.copy_(y)
            residual_out.copy_(total)
        return y

    names = ("fwd_with_add_dynamicquant", "fwd_with_add_smoothquant", "fwd_with_dynamicquant", "fwd_with_smoothquant")
    others: dict[str, Any] = {f"rmsnorm2d_{name}": nothing for name in names}
    stand_in("aiter", rmsnorm2d_fwd_with_add=fwd_with_add)
    stand_in(
        "aiter.ops.triton.normalization.rmsnorm",
        rms_norm=normtune.rms_norm,
        rmsnorm2d_fwd_with_add=fwd_with_add,
        **others,
    )
    dtypes = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    stand_in("aiter.ops.triton.utils.types", str_to_torch_dtype=dtypes)


def flashinfer(_):
    def norm(offset):
        def rmsnorm(x, weight, eps=1e-06, out=None, enable_pdl=None):
            y = normtune.rms_norm(x, weight, eps, offset)
            return y if out is None else out.copy_(y)

        return rmsnorm

    def added(offset):
        def fused_add_rmsnorm(x, residual, weight, eps=1e-06, enable_pdl=None):
            normtune.fused_add_rms_norm(x, residual, weight, eps, offset, in_place=True)

        return fused_add_rmsnorm

    def rmsnorm_quant(out, x, weight, scale, eps=1e-06, enable_pdl=None):
        found = normtune.rms_norm_quantize_fp8(x, weight, eps, scale=_wide(scale), dtype=out.dtype)
        return out.copy_(found.q)

    def fused_add_rmsnorm_quant(out, x, residual, weight, scale, eps=1e-06, enable_pdl=None):
        found = normtune.rms_norm_quantize_fp8(x, weight, eps, scale=_wide(scale), dtype=out.dtype, residual=residual)
        out.copy_(found.q)
        residual.copy_(found.sum)

    names = {
        "rmsnorm": norm(0.0),
        "gemma_rmsnorm": norm(1.0),
        "fused_add_rmsnorm": added(0.0),
        "gemma_fused_add_rmsnorm": added(1.0),
        "rmsnorm_quant": rmsnorm_quant,
        "fused_add_rmsnorm_quant": fused_add_rmsnorm_quant,
    }
    stand_in("flashinfer.norm", **names)
    stand_in("flashinfer", **{name: names[name] for name in ("fused_add_rmsnorm", "gemma_fused_add_rmsnorm")})
    stand_in("flashinfer.jit", env=SimpleNamespace())
    stand_in("flashinfer.jit.core", gen_jit_spec=nothing)
    stand_in("flashinfer.utils", device_support_pdl=lambda device: True)


def vllm(_):
    """Names of vLLM, its custom operators among them, so that `torch.library.opcheck` looks at them."""
    largest = 448.0

    class Norm(Module):
        offset = 0.0

        def __init__(self, hidden_size, eps=1e-06, has_weight=True, **_):
            super().__init__()
            weight = torch.zeros(hidden_size) if self.offset else torch.ones(hidden_size)
            self.weight: Any = Parameter(weight) if has_weight else None
            self.variance_epsilon = eps

        def forward_native(self, x, residual=None):
            wide = x.float() if residual is None else x.float() + residual.float()
            total = None if residual is None else wide.to(x.dtype)
            wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon)
            if self.offset:
                y = (wide * (1.0 + self.weight.float())).to(x.dtype)
            else:
                y = wide.to(x.dtype) if self.weight is None else (wide.to(x.dtype) * self.weight).to(x.dtype)
            return y if total is None else (y, total)

        def forward(self, x, residual=None):
            weight, eps, offset = self.weight, self.variance_epsilon, self.offset
            casting: Any
            rounding: Any
            casting, rounding = ("gemma", "float32") if offset else ("llama", "llama")
            if residual is None:
                return normtune.rms_norm(x, weight, eps, offset, casting=casting)
            return normtune.fused_add_rms_norm(x, residual, weight, eps, offset, rounding=rounding)

    class GemmaNorm(Norm):
        offset = 1.0

    def rms_norm(out, x, weight, eps):
        out.copy_(normtune.rms_norm(x, weight, eps, casting="llama"))

    def fused_add_rms_norm(x, residual, weight, eps):
        normtune.fused_add_rms_norm(x, residual, weight, eps, rounding="llama", in_place=True)

    def static(out, x, weight, scale, eps):
        found = normtune.rms_norm_quantize_fp8(x, weight, eps, scale=scale, rounding="product", dtype=out.dtype)
        out.copy_(found.q)

    def static_with_add(out, x, residual, weight, scale, eps):
        found = normtune.rms_norm_quantize_fp8(
            x, weight, eps, scale=scale, rounding="product", dtype=out.dtype, residual=residual, round_sum=True
        )
        out.copy_(found.q)
        residual.copy_(found.sum)

    def quantize(out, x, scale):
        out.copy_((x.float() * (1.0 / scale)).clamp(-largest, largest).to(out.dtype))

    library = torch.library.Library("_C", "FRAGMENT")
    pointwise = "Tensor x, Tensor? weight, float eps"
    for name, schema, function in (
        ("rms_norm", f"Tensor! out, {pointwise}", rms_norm),
        ("fused_add_rms_norm", "Tensor! x, Tensor! residual, Tensor? weight, float eps", fused_add_rms_norm),
        ("rms_norm_static_fp8_quant", "Tensor! out, Tensor x, Tensor weight, Tensor scale, float eps", static),
        (
            "fused_add_rms_norm_static_fp8_quant",
            "Tensor! out, Tensor x, Tensor! residual, Tensor weight, Tensor scale, float eps",
            static_with_add,
        ),
        ("static_scaled_fp8_quant", "Tensor! out, Tensor x, Tensor scale", quantize),
    ):
        library.define(f"{name}({schema}) -> ()")
        library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"_C::{name}", lambda *_: None, lib=library)
    _kept.append(library)

    allclose = torch.allclose

    def of_fp8(left, right, **named):
        pair = (one.float() if one.dtype == torch.float8_e4m3fn else one for one in (left, right))
        return allclose(*pair, **named)

    def opcheck(operator, arguments, **_):
        if operator is not None:
            with patch("torch.allclose", of_fp8):  # as vLLM's own does: torch compares no FP8
                torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))

    # Operators that allocate nothing and are checked by no schema here.
    for name in ("rms_norm_dynamic_per_token_quant", "rms_norm_per_block_quant"):
        setattr(torch.ops._C, name, None)

    def quantized(x, weight, eps, dtype, ub, residual, **named):
        if ub is not None or dtype == torch.int8:
            nothing()
        found = normtune.rms_norm_quantize_fp8(
            x, weight, eps, dtype=dtype, residual=residual, rounding="product", **named
        )
        if residual is not None:
            residual.copy_(found.sum)
        return found.q, found.scale

    def per_token(x, weight, eps, dtype, ub=None, residual=None):
        return quantized(x, weight, eps, dtype, ub, residual, scaling="row", least_amax=1.0 / 512.0)

    def per_block(x, weight, eps, dtype, group, ub, residual, transposed, alignment):
        if group[1] != 128:
            nothing()
        layout = "column_major" if transposed else "row_major"
        return quantized(x, weight, eps, dtype, ub, residual, scaling="block", layout=layout, least_amax=1.0 / 512.0)

    def scaled(parts, least):
        scale = parts.float().abs().amax(-1, keepdim=True).clamp(min=least) / largest
        return (parts.float() / scale).clamp(-largest, largest).to(torch.float8_e4m3fn), scale

    def scaled_fp8_quant(x, scale_ub=None, use_per_token_if_dynamic=True):
        if scale_ub is not None:
            nothing()
        return scaled(x, 1.0 / 512.0)

    def per_token_group_quant_fp8(x, group_size, **_):
        q, scale = scaled(x.reshape(*x.shape[:-1], -1, group_size), 1e-10)
        return q.reshape(x.shape), scale.squeeze(-1)

    tolerances = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-2}
    close = SimpleNamespace(get_tolerance=lambda dtype: {"atol": tolerances[dtype], "rtol": tolerances[dtype]})
    stand_in("tests.kernels.quant_utils", FP8_DTYPE=torch.float8_e4m3fn)
    stand_in("tests.kernels.utils", fp8_allclose=nothing, fp8_ulp_distance=nothing, opcheck=opcheck)
    stand_in("vllm", ir=SimpleNamespace(ops=SimpleNamespace(rms_norm=close)))
    stand_in("vllm.model_executor.layers.layernorm", RMSNorm=Norm, GemmaRMSNorm=GemmaNorm)
    quantization = "vllm.model_executor.layers.quantization.utils"
    stand_in(f"{quantization}.fp8_utils", per_token_group_quant_fp8=per_token_group_quant_fp8)
    stand_in(f"{quantization}.int8_utils", per_token_group_quant_int8=nothing)
    stand_in(
        "vllm._custom_ops",
        rms_norm_per_block_quant=per_block,
        rms_norm_dynamic_per_token_quant=per_token,
        scaled_fp8_quant=scaled_fp8_quant,
        scaled_int8_quant=nothing,
    )
    platform = SimpleNamespace(is_rocm=lambda: False, is_cuda=lambda: True, fp8_dtype=lambda: torch.float8_e4m3fn)
    stand_in("vllm.platforms", current_platform=platform)
    stand_in("vllm.utils.torch_utils", set_random_seed=torch.manual_seed)


# Libraries of operators go with their last reference.
_kept: list[Any] = []


@pytest.fixture
def default_vllm_config():
    """That of vLLM's own tests."""


@pytest.fixture(autouse=True)
def default_device_restored():
    """Tests of vLLM set torch's default device and leave it."""
    yield
    torch.set_default_device(None)


def fla(_):
    class RMSNormGated(Module):
        def __init__(self, hidden_size, eps=1e-05, activation="swish", **_):
            super().__init__()
            if activation not in ("silu", "swish"):
                nothing()
            self.weight, self.eps = Parameter(torch.ones(hidden_size)), eps

        def forward(self, x, gate):
            return normtune.rms_norm_gated(x, self.weight, gate, self.eps)

    def assert_close(prefix, wanted, found, ratio, **_):
        off = (wanted.float() - found.float()).square().mean().sqrt()
        assert off <= ratio * wanted.float().square().mean().sqrt() + 1e-6, f"{prefix}: {off}"

    stand_in(
        "fla.modules",
        FusedRMSNormGated=RMSNormGated,
        **dict.fromkeys(
            ("FusedLayerNormGated", "FusedLayerNormSwishGateLinear", "FusedRMSNormSwishGateLinear"), nothing
        ),
    )
    stand_in("fla.modules.fused_norm_gate", layer_norm_gated=nothing, rms_norm_gated=nothing)
    stand_in("fla.modules.layernorm_gated", layernorm_fn=_layernorm_fn)
    # What asks for a Blackwell GPU needs 60 GB, which an H200 has.
    large = torch.cuda.is_available() and torch.cuda.get_device_properties(0).total_memory > 120 << 30
    stand_in("fla.utils", IS_NVIDIA_BLACKWELL=large, assert_close=assert_close, device=_device())


def mamba(reference):
    """Names of Mamba; its reference comes from its own file."""
    from einops import rearrange

    names = functions_of(reference, ["rms_norm_ref"], "mamba", F=torch.nn.functional, rearrange=rearrange)
    stand_in("mamba_ssm.ops.triton.layernorm_gated", layernorm_fn=_layernorm_fn, **names)


def _layernorm_fn(x, weight, bias, z=None, eps=1e-06, group_size=None, norm_before_gate=True, is_rms_norm=False):
    """The gated norm of Mamba and flash-linear-attention."""
    if bias is not None or not is_rms_norm:
        nothing()
    return normtune.rms_norm_gated(x, weight, z, eps, norm_before_gate=norm_before_gate, group_size=group_size)


def quack(reference):
    """Names of quack; its references come from its own file."""
    names = functions_of(reference, ["rmsnorm_ref", "rmsnorm_bwd_ref"], "quack")

    def rmsnorm(x, weight=None, bias=None, residual=None, eps=1e-06, **named):
        offset, prenorm = named.get("weight_offset", 0.0), named.get("prenorm", False)
        if bias is not None or named.get("residual_dtype") is not None:
            nothing()
        if residual is None:
            return normtune.rms_norm(x, weight, eps, offset)
        y, total = normtune.fused_add_rms_norm(x, residual, weight, eps, offset)
        return (y, total) if prenorm else y

    others = ("_compile_rmsnorm_fwd", "rmsnorm_bwd", "rmsnorm_bwd_tuned", "rmsnorm_fwd", "rmsnorm_fwd_tuned")
    stand_in("quack.rmsnorm", rmsnorm=rmsnorm, **dict.fromkeys(others, nothing), **names)
    stand_in("quack.rmsnorm_config", RmsNormBwdConfig=nothing, RmsNormFwdConfig=nothing)
    stand_in("quack.cute_dsl_utils", get_device_capacity=lambda *_: torch.cuda.get_device_capability())


def _device():
    return "cuda" if torch.cuda.is_available() else "cpu"


def _wide(scale):
    return scale.float()
