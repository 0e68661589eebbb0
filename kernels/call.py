"""A kernel call as a value, so that running, capturing and compiling ahead of time share its construction.

In: the result of a kernel file's `calls`. Out: `KernelCall`, `run` and `warmup`. Imports neither torch nor triton.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pkgutil import resolve_name
from typing import Any, NamedTuple, Protocol

from normtune.kernels.problem import IN_OUT, OUTPUT, SCRATCH, Buffer


class KernelCall(NamedTuple):
    """A Triton kernel with its grid, positional arguments, and keyword arguments (constexprs and compiler options)."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: dict[str, Any]


def arguments(kernel: Any, tensors: Mapping[str, Any], **numbers: Any) -> tuple[Any, ...]:
    """The positional arguments of a kernel, by the names of its parameters; those of constexprs are in capitals.

    Args:
        kernel: a Triton kernel.
        tensors: by name: `NAME_ptr` is a tensor and `NAME_stride` the stride of its rows, both None without it.
        numbers: the other arguments, and strides in place of those.
    """

    def value(name: str) -> Any:
        base, _, kind = name.rpartition("_")
        if name in numbers or kind not in ("ptr", "stride"):
            return numbers[name]
        tensor = tensors.get(base)
        return tensor if kind == "ptr" or tensor is None else tensor.stride(0)

    return tuple(value(name) for name in kernel.arg_names if name.islower())


class ForeignKernel:
    """A function in place of a Triton kernel, with the same way of launching.

    Args:
        function: called with its options by name; returns a tensor, or several in a tuple.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.results: deque[Any] | None = None

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """A function that makes the call and copies the results into the positional arguments.

        If `results` is set, they go there instead: no time goes into copies, and no output takes the memory of the
        last.
        """

        def launch(*outputs: Any, **inputs: Any) -> None:
            returned = self.function(**inputs)
            if self.results is not None:
                self.results.append(returned)
                return
            results = returned if isinstance(returned, tuple) else (returned,)
            for output, tensor in zip(outputs, results, strict=True):
                if tensor is not output:
                    output.copy_(tensor)

        return launch


def foreign_call(
    function: str | Callable[..., Any],
    buffers: Iterable[Buffer],
    tensors: Mapping[str, Any],
    scalars: Mapping[str, float],
) -> KernelCall:
    """The call of a function, or of one named `module:function`, on the tensors of these buffers."""
    kernel = ForeignKernel(resolve_name(function) if isinstance(function, str) else function)
    inputs, outputs = {}, []
    for buffer in buffers:
        if buffer.role not in (OUTPUT, SCRATCH):
            inputs[buffer.name] = tensors[buffer.name]
        if buffer.role in (OUTPUT, IN_OUT):
            outputs.append(tensors[buffer.name])
    return KernelCall(kernel, (1,), tuple(outputs), {**inputs, **scalars})


def run(calls: Iterable[KernelCall]) -> None:
    """Launch the calls in order on the current stream."""
    for call in calls:
        call.kernel[call.grid](*call.args, **call.options)


def warmup(calls: Iterable[KernelCall]) -> list[Any]:
    """Compile the calls for the active target without launching; returns the compiled kernels in order."""
    return [call.kernel.warmup(*call.args, grid=call.grid, **call.options) for call in calls]


class AnyLaunch(Protocol):
    """A config resolved for one problem: hashable, and equal to another one that launches the same.

    Whatever an operator's `resolve` returns; the rest of it is between the operator and its kernels.
    """

    @property
    def grid(self) -> int:
        """Programs, at least 1."""
        ...

    @property
    def workspace(self) -> int:
        """Float32 elements that are allocated for each launch; 0 for none."""
        ...

    @property
    def binary(self) -> Any:
        """Equal, and hashable, for launches that run the same machine code."""
        ...

    def __hash__(self) -> int: ...


class ImplementationLaunch(NamedTuple):
    """A call of an implementation: a function of another library, for which normtune compiles nothing."""

    implementation: str
    grid: int = 1
    workspace: int = 0

    @property
    def binary(self) -> "ImplementationLaunch":
        """Itself."""
        return self


def is_foreign(launch: Any) -> bool:
    """Whether a launch calls a function of another library, which may allocate, not kernels alone."""
    return isinstance(launch, ImplementationLaunch) or getattr(launch, "runs_function", False)
