"""`record_shapes` counts each launch once, whether it is new or cached, of normtune's operators and of a user's."""

import sys
from pathlib import Path

import pytest
import torch

import normtune
from normtune.kernels.load_file import load

pytestmark = pytest.mark.interpreter


def counts(shapes: normtune.ShapeCounts) -> list[tuple[object, ...]]:
    columns = ["operator", "variant", "rows", "hidden", "count"]
    return [*shapes.frame()[columns].itertuples(index=False, name=None)]


def test_new_and_cached_launches_count_once_each():
    x, weight = torch.randn(4, 32, requires_grad=True), torch.ones(32, requires_grad=True)
    with normtune.record_shapes() as shapes:
        for _ in range(3):
            normtune.rms_norm(x, weight).sum().backward()
        normtune.rms_norm(x.detach().T.contiguous().T, weight.detach())  # a copy is launched
        for _ in range(2):
            normtune.qk_norm(x.detach(), weight.detach()[:8], weight.detach()[:8], 2, 1)
    heads = "qk_norm.heads_q=2.heads_k=1.heads=4.rotary_dim=1"
    assert counts(shapes) == [
        (heads, "out_of_place+no_rotary", 4, 8, 2),
        ("rms_norm_backward", "", 4, 32, 3),
        ("rms_norm_forward", "", 4, 32, 3),
        ("rms_norm_forward", "no_rstd", 4, 32, 1),
    ]


@pytest.mark.usefixtures("operators_forgotten")
def test_a_decorated_operator_counts_its_calls():
    load(Path(__file__).parents[3] / "examples" / "softmax.py")
    softmax = sys.modules["normtune_operators_softmax"].softmax
    x = torch.randn(5, 16)
    with normtune.record_shapes() as shapes:
        for _ in range(2):
            softmax(x, torch.empty_like(x))
    assert counts(shapes) == [("softmax", "", 5, 16, 2)]
