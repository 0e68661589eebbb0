"""Triton's private interfaces; no other module of normtune uses any.

In: kernels, their calls, binaries. Out: launches without Triton's binder, launches of a function, assembly of a kernel.
Where a private name is missing or differs, one of `OTHER` is raised, and callers use public interfaces or none. Does
not import torch, which the processes that compile do not load.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import triton

from normtune.kernels.call import KernelCall
from normtune.kernels.config import compiler_options as options_among
from normtune.kernels.target import Target

# A launch: takes the stream, and the pointers of the tensors.
StreamLaunch = Callable[[int, Sequence[int | None]], object]

# Selects the pointers of a kernel, in its order, from those of all tensors.
Pick = Callable[[Sequence[int | None]], Sequence[int | None]]

# Makes the launch with a version of Triton, from binary, launcher, grid, selection of pointers, and other arguments.
Way = Callable[[Any, Any, tuple[int, int, int], Pick, tuple[Any, ...]], StreamLaunch]

# Errors of a private interface that is missing or differs.
OTHER = (AttributeError, ImportError, IndexError, KeyError, TypeError, ValueError)
_runtime = triton.knobs.runtime


def is_heard() -> bool:
    """Whether a hook has a listener, such as a profiler; checked at each launch."""
    try:
        return bool(_runtime.launch_enter_hook.calls or _runtime.launch_exit_hook.calls)
    except AttributeError:  # other code replaced a chain of hooks by a hook or by None
        return True


def stream_of_device() -> Callable[[int], int] | None:
    """A function from a GPU's number to its current stream; None for other vendors' GPUs and unknown versions."""
    from triton.runtime.driver import driver

    if _way() is None or driver.active.get_current_target().backend != "cuda":
        return None
    _ = _runtime.launch_enter_hook.calls, _runtime.launch_exit_hook.calls  # raises if `is_heard` cannot work
    stream_of: Callable[[int], int] = driver.active.get_current_stream
    return stream_of


def bind(call: KernelCall, compiled: Any, pick: Pick, rest: tuple[Any, ...], *trial: Any) -> StreamLaunch | None:
    """The fast way to repeat a kernel call; None if its binary needs scratch memory.

    Args:
        call: with the grid, the kernel and its constants.
        compiled: its binary, loaded on the current device.
        pick: selects its pointers.
        rest: its positional arguments after the pointers.
        trial: the current stream, and pointers of existing tensors, for a launch of no programs.
    """
    _ = [parameter.do_not_specialize for parameter in call.kernel.params]  # raises if `launcher.binary_of` cannot work
    way, launcher = _way(), compiled.run
    assert way
    if launcher.global_scratch_size or launcher.profile_scratch_size:
        return None
    # All parameters in the order of the signature; the launcher drops the constants.
    constants = tuple(call.options[name] for name in call.kernel.arg_names[len(call.args) :])
    x, y, z = (*call.grid, 1, 1)[:3]
    every = (*rest, *constants)
    way(compiled, launcher, (0, 1, 1), pick, every)(*trial)  # no programs: only checks the arguments
    return way(compiled, launcher, (x, y, z), pick, every)


def _triton_3_6(
    compiled: Any, launcher: Any, grid: tuple[int, int, int], pick: Pick, rest: tuple[Any, ...]
) -> StreamLaunch:
    """Triton 3.6, `triton/backends/nvidia/driver.py`: launch(grid, stream, function, ..., *arguments)."""
    launch, (x, y, z) = launcher.launch, grid
    fixed = (
        *(compiled.function, launcher.launch_cooperative_grid, launcher.launch_pdl, None, None),
        *(compiled.packed_metadata, None, None, None),
    )
    return lambda stream, pointers: launch(x, y, z, stream, *fixed, *pick(pointers), *rest)


def _triton_3_7(
    compiled: Any, launcher: Any, grid: tuple[int, int, int], pick: Pick, rest: tuple[Any, ...]
) -> StreamLaunch:
    """Triton 3.7, `triton/backends/nvidia/driver.py`: launch(grid, stream, function, ..., arguments)."""
    launch, (x, y, z) = launcher.launch, grid
    fixed = (
        *(compiled.function, launcher.launch_cooperative_grid, launcher.launch_pdl, compiled.packed_metadata),
        *(None, None, None, None, None, launcher.arg_annotations, launcher.kernel_signature),
    )
    return lambda stream, pointers: launch(x, y, z, stream, *fixed, (*pick(pointers), *rest))


def _triton_3_8(
    compiled: Any, launcher: Any, grid: tuple[int, int, int], pick: Pick, rest: tuple[Any, ...]
) -> StreamLaunch:
    """Triton 3.8: as 3.7, except for kernels with its sanitizer, which take another argument."""
    if launcher.gsan_enabled:
        raise ValueError("a kernel with the sanitizer is launched publicly")
    return _triton_3_7(compiled, launcher, grid, pick, rest)


_WAYS = {"3.6": _triton_3_6, "3.7": _triton_3_7, "3.8": _triton_3_8}


def _way() -> Way | None:
    return _WAYS.get(".".join(triton.__version__.split(".")[:2]))


def parameters(kernel: Any) -> Sequence[Any]:
    """The parameters of a kernel, with `name`, `is_constexpr` and `do_not_specialize`; empty if it is interpreted."""
    declared: Sequence[Any] = getattr(kernel, "params", ())
    return declared


# The function that receives the launches of a thread; the number of threads with one; Triton's own way.
_taking = threading.local()
_takers = 0
_usual: Any = None
_installing = threading.Lock()


@contextmanager
def launches_given_to(take: Callable[[Any, Any], Callable[..., Any]]) -> Iterator[None]:
    """Inside of a `with`, `kernel[grid](...)` in this thread calls `take(kernel, grid)(...)` instead of launching."""
    from triton.runtime.jit import KernelInterface

    global _takers, _usual
    before = getattr(_taking, "take", None)
    with _installing:
        _takers += 1
        if _takers == 1:
            _usual = KernelInterface.__getitem__
            KernelInterface.__getitem__ = _launcher_of  # type: ignore[method-assign, assignment]
    _taking.take = take
    try:
        yield
    finally:
        _taking.take = before
        with _installing:
            _takers -= 1
            if not _takers:
                KernelInterface.__getitem__ = _usual  # type: ignore[method-assign]


def _launcher_of(kernel: Any, grid: Any) -> Any:
    return (getattr(_taking, "take", None) or _usual)(kernel, grid)


def is_interpreting() -> bool:
    """Whether kernels that are defined from now on are interpreted."""
    return bool(triton.knobs.runtime.interpret)


def is_kernel(kernel: object) -> bool:
    """Whether it is a function of `triton.jit`, compiled or interpreted."""
    from triton.runtime.jit import JITFunction

    return isinstance(kernel, JITFunction) or type(kernel).__name__ == "InterpretedFunction"


def is_decorated(value: object) -> bool:
    """Whether it is a kernel wrapped in `triton.autotune`, `triton.heuristics` or another decorator."""
    from triton.runtime.jit import KernelInterface

    return isinstance(value, KernelInterface) and not is_kernel(value)


def reason_against(config: Any) -> str:
    """What of a `triton.Config` only `triton.autotune` can launch, and what to do; empty if there is nothing."""
    if config.pre_hook:
        return (
            "a pre_hook, which only triton.autotune runs: expected a function with the parameter `config` that does "
            "what the hook does and launches the kernel without its decorator, as kernel.fn[grid](...)"
        )
    if file := getattr(config, "ir_override", None):
        return f"ir_override={file!r}, a file that no table can name: expected configs without it"
    return ""


def undecorated(
    kernel: Any, args: Sequence[Any], options: Mapping[str, Any], knobs: Mapping[str, Any], replaces: bool
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The function of `triton.jit` that a launch runs, and its arguments, without the decorators around it.

    Args:
        kernel: a function of `triton.jit`, possibly wrapped in `triton.autotune` and `triton.heuristics`.
        args: positional arguments of the launch.
        options: its keyword arguments.
        knobs: of the config, by name, in place of what `triton.autotune` would choose.
        replaces: whether knobs also replace arguments of the same name.

    Raises:
        TypeError: the kernel is something else, or a value that `triton.autotune` sets is not among the knobs.
    """
    options, of_compiler = dict(options), options_among(knobs)
    if replaces:
        options |= {name: value for name, value in knobs.items() if name in options} | of_compiler
        named = zip(kernel.arg_names, args, strict=False)
        args = [knobs.get(name, value) for name, value in named] + [*args[len(kernel.arg_names) :]]
    while not is_kernel(kernel):
        if (configs := getattr(kernel, "configs", None)) is not None:
            names = {name: None for config in configs for name in config.kwargs}
            called = getattr(kernel.base_fn, "__name__", "a kernel")
            if unset := [name for name in names if name not in knobs]:
                raise TypeError(f"triton.autotune sets {', '.join(unset)} of {called}: expected a knob of that name")
            for config in configs:
                if reason := reason_against(config):
                    raise TypeError(f"a config of {called} has {reason}")
            options |= {name: knobs[name] for name in names} | of_compiler
        elif isinstance(values := getattr(kernel, "values", None), Mapping):
            for name, value in values.items():
                options[name] = value({**dict(zip(kernel.arg_names, args, strict=False)), **options})
        else:
            raise TypeError(f"it launches a {type(kernel).__name__}: expected a function of triton.jit")
        kernel = kernel.fn
    if not options.get("maxnreg", True):
        del options["maxnreg"]
    return kernel, tuple(args), options


