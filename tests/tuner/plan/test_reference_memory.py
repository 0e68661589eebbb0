"""The memory of the float64 references, of which a plan leaves out what does not fit."""

import weakref
from math import prod

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from normtune.heuristics.regret.legality import all_variants
from normtune.kernels.config_space import spread
from normtune.kernels.operator import operators


class LiveBytes(TorchDispatchMode):
    """The most bytes of tensors that live at once."""

    def __init__(self):
        super().__init__()
        self.live, self.peak, self.known = 0, 0, weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage()) not in self.known:
                self.known.add(storage)
                self.live += storage.nbytes()
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self.free, storage.nbytes())
        return results

    def free(self, nbytes):
        self.live -= nbytes


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", operators())
def test_a_reference_takes_no_more_memory_than_is_foretold(name):
    spec = operators()[name]
    references, dtype = spec.references(), spec.dtypes[-1]
    taken = []
    for variant in spread(all_variants(spec), 20):
        problem = spec.problem(16, 128 if "qk_norm" in name else 1024, dtype, variant)
        with LiveBytes() as memory:
            tensors = dict(references.inputs(problem, torch.Generator().manual_seed(0), torch.device("cpu"), False))
            expected = dict(references.reference(problem, tensors, **spec.scalars))
        assert expected
        taken.append(memory.peak / max(prod(buffer.shape) for buffer in spec.buffers(problem)))
    assert max(taken) <= spec.reference_bytes
    assert max(taken) > 16  # a value and its tolerance
