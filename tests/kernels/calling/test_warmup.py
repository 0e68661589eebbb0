"""A warmup loads every binary of later calls: with launches that do nothing, on a pretended GPU."""

from functools import partial

import pytest
import torch

import normtune
from normtune.kernels import warmup
from normtune.kernels.calling import dispatch, launcher, layout
from normtune.kernels.tablefile import locate
from normtune.kernels.target import TARGETS

pytestmark = pytest.mark.long

ROWS = (1, 2, 3, 15, 16, 17, 48, 64, 65, 132, 133, 500, 1024, 2048, 2049, 4097, 16384, 20000)


@pytest.fixture
def compiled(monkeypatch):
    """The binaries that were asked for, on tensors of a CPU that stand for those of an H200."""
    found = set()

    def load(call, device):
        found.add(launcher.binary_of(call))

    class Silent(launcher.BoundLaunch):
        def __init__(self, calls, *others):
            super().__init__(calls, *others)
            found.update(map(launcher.binary_of, calls))

        def at(self, pointers, *tensors):
            pass

    monkeypatch.setattr(warmup, "load", load)
    monkeypatch.setattr(launcher, "BoundLaunch", Silent)
    for module in (dispatch, layout):
        monkeypatch.setattr(module, "target_of", lambda tensor: TARGETS["sm_90"])
    monkeypatch.setattr(layout, "INTERPRETED", True)
    yield found
    normtune.use_table()


def test_numbers_of_rows_are_counted_with_and_without_those_that_16_divides():
    counted = range(1, 40)
    assert [warmup._aligned(index) for index in counted] == [16 * index for index in counted]
    assert [warmup._unaligned(index) for index in counted] == [rows for rows in range(1, 42) if rows % 16]


def tensor(*shape, dtype=torch.bfloat16, needs=False):
    return torch.zeros(*shape, dtype=dtype, requires_grad=needs)


def rms_norm(rows, needs=False, weight_dtype=torch.bfloat16, **options):
    x, weight = tensor(rows, 1024, needs=needs), tensor(1024, dtype=weight_dtype, needs=needs)
    return partial(normtune.rms_norm, x, weight, **options)


def of_weight(rows):
    return partial(normtune.rms_norm, tensor(rows, 4096), tensor(4096, needs=True))


def fused(rows, needs=False, residual_dtype=torch.bfloat16, **options):
    x, residual = tensor(rows, 4096, needs=needs), tensor(rows, 4096, dtype=residual_dtype, needs=needs)
    return partial(normtune.fused_add_rms_norm, x, residual, tensor(4096, needs=needs), **options)


def gated(rows, hidden=128, needs=False, **options):
    x, z = (tensor(rows, hidden, needs=needs) for _ in range(2))
    return partial(normtune.rms_norm_gated, x, tensor(hidden, needs=needs), z, **options)


def gated_heads(rows, needs=False):
    """Heads of a projection that are no multiple of 16 elements apart."""
    x, z = (tensor(rows, 8, 136)[..., :128].requires_grad_(needs) for _ in range(2))
    return partial(normtune.rms_norm_gated, x, tensor(128, needs=needs), z)


def quantize(rows, **options):
    scale = tensor(1, dtype=torch.float32) if options.get("scaling", "static") == "static" else None
    return partial(normtune.rms_norm_quantize_fp8, tensor(rows, 4096), tensor(4096), scale=scale, **options)


def qk_norm(rows, needs=False, in_place=True, positions=torch.int32, padding=0, **options):
    qkv = tensor(rows, 24 * 128 + padding)[:, : 24 * 128].requires_grad_(needs)
    weights = [tensor(128, needs=needs) for _ in range(2)]
    cos, sin = (tensor(4096, 64, dtype=torch.float32) for _ in range(2))
    options |= {"cos": cos, "sin": sin, "positions": tensor(rows, dtype=positions), "in_place": in_place}
    return partial(normtune.qk_norm, qkv, *weights, 16, 4, **options)


def transposed(rows):
    return partial(normtune.transpose_fp8, tensor(rows, 4096, dtype=torch.uint8))


