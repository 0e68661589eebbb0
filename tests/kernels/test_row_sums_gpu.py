"""Configs that sum a row in the same order give it the same bits, for all configs of a GPU's batch-invariant functions.

That the order is the same is computed (`Launch.row_sum`); that different binaries then give equal bits is the
compiler's: whether it fuses a multiplication into a sum, say. So the GPU is asked.
"""

import pytest
import torch

from normtune.kernels.alignment import alignment_of
from normtune.kernels.box import EVERYWHERE
from normtune.kernels.calling import dispatch
from normtune.kernels.calling.device import describe
from normtune.kernels.operator import operator, operators
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.tree import Split, walk
from normtune.tests.kernels.launching import outputs_of

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda", 0)
# Hidden sizes of a function, spread over its cuts: a binary takes the compiler half a second.
MOST_SIZES = 5
MOST_ELEMENTS = 1 << 24
# Its scale is that of all rows together.
OF_A_TENSOR = "rms_norm_quantize_fp8_tensor"


def functions():
    """The key of each batch-invariant function of a shipped table."""
    keys = {key for path in locate.shipped() for key in locate.load(path).trees}
    return sorted(
        key for key in keys if key.is_batch_invariant and key.operator in operators() and key.operator != OF_A_TENSOR
    )


def sizes_of(tree, most):
    """Hidden sizes on both sides of a tree's cuts, aligned and odd ones."""
    nodes = (node for node, _ in walk(tree, EVERYWHERE))
    cuts = {node.threshold for node in nodes if isinstance(node, Split) and node.axis == "hidden"}
    sizes = sorted({size for cut in {*cuts, most} for size in (cut - 1, cut, cut + 1) if 1 <= size <= most})
    return sizes[:: -(-len(sizes) // MOST_SIZES)]


def of_rows(spec, launch, problem, inputs):
    """The bytes of the outputs that have a row for each of the first rows of the inputs."""
    rows, more = problem.rows, problem._replace(rows=problem.rows + 1)
    pairs = zip(spec.buffers(problem), spec.buffers(more), strict=True)
    counted = {one.name for one, other in pairs if one.shape[:1] != other.shape[:1]}
    tensors = {name: tensor[:rows] if name in counted else tensor for name, tensor in inputs.items()}
    outputs = outputs_of(spec, problem, launch, tensors)
    return [tensor.reshape(rows, -1).view(torch.uint8) for name, tensor in outputs.items() if name in counted]


@pytest.mark.parametrize("key", functions(), ids=str)
def test_all_configs_of_a_hidden_size_give_a_row_the_same_bits(key):
    spec, target = operator(key.operator), describe(0)
    with dispatch._choosing:
        found = dispatch._table_of(0, target).functions(key)
    tree = found[0].table.trees.get(key) if found else None
    if tree is None:
        pytest.skip("the table of this GPU has no such function")
    for hidden in sizes_of(tree, min(spec.max_hidden, 1 << 17)):
        most = max(2, min(9000, MOST_ELEMENTS // hidden))
        whole = Problem(key.usual, most, hidden)
        inputs = spec.references().inputs(whole, torch.Generator(DEVICE).manual_seed(hidden), DEVICE, False)
        alignment, bounds = alignment_of(hidden), [1]
        # Where its configs sum a row in several orders, a hidden size has one of them.
        if dispatch._sums_alike(spec, whole, target, 0, alignment):
            bounds = dispatch.row_bounds(whole, target, 0, True)
        wanted, orders = [], set()
        for first, beyond in reversed([*zip(bounds, [*bounds[1:], MAX_ROWS + 1], strict=True)]):
            config = dispatch.config_for(spec, whole._replace(rows=beyond - 1), target, 0, True)
            # A config of more rows than there are here is tried on these.
            for rows in sorted({min(first, most), min(beyond - 1, most)}, reverse=True):
                problem = whole._replace(rows=rows)
                launch = spec.launch(config, problem, target, alignment)
                orders.add(launch.row_sum)
                outputs = of_rows(spec, launch, problem, inputs)
                wanted = wanted or outputs
                for one, other in zip(wanted, outputs, strict=True):
                    assert torch.equal(one[:rows], other), (hidden, rows, config)
        assert len(orders) == 1, (hidden, orders)
