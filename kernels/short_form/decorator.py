"""The short form of an operator: somebody's own kernel, made known by a decorator on the function that launches it.

In: the function, the configs to try, the tensors it takes, a reference. Out: a registered `OperatorSpec`, and in the
function's place an object that launches with the config of the table for the GPU at hand. `examples/` has whole files.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from normtune.errors import UsageError
from normtune.kernels.call import ForeignKernel, KernelCall, run
from normtune.kernels.config import Config, Implementation
from normtune.kernels.fake_tensor import StandIn
from normtune.kernels.operator import IllegalConfigError, OperatorSpec, register
from normtune.kernels.problem import AXES, IN_OUT, ITEMSIZE, OUTPUT, Problem, name_axes
from normtune.kernels.short_form.declaration import Declaration, Declared
from normtune.kernels.short_form.rules import Default, Legal, Rule, check_legal, named
from normtune.kernels.short_form.sources import sources_of
from normtune.kernels.short_form.spaces import DeclaredSpace, Space
from normtune.kernels.spec_faults import ReturnedError, check_returned, reraise
from normtune.kernels.target import Target

if TYPE_CHECKING:
    from normtune.kernels.short_form.recording import Recorded


# Shapes of calls, and defaults of problems, that are kept.
_CALLS = 1 << 12


@dataclass(frozen=True)
class RecordedLaunch:
    """The launch of a config; equal to that of another config with the same kernel calls.

    Attributes:
        config: argument of the function.
        grid: programs of all its kernels.
        calls: kernel, grid and arguments of each call.
        binary: tells the machine code of its kernels apart.
        workspace: always 0.
        target: for which the function was called.
        runs_function: whether the whole function is launched, as it allocates its outputs or calls torch, and not its
            kernels alone.
        operations: its operations of torch, as this torch names them: not in the text, by which launches are stored.
        is_pruned: whether `early_config_prune` of a kernel leaves the config out of this problem.
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
    """A function that launches kernels, with the table's config unless one is passed.

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
            arguments: tensors and scalars in the order of the function; scalars may be left out.
            config: instead of the one of the table.
            named: tensors and scalars by name.

        Returns:
            What the function returns.

        Raises:
            TypeError: an argument is missing or unknown.
        """
        import torch

        # torch.compile would trace through lookup and launch, and not see which config a library's launcher gets.
        call = torch.compiler.disable(self._call) if torch.compiler.is_compiling() else self._call
        return call(arguments, config, named)

    def _call(self, arguments: Sequence[Any], config: Config | None, named: Mapping[str, Any]) -> Any:
        declared, takes = self._declaration, self._declaration.takes
        given = {**self._scalars, **dict(zip(takes, arguments, strict=False)), **named}
        if len(arguments) > len(takes) or not declared.needed <= given.keys() <= takes.keys():
            raise TypeError(
                f"{self.spec.name} takes {', '.join(takes)}: got {len(arguments)} values and {sorted(named)}"
            )
        from normtune.kernels.calling.dispatch import config_for, target_of

        first = given[declared.first]
        spec, problem = self._solved(first.dtype, *[given[name].shape for name in declared.read])
        target = target_of(first)
        if config is None:
            config = config_for(spec, problem, target, first.device.index or 0)
        if isinstance(config, Implementation):
            return self._implementation(spec, problem, given, first.device, spec.launch(config, problem, target))
        return _launched(declared, given, config, problem, target)

    def _problem(self, dtype: Any, *shapes: tuple[int, ...]) -> tuple[OperatorSpec, Problem]:
        """The operator at the named integers of a call, and its problem, from dtype and shapes of what is read."""
        sizes = self._declaration.solve(shapes)
        spec = self.spec.at(**{name: sizes[name] for name in self.spec.sizes})
        rows, hidden = (sizes[name] for name in self._declaration.plane)
        return spec, spec.problem(rows, hidden, str(dtype).rpartition(".")[2])

    def _implementation(
        self, spec: OperatorSpec, problem: Problem, given: Mapping[str, Any], device: Any, launch: Any
    ) -> Any:
        import torch

        allocated = {
            one.name: torch.empty(one.shape, dtype=getattr(torch, one.dtype), device=device)
            for one in spec.buffers(problem)
            if one.name in self._declaration.returned
        }
        scalars = {name: given.get(name, value) for name, value in spec.scalars.items()}
        run(spec.calls(launch, problem, {**given, **allocated}, None, scalars))
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

    The function takes the tensors and scalars by name, and launches with `kernel[grid](...)` of functions of
    `triton.jit`, decorated or not. It may take `config`, `problem` and `target`. One that takes no config launches as
    its library does, and the knobs of the config replace the arguments of their names at its launches. Outputs
    that it does not take it allocates, and returns them, in the order of `buffers`.

    Args:
        config: the class of its configs.
        space: the values of each knob that are tried, all of them with all others; or the configs themselves; or, where
            no list has them all, what draws one: (trial, problem) to a value for each knob, drawn with the `suggest_`
            methods of Optuna's trials, best under the names of the knobs. It raises `IllegalConfigError` where what it
            drew is no config. Strategies that time all configs refuse such a space.
        buffers: of each tensor its role, shape and dtype, as `input`, `weight`, `output rows float32`: a role is
            `input`, `weight`, `output`, `in-out` or `scratch`; a shape `rows,hidden` (if nothing is said; of a weight
            `hidden`), or other of these and of `sizes`, each an expression: `rows, 2*hidden`, `hidden/group`; a dtype
            that of the problem unless one is named. In place of the text a function from the problem to it.
        reference: takes the inputs in float64 and the scalars by name, and if it wants them `problem` and `dtype`, that
            of the problem in torch; returns the outputs in their order, exactly; each as a tensor, from which the
            rounding to the output's dtype and that of float32 sums may be off, or as
            `normtune.kernels.rounding.Expected` with its own bound.
        scalars: the numbers it takes, with their values for gate and timing.
        tolerance: of outputs, by name, how far they may be off by rounding, in units in the last place; 1 where nothing
            is said, which is right for one rounding at the end.
        legal: (config, problem, target) to whether it may run: no shared memory or register file is too small. What is
            illegal stays so for more rows and longer ones. Without it the compiler has the last word. The function may
            raise `normtune.IllegalConfigError`, too; any other error of it ends the command.
        leaves_out: (config, problem, target) to whether a sweep need not time it, although it may run.
        default: the config without a table, or a rule: (problem, target) to it, as the one that your library has today;
            sweeps measure it and `fit` compares with it. Where it is illegal, or without it, the first of the space
            that is not, that of the knobs' own defaults before others.
        inputs: (problem, generator, device) to the tensors that are read, by name, for gate and timing: indices,
            probabilities, lengths. Normal values without it, which integers may not do without.
        implementations: other functions that do the same, as in `OperatorSpec`.
        dtypes: of the first input: some of bfloat16, float16, float32.
        max_hidden: the longest row.
        axes: two or three names of sizes in place of rows and hidden, with those that a sweep takes, all combinations:
            `{"m": (1, 64, 4096), "n": (4096,), "k": (1024, 8192)}`. Functions of tables take them, in this order, and
            have thresholds on each; shapes name them: `input m,k`. Legality follows the rule of `legal` in each.
        derived: a size computed from these on which tables may have thresholds, too, of sums, products and whole
            quotients: `m * n`, `cdiv(m, 64) * cdiv(n, 64)`.
        sizes: named integers besides rows and hidden, with the values that a sweep takes, as in `OperatorSpec`; shapes
            may name them: `input rows,heads,hidden`.
        name: of the operator; that of the function without it.

    Raises:
        UsageError: the declaration is at fault, a ValueError; each fault is a line of the text.
    """

    def made(function: Callable[..., Any]) -> KernelOperator:
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
        spec = _Short(
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
            leaves_out=lambda *asked: is_left_out(*asked) or resolve.is_pruned(*asked),
            resolve=resolve,
            default_config=lru_cache(_CALLS)(Default(called, default, some, is_legal)),
            kernel_module=function.__module__,
            reference_module=function.__module__,
            sources=sources_of(function),
            scalars=declared.scalars,
            implementations=dict(implementations or {}),
            has_own_inputs=inputs is not None,
            declaration=declared,
        )
        check_legal(is_legal, spec, some)
        return KernelOperator(declared, register(spec))

    return made


@dataclass(frozen=True)
class _Short(OperatorSpec):
    """A spec whose kernels and reference are functions, not modules."""

    declaration: Declaration = field(kw_only=True, hash=False)

    def kernels(self) -> Any:
        """What makes the kernel calls of a launch."""
        return SimpleNamespace(calls=partial(_calls_of, self))

    def references(self) -> Any:
        """Inputs and exact outputs."""
        from normtune.kernels.short_form.reference import ShortReference

        return ShortReference(self.declaration)


def _calls_of(
    spec: _Short,
    launch: RecordedLaunch,
    problem: Problem,
    tensors: Mapping[str, Any],
    workspace: Any,
    **scalars: float,
) -> Sequence[KernelCall]:
    """As `calls` of a kernel module."""
    from normtune.kernels.short_form.recording import recorded, stood_in

    declared, target = spec.declaration, launch.target
    assert target
    if any(isinstance(tensor, StandIn) for tensor in tensors.values()):
        return stood_in(_recorded(declared, launch.config, problem, target)[1].calls)
    given = {**tensors, **scalars}
    if not launch.runs_function:
        call = partial(declared.call, given, launch.config, problem, target)
        with _named_errors(declared, launch.config, problem):
            return recorded(call, declared.knobs(launch.config)).calls
    outputs = {one.name: tensors[one.name] for one in spec.buffers(problem) if one.role in (OUTPUT, IN_OUT)}

    def function(**given: Any) -> tuple[Any, ...]:
        returned = _tuple_of(_launched(declared, given, launch.config, problem, target))
        found = {**given, **dict(zip(declared.returned, returned, strict=False))}
        return tuple(found[name] for name in outputs)

    taken = {name: value for name, value in given.items() if name not in declared.returned}
    return [KernelCall(ForeignKernel(function), (1,), tuple(outputs.values()), taken)]


class _Resolver:
    """`resolve` of an operator: the launches that its function makes on tensors without memory."""

    def __init__(self, declared: Declaration, legal: Legal) -> None:
        self._declared, self._legal = declared, legal
        self._launch = lru_cache(1 << 16)(self._recorded)
        self._unfit = lru_cache(_CALLS)(declared.unfit)

    def __call__(
        self, config: Config, problem: Problem, target: Target, alignment: int | None = None
    ) -> RecordedLaunch:
        """The launch of a config; strides of the tensors are read at the launch.

        Raises:
            IllegalConfigError: `legal` or the function says no, or there is no such problem.
            OperatorError: the function raises another error, or does not do what was declared.
        """
        if reason := self._unfit(problem):
            raise IllegalConfigError(reason)
        if not self._legal(config, problem, target):
            raise IllegalConfigError("`legal` of the operator says no")
        launch = self._launch(config, problem, target)
        if isinstance(launch, str):
            raise IllegalConfigError(launch)
        return launch

    def _recorded(self, config: Config, problem: Problem, target: Target) -> RecordedLaunch | str:
        from normtune.kernels.short_form.recording import binary_of, launch_of

        try:
            tensors, found = _recorded(self._declared, config, problem, target)
        except IllegalConfigError as error:
            return str(error)
        programs = sum(math.prod(call.grid) for call in found.calls)
        return RecordedLaunch(
            config,
            programs,
            tuple(launch_of(call, tensors) for call in found.calls),
            tuple(map(binary_of, found.calls)),
            target=target,
            runs_function=bool(found.operations or self._declared.returned),
            operations=found.operations,
            is_pruned=found.is_pruned,
        )

    def is_pruned(self, config: Config, problem: Problem, target: Target) -> bool:
        """Whether a kernel's own rule leaves a config out of a problem."""
        try:
            return self(config, problem, target).is_pruned
        except IllegalConfigError:
            return False