def is_pruned(kernel: Any, args: Sequence[Any], options: Mapping[str, Any], knobs: Mapping[str, Any]) -> bool:
    """Whether the `early_config_prune` of a kernel in `triton.autotune` drops the config of these knobs."""
    while kernel is not None and not is_kernel(kernel):
        prune, configs = getattr(kernel, "early_config_prune", None), getattr(kernel, "configs", None)
        if prune and configs:
            of_kernel = {name: knobs[name] for name in {name for one in configs for name in one.kwargs}}
            arguments = dict(zip(kernel.arg_names, args, strict=False))
            return not prune([type(configs[0])(of_kernel, **options_among(knobs))], arguments, **options)
        kernel = getattr(kernel, "fn", None)
    return False


@contextmanager
def target_named(target: Target) -> Iterator[None]:
    """Inside of a `with`, Triton takes this target for the current one, whatever GPU there is."""
    from triton.runtime.driver import driver

    before = driver._active
    driver.set_active(_Driver(_named(target.name), target))  # type: ignore[arg-type]
    try:
        yield
    finally:
        driver._active = before


@cache
def _named(target: str) -> Any:
    from triton.backends.compiler import GPUTarget

    if target.startswith("sm_"):
        return GPUTarget("cuda", int(target.removeprefix("sm_")), 32)
    # CDNA and GCN have wavefronts of 64 threads; Triton compiles for RDNA with 32.
    return GPUTarget("hip", target, 64 if target.startswith("gfx9") else 32)


