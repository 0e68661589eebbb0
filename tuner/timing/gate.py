"""The gate: a launch is compared with the float64 reference before it is timed.

In: problem and launch on a device. Out: nothing, or `WrongResultError` with the output and the error. Each binary is
checked once, at a shape at which its loop runs several times and its last tile is partial, with rows of zeros, tiny,
huge and outlying values. It is launched many times, because a race shows in few launches.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from normtune.errors import NormtuneError
from normtune.kernels.call import AnyLaunch, KernelCall, run
from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import IN_OUT, OUTPUT, SCRATCH, Buffer, Problem
from normtune.kernels.spec_faults import OperatorError, check_returned, reraise
from normtune.kernels.target import Target
from normtune.tuner.timing import memory
from normtune.tuner.timing.capture import capture
from normtune.tuner.timing.trial import gate_launch

WORKSPACE = "workspace"
# Compared launches per binary, and per config that may be the best: enough to see a result that is wrong once in fifty.
CALLS = 64
# A large problem has fewer compared launches, of at most this many bytes together; each has thousands of programs.
CALLS_BYTES = 8 << 30
# Factor on the number of launches of a kernel whose bits differ between launches.
_REPEAT_FACTOR = 20
_GUARD_BYTES = 512
# An explanation of an error that is too large, from the output's name, the output and its exact value.
Advice = Callable[[str, Tensor, Tensor], str]
_GUARD_VALUE = 0xA5


class LaunchFailedError(RuntimeError):
    """A launch fails because of its config, not because of the state of the device.

    Attributes:
        status: the stored status: `wrong_result`, `out_of_resources` or `crashed`.
    """

    status = "crashed"

    def __init__(self, reason: str, status: str | None = None) -> None:
        super().__init__(reason)
        self.status = status or self.status


class WrongResultError(LaunchFailedError):
    """An output differs from the reference by more than rounding, or a kernel writes outside of its outputs."""

    status = "wrong_result"


def launch(calls: Callable[[], Iterable[KernelCall]]) -> None:
    """Build the kernel calls of one config and launch them.

    Raises:
        LaunchFailedError: the launch fails.
        OperatorError: the operator's calls cannot be built, whatever the config.
    """
    try:
        run(calls())
    except OperatorError:
        raise
    # Any exception of Triton, the driver or an implementation is this config's outcome.
    except Exception as error:
        raise failure(error) from None


def failure(error: Exception, was_prepared: bool = False) -> LaunchFailedError:
    """The failure of a config whose launch raised `error`.

    Raises:
        NormtuneError: the machine is at fault, for example with a full disk.
        Exception: `error` itself, if the launch was prepared and the error is a bug in normtune's own code.
    """
    if was_prepared and isinstance(
        error, OperatorError | AttributeError | ImportError | KeyError | NameError | TypeError
    ):
        raise error
    if isinstance(error, OSError):
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise NormtuneError(f"no kernel can be launched ({reason}): `normtune doctor` looks for the cause") from error
    if isinstance(error, OutOfResources):
        return LaunchFailedError(one_line(error), "out_of_resources")
    if isinstance(error, torch.OutOfMemoryError):
        return LaunchFailedError("its launch allocates more memory than is free", "out_of_resources")
    return LaunchFailedError(f"{type(error).__name__}: {one_line(error)}")


def one_line(error: BaseException) -> str:
    """First line of an error's text, at most 200 characters."""
    return (str(error).strip().splitlines() or ["no reason given"])[0][:200]


def gate(
    spec: OperatorSpec,
    problem: Problem,
    candidate: tuple[Config, AnyLaunch],
    target: Target,
    device: torch.device,
    wide: bool = False,
) -> None:
    """Check the binary of a candidate; with `wide`, that in which the operator's `wide_buffers` are float32.

    Raises:
        LaunchFailedError: the launch fails.
        WrongResultError: an output is wrong or unwritten, or other memory was written.
        OperatorError: a function of the operator raises, whatever the config.
    """
    check_launch(spec, *gate_launch(spec, problem, candidate, target), device, CALLS, wide)


