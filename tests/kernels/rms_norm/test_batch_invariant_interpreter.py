"""Rows alone and in a batch, in Triton's interpreter, whose order of sums depends on chunks, as on a GPU.

The order of sums over threads and warps is tested on a GPU.
"""

import pytest
import torch

import normtune

pytestmark = [pytest.mark.interpreter, pytest.mark.usefixtures("counted_loops")]
ROWS, HIDDEN = 24, 200
ONE_ROW = (0, 1)
# On both sides of the 16 rows at which the table changes over, from the first row and from others.
PARTS = (ONE_ROW, (0, 15), (0, 16), (7, 8), (5, 23))


@pytest.fixture(autouse=True)
def fresh():
    yield
    normtune.use_batch_invariant(None)
    normtune.use_table()


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(ROWS, HIDDEN, generator=generator) for _ in range(2))
    return x, torch.randn(HIDDEN, generator=generator), dy


def results(x, weight, dy, **arguments):
    """(y, y without gradients, dx) of rows."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = normtune.rms_norm(x, weight, **arguments)
    with torch.no_grad():
        plain = normtune.rms_norm(x, weight, **arguments)
    return y.detach(), plain, torch.autograd.grad(y, x, dy)[0]


def differing(x, weight, dy, parts=PARTS, **arguments):
    """Which of some parts of a batch, from one row to another, have some result that differs from the whole batch's."""
    whole = results(x, weight, dy, **arguments)
    found = []
    for part in parts:
        rows = slice(*part)
        alone = results(x[rows], weight, dy[rows], **arguments)
        if not all(torch.equal(one[rows], other) for one, other in zip(whole, alone, strict=True)):
            found.append(part)
    return found


@pytest.mark.slow
def test_rows_are_the_same_in_every_batch_in_that_mode_only(data, write_table):
    normtune.use_table(write_table(True))
    assert differing(*data, [ONE_ROW]) == [ONE_ROW]
    with normtune.batch_invariant():
        assert differing(*data) == []


@pytest.mark.slow
def test_the_mode_is_that_of_the_argument_or_else_of_the_process(data, write_table):
    normtune.use_table(write_table(True))
    assert differing(*data, [ONE_ROW], batch_invariant=True) == []
    normtune.use_batch_invariant()
    assert differing(*data, [ONE_ROW]) == []
    assert differing(*data, [ONE_ROW], batch_invariant=False) == [ONE_ROW]


def test_a_backward_follows_its_forward(data, write_table):
    normtune.use_table(write_table(True))
    x, weight, dy = data
    *_, wanted = results(x[:3], weight, dy[:3], batch_invariant=True)
    *_, other = results(x[:3], weight, dy[:3])
    assert not torch.equal(wanted, other)
    x = x[:3].requires_grad_()
    with normtune.batch_invariant():
        y = normtune.rms_norm(x, weight)
    assert torch.equal(torch.autograd.grad(y, x, dy[:3])[0], wanted)


def test_the_module_has_the_mode_of_its_own(data, write_table):
    normtune.use_table(write_table(True))
    x, weight, _ = data
    modules = [normtune.RMSNorm(HIDDEN, batch_invariant=mode) for mode in (None, True)]
    for module in modules:
        with torch.no_grad():
            module.weight.copy_(weight)
    same = [torch.equal(module(x)[:3], module(x[:3])) for module in modules]
    assert same == [False, True]
    assert repr(modules[1]) == f"RMSNorm(({HIDDEN},), eps=None, elementwise_affine=True, batch_invariant=True)"


@pytest.mark.slow
def test_gradients_in_the_mode_are_those_of_torch(data, write_table):
    normtune.use_table(write_table(True))
    x, weight, dy = data
    # dy begins at no multiple of 16 bytes, x has rows of another stride: both are copied.
    x = torch.cat([x, x[:, :3]], 1)[:, :HIDDEN].requires_grad_()
    odd = torch.cat([torch.zeros(1), dy.flatten()])[1:].view(ROWS, HIDDEN)
    weight = weight.requires_grad_()
    y = normtune.rms_norm(x, weight, batch_invariant=True)
    expected = torch.nn.functional.rms_norm(x, (HIDDEN,), weight, 1e-6)
    torch.testing.assert_close(y, expected)
    for dy_like in (odd, torch.cat([dy, dy[:, :4]], 1)[:, :HIDDEN], dy):
        found = torch.autograd.grad(y, (x, weight), dy_like, retain_graph=True)
        wanted = torch.autograd.grad(expected, (x, weight), dy, retain_graph=True)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_no_rows(data):
    x = torch.zeros(0, HIDDEN, requires_grad=True)
    normtune.rms_norm(x, data[1], batch_invariant=True).sum().backward()
    assert x.grad.shape == (0, HIDDEN)
