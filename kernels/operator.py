"""The declaration of an operator, through which the rest of normtune uses it.

In: one `OperatorSpec` per operator, registered by `register`. Out: `operator(name)`, through which all others reach it.
Files that define specs import neither torch nor triton: the kernel and its reference are imported on first use.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from itertools import product
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, NoReturn, Self

from normtune.errors import UsageError
from normtune.kernels.box import Box
from normtune.kernels.call import AnyLaunch, ImplementationLaunch, KernelCall, foreign_call
from normtune.kernels.config import COPY, Config, Implementation
from normtune.kernels.config_space import Drawn
from normtune.kernels.key import Key, family_of, with_sizes
from normtune.kernels.mode import Mode, words_of
from normtune.kernels.problem import AXES, IN_OUT, MAX_ROWS, SCRATCH, Buffer, Problem, Shape, name_axes
from normtune.kernels.sizes import located, normal_form
from normtune.kernels.target import Target

_COPY = COPY.to_json()


class IllegalConfigError(ValueError):
    """This config cannot run this problem on this target; the text is the reason."""


@dataclass(frozen=True)
class OperatorSpec:
    """One operator.

    Attributes:
        name: its plain name; tables and stores use it.
        modes: what else a problem may ask for, in the order in which their words stand in the text of a variant.
        config: the class of its configs, which declares its knobs.
        dtypes: dtypes of the inputs that it takes.
        max_hidden: longest row that it takes.
        axes: two or three names of the sizes that functions of its tables take, with those that a sweep takes where
            none are given; empty for those of its grid, up to `max_hidden`. A third one is the last of `sizes`, too.
        derived: a size computed from those, which may have thresholds, too: `cdiv(m, 64) * n`; empty for none.
        buffers: tensors of a problem, in the order of the launch.
        scalars: the other arguments of kernels and reference, by name, with the values of gate and timing.
        space: (`default` or `full`, problem, target) to candidate configs before legality, a list or a `Drawn`.
        resolve: (config, problem, target, alignment or None for contiguous tensors) to a launch; pure. Raises
            `IllegalConfigError`. Legality never returns when rows or hidden grow, so a config that is legal at the
            largest shape of a region is legal all over it.
        default_config: (problem, target) to the config that is used without any table; rows do not matter.
        kernel_calls: `module:function` of (launch, problem, tensors, workspace, **scalars) to the kernel calls.
        reference_module: dotted module with `inputs(problem, generator, device, hostile)` and
            `reference(problem, tensors, **scalars)`, for each output a value and the error it may have.
        wide_buffers: tensors that may be float32 whatever the dtype of the problem, which makes other binaries.
        trial: (config, launch, problem, target) to what the gate tries; None for a number of rows that it chooses.
        sizes: the named integers of a problem besides rows and hidden, with the values that a sweep takes. Each
            combination is an operator, `name.group_size=64`. Of other values a table takes the nearest one's function.
        implementations: functions that compute the same without normtune's kernels, by name, each as
            `module:function` or the function itself: called with the inputs and scalars by name, it returns the
            outputs, in order. They are gated, timed and stored as configs are, so that a table can name them.
        is_default: whether a sweep that names no operator takes it.
        limiting: the members of `modes` on which it may depend whether a launch is legal and how it sums a row; None
            for all. Two to the number of their words are the variants for which a table's configs are proved legal.
        has_own_inputs: whether timing takes its inputs from the reference module, as the gate does, because durations
            depend on them: indices, lengths; not normal values.
        checks_resources: whether `resolve` refuses what needs too much shared memory, so that dtypes may share configs.
        leaves_out: (config, problem, target) to whether a sweep need not time a config of a space, although it may run.
        reference_bytes: most memory of inputs, reference and tolerances, bytes per element of the largest tensor.
        may_reuse_dy: (launch, target) to whether a backward may write dx into the memory of dy; None if none may.
    """

    name: str
    modes: tuple[type[Mode], ...]
    config: type[Config]
    dtypes: tuple[str, ...]
    max_hidden: int
    buffers: Callable[[Problem], tuple[Buffer, ...]]
    space: Callable[[str, Problem, Target], Sequence[Config] | Drawn]
    resolve: Callable[[Config, Problem, Target, int | None], AnyLaunch]
    default_config: Callable[[Problem, Target], Config]
    kernel_calls: str
    reference_module: str
    wide_buffers: tuple[str, ...] = ()
    scalars: Mapping[str, float] = field(default_factory=dict, hash=False)
    trial: Callable[[Config, Any, Problem, Target], tuple[Problem, AnyLaunch]] | None = None
    implementations: Mapping[str, str | Callable[..., Any]] = field(default_factory=dict, hash=False)
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict, hash=False)
    axes: Mapping[str, Sequence[int]] = field(default_factory=lambda: dict.fromkeys(AXES, ()), hash=False)
    derived: str = ""
    is_default: bool = True
    limiting: tuple[Mode, ...] | None = None
    has_own_inputs: bool = False
    checks_resources: bool = True
    leaves_out: Callable[[Config, Problem, Target], bool] | None = None
    reference_bytes: int = 105
    may_reuse_dy: Callable[[Any, Target], bool] | None = None

    def at(self, **sizes: int) -> Self:
        """The operator at these named integers, of which it has none left; itself where it has none.

        Raises:
            UsageError: one is missing or unknown, or no positive integer, a ValueError.
        """
        if set(sizes) != set(self.sizes):
            named = ", ".join(self.sizes) or "none"
            raise UsageError(f"{self.name} has the named integers {named}: got {', '.join(sizes) or 'none'}")
        for name, value in sizes.items():
            if type(value) is not int or value < 1:
                raise UsageError(f"{name} is {value!r}: expected a positive integer")
        if not sizes:
            return self
        return replace(self, name=with_sizes(self.name, {name: sizes[name] for name in self.sizes}), sizes={})

    @property
    def whole(self) -> Box:
        """All shapes that it takes, and the derived sizes that they have."""
        axes = (*self.axes, *([normal_form(self.derived, (*self.axes,))] if self.derived else []))
        most = located((MAX_ROWS, self.max_hidden, *[MAX_ROWS] * (len(self.axes) - 2)), axes)
        return Box.of(**{axis: (1, size) for axis, size in zip(axes, most, strict=True)})

    @property
    def variants(self) -> tuple[str, ...]:
        """The plain variant and one for each word of `modes`."""
        return ("", *words_of(self.modes))

    def variant(self, *members: Mode) -> str:
        """The variant of these members of `modes`, and of the default of the others.

        Raises:
            ValueError: one is of a mode that this operator does not have.
        """
        for member in members:
            if type(member) not in self.modes:
                names = ", ".join(mode.__name__ for mode in self.modes) or "none"
                raise ValueError(f"{self.name} has no mode {type(member).__name__}: expected one of {names}")
        chosen = {type(member): member.words for member in members}
        return "+".join(dict.fromkeys(word for mode in self.modes if mode in chosen for word in chosen[mode]))

    def key(self, dtype: str, variant: str = "") -> Key:
        """The key of a variant in a dtype."""
        return Key.of(self.name, variant, dtype)

    def problem(self, rows: int, hidden: int, dtype: str, variant: str = "") -> Problem:
        """A checked problem of this operator.

        Raises:
            ValueError: rows or hidden is no positive integer or too large, or dtype or variant is unknown.
        """
        first, second, *_ = self.axes
        for name, value in ((first, rows), (second, hidden)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}: expected a positive integer")
        if rows > MAX_ROWS:
            raise ValueError(f"{first} is {rows}: expected at most {MAX_ROWS}")
        if hidden > self.max_hidden:
            raise ValueError(f"{second} is {hidden}: {self.name} takes 1 to {self.max_hidden}")
        if dtype not in self.dtypes:
            raise ValueError(f"unknown dtype {dtype!r}: {self.name} takes {', '.join(self.dtypes)}")
        words = words_of(self.modes)
        if variant and not set(variant.split("+")) <= {*words}:
            raise ValueError(f"unknown variant {variant!r}: {self.name} has {', '.join(sorted(words)) or 'none'}")
        return Problem(self.key(dtype, variant), rows, hidden)

    def problem_at(self, shape: Shape, dtype: str, variant: str = "") -> Problem:
        """As `problem`, of a family at a shape that may have a third size."""
        rows, hidden, *more = shape
        spec = self.at(**dict(zip([*self.axes][2:], more, strict=True))) if more else self
        return spec.problem(rows, hidden, dtype, variant)

    def bytes_moved(self, problem: Problem) -> int:
        """Bytes that a perfect kernel moves through device memory: each tensor once, partial sums not counted."""
        times = {IN_OUT: 2, SCRATCH: 0}
        return sum(times.get(buffer.role, 1) * buffer.nbytes for buffer in self.buffers(problem))

    def space_at(self, space: str, problem: Problem, target: Target) -> Sequence[Config] | Drawn:
        """The configs of a space, also those that a sweep leaves out; an `OperatorError` if it raises."""
        try:
            return self.space(space, problem, target)
        except Exception as error:
            self._raise("space", error, problem)

    def configs(self, space: str, problem: Problem, target: Target) -> list[Config]:
        """The candidates of a space, before legality, some of one that cannot be listed; and the implementations."""
        candidates, rule = self.space_at(space, problem, target), self.leaves_out
        configs = candidates.some() if isinstance(candidates, Drawn) else candidates
        remaining = [config for config in configs if not (rule and rule(config, problem, target))]
        return [*remaining, *map(Implementation, self.implementations)]

    def knows(self, config: Config) -> bool:
        """Whether it has the knobs of this operator, or names one of its implementations."""
        if isinstance(config, Implementation):
            return config.implementation in self.implementations
        if type(config) is self.config:
            return True
        kinds = [knob.kind for knob in self.config.knobs]
        return config._fields == self.config._fields and list(map(type, config)) == kinds

    def limiting_part(self, variant: str) -> str:
        """Of the words of a variant those on which legality depends."""
        if self.limiting is None:
            return variant
        limiting = {word for member in self.limiting for word in member.words}
        return "+".join(word for word in variant.split("+") if word in limiting)

    def is_legal(self, config: Config, problem: Problem, target: Target) -> bool:
        """Whether `launch` gives one for contiguous tensors."""
        return self.launch_of(config, problem, target) is not None

    def launch(self, config: Config, problem: Problem, target: Target, alignment: int | None = None) -> AnyLaunch:
        """The launch of a config, for contiguous tensors unless their alignment is given.

        Raises:
            IllegalConfigError: it cannot run this problem on this target. An `OperatorError`, if `resolve` raises.
        """
        if not self.knows(config):  # of a store or table of other knobs or implementations
            raise IllegalConfigError(f"{config} has not the knobs of {self.name}: {', '.join(self.config._fields)}")
        if isinstance(config, Implementation):
            return ImplementationLaunch(config.implementation)
        try:
            launch = self.resolve(config, problem, target, alignment)
        except IllegalConfigError:
            raise
        except ZeroDivisionError:
            raise IllegalConfigError(f"{config} has a 0 by which its launch divides") from None
        except Exception as error:
            self._raise("resolve", error, f"{config} at {problem}")
        if launch.grid < 1:
            raise IllegalConfigError("a fixed grid of no programs")
        return launch

    def launch_of(
        self, config: Config, problem: Problem, target: Target, alignment: int | None = None
    ) -> AnyLaunch | None:
        """As `launch`; None where that is illegal."""
        try:
            return self.launch(config, problem, target, alignment)
        except IllegalConfigError:
            return None

    def reuses_dy(self, launch: AnyLaunch, target: Target) -> bool:
        """Whether a launch may write dx into the memory of dy."""
        is_ours = not isinstance(launch, ImplementationLaunch)
        return self.may_reuse_dy is not None and is_ours and self.may_reuse_dy(launch, target)

    def calls(
        self, launch: Any, problem: Problem, tensors: Mapping[str, Any], workspace: Any, scalars: Mapping[str, float]
    ) -> Sequence[KernelCall]:
        """The kernel calls of a launch, in order; an `OperatorError` if they cannot be made.

        Args:
            launch: as `launch` gives it.
            problem: that it was resolved for.
            tensors: by the names of `buffers`.
            workspace: float32, of at least as many elements as the launch asks for.
            scalars: a value for each of `scalars`.
        """
        try:
            if isinstance(launch, ImplementationLaunch):
                function = self.implementations[launch.implementation]
                return [foreign_call(function, self.buffers(problem), tensors, scalars)]
            return self.calls_function()(launch, problem, tensors, workspace, **scalars)  # type: ignore[no-any-return]
        except Exception as error:
            self._raise("calls", error, f"{problem}, {getattr(launch, 'config', launch)}")

    def _raise(self, function: str, error: Exception, at: object) -> NoReturn:
        from normtune.kernels.spec_faults import reraise

        reraise(self.name, function, error, at)

    def read_config(self, text: str) -> Config:
        """The config that a store or file holds as text; of a class without a name where it has other knobs.

        Raises:
            ValueError: it is no text of a config.
        """
        if text == _COPY:
            return COPY
        if text.startswith('{"implementation":'):
            return Implementation.from_json(text)
        try:
            return self.config.from_json(text)
        except ValueError:
            config = Config.from_json(text)
            if {*config._fields} == {*self.config._fields}:
                raise
            return config

    def launched(self) -> tuple[object, ...]:
        """What decides its launches and runs them: functions, `module:function`, and plain values."""
        return self.resolve, self.buffers, self.kernel_calls, self.implementations

    def calls_function(self) -> Callable[..., Sequence[KernelCall]]:
        """The function of `kernel_calls`, whose module is imported on first use (needs triton)."""
        return resolve_name(self.kernel_calls)  # type: ignore[no-any-return]

    def references(self) -> ModuleType:
        """The module of the float64 reference, imported on first use (needs torch)."""
        return import_module(self.reference_module)


_OPERATORS: dict[str, OperatorSpec] = {}
_FAMILIES: dict[str, OperatorSpec] = {}


def register(spec: OperatorSpec) -> OperatorSpec:
    """Make an operator known under its name; one with named integers, at each combination of their values.

    Raises:
        UsageError: its declaration is at fault, a ValueError; each fault is a line of the text.
        ValueError: another operator has that name.
    """
    from normtune.kernels.spec_faults import faults

    name_axes(spec.name, (*spec.axes,))
    if lines := [f"operator {spec.name!r}: {fault}" for fault in faults(spec)]:
        raise UsageError("\n".join(lines))
    members = [spec.at(**dict(zip(spec.sizes, values, strict=True))) for values in product(*spec.sizes.values())]
    for member in members:
        if _OPERATORS.get(member.name, member) != member:
            raise ValueError(f"operator {member.name!r} is registered already: choose another name")
    _OPERATORS.update({member.name: member for member in members})
    if spec.sizes:
        _FAMILIES[spec.name] = spec
    return spec


def operator(name: str) -> OperatorSpec:
    """The registered operator of that plain name; a member of a family at any named integers.

    Also the family itself, where its named integers are a third axis of its tables.

    Raises:
        UsageError: there is none, a ValueError.
    """
    specs = operators()
    if name in specs:
        return specs[name]
    family = _FAMILIES.get(name)
    if family and {*family.sizes} <= {*family.axes}:
        return family
    key = Key.of(name, "", "")
    if key.family in _FAMILIES and key.sizes:
        return _FAMILIES[key.family].at(**dict(key.sizes))
    families = dict.fromkeys(map(family_of, specs))
    raise UsageError(f"unknown operator {name!r}: expected one of {', '.join(families)}; --load loads a file of others")


def find(name: str) -> OperatorSpec | None:
    """As `operator`, but None if there is none."""
    try:
        return operator(name)
    except UsageError:
        return None


def members(name: str) -> list[str]:
    """The operators of a name: all of a family with named integers, or the one of that name."""
    specs = operators()  # which also makes the families known
    return [other for other in specs if other == name or (name in _FAMILIES and family_of(other) == name)] or [name]


def operators() -> dict[str, OperatorSpec]:
    """All registered operators by name: normtune's own, then others in the order of registration.

    Those of other distributions are found by their entry points in the group `normtune.operators`, each naming a module
    that registers; that way every process knows them, those that compile included.
    """
    _import_specs()
    return dict(_OPERATORS)


def read_config(operator: str, text: str) -> Config:
    """The config of a text in a store or file; its operator may be unregistered now, or had other knobs.

    Raises:
        ValueError: it is no text of a config.
    """
    spec = find(operator)
    if spec is None:
        return COPY if text == _COPY else Config.from_json(text)
    return spec.read_config(text)


@cache
def _import_specs() -> None:
    norms = "rms_norm", "fused_add_rms_norm", "rms_norm_gated", "rms_norm_quantize_fp8"
    families = (*norms, "transpose_fp8", "qk_norm")
    for family in families:
        import_module(f"normtune.kernels.{family}.operator")
    # Whatever was imported before.
    places = {f"normtune.kernels.{family}.reference": place for place, family in enumerate(families)}
    ordered = sorted(_OPERATORS.items(), key=lambda item: places.get(item[1].reference_module, len(places)))
    _OPERATORS.clear()
    _OPERATORS.update(ordered)
    for entry in sorted(entry_points(group="normtune.operators"), key=lambda entry: entry.name):
        entry.load()