CALLS = {
    "rms_norm": rms_norm,
    "rms_norm with gradients": partial(rms_norm, needs=True),
    "rms_norm, the gradient of the weight": of_weight,
    "rms_norm of llama, float32 weight": partial(rms_norm, needs=True, weight_dtype=torch.float32, casting="llama"),
    "rms_norm with a subnormal eps": partial(rms_norm, eps=0.0),
    "rms_norm, batch-invariant": partial(rms_norm, needs=True, batch_invariant=True),
    "rms_norm that reuses dy": partial(rms_norm, needs=True, reuse_dy=True),
    "fused": partial(fused, needs=True),
    "fused in place": partial(fused, in_place=True),
    "fused, float32 residual": partial(fused, needs=True, residual_dtype=torch.float32, rounding="sum"),
    "gated": partial(gated, needs=True),
    "gated with a subnormal eps": partial(gated, eps=0.0),
    "gated, the gate first, as transformers": partial(gated, norm_before_gate=False, rounding="hugging_face"),
    "gated, groups": partial(gated, hidden=4096, group_size=512, needs=True),
    "gated, long rows": partial(gated, hidden=12288, needs=True),
    "gated, heads of a projection": partial(gated_heads, needs=True),
    "quantize": quantize,
    "quantize, amax and y": partial(quantize, return_amax=True, return_y=True),
    "quantize rows": partial(quantize, scaling="row"),
    "quantize blocks": partial(quantize, scaling="block", scale_layout="column_major", rounding="norm"),
    "quantize blocks, packed": partial(quantize, scaling="block", scale_format="ue8m0_packed"),
    "quantize, transposed": partial(quantize, return_transpose=True),
    "qk_norm": qk_norm,
    "qk_norm, positions of 64 bits, padded tokens": partial(qk_norm, positions=torch.int64, padding=4),
    "qk_norm with gradients": partial(qk_norm, needs=True, in_place=False),
    "transpose_fp8": transposed,
}
TABLES = ("rms_norm", "fused_add_rms_norm", "rms_norm_gated", "rms_norm_quantize_fp8", "qk_norm")


def run(call):
    warmup.with_gradients(call.func, *call.args, **call.keywords)


@pytest.mark.parametrize("has_table", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.slow
def test_after_a_warmup_no_call_of_any_number_of_rows_compiles(compiled, name, has_table):
    make = CALLS[name]
    function = make(1).func.__name__
    path = locate.SHIPPED / f"nvidia_h200{'' if function == 'rms_norm' else f'_{function}'}.py"
    normtune.use_table(path if has_table and path.exists() else None)
    example = make(3)
    assert normtune.warmup(example.func, *example.args, **example.keywords) == len(compiled) > 0
    loaded = set(compiled)
    for rows in ROWS:
        run(make(rows))
        assert compiled == loaded, rows


def test_without_a_warmup_they_would(compiled):
    normtune.use_table(locate.SHIPPED / "nvidia_h200_rms_norm_gated.py")
    run(CALLS["gated"](3))
    first = set(compiled)
    run(CALLS["gated"](20000))
    assert compiled - first


@pytest.mark.slow
def test_a_module_is_warmed_up_with_what_it_calls_and_keeps_no_gradient(compiled):
    normtune.use_table(None)
    model = torch.nn.Sequential(normtune.RMSNorm(256), torch.nn.Linear(256, 512), normtune.RMSNorm(512)).bfloat16()
    count = normtune.warmup(model, tensor(3, 256))
    loaded = set(compiled)
    assert count == len(loaded) and all(parameter.grad is None for parameter in model.parameters())
    for rows in ROWS:
        model(tensor(rows, 256)).sum().backward()
    assert compiled == loaded


def test_a_launch_that_was_kept_before_is_warmed_up_as_well(compiled):
    normtune.use_table(locate.SHIPPED / "nvidia_h200_rms_norm_gated.py")
    for _ in range(2):
        example = CALLS["gated"](3)
        run(example)
        assert normtune.warmup(example.func, *example.args) == len(compiled)


def test_an_example_that_launches_nothing_is_refused():
    with pytest.raises(ValueError, match=r"^rms_norm_gated launched no kernel of normtune: expected tensors on a GPU"):
        normtune.warmup(normtune.rms_norm_gated, tensor(2, 64), tensor(64), tensor(2, 64))
    with pytest.raises(ValueError, match=r"^Identity launched no kernel"):
        normtune.warmup(torch.nn.Identity(), tensor(2, 64))


def test_an_example_with_wrong_arguments_is_refused_by_the_function():
    with pytest.raises(ValueError, match=r"^group_size is 48: expected a divisor of 64"):
        normtune.warmup(normtune.rms_norm_gated, tensor(2, 64), tensor(64), group_size=48)
    with pytest.raises(TypeError, match=r"^weight is 3: expected a tensor"):
        normtune.warmup(normtune.rms_norm_gated, tensor(2, 64), 3, tensor(2, 64))
    with pytest.raises(ValueError, match=r"^hidden is 'x': expected an integer from 1 to 65536, or the function"):
        normtune.warmup("x")
