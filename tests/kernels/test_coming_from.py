"""Every row of the table of other libraries in docs/python.md, beside what that library computes; and their arguments.

transformers' classes are run themselves where they are installed, Liger's kernels by Triton's interpreter; vLLM,
FlashInfer and mamba_ssm do not install without a GPU, so theirs are formulas.
"""

import importlib
import re
from pathlib import Path

import pytest
import torch
import triton.language as tl
from torch.nn.functional import silu

import normtune

HIDDEN, GROUP, EPS = 192, 48, 1e-5
# Of another library, and what is said where it is given to ours.
REFUSED = {
    "Liger's offset": (
        lambda: normtune.RMSNorm(HIDDEN, EPS, 0.0),
        TypeError,
        "elementwise_affine is 0.0: expected True",
    ),
    "vLLM's var_hidden_size": (
        *(lambda: normtune.RMSNorm(HIDDEN, EPS, None), TypeError, "elementwise_affine is None: expected True or False"),
    ),
    "Liger's mode": (
        *(lambda: normtune.rms_norm(X, WEIGHT, EPS, 0.0, "llama"), TypeError, "batch_invariant is 'llama': expected"),
    ),
    "Liger's offset of a sum": (
        *(lambda: normtune.FusedAddRMSNorm(HIDDEN, EPS, 0.0), TypeError, "device is 0.0: expected a device"),
    ),
    "Mamba's group size": (lambda: normtune.RMSNormGated(HIDDEN, 32), ValueError, "eps is 32: expected less than 1"),
    "a group size in a call": (
        *(lambda: normtune.rms_norm_gated(X, WEIGHT, X, 32), ValueError, "eps is 32: expected less than 1"),
    ),
    "FlashInfer's enable_pdl": (
        *(lambda: normtune.fused_add_rms_norm(X, X, WEIGHT, EPS, True), TypeError, "offset is True: expected a number"),
    ),
    "FlashInfer's out": (
        *(lambda: normtune.rms_norm(X, WEIGHT, EPS, X), TypeError, "offset is a tensor with shape (2, 192): expected"),
    ),
    "vLLM's out": (lambda: normtune.rms_norm(X, X, WEIGHT, EPS), TypeError, "eps is a tensor with shape (192,)"),
    "Mamba's bias": (
        lambda: normtune.rms_norm_gated(X, WEIGHT, None, X, EPS),
        TypeError,
        "eps is a tensor with shape (2, 192): expected",
    ),
    "fla's elementwise_affine": (
        lambda: normtune.RMSNormGated(HIDDEN, True),
        TypeError,
        "eps is True: expected a number",
    ),
}
X, WEIGHT = torch.ones(2, HIDDEN), torch.ones(HIDDEN)
_ROW = re.compile(r"^\| (?P<library>\w+) \| (?P<there>`.*?) \| `(?P<write>[^`]*)`")


def unit(x, eps=EPS):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def plain(offset=0.0):
    return lambda x, weight, **_: (unit(x.float()) * (weight.float() + offset)).to(x.dtype)


def llama(x, weight, **_):
    return weight * unit(x.float()).to(x.dtype)


def added(formula, is_rounded):
    """Formula of a sum, in float32 or rounded to the dtype first."""

    def fused(x, residual, weight, **_):
        s = x + residual if is_rounded else x.float() + residual.float()
        return formula(s, weight).to(x.dtype), s.to(x.dtype)

    return fused


def next_gated(x, z, weight, **_):
    return ((weight * unit(x.float()).to(x.dtype)) * silu(z.float())).to(x.dtype)


def mamba_transformers(x, z, weight, **_):
    gated = x.float() * silu(z.float())
    return weight * unit(gated.unflatten(-1, (-1, GROUP))).flatten(-2).to(x.dtype)


def mamba(is_norm_first):
    def gated(x, z, weight, **_):
        gate = silu(z.float())
        rows = x.float() if is_norm_first else x.float() * gate
        y = unit(rows.unflatten(-1, (-1, GROUP))).flatten(-2) * weight.float()
        return (y * gate if is_norm_first else y).to(x.dtype)

    return gated


def of_transformers(name, model, formula, *arguments):
    """The class of theirs, or the formula where it is not installed."""

    def called(x, weight, z=None, **_):
        try:
            kind = getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), name)
        except ImportError:
            return formula(x=x, weight=weight, z=z)
        norm = kind(HIDDEN, *arguments, EPS).to(x.dtype)
        norm.load_state_dict({"weight": weight})
        return norm(x) if z is None else norm(x, z)

    return called