def _recorded(
    declared: Declaration, config: Config, problem: Problem, target: Target
) -> tuple[Mapping[str, Any], "Recorded"]:
    """What a declared function does, on which tensors; its errors name the operator."""
    from normtune.kernels.short_form.recording import recorded, tensor_without_memory

    buffers = declared.tensors(problem)
    tensors = {one.name: tensor_without_memory(one.dtype, one.shape) for one in buffers}
    call = partial(declared.call, {**tensors, **declared.scalars}, config, problem, target)
    with _named_errors(declared, config, problem):
        found = recorded(call, declared.knobs(config), target)
        if not found.calls:
            raise ReturnedError("launches nothing: expected kernel[grid](...) of a function of triton.jit")
        if declared.returned:
            values = _tuple_of(found.returned)
            if len(values) != len(declared.returned) or not all(hasattr(one, "shape") for one in values):
                kinds = ", ".join(type(one).__name__ for one in values if one is not None) or "nothing"
                raise ReturnedError(f"returns {kinds}: expected {', '.join(declared.returned)}")
            expected = [one for one in buffers if one.name in declared.returned]
            check_returned(dict(zip(declared.returned, values, strict=True)), expected)
    return tensors, found


def _launched(declared: Declaration, given: Mapping[str, Any], config: Config, problem: Problem, target: Target) -> Any:
    """What a declared function returns, with the launches of a config."""
    if declared.passes_knobs:
        return declared.call(given, config, problem, target)
    from normtune.kernels.short_form.recording import launched

    return launched(partial(declared.call, given, config, problem, target), declared.knobs(config))


def _tuple_of(returned: Any) -> tuple[Any, ...]:
    return tuple(returned) if isinstance(returned, tuple | list) else (returned,)


@contextmanager
def _named_errors(declared: Declaration, config: Config, problem: Problem) -> Iterator[None]:
    """An error inside of a `with` names the operator, its function, its line and the problem."""
    try:
        yield
    except Exception as error:
        reraise(problem.operator, f"function {declared.function.__name__}", error, f"{config} at {problem}")