def check_launch(
    spec: OperatorSpec, problem: Problem, resolved: AnyLaunch, device: torch.device, calls: int, wide: bool = False
) -> None:
    """The same as `gate`, for a launch at its own problem, with this number of calls."""
    inputs, expected = _case(spec, problem, device, wide)
    copies = {name: tensor.clone() for name, tensor in inputs.items()}  # the originals stay for comparison
    in_out = {buffer.name for buffer in spec.buffers(problem) if buffer.role == IN_OUT}
    buffers = [buffer for buffer in spec.buffers(problem) if buffer.role in (OUTPUT, SCRATCH, IN_OUT)]
    if wide:
        buffers = [b._replace(dtype="float32") if b.name in spec.wide_buffers else b for b in buffers]
    buffers.append(Buffer(WORKSPACE, (max(1, resolved.workspace),), "float32", SCRATCH))
    guarded = {buffer.name: _guarded(buffer, device) for buffer in buffers}
    written = {name: tensor for name, (_, tensor) in guarded.items()}
    workspace = written.pop(WORKSPACE)

    tensors = {**copies, **written}
    launch_once = partial(launch, partial(spec.calls, resolved, problem, tensors, workspace, spec.scalars))
    outputs = {name: written[name] for name in expected}
    before = {name: inputs[name] for name in in_out}
    read_only = {name: tensor for name, tensor in inputs.items() if name not in in_out}
    try:
        check_calls(launch_once, outputs, expected, calls, before, advice_of(spec))
    except WrongResultError as error:
        raise WrongResultError("; ".join([str(error), *_written(read_only, copies)])) from None
    for name, (padded, _) in guarded.items():
        if not _untouched(padded):
            raise WrongResultError(f"{name}: wrote outside of its memory")
    for reason in _written(read_only, copies):
        raise WrongResultError(reason)