# What a library computes, by its column of the table.
THEIRS = {
    "`ops.rms_norm(out, x, weight, eps)`": llama,
    "`ops.fused_add_rms_norm(x, residual, weight, eps)`": added(llama, True),
    "`RMSNorm(hidden, eps)` of `x`": llama,
    "`RMSNorm(hidden, eps)` of `x, residual`": added(llama, True),
    "`GemmaRMSNorm(hidden, eps)` of `x`": plain(1.0),
    "`GemmaRMSNorm(hidden, eps)` of `x, residual`": added(plain(1.0), True),
    "`rmsnorm(x, weight, eps)`": plain(),
    "`fused_add_rmsnorm(x, residual, weight, eps)`": added(plain(), False),
    "`gemma_rmsnorm(x, weight, eps)`": plain(1.0),
    "`gemma_fused_add_rmsnorm(x, residual, weight, eps)`": added(plain(1.0), False),
    "`liger_rms_norm(x, weight, eps)`": llama,
    "`LigerRMSNorm(hidden, eps)` of `x`": llama,
    '`LigerRMSNorm(hidden, eps, 1.0, "gemma", "zeros", False)` of `x`': plain(1.0),
    "`liger_fused_add_rms_norm(x, residual, weight, eps, in_place=False)`": added(llama, True),
    '`LigerFusedAddRMSNorm(hidden, eps, 1.0, "gemma")` of `x, residual`': added(plain(1.0), True),
    "`LlamaRMSNorm(hidden, eps)` of `x`, also Mistral's, Qwen2's, Qwen3's": of_transformers(
        "LlamaRMSNorm", "llama", llama
    ),
    "`GemmaRMSNorm(hidden, eps)` of `x`, also Gemma2's, Gemma3's, Qwen3Next's": of_transformers(
        "GemmaRMSNorm", "gemma", plain(1.0)
    ),
    "`Qwen3NextRMSNormGated(hidden, eps)` of `x, z`": of_transformers(
        "Qwen3NextRMSNormGated", "qwen3_next", next_gated
    ),
    "`MambaRMSNormGated(hidden, group_size, eps)` of `x, z`, also Zamba2's": of_transformers(
        "MambaRMSNormGated", "mamba2", mamba_transformers, GROUP
    ),
    "`rmsnorm_fn(x, weight, None, z, eps, group_size, False)`": mamba(False),
    "`RMSNorm(hidden, eps, group_size)` of `x, z`": mamba(True),
    "`rms_norm_fn(x, weight, None, residual, eps=eps, prenorm=True)`": added(plain(), False),
}
FUNCTIONS = ("rms_norm", "fused_add_rms_norm", "rms_norm_gated", "RMSNorm", "FusedAddRMSNorm", "RMSNormGated")
NAMES = {name: getattr(normtune, name) for name in FUNCTIONS}
TABLE = Path(normtune.__file__).with_name("docs") / "python.md"


def table():
    """(library, there, write) of each row."""
    return [match.groups() for line in TABLE.read_text().splitlines() if (match := _ROW.match(line))]


def drawn(dtype):
    generator = torch.Generator().manual_seed(0)
    x, residual, z = (torch.randn(33, HIDDEN, generator=generator).to(dtype) for _ in range(3))
    return {"x": x, "residual": residual, "z": z, "weight": torch.randn(HIDDEN, generator=generator).to(dtype)}


def arguments_of(there, tensors):
    """The tensors that are named in a row."""
    names = set(re.findall(r"\w+", there.partition(", also")[0]))
    return {name: tensor.clone() for name, tensor in tensors.items() if name in names or name == "weight"}


def ours(write, given):
    """Results of the code of a row: of a module, of its call; in place, what was written."""
    names = {"hidden": HIDDEN, "eps": EPS, "group_size": GROUP, **NAMES, **given}
    made = eval(write, names)
    if not isinstance(made, torch.nn.Module):
        return made
    made = made.to(given["weight"].dtype)
    made.load_state_dict({"weight": given["weight"]})
    return made(*(tensor for name, tensor in given.items() if name != "weight"))


def assert_same(found, expected):
    """The same bits, but where another order of the sum of squares meets the boundary of a rounding."""
    for one, other in zip(
        *(value if isinstance(value, tuple) else (value,) for value in (found, expected)), strict=True
    ):
        assert one.dtype == other.dtype and (one != other).float().mean() < 1e-3


def test_the_table_has_a_formula_for_each_row():
    assert {there for _, there, _ in table()} == set(THEIRS) and len(table()) == len(THEIRS)


@pytest.mark.parametrize("there", THEIRS)
def test_a_row_says_what_to_write(there):
    (write,) = (write for _, one, write in table() if one == there)
    given = arguments_of(there, drawn(torch.bfloat16))
    expected = THEIRS[there](**given)
    found = ours(write, given)
    assert_same(found, expected)
    if "in_place=True" in write:
        assert found[0] is given["x"] and found[1] is given["residual"]


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_mean_something_else_there_are_refused(name):
    call, error, text = REFUSED[name]
    with pytest.raises(error, match=re.escape(text)):
        call()


class Scalar(float):
    """A number as Liger's kernels get it from the compiler; Triton's interpreter hands them Python's."""

    def to(self, dtype):
        return self


@pytest.mark.slow
@pytest.mark.interpreter
@pytest.mark.parametrize("there", [there for library, there, _ in table() if library == "Liger"])
def test_ligers_own_kernels_do_the_same(monkeypatch, there):
    """Their arguments are read from the row, too."""
    transformers = pytest.importorskip("liger_kernel.transformers")
    for kernels in ("rms_norm", "fused_add_rms_norm"):  # the interpreter has no libdevice
        monkeypatch.setattr(
            importlib.import_module(f"liger_kernel.ops.{kernels}"), "rsqrt", lambda value: tl.rsqrt(value)
        )
    functions = importlib.import_module("liger_kernel.transformers.functional")
    (write,) = (write for _, one, write in table() if one == there)
    given = arguments_of(there, drawn(torch.float16))
    theirs = eval(
        re.search("`(.*?)`", there)[1].replace("1.0", "Scalar(1.0)").replace("weight, eps", "weight, eps, Scalar(0.0)"),
        {**vars(transformers), **vars(functions), **given, "Scalar": Scalar, "hidden": HIDDEN, "eps": Scalar(EPS)},
    )
    if isinstance(theirs, torch.nn.Module):
        theirs.offset = Scalar(theirs.offset)
        theirs = theirs.half()
        theirs.load_state_dict({"weight": given["weight"]})
        theirs = theirs(*(tensor for name, tensor in given.items() if name != "weight"))
    assert_same(ours(write, arguments_of(there, drawn(torch.float16))), theirs)
