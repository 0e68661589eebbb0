"""The short form of an operator: somebody's own kernel, made known by a decorator on the function that launches it.

In: the function, the configs to try, the tensors it takes, a reference. Out: a registered `OperatorSpec`, and in the
function's place an object that launches with the config of the table for the GPU at hand. `examples/` has whole files.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from normtune.errors import UsageError
from normtune.kernels.call import KernelCall, run
from normtune.kernels.config import Config, Implementation
from normtune.kernels.fake_tensor import StandIn
from normtune.kernels.operator import IllegalConfigError, OperatorSpec, register
from normtune.kernels.problem import IN_OUT, INPUT, ITEMSIZE, MAX_ROWS, WEIGHT, Problem
from normtune.kernels.short_form.declaration import (
    AXES,
    OTHERS,
    Legal,
    buffers_of,
    check_legal,
    faults_of,
    parameters,
    space_of,
    tensor_of,
)
from normtune.kernels.spec_faults import reraise
from normtune.kernels.target import Target


@dataclass(frozen=True)
class RecordedLaunch:
    """The launch of a config; equal to that of another config with the same kernel calls.

    Attributes:
        config: argument of the function.
        grid: programs of all its kernels.
        calls: kernel, grid and arguments of each call.
        binary: tells the machine code of its kernels apart.
        workspace: always 0.
    """

    config: Config = field(compare=False)
    grid: int
    calls: Any
    binary: Any
    workspace: int = 0


class KernelOperator:
    """A function that launches kernels, with the table's config unless one is passed.

    Attributes:
        spec: the registered operator.
        function: the decorated function.
    """

    def __init__(self, function: Callable[..., object], spec: OperatorSpec, buffers: Mapping[str, str]) -> None:
        self.function, self.spec, self._buffers = function, spec, buffers
        self.__doc__, self.__name__ = function.__doc__, spec.name
        self._signature = inspect.signature(function)

    def __call__(self, *arguments: Any, config: Config | None = None, **named: Any) -> None:
        """Launch on the current stream.

        Args:
            arguments: tensors and scalars in the order of the function; scalars may be left out.
            config: instead of the one of the table.
            named: tensors and scalars by name.

        Raises:
            TypeError: an argument is missing or unknown.
        """
        names = [name for name in self._signature.parameters if name not in OTHERS]
        given = {**self.spec.scalars, **dict(zip(names, arguments, strict=False)), **named}
        if len(arguments) > len(names) or set(given) != set(names):
            raise TypeError(
                f"{self.spec.name} takes {', '.join(names)}: got {len(arguments)} values and {sorted(named)}"
            )
        spec, problem, first = self._problem(given)
        from normtune.kernels.calling.dispatch import config_for, target_of

        target = target_of(first)
        if config is None:
            config = config_for(spec, problem, target, first.device.index or 0)
        if isinstance(config, Implementation):
            scalars = {name: given[name] for name in spec.scalars}
            run(spec.calls(spec.launch(config, problem, target), problem, given, None, scalars))
        else:
            _called(self.function, given, config, problem)

    def _problem(self, given: Mapping[str, Any]) -> tuple[OperatorSpec, Problem, Any]:
        """The operator at the named integers of tensors, their problem, and the first that is read."""
        extents: dict[str, int] = {}
        first = None
        for name, text in self._buffers.items():
            role, axes, _ = tensor_of(text, tuple(self.spec.sizes))
            if role not in (INPUT, WEIGHT, IN_OUT):
                continue
            tensor = given[name]
            if axes == AXES:  # any number of dimensions: rows of the last one
                tensor = tensor.reshape(-1, tensor.shape[-1]) if tensor.dim() > 2 else tensor
            extents.update(zip(axes, tensor.shape, strict=True))
            first = tensor if first is None and role != WEIGHT else first
        assert first is not None, "a declaration has an input"
        spec = self.spec.at(**{name: extents[name] for name in self.spec.sizes})
        dtype = str(first.dtype).rpartition(".")[2]
        return spec, spec.problem(extents["rows"], extents["hidden"], dtype), first


def kernel_operator(
    *,
    config: type[Config],
    space: Mapping[str, Sequence[int | str]],
    buffers: Mapping[str, str],
    reference: Callable[..., Any],
    scalars: Mapping[str, float] | None = None,
    legal: Legal | None = None,
    leaves_out: Legal | None = None,
    default: Config | None = None,
    inputs: Callable[..., Any] | None = None,
    implementations: Mapping[str, Callable[..., Any] | str] | None = None,
    dtypes: Sequence[str] = tuple(ITEMSIZE),
    max_hidden: int = 65536,
    sizes: Mapping[str, Sequence[int]] | None = None,
    name: str | None = None,
) -> Callable[[Callable[..., object]], KernelOperator]:
    """Register a function that launches Triton kernels as an operator, for sweeps and tables.

    The function takes the tensors and scalars by name, and `config`; `problem` too, if it wants it. It launches with
    `kernel[grid](...)` of functions of `triton.jit`, chooses nothing by itself, and allocates nothing.

    Args:
        config: the class of its configs.
        space: the values of each knob that are tried, all of them with all others.
        buffers: of each tensor its role, shape and dtype, as `input`, `weight`, `output rows float32`: a role is
            `input`, `weight`, `output`, `in-out` or `scratch`; a shape `rows,hidden` (if nothing is said; of a weight
            `hidden`), or other of these and of `sizes`; a dtype that of the problem unless one is named.
        reference: takes the inputs in float64 and the scalars by name, returns the outputs in their order, exactly;
            each as a tensor, from which the rounding to the output's dtype and that of float32 sums may be off, or as
            `normtune.kernels.rounding.Expected` with its own bound.
        scalars: the numbers it takes, with their values for gate and timing.
        legal: (config, problem, target) to whether it may run: no shared memory or register file is too small. What is
            illegal stays so for more rows and longer ones. Without it the compiler has the last word. The function may
            raise `normtune.IllegalConfigError`, too; any other error of it ends the command.
        leaves_out: (config, problem, target) to whether a sweep need not time it, although it may run.
        default: the config without a table; where it is illegal, or without it, the first of the space that is not,
            that of the knobs' own defaults before others.
        inputs: (problem, generator, device) to the tensors that are read, by name; normal values without it.
        implementations: other functions that do the same, as in `OperatorSpec`.
        dtypes: of the first input: some of bfloat16, float16, float32.
        max_hidden: the longest row.
        sizes: named integers besides rows and hidden, with the values that a sweep takes, as in `OperatorSpec`; shapes
            may name them: `input rows,heads,hidden`.
        name: of the operator; that of the function without it.

    Raises:
        UsageError: the declaration is at fault, a ValueError; each fault is a line of the text.
    """

    def made(function: Callable[..., object]) -> KernelOperator:
        faults = faults_of(function, config, space, buffers, scalars or {}, tuple(sizes or ()))
        if faults:
            raise UsageError("\n".join(f"operator {name or function.__name__!r}: {fault}" for fault in faults))
        called = name or function.__name__
        is_legal = _named(called, "legal", legal) if legal else lambda *_: True
        is_left_out = _named(called, "leaves_out", leaves_out) if leaves_out else lambda *_: False
        spec = _Short(
            name=called,
            modes=(),
            config=config,
            dtypes=tuple(dtypes),
            max_hidden=max_hidden,
            buffers=lambda problem: buffers_of(buffers, problem),
            sizes=dict(sizes or {}),
            space=lambda space_name, problem, target: [
                one for one in space_of(config, space) if not is_left_out(one, problem, target)
            ],
            resolve=_Resolver(function, buffers, scalars or {}, is_legal),
            default_config=_Default(default, config, space, is_legal),
            kernel_module=function.__module__,
            reference_module=function.__module__,
            sources=(function.__module__,),
            scalars=dict(scalars or {}),
            implementations=dict(implementations or {}),
            function=function,
            exact=reference,
            make_inputs=inputs,
        )
        check_legal(is_legal, spec, space_of(config, space))
        return KernelOperator(function, register(spec), buffers)

    return made


@dataclass(frozen=True)
class _Short(OperatorSpec):
    """A spec whose kernels and reference are functions, not modules."""

    function: Callable[..., object] = field(default=lambda: None, hash=False)
    exact: Callable[..., Any] = field(default=lambda: None, hash=False)
    make_inputs: Callable[..., Any] | None = field(default=None, hash=False)

    def kernels(self) -> Any:
        """What makes the kernel calls of a launch."""

        def calls(
            launch: RecordedLaunch, problem: Problem, tensors: Mapping[str, Any], workspace: Any, **scalars: float
        ) -> list[KernelCall]:
            return _calls(self.function, {**tensors, **scalars}, launch.config, problem)

        return SimpleNamespace(calls=calls)

    def references(self) -> Any:
        """Inputs and exact outputs."""
        from normtune.kernels.short_form.reference import ShortReference

        return ShortReference(self)


class _Default:
    """`default_config` of an operator."""

    def __init__(
        self, given: Config | None, of: type[Config], space: Mapping[str, Sequence[int | str]], legal: Legal
    ) -> None:
        configs = space_of(of, space)
        own = [
            config
            for config in configs
            if all(one.default in (None, v) for one, v in zip(of.knobs, config, strict=True))
        ]
        self._order = [*([given] if given else own[:1]), *configs]
        self._legal = legal

    def __call__(self, problem: Problem, target: Target) -> Config:
        """The first config that is legal at the largest number of rows, so that it is legal at all; else the first."""
        most = problem._replace(rows=MAX_ROWS)
        legal = (config for config in self._order if self._legal(config, most, target))
        return next(legal, self._order[0])


class _Resolver:
    """`resolve` of an operator: the launches that its function makes on fake tensors."""

    def __init__(
        self, function: Callable[..., object], buffers: Mapping[str, str], scalars: Mapping[str, float], legal: Legal
    ) -> None:
        self._function, self._buffers, self._scalars, self._legal = function, buffers, scalars, legal
        self._launch = lru_cache(1 << 16)(self._recorded)

    def __call__(
        self, config: Config, problem: Problem, target: Target, alignment: int | None = None
    ) -> RecordedLaunch:
        """The launch of a config; strides of the tensors are read at the launch.

        Raises:
            IllegalConfigError: `legal` or the function says no, or nothing is launched.
            OperatorError: the function raises another error.
        """
        if not self._legal(config, problem, target):
            raise IllegalConfigError("`legal` of the operator says no")
        launch = self._launch(config, problem)
        if isinstance(launch, str):
            raise IllegalConfigError(launch)
        return launch

    def _recorded(self, config: Config, problem: Problem) -> RecordedLaunch | str:
        from normtune.kernels.short_form.recording import binary_of, launch_of

        tensors = {one.name: StandIn(one.dtype, one.shape) for one in buffers_of(self._buffers, problem)}
        try:
            calls = _calls(self._function, {**tensors, **self._scalars}, config, problem)
        except IllegalConfigError as error:
            return str(error)
        if not calls:
            return "the function launches nothing"
        programs = sum(math.prod(call.grid) for call in calls)
        launched = tuple(launch_of(call, tensors) for call in calls)
        return RecordedLaunch(config, programs, launched, tuple(map(binary_of, calls)))


def _named(name: str, function: str, rule: Legal) -> Legal:
    """A rule of the operator `name`, whose errors name it."""

    def named(config: Config, problem: Problem, target: Target) -> bool:
        try:
            return bool(rule(config, problem, target))
        except Exception as error:
            reraise(name, function, error, f"{config} at {problem}")

    return named


def _calls(
    function: Callable[..., object], given: Mapping[str, Any], config: Config, problem: Problem
) -> list[KernelCall]:
    """The kernel calls that an operator's function makes; its errors name it."""
    from normtune.kernels.short_form.recording import recorded

    try:
        return recorded(lambda: _called(function, given, config, problem))
    except Exception as error:
        reraise(problem.operator, f"function {function.__name__}", error, f"{config} at {problem}")


def _called(function: Callable[..., object], given: Mapping[str, Any], config: Config, problem: Problem) -> None:
    """Call an operator's function with tensors, scalars and a config."""
    values = {**given, "config": config, "problem": problem}
    function(**{name: values[name] for name in parameters(function)})
