"""The decorator that makes a user's function, which launches Triton kernels, an operator.

In: the function, the configs to try, its tensors, a reference. Out: a registered `OperatorSpec`, and in the function's
place an object that launches with the config of this GPU's table. `examples/` has complete files.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from normtune.errors import UsageError
from normtune.kernels.call import ForeignKernel, KernelCall, run
from normtune.kernels.config import Config, Implementation
from normtune.kernels.custom_op.declaration import Declaration, Declared
from normtune.kernels.custom_op.rules import Default, Legal, Rule, check_legal, named, reason_against_target
from normtune.kernels.custom_op.spaces import DeclaredSpace, Space
from normtune.kernels.fake_tensor import FakeTensor
from normtune.kernels.operator import IllegalConfigError, OperatorSpec, register
from normtune.kernels.problem import AXES, IN_OUT, ITEMSIZE, OUTPUT, Problem, name_axes
from normtune.kernels.spec_faults import ReturnedError, check_returned, reraise
from normtune.kernels.target import Target

if TYPE_CHECKING:
    from normtune.kernels.custom_op.recording import Recorded

# The most shapes of calls, and defaults of problems, in a cache.
_CALLS = 1 << 12


@dataclass(frozen=True)
class RecordedLaunch:
    """The launch of a config; equal to the launch of another config with the same kernel calls.

    Attributes:
        config: the config that the function was called with.
        grid: the number of programs of all its kernels.
        calls: kernel, grid and arguments of each call.
        binary: equal for configs whose kernels have the same machine code.
        workspace: always 0.
        target: the GPU that the function was called for.
        runs_function: whether a launch calls the whole function, as it allocates outputs or calls torch, and not only
            its kernels.
        operations: names of its torch operations, which differ between versions of torch: the stored `repr` has none.
        is_pruned: whether `early_config_prune` of a kernel removes the config at this problem.
    """

    config: Config = field(compare=False)
    grid: int
    calls: Any
    binary: Any
    workspace: int = 0
    target: Target | None = field(default=None, compare=False, repr=False)
    runs_function: bool = field(default=False, repr=False)
    operations: tuple[str, ...] = field(default=(), repr=False)
    is_pruned: bool = field(default=False, compare=False, repr=False)


class KernelOperator:
    """A decorated function: it launches with the table's config unless a config is passed.

    Attributes:
        spec: the registered operator.
        function: the decorated function.
    """

    def __init__(self, declaration: Declaration, spec: OperatorSpec) -> None:
        self.function, self.spec, self._declaration = declaration.function, spec, declaration
        self.__doc__, self.__name__ = declaration.function.__doc__, spec.name
        self._scalars = {name: value for name, value in spec.scalars.items() if name in declaration.takes}
        self._solved = lru_cache(_CALLS)(self._problem)

    def __call__(self, *arguments: Any, config: Config | None = None, **named: Any) -> Any:
        """Launch on the current stream.

        Args:
            arguments: tensors and scalars in the order of the function; scalars may be omitted.
            config: in place of the table's.
            named: tensors and scalars by name.

        Returns:
            The function's result.

        Raises:
            TypeError: an argument is missing or unknown.
        """
        import torch

        # torch.compile would trace the lookup and the launch, and miss the config that replaces a library's own.
        call = torch.compiler.disable(self._call) if torch.compiler.is_compiling() else self._call
        return call(arguments, config, named)

    def _call(self, arguments: Sequence[Any], config: Config | None, named: Mapping[str, Any]) -> Any:
        declared, takes = self._declaration, self._declaration.takes
        values = {**self._scalars, **dict(zip(takes, arguments, strict=False)), **named}
        if len(arguments) > len(takes) or not declared.needed <= values.keys() <= takes.keys():
            raise TypeError(
                f"{self.spec.name} takes {', '.join(takes)}: got {len(arguments)} values and {sorted(named)}"
            )
        from normtune.kernels.calling.dispatch import config_for, target_of

        first = values[declared.first]
        spec, problem = self._solved(first.dtype, *[values[name].shape for name in declared.read])
        target = target_of(first)
        if config is None:
            config = config_for(spec, problem, target, first.device.index or 0)
        if isinstance(config, Implementation):
            return self._implementation(spec, problem, values, first.device, spec.launch(config, problem, target))
        return _launched(declared, values, config, problem, target)

    def _problem(self, dtype: Any, *shapes: tuple[int, ...]) -> tuple[OperatorSpec, Problem]:
        """The operator at the named integers of a call, and its problem, from the tensors that are read."""
        sizes = self._declaration.solve(shapes)
        spec = self.spec.at(**{name: sizes[name] for name in self.spec.sizes})
        rows, hidden = (sizes[name] for name in self._declaration.plane)
        return spec, spec.problem(rows, hidden, str(dtype).rpartition(".")[2])

    def _implementation(
        self, spec: OperatorSpec, problem: Problem, values: Mapping[str, Any], device: Any, launch: Any
    ) -> Any:
        import torch

        allocated = {
            one.name: torch.empty(one.shape, dtype=getattr(torch, one.dtype), device=device)
            for one in spec.buffers(problem)
            if one.name in self._declaration.returned
        }
        scalars = {name: values.get(name, value) for name, value in spec.scalars.items()}
        run(spec.calls(launch, problem, {**values, **allocated}, None, scalars))
        returned = tuple(allocated.values())
        return returned if len(returned) > 1 else returned[0] if returned else None


def kernel_operator(
    *,
    config: type[Config],
    space: Space,
    buffers: Mapping[str, Declared],
    reference: Callable[..., Any],
    scalars: Mapping[str, float] | None = None,
    tolerance: Mapping[str, float] | None = None,
    legal: Legal | None = None,
    leaves_out: Legal | None = None,
    default: Config | Rule | None = None,
    inputs: Callable[..., Any] | None = None,
    implementations: Mapping[str, Callable[..., Any] | str] | None = None,
    dtypes: Sequence[str] = tuple(ITEMSIZE),
    max_hidden: int = 65536,
    axes: Mapping[str, Sequence[int]] | None = None,
    derived: str = "",
    sizes: Mapping[str, Sequence[int]] | None = None,
    name: str | None = None,
) -> Callable[[Callable[..., Any]], KernelOperator]:
    """Register a function that launches Triton kernels as an operator, for sweeps and tables.

    The function has the tensors and scalars as parameters of the same names, and launches functions of `triton.jit`,
    decorated or not, as `kernel[grid](...)`. It may have the parameters `config`, `problem` and `target`. Without the
    parameter `config` it launches as its library does, and the knobs replace the arguments of the same names at its
    launches. Outputs that are not parameters are allocated and returned by the function, in the order of `buffers`.

    Args:
        config: the class of the configs.
        space: the values to try of each knob, in all combinations; or a list of configs; or, where there are too many
            to list, a function (trial, problem) that returns a value for each knob, drawn with the `suggest_` methods
            of Optuna's trials, best under the names of the knobs. It raises `IllegalConfigError` where the drawn values
            are not a config. Strategies that time all configs refuse such a space.
        buffers: role, shape and dtype of each tensor: `input`, `weight`, `output rows float32`. The role is `input`,
            `weight`, `output`, `in-out` or `scratch`. The shape is `rows,hidden` by default, `hidden` for a weight, or
            expressions in these and `sizes`: `rows, 2*hidden`, `hidden/group`. The dtype is the problem's by default.
            In place of the text it may be a function from the problem to the text.
        reference: a function of the inputs (in float64, integers as they are) and the scalars, by name, and if it has
            these parameters of `problem` and `dtype` (the problem's, of torch). It returns the exact outputs in order:
            tensors, with errors allowed for their dtype and float32 sums, or an `Expected` of `kernels.rounding`.
        scalars: the function's numbers, with their values for gate and timing.
        tolerance: by name of an output the allowed error of rounding, in units in the last place; by default 1, which
            is right for one rounding at the end.
        legal: (config, problem, target) to whether the config may run, as shared memory and registers suffice. An
            illegal config must stay illegal for more rows and longer rows. By default the compiler decides, and a table
            answers for no wider dtype than measured ones. It may also raise `normtune.IllegalConfigError`.
        leaves_out: (config, problem, target) to whether a sweep need not time the config, although it may run.
        default: the config without a table, or a rule (problem, target) that returns it, such as your library's present
            one. Sweeps measure it and `fit` compares with it. Where it is missing or illegal, the first legal config of
            the space is the default, first of all the one with the knobs' own defaults.
        inputs: (problem, generator, device) to the tensors that are read, by name, for gate and timing: indices,
            probabilities, lengths. By default they are normal values; inputs of integers need this function.
        implementations: other functions that compute the same, as in `OperatorSpec`.
        dtypes: the dtypes of the first input: some of bfloat16, float16, float32.
        max_hidden: the longest row, in elements.
        axes: two or three names of sizes in place of rows and hidden, with the values of a sweep, which takes all
            combinations: `{"m": (1, 64, 4096), "n": (4096,), "k": (1024, 8192)}`. Functions of tables take them in this
            order and have thresholds on each. Shapes name them: `input m,k`. What is illegal stays so as any grows.
        derived: a size computed from these by sums, products and whole quotients, on which tables may also have
            thresholds: `m * n`, `cdiv(m, 64) * cdiv(n, 64)`.
        sizes: named integers besides rows and hidden, with the values of a sweep, as in `OperatorSpec`; shapes may name
            them: `input rows,heads,hidden`.
        name: the operator's name; by default the function's.

    Raises:
        UsageError: the declaration has faults; each is a line of the message.
    """

    def decorate(function: Callable[..., Any]) -> KernelOperator:
        called = name or function.__name__
        declared = Declaration(
            function=function,
            config=config,
            space=DeclaredSpace(config, space),
            buffers=dict(buffers),
            scalars=dict(scalars or {}),
            axes={name: tuple(values) for name, values in (axes or dict.fromkeys(AXES, ())).items()},
            sizes={**(sizes or {}), **dict([*(axes or {}).items()][2:])},
            reference=reference,
            inputs=inputs,
            tolerance=dict(tolerance or {}),
        )
        if faults := declared.faults():
            raise UsageError("\n".join(f"operator {called!r}: {fault}" for fault in faults))
        is_legal = named(called, "legal", legal) if legal else lambda *_: True
        is_left_out = named(called, "leaves_out", leaves_out) if leaves_out else lambda *_: False
        resolve = _Resolver(declared, is_legal)
        name_axes(called, (*declared.axes,))
        some = declared.space.some(declared.usual(called, dtypes, max_hidden))
        spec = _DecoratedSpec(
            name=called,
            modes=(),
            config=config,
            dtypes=tuple(dtypes),
            max_hidden=max_hidden,
            buffers=declared.tensors,
            axes=declared.axes,
            derived=derived,
            sizes=declared.sizes,
            space=lambda space_name, problem, target: declared.space.at(problem),
            leaves_out=lambda *arguments: is_left_out(*arguments) or resolve.is_pruned(*arguments),
            resolve=resolve,
            default_config=lru_cache(_CALLS)(Default(called, default, some, is_legal)),
            kernel_calls=f"{function.__module__}:{function.__name__}",
            reference_module=function.__module__,
            scalars=declared.scalars,
            implementations=dict(implementations or {}),
            has_own_inputs=inputs is not None,
            checks_resources=legal is not None,
            declaration=declared,
        )
        check_legal(is_legal, spec, some)
        return KernelOperator(declared, register(spec))

    return decorate


@dataclass(frozen=True)
class _DecoratedSpec(OperatorSpec):
    """A spec whose kernel calls and reference are functions instead of names of them."""

    declaration: Declaration = field(kw_only=True, hash=False)

    def launched(self) -> tuple[object, ...]:
        """The function, what it is called with, and the other functions that are timed."""
        return *self.declaration.launched, self.implementations

    def calls_function(self) -> Callable[..., Sequence[KernelCall]]:
        """A function of a launch to the calls that it records."""
        return partial(_calls_of, self)

    def references(self) -> Any:
        """An object with the functions of a reference module."""
        from normtune.kernels.custom_op.reference import DecoratedReference

        return DecoratedReference(self.declaration)


def _calls_of(
    spec: _DecoratedSpec,
    launch: RecordedLaunch,
    problem: Problem,
    tensors: Mapping[str, Any],
    workspace: Any,
    **scalars: float,
) -> Sequence[KernelCall]:
    """The kernel calls of a launch, as the function of `kernel_calls`."""
    from normtune.kernels.custom_op.recording import recorded, with_fake_tensors

    declared, target = spec.declaration, launch.target
    assert target
    if any(isinstance(tensor, FakeTensor) for tensor in tensors.values()):
        return with_fake_tensors(_recorded(declared, launch.config, problem, target)[1].calls)
    values = {**tensors, **scalars}
    if not launch.runs_function:
        call = partial(declared.call, values, launch.config, problem, target)
        with _named_errors(declared, launch.config, problem):
            return recorded(call, declared.knobs(launch.config)).calls
    outputs = {one.name: tensors[one.name] for one in spec.buffers(problem) if one.role in (OUTPUT, IN_OUT)}

    def function(**arguments: Any) -> tuple[Any, ...]:
        returned = _tuple_of(_launched(declared, arguments, launch.config, problem, target))
        results = {**arguments, **dict(zip(declared.returned, returned, strict=False))}
        return tuple(results[name] for name in outputs)

    options = {name: value for name, value in values.items() if name not in declared.returned}
    return [KernelCall(ForeignKernel(function), (1,), tuple(outputs.values()), options)]


class _Resolver:
    """`resolve` of a decorated operator: records the launches of its function on tensors without memory."""

    def __init__(self, declared: Declaration, legal: Legal) -> None:
        self._declared, self._legal = declared, legal
        self._launch = lru_cache(1 << 16)(self._recorded)
        self._unfit = lru_cache(_CALLS)(declared.unfit)

    def __call__(
        self, config: Config, problem: Problem, target: Target, alignment: int | None = None
    ) -> RecordedLaunch:
        """The launch of a config, for tensors of any strides.

        Raises:
            IllegalConfigError: `legal` or the function refuses the config, or the problem is impossible.
            OperatorError: the function raises another error, or contradicts its declaration.
        """
        if reason := self._unfit(problem) or reason_against_target(config, target):
            raise IllegalConfigError(reason)
        if not self._legal(config, problem, target):
            raise IllegalConfigError("`legal` of the operator refuses it")
        launch = self._launch(config, problem, target)
        if isinstance(launch, str):
            raise IllegalConfigError(launch)
        return launch

    def _recorded(self, config: Config, problem: Problem, target: Target) -> RecordedLaunch | str:
        from normtune.kernels.custom_op.recording import binary_of, launch_of

        try:
            tensors, recording = _recorded(self._declared, config, problem, target)
        except IllegalConfigError as error:
            return str(error)
        return RecordedLaunch(
            config,
            sum(math.prod(call.grid) for call in recording.calls),
            tuple(launch_of(call, tensors) for call in recording.calls),
            tuple(map(binary_of, recording.calls)),
            target=target,
            runs_function=bool(recording.operations or self._declared.returned),
            operations=recording.operations,
            is_pruned=recording.is_pruned,
        )

    def is_pruned(self, config: Config, problem: Problem, target: Target) -> bool:
        """Whether `early_config_prune` of a kernel removes a config at a problem."""
        try:
            return self(config, problem, target).is_pruned
        except IllegalConfigError:
            return False


def _recorded(
    declared: Declaration, config: Config, problem: Problem, target: Target
) -> tuple[Mapping[str, Any], "Recorded"]:
    """The tensors without memory that a function was called on, and the recording; its errors name the operator."""
    from normtune.kernels.custom_op.recording import recorded, tensor_without_memory

    buffers = declared.tensors(problem)
    tensors = {one.name: tensor_without_memory(one.dtype, one.shape) for one in buffers}
    call = partial(declared.call, {**tensors, **declared.scalars}, config, problem, target)
    with _named_errors(declared, config, problem):
        recording = recorded(call, declared.knobs(config), target)
        if not recording.calls:
            raise ReturnedError("launches nothing: expected kernel[grid](...) of a function of triton.jit")
        if declared.returned:
            values = _tuple_of(recording.returned)
            if len(values) != len(declared.returned) or not all(hasattr(one, "shape") for one in values):
                kinds = ", ".join(type(one).__name__ for one in values if one is not None) or "nothing"
                raise ReturnedError(f"returns {kinds}: expected {', '.join(declared.returned)}")
            expected = [one for one in buffers if one.name in declared.returned]
            check_returned(dict(zip(declared.returned, values, strict=True)), expected)
    return tensors, recording


def _launched(declared: Declaration, named: Mapping[str, Any], config: Config, problem: Problem, target: Target) -> Any:
    """Call a declared function with a config and return its result."""
    if declared.passes_knobs:
        return declared.call(named, config, problem, target)
    from normtune.kernels.custom_op.recording import launched

    return launched(partial(declared.call, named, config, problem, target), declared.knobs(config))


def _tuple_of(returned: Any) -> tuple[Any, ...]:
    return tuple(returned) if isinstance(returned, tuple | list) else (returned,)


@contextmanager
def _named_errors(declared: Declaration, config: Config, problem: Problem) -> Iterator[None]:
    """Errors inside the `with` are raised with the names of operator and function, the line and the problem."""
    try:
        yield
    except Exception as error:
        reraise(problem.operator, f"function {declared.function.__name__}", error, f"{config} at {problem}")
