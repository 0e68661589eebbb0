"""The door: what an operator tells the rest of normtune about itself.

In: one `OperatorSpec` per operator, registered by `register`. Out: `operator(name)`, through which planning,
compiling, gate, timing, fit, emitted tables and dispatch reach it; none of them names an operator. Files that
define specs import neither torch nor triton: the kernel and its reference are named and imported on first use.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType
from typing import NamedTuple

from normtune.errors import UsageError
from normtune.kernels.config import COPY, Config
from normtune.kernels.problem import MAX_ROWS, Buffer, Problem
from normtune.kernels.target import Target

_COPY = COPY.to_json()


class IllegalConfigError(ValueError):
    """This config cannot run this problem on this target; the text is the reason."""


class Launch(NamedTuple):
    """A config resolved for one problem: everything the kernels' launch needs.

    Attributes:
        looped: whether the kernel with a row loop runs (a fixed grid) or one program a row block.
        grid: programs of the main kernel.
        block_row, block_col: the tile that a program holds.
        num_warps, num_stages: as the compiler takes them.
        alignment: largest power of two up to 16 that divides hidden and every row stride, elements.
        column_mask: whether `block_col` exceeds hidden.
        workspace: float32 elements of partial sums; 0 when there is no second stage.
        finish: how sums over rows end: `none`, `reduce`, `dependent` or `columns`.
        chunks: chunks of `block_col` columns in which a row is worked on; 0 where it is one tile.
        held: whether chunks stay in registers between their two uses.
        slice_row, slice_col: the tile of a program of columns; 0 where there is none.
    """

    looped: bool
    grid: int
    block_row: int
    block_col: int
    num_warps: int
    num_stages: int
    alignment: int
    column_mask: bool
    workspace: int
    finish: str = "none"
    chunks: int = 0
    held: bool = False
    slice_row: int = 0
    slice_col: int = 0

    @property
    def binary(self) -> "Launch":
        """This launch without what does not specialise: two launches with equal `binary` run the same machine code."""
        return self._replace(grid=0, workspace=int(self.workspace > 0))

    @property
    def of_a_row(self) -> "Launch":
        """This launch without what counts rows and what sums over them: equal ones work on each row in the same way."""
        return self._replace(grid=0, workspace=0, finish="none", slice_row=0, slice_col=0)


class Flag(NamedTuple):
    """A flag that changes the work. `off` is the suffix of the variant in which it is off."""

    name: str
    off: str


@dataclass(frozen=True)
class OperatorSpec:
    """One operator.

    Attributes:
        name: its plain name; tables and stores use it.
        flags: flags that change the work, each on by default.
        config: the class of its configs, which declares its knobs.
        dtypes: dtypes of the inputs that it takes.
        max_hidden: longest row that it takes.
        buffers: tensors of a problem, in the order of the launch.
        space: (space name, problem, target) to candidate configs, before legality. `default` and `full` exist, and so
            does `quick`, of which a plan takes an even spread of 12 where there are more: an operator without a quick
            space of its own answers as for `default`.
        resolve: (config, problem, target, alignment or None for contiguous tensors) to `Launch`; pure. Raises
            `IllegalConfigError`. Legality never returns when rows or hidden grow, so a config that is legal at the
            largest shape of a region is legal all over it.
        default_config: (problem, target) to the config that is used without any table; rows do not matter.
        kernel_module: dotted module with `calls(launch, problem, tensors, workspace, eps, offset)`, the kernel calls
            in order.
        reference_module: dotted module with `inputs(problem, generator, device, hostile)` and
            `reference(problem, tensors, eps, offset)`.
        sources: dotted modules whose syntax trees make the kernel's fingerprint.
        wide_buffers: tensors that may be float32 whatever the dtype of the problem, which makes other binaries.
    """

    name: str
    flags: tuple[Flag, ...]
    config: type[Config]
    dtypes: tuple[str, ...]
    max_hidden: int
    buffers: Callable[[Problem], tuple[Buffer, ...]]
    space: Callable[[str, Problem, Target], Sequence[Config]]
    resolve: Callable[[Config, Problem, Target, int | None], Launch]
    default_config: Callable[[Problem, Target], Config]
    kernel_module: str
    reference_module: str
    sources: tuple[str, ...]
    wide_buffers: tuple[str, ...] = ()

    @property
    def variants(self) -> tuple[str, ...]:
        """The plain variant and one for each flag that is off."""
        return ("", *(flag.off for flag in self.flags))

    def variant(self, **flags: bool) -> str:
        """The variant in which the named flags have these values; flags not named are on.

        Raises:
            ValueError: a name is no flag of this operator.
        """
        known = {flag.name for flag in self.flags}
        for name in flags:
            if name not in known:
                raise ValueError(f"unknown flag {name!r} of {self.name}: expected one of {', '.join(sorted(known))}")
        return "+".join(flag.off for flag in self.flags if not flags.get(flag.name, True))

    def problem(self, rows: int, hidden: int, dtype: str, variant: str = "") -> Problem:
        """A checked problem of this operator.

        Raises:
            ValueError: rows or hidden is no positive integer or too large, or dtype or variant is unknown.
        """
        for name, value in (("rows", rows), ("hidden", hidden)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}: expected a positive integer")
        if rows > MAX_ROWS:
            raise ValueError(f"rows is {rows}: expected at most {MAX_ROWS}")
        if hidden > self.max_hidden:
            raise ValueError(f"hidden is {hidden}: {self.name} takes 1 to {self.max_hidden}")
        if dtype not in self.dtypes:
            raise ValueError(f"unknown dtype {dtype!r}: {self.name} takes {', '.join(self.dtypes)}")
        known = {flag.off for flag in self.flags}
        if variant and not set(variant.split("+")) <= known:
            raise ValueError(f"unknown variant {variant!r}: {self.name} has {', '.join(sorted(known)) or 'none'}")
        return Problem(self.name, rows, hidden, dtype, variant)

    def bytes_moved(self, problem: Problem) -> int:
        """Bytes that a perfect kernel moves through device memory: each tensor once, partial sums not counted."""
        return sum(buffer.nbytes for buffer in self.buffers(problem))

    def is_legal(self, config: Config, problem: Problem, target: Target) -> bool:
        """Whether `resolve` gives a launch for contiguous tensors."""
        return self.launch_of(config, problem, target) is not None

    def launch_of(
        self, config: Config, problem: Problem, target: Target, alignment: int | None = None
    ) -> Launch | None:
        """What `resolve` gives, for contiguous tensors unless their alignment is given; None where that is illegal."""
        if config._fields != self.config._fields:
            return None  # of a store or table of other knobs
        try:
            launch = self.resolve(config, problem, target, alignment)
        except IllegalConfigError:
            return None
        return launch if launch.grid > 0 else None  # a fixed grid of no programs

    def read_config(self, text: str) -> Config:
        """The config that a store or file holds as text; of a class without a name where it has other knobs.

        Raises:
            ValueError: it is no text of a config.
        """
        if text == _COPY:
            return COPY
        try:
            return self.config.from_json(text)
        except ValueError:
            config = Config.from_json(text)
            if {*config._fields} == {*self.config._fields}:
                raise
            return config

    def kernels(self) -> ModuleType:
        """The module of the kernels, imported on first use (needs triton)."""
        return import_module(self.kernel_module)

    def references(self) -> ModuleType:
        """The module of the float64 reference, imported on first use (needs torch)."""
        return import_module(self.reference_module)


_OPERATORS: dict[str, OperatorSpec] = {}


def register(spec: OperatorSpec) -> OperatorSpec:
    """Make an operator known under its name.

    Raises:
        ValueError: another operator has that name.
    """
    if _OPERATORS.get(spec.name, spec) is not spec:
        raise ValueError(f"operator {spec.name!r} is registered already: choose another name")
    _OPERATORS[spec.name] = spec
    return spec


def operator(name: str) -> OperatorSpec:
    """The registered operator of that plain name.

    Raises:
        UsageError: there is none, a ValueError.
    """
    specs = operators()
    if name not in specs:
        raise UsageError(f"unknown operator {name!r}: expected one of {', '.join(specs)}, or what brings it installed")
    return specs[name]


def operators() -> dict[str, OperatorSpec]:
    """All registered operators by name, normtune's own first, in the order of registration.

    Those of other distributions are found by their entry points in the group `normtune.operators`, each naming a module
    that registers; that way every process knows them, those that compile included.
    """
    _import_specs()
    return dict(_OPERATORS)


def read_config(operator: str, text: str) -> Config:
    """The config that a store or file holds as text, of an operator that may not be here or had other knobs then.

    Raises:
        ValueError: it is no text of a config.
    """
    spec = operators().get(operator)
    if spec is None:
        return COPY if text == _COPY else Config.from_json(text)
    return spec.read_config(text)


@cache
def _import_specs() -> None:
    import_module("normtune.kernels.rms_norm_spec")
    for entry in sorted(entry_points(group="normtune.operators"), key=lambda entry: entry.name):
        entry.load()
