"""What a compiler sees of a call: the formula, the formula with the kernels of the backward, or the operators."""

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition as PARTITION

import normtune

CALLS = {
    "rms_norm": lambda x, z, w: normtune.rms_norm(x, w),
    "rms_norm of torch's form": lambda x, z, w: normtune.rms_norm(x, (x.shape[-1],), w, 1e-6),
    "fused_add_rms_norm": lambda x, z, w: normtune.fused_add_rms_norm(x, z, w),
    "rms_norm_gated": lambda x, z, w: normtune.rms_norm_gated(x, w, z),
}


pytestmark = pytest.mark.usefixtures("initial_state")


@pytest.fixture
def graphs():
    """The operators of normtune in each compiled graph, forward and backward, in the order of compiling."""
    seen = []

    def look(graph, _):
        seen.append({str(node.target).split(".")[1] for node in graph.graph.nodes if "normtune" in str(node.target)})
        return graph.forward

    return seen, aot_autograd(fw_compiler=look, bw_compiler=look)


def tensors(hidden, needs_gradients=True):
    generator = torch.Generator().manual_seed(hidden)
    shapes = (3, hidden), (3, hidden), (hidden,)
    return [torch.randn(*shape, generator=generator).requires_grad_(needs_gradients) for shape in shapes]


def compiled(call, graphs, *given):
    """The results, and the gradients of their sum if there are any."""
    results = torch.compile(call, backend=graphs[1], fullgraph=True)(*given)
    results = results if isinstance(results, tuple) else (results,)
    leaves = [tensor for tensor in given if tensor.requires_grad]
    sums = sum((result * (1 + torch.arange(result.numel()).view(result.shape) % 7)).sum() for result in results)
    return results, torch.autograd.grad(sums, leaves, allow_unused=True) if leaves else ()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CALLS)
def test_without_gradients_the_formula_is_seen(graphs, name):
    x, z, weight = tensors(8, needs_gradients=False)
    compiled(CALLS[name], graphs, x, z, weight)
    assert graphs[0] == [set()]


@pytest.mark.parametrize(
    ("name", "hidden", "forward", "backward"),
    [
        ("rms_norm", 4096, set(), set()),
        ("rms_norm", 4097, set(), {"rms_norm_backward"}),
        ("fused_add_rms_norm", 8, {"fused_add_rms_norm_forward"}, {"fused_add_rms_norm_backward"}),
        ("rms_norm_gated", 8, {"rms_norm_gated_forward"}, {"rms_norm_gated_backward"}),
    ],
)
def test_with_gradients_it_depends_on_the_operation_and_the_size(graphs, name, hidden, forward, backward):
    compiled(CALLS[name], graphs, *tensors(hidden))
    assert graphs[0] == [forward, backward]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("way", ["formula", "backward", "kernel"])
def test_each_way_computes_the_same(graphs, name, way):
    wanted = compiled(CALLS[name], graphs, *(tensor.detach().double().requires_grad_() for tensor in tensors(24)))
    normtune.use(compiled=way)
    found = compiled(CALLS[name], graphs, *tensors(24))
    *_, forward, backward = graphs[0]
    assert (bool(forward), bool(backward)) == {"formula": (False, False), "backward": (False, True)}.get(
        way, (True,) * 2
    )
    for one, other in zip((*wanted[0], *wanted[1]), (*found[0], *found[1]), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one.float(), other, rtol=2e-5, atol=2e-5)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("way", ["formula", "backward", "kernel"])
def test_no_more_is_saved_than_by_an_eager_call(way):
    x, z, weight = tensors(24)
    eager, kept = [], []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: eager.append(tensor) or tensor, lambda tensor: tensor):
        results = normtune.fused_add_rms_norm(x, z, weight)

    def look(graph, _):
        (output,) = (node for node in graph.graph.nodes if node.op == "output")
        kept.extend(value.meta["val"] for value in output.args[0] if value is not None)
        return graph.forward

    normtune.use(compiled=way)
    backend = aot_autograd(fw_compiler=look, bw_compiler=lambda graph, _: graph, partition_fn=PARTITION)
    torch.compile(normtune.fused_add_rms_norm, backend=backend, fullgraph=True)(x, z, weight)
    # Those of the compiled function include its results.
    assert sum(map(torch.Tensor.numel, kept)) - sum(map(torch.Tensor.numel, results)) <= sum(
        map(torch.Tensor.numel, eager)
    )


def test_a_change_of_the_setting_compiles_again(graphs):
    function = torch.compile(normtune.rms_norm, backend=graphs[1], fullgraph=True)
    x, _, weight = tensors(8, needs_gradients=False)
    for setting in ("kernel", "kernel", "auto", "kernel"):
        normtune.use(compiled=setting)
        function(x, weight)
    assert graphs[0] == [{"rms_norm_forward"}, set()]


def test_the_batch_invariant_mode_is_kept_by_functions_that_were_compiled_before(graphs):
    function = torch.compile(normtune.rms_norm, backend=graphs[1], fullgraph=True)
    x, _, weight = tensors(8, needs_gradients=False)
    function(x, weight)
    with normtune.batch_invariant():
        found = function(x, weight)
    assert graphs[0] == [set(), {"rms_norm_forward"}]
    assert torch.equal(found, normtune.rms_norm(x, weight, batch_invariant=True))


@pytest.mark.parametrize("argument", [True, False])
def test_the_argument_decides_over_the_mode(graphs, argument):
    normtune.use_batch_invariant(not argument)
    x, _, weight = tensors(8, needs_gradients=False)
    compiled(lambda x, weight: normtune.rms_norm(x, weight, batch_invariant=argument), graphs, x, weight)
    assert graphs[0] == [{"rms_norm_forward"} if argument else set()]


def test_in_place_the_formula_writes_the_inputs(graphs):
    given = tensors(8, needs_gradients=False)
    wanted = normtune.fused_add_rms_norm(*given)
    x, residual = given[0].clone(), given[1].clone()
    function = torch.compile(normtune.fused_add_rms_norm, backend=graphs[1], fullgraph=True)
    y, s = function(x, residual, given[2], in_place=True)
    assert graphs[0] == [set()]
    assert y is x and s is residual
    torch.testing.assert_close((x, residual), wanted)


def test_exported_programs_have_the_operator():
    x, _, weight = tensors(8, needs_gradients=False)
    module = normtune.RMSNorm(8)
    module.weight = torch.nn.Parameter(weight)
    for strict in (False, True):
        program = torch.export.export(module, (x,), strict=strict)
        assert "torch.ops.normtune.rms_norm_forward" in program.graph_module.code
        assert torch.equal(program.module()(x), module(x))


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        ("fast", ValueError, "compiled is 'fast': expected one of auto, formula, backward, kernel"),
        (None, TypeError, "compiled is None: expected one of auto, formula, backward, kernel"),
    ],
)
def test_another_setting_is_refused_and_the_one_before_kept(graphs, value, error, text):
    normtune.use(compiled="kernel")
    with pytest.raises(error) as raised:
        normtune.use(compiled=value)
    assert str(raised.value) == text
    x, _, weight = tensors(8, needs_gradients=False)
    compiled(normtune.rms_norm, graphs, x, weight)
    assert graphs[0] == [{"rms_norm_forward"}]