def _written(inputs: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Iterator[str]:
    """A line for each input that was overwritten."""
    for name, tensor in inputs.items():
        mark = torch.zeros(1, dtype=torch.int32, device=tensor.device)
        memory.mark_difference(tensor, after[name], mark)
        if mark.item():
            yield f"{name}: is an input and was written"


def inputs_of(
    spec: OperatorSpec, problem: Problem, generator: torch.Generator, device: torch.device, hostile: bool
) -> dict[str, Tensor]:
    """New tensors that an operator reads, by name; `hostile` ones have extreme values.

    Raises:
        OperatorError: its `inputs` raises, or returns tensors that do not match its buffers.
    """
    try:
        tensors = dict(spec.references().inputs(problem, generator, device, hostile))
        check_returned(tensors, [buffer for buffer in spec.buffers(problem) if buffer.role not in (OUTPUT, SCRATCH)])
    except Exception as error:
        reraise(spec.name, "inputs", error, problem)
    return tensors


def reference_of(spec: OperatorSpec, problem: Problem, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The `Expected` value of each output, by name, from the tensors that an operator reads.

    Raises:
        OperatorError: its `reference` raises, or returns outputs that do not match its buffers.
    """
    outputs = [buffer._replace(dtype="") for buffer in spec.buffers(problem) if buffer.role in (OUTPUT, IN_OUT)]
    try:
        expected = dict(spec.references().reference(problem, tensors, **spec.scalars))
        check_returned({name: value for name, (value, _) in expected.items()}, outputs)
    except Exception as error:
        reraise(spec.name, "reference", error, problem)
    return expected


def advice_of(spec: OperatorSpec) -> Advice | None:
    """The reference's function that explains wrong outputs; None without one."""
    return getattr(spec.references(), "advice", None)


def prove(
    spec: OperatorSpec, problem: Problem, candidate: tuple[Config, AnyLaunch], target: Target, device: torch.device
) -> None:
    """Compute the inputs and the reference of a gate, to find faults of the operator.

    Raises:
        OperatorError: a function of the operator raises or returns a wrong value.
    """
    _case(spec, gate_launch(spec, problem, candidate, target)[0], device, False)


def make_calls(spec: OperatorSpec, problem: Problem, launches: Iterable[AnyLaunch], device: torch.device) -> None:
    """Build the kernel calls of launches of a problem without launching them, to find faults of the operator.

    Raises:
        OperatorError: the calls cannot be built.
    """
    tensors = {
        buffer.name: torch.empty(buffer.shape, dtype=getattr(torch, buffer.dtype), device=device)
        for buffer in spec.buffers(problem)
    }
    for resolved in launches:
        workspace = torch.empty(max(1, resolved.workspace), dtype=torch.float32, device=device)
        spec.calls(resolved, problem, tensors, workspace, spec.scalars)


def check_calls(
    launch_once: Callable[[], None],
    outputs: Mapping[str, Tensor],
    expected: Mapping[str, Any],
    calls: int,
    before: Mapping[str, Tensor] | None = None,
    advice: Advice | None = None,
) -> None:
    """Launch `calls` times and check the outputs each time.

    The first outputs are compared with the reference, the others bit by bit with the first. Bits may differ if sums
    have no fixed order: then launches continue, and the outputs of each differing call are compared with the reference.

    Args:
        launch_once: makes one launch on the current stream.
        outputs: its outputs; filled with NaN before each launch.
        expected: `Expected` values by name.
        calls: number of launches.
        before: values before each launch of outputs that are also inputs.
        advice: explains a wrong output.

    Raises:
        LaunchFailedError: the launch fails.
        WrongResultError: an output of a call is wrong or unwritten.
    """
    before = before or {}
    _poison(outputs, before)
    launch_once()
    compare(outputs, expected, advice)
    if calls < 2:
        return
    first = {name: tensor.clone() for name, tensor in outputs.items()}
    mark = torch.zeros(1, dtype=torch.int32, device=next(iter(outputs.values())).device)

    def call_again() -> None:
        _poison(outputs, before)
        launch_once()
        for name, tensor in outputs.items():
            memory.mark_difference(tensor, first[name], mark)

    _repeat(call_again, calls - 1, mark.device)
    if not mark.item():
        return
    differing = 0
    for number in range(_REPEAT_FACTOR * calls):
        mark.zero_()
        call_again()
        if mark.item():
            differing += 1
            try:
                compare(outputs, expected, advice)
            except WrongResultError as error:
                raise WrongResultError(f"{error}, in some calls: others were right") from None
        if differing and number + 1 >= calls:
            return
    raise WrongResultError(f"other bits in one call, which {_REPEAT_FACTOR * calls} further calls did not repeat")


def _repeat(work: Callable[[], None], count: int, device: torch.device) -> None:
    if device.type != "cuda" or count < 3:
        for _ in range(count):
            work()
        return
    work()  # compiles, which is not possible during a capture
    torch.cuda.synchronize(device)
    graph = capture(torch.cuda.Stream(device), work)
    for _ in range(count - 1):
        graph.replay()


def compare(outputs: Mapping[str, Tensor], expected: Mapping[str, Any], advice: Advice | None = None) -> None:
    """Check outputs against `Expected` values.

    Raises:
        WrongResultError: an output is wrong; the message names the first one and its error.
    """
    mark = torch.zeros(1, dtype=torch.int32, device=next(iter(outputs.values())).device)
    for name, (value, allowed) in expected.items():
        memory.mark_excess(outputs[name], value.contiguous(), allowed.contiguous(), mark)
    if mark.item():
        _name_excess(outputs, expected, advice)


def _name_excess(outputs: Mapping[str, Tensor], expected: Mapping[str, Any], advice: Advice | None) -> None:
    # In pieces: a float64 copy of the largest outputs would not fit beside the reference. `max` propagates NaN, for
    # which the comparison below is false.
    excess = {
        name: torch.stack(
            [
                _excess(*pieces)
                for pieces in zip(_pieces(outputs[name]), _pieces(value), _pieces(tolerance), strict=True)
            ]
        ).max()
        for name, (value, tolerance) in expected.items()
    }
    for name, worst in zip(excess, torch.stack(list(excess.values())).tolist(), strict=True):
        if not worst <= 1.0:
            if (lacking := int(outputs[name].float().isnan().sum())) and not expected[name][0].isnan().any():
                raise WrongResultError(f"{name}: {lacking} of {outputs[name].numel()} elements are NaN or unwritten")
            why = f": {advice(name, outputs[name], expected[name][0])}" if advice else ""
            raise WrongResultError(f"{name}: error is {worst:.3g} times what rounding allows{why}")


def _excess(output: Tensor, exact: Tensor, allowed: Tensor) -> Tensor:
    """The largest error relative to the allowed one; 0 where there is no error, even if none is allowed."""
    error = (output.double() - exact).abs_()
    return (error / allowed).masked_fill_(error == 0, 0.0).max()


def _pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    return tensor.reshape(-1).split(1 << 26)


def _poison(outputs: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> None:
    """Fill outputs with NaN, so that unwritten values are found; restore outputs that are also inputs."""
    for name, tensor in outputs.items():
        if name in before:
            tensor.copy_(before[name])
        else:
            _spoil(tensor)


def _spoil(tensor: Tensor) -> None:
    """Fill with NaN; integers with bits that no kernel is likely to write."""
    if tensor.is_floating_point():
        tensor.fill_(float("nan"))
    else:
        tensor.view(torch.uint8).fill_(_GUARD_VALUE)


@lru_cache(maxsize=8)
def _case(
    spec: OperatorSpec, problem: Problem, device: torch.device, wide: bool
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    generator = torch.Generator(device).manual_seed(20_000 + problem.hidden)
    inputs = inputs_of(spec, problem, generator, device, True)
    for name in spec.wide_buffers if wide else ():
        if name in inputs:
            inputs[name] = inputs[name].float() * (1 + 2**-12)  # values outside of the narrow dtype
    return inputs, reference_of(spec, problem, inputs)


def _guarded(buffer: Buffer, device: torch.device) -> tuple[Tensor, Tensor]:
    """Memory with guard bytes on both sides, and the poisoned tensor between them."""
    padded = torch.full((buffer.nbytes + 2 * _GUARD_BYTES,), _GUARD_VALUE, dtype=torch.uint8, device=device)
    inner = padded[_GUARD_BYTES : _GUARD_BYTES + buffer.nbytes].view(getattr(torch, buffer.dtype)).view(buffer.shape)
    _spoil(inner)
    return padded, inner


def _untouched(padded: Tensor) -> bool:
    return bool((padded[:_GUARD_BYTES] == _GUARD_VALUE).all() and (padded[-_GUARD_BYTES:] == _GUARD_VALUE).all())
