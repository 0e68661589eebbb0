"""One of two processes, each with its shard of DTensors, against torch's own RMSNorm of the whole."""

import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

import normtune

F = torch.nn.functional
SHARDS = (Replicate(), Shard(0), Shard(1), Shard(2))


def leaves():
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(size, generator=generator).requires_grad_() for size in ((4, 6, 8), (8,)))


def whole(*tensors):
    return [tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for tensor in tensors]


def compare(function, mesh, placement, has_weight):
    x, weight = leaves()
    y = F.rms_norm(x, (8,), weight if has_weight else None, 1e-6)
    used = (x, weight) if has_weight else (x,)
    wanted = [y, *torch.autograd.grad(y.sin().sum(), used)]
    x, weight = (
        distribute_tensor(leaf.detach(), mesh, [place]).requires_grad_()
        for leaf, place in zip(leaves(), (placement, Replicate()), strict=True)
    )
    found = function(x, weight if has_weight else None)
    grads = torch.autograd.grad(found.sin().sum(), (x, weight) if has_weight else (x,))
    if placement != Shard(2):
        assert found.placements == (placement,)
    torch.testing.assert_close(whole(found, *grads), wanted)


def compare_by_hand(mesh, placement, has_sum):
    """Gradients of an autograd function of one's own, before any other call."""
    x, weight = leaves()
    dy = x.detach().cos()
    wanted = torch.autograd.grad(F.rms_norm(x, (8,), weight, 1e-6), (x, weight), dy)
    rstd = torch.rsqrt(x.detach().square().mean(-1) + 1e-6)
    dy, x, rstd = (distribute_tensor(one.detach(), mesh, [placement]) for one in (dy, x, rstd))
    of_sum = {"ds": torch.zeros_like(dy)} if has_sum else {}
    weight = distribute_tensor(weight.detach(), mesh, [Replicate()])
    dx, dweight = normtune.rms_norm_backward(dy, x, weight, rstd, **of_sum)
    assert dx.placements == (placement,)
    torch.testing.assert_close(whole(dx, dweight), list(wanted))
    dx, dweight = normtune.rms_norm_backward(dy, x, None, rstd, **of_sum)
    assert dweight is None and dx.placements == (placement,)


def each_rank(rank, meeting):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for has_sum in (False, True):
        compare_by_hand(mesh, Shard(0), has_sum)
    for placement in SHARDS:
        for has_weight in (True, False):
            compare(normtune.rms_norm, mesh, placement, has_weight)
    with torch.no_grad():
        rows = distribute_tensor(torch.ones(4, 8), mesh, [Shard(0)])
        assert normtune.rms_norm(rows).to_local().shape == (2, 8)
    compare(torch.compile(normtune.rms_norm, backend="aot_eager", fullgraph=True), mesh, Shard(1), True)

    x, _ = leaves()
    norms = torch.nn.Sequential(normtune.RMSNorm(8), normtune.RMSNorm(8))
    parallel = parallelize_module(norms, mesh, {"0": SequenceParallel(), "1": SequenceParallel()})
    wanted = F.rms_norm(F.rms_norm(x, (8,)), (8,))
    local = x.detach().chunk(2, 1)[rank]
    torch.testing.assert_close(parallel(local).full_tensor(), wanted)
    with pytest.raises(ValueError, match=r"weight has shape \(7,\)"):
        normtune.rms_norm(rows, distribute_tensor(torch.ones(7), mesh, [Replicate()]))
    dist.destroy_process_group()


if __name__ == "__main__":
    each_rank(int(sys.argv[1]), sys.argv[2])