class _Driver:
    """The part of a Triton driver that compilation needs, and libraries that read the GPU's properties first."""

    def __init__(self, target: Any, limits: Target | None = None) -> None:
        self._target = target
        self._limits = limits
        self.utils = self

    def get_device_properties(self, device: int) -> dict[str, int]:
        """As those of Triton's `utils`."""
        assert self._limits
        of = self._limits
        return {
            "max_shared_mem": of.shared_bytes,
            "max_num_regs": 65536,
            "multiprocessor_count": of.sms,
            "warpSize": of.warp_size,
        }

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self._target

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cuda", 0)

    def get_device_capability(self, device: Any = None) -> Any:
        return self.get_device_interface().get_device_capability(device)

    def get_device_interface(self) -> Any:
        import torch

        return torch.cuda


def compile_for(target: str, listener: Callable[..., None] | None = None) -> None:
    """Compile for this target, `sm_90` or `gfx942`, from now on in this process; `listener` is called for each."""
    from triton.runtime.driver import driver

    triton.knobs.compilation.listener = listener
    driver.set_active(_Driver(_named(target)))  # type: ignore[arg-type]


def do_without_torch() -> None:
    """Make Triton believe that torch is not installed.

    Otherwise it imports torch at the first argument of a kernel, to recognise tensors: 1.6 s and 190 MB.
    """
    if "torch" in sys.modules:
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        with suppress(ImportError, AttributeError, TypeError):  # another version of Triton imports torch later
            from triton.runtime.jit import mangle_type

            mangle_type(1)
    finally:
        del sys.modules["torch"]


def current_target() -> Any:
    """Triton's name of the target of this process."""
    from triton.runtime.driver import driver

    return driver.active.get_current_target()


def compiler_options() -> frozenset[str]:
    """The options of a launch that the compiler of the current target takes."""
    return _options_of(current_target())


@cache
def _options_of(target: Any) -> frozenset[str]:
    from triton.compiler import make_backend

    return frozenset(vars(make_backend(target).parse_options({})))


@contextmanager
def stopped_before_compiling(hook: Callable[..., bool]) -> Iterator[None]:
    """Inside of a `with`, Triton calls `hook` before it compiles a specialisation, and does not if it returns True."""
    from triton import knobs

    before = knobs.runtime.jit_cache_hook
    knobs.runtime.jit_cache_hook = hook
    try:
        yield
    finally:
        knobs.runtime.jit_cache_hook = before


def assembly_of(kernel: Any, compile: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Kind (`ptx`, `amdgcn`), text and metadata of the assembly of what `stopped_before_compiling` tells its hook."""
    metadata = json.loads(compile["specialization_data"])["options"]
    stages, module = _pipeline(kernel, compile["signature"], compile["constants"], compile["configs"][0], metadata)
    *lowering, _ = stages.items()  # without the vendor's assembler
    for _, stage in lowering:
        module = stage(module, metadata)
    return lowering[-1][0], module, metadata


def float_arguments(compiled: Any) -> list[str]:
    """The names of the arguments of a compiled kernel that are floats; none of a kernel in Gluon."""
    return [name for name, kind in compiled.src.signature.items() if kind == "fp32" and compiled.src.ext == "ttir"]


def code_with_fp64(compiled: Any, argument: str) -> str:
    """The optimised TTIR of a compiled kernel if a float argument were fp64."""
    source, values = compiled.src, compiled.metadata._asdict()
    stages, module = _pipeline(source.fn, source.signature | {argument: "fp64"}, source.constants, source.attrs, values)
    return str(stages["ttir"](module, {}).str_nodebug())


def _pipeline(kernel: Any, signature: Any, constants: Any, attributes: Any, values: Mapping[str, Any]) -> Any:
    """The stages of Triton, functions by the names of their results, and the module that the first one takes."""
    from triton._C.libtriton import ir
    from triton.compiler import make_backend

    backend = make_backend(current_target())
    options = backend.parse_options({k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = kernel.ASTSource(kernel, signature, constants, attributes)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    implementation = backend.get_codegen_implementation(options)
    return stages, source.make_ir(backend.target, options, implementation, backend.get_module_map(), context)
