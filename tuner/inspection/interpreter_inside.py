"""Triton's interpreter, extended: functions that it lacks, casts that round, and an observer of its accesses to memory.

Like `kernels.calling.triton_inside`, this uses private interfaces of Triton. What it replaces stays replaced in this
process, which must have imported no kernels before and should do nothing else.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from triton import language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as of_cuda
from triton.runtime import interpreter

_SAME = ("tanh", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin", "cos", "floor", "ceil")
# Functions of libdevice, in NumPy.
_LIBDEVICE: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in _SAME},
    **{"pow": np.power, "abs": np.abs, "rint": np.rint, "trunc": np.trunc, "isnan": np.isnan, "isinf": np.isinf},
    **{"div_rn": np.divide, "fast_dividef": np.divide, "fast_expf": np.exp, "fast_logf": np.log},
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": np.vectorize(math.erf, otypes=[np.float32]),
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}


def complete() -> None:
    """Add methods of float scalars, functions of libdevice and grids in lists to Triton's interpreter."""
    usual = interpreter._implicit_cvt

    def tensor(array: Any, dtype: Any, shape: Sequence[int]) -> Any:
        kind = tl.block_type(dtype, list(shape)) if shape else dtype
        return tl.tensor(interpreter.TensorHandle(array, dtype), kind)

    def converted(value: Any) -> Any:
        return tensor(np.array([value], np.float32), tl.float32, ()) if isinstance(value, float) else usual(value)

    def of_numpy(name: str) -> Callable[..., Any]:
        def function(*values: Any, **_: Any) -> Any:
            arrays = [value.handle.data if isinstance(value, tl.tensor) else np.float32(value) for value in values]
            first = next(value for value in values if isinstance(value, tl.tensor))
            with np.errstate(all="ignore"):
                result = _LIBDEVICE[name](*arrays)
            return tensor(result.astype(arrays[0].dtype), first.dtype, first.shape)

        return function

    functions = {name: of_numpy(name) for name in _LIBDEVICE}
    patch_language = interpreter._patch_lang

    def patched(kernel: Any) -> Any:
        """Also replace functions of another copy of libdevice, which some libraries have."""
        for name, value in list(kernel.__globals__.items()):
            if getattr(value, "__module__", "") in (libdevice.__name__, of_cuda.__name__):
                kernel.__globals__[name] = functions.get(value.__name__, value)
        return patch_language(kernel)

    call = interpreter.GridExecutor.__call__

    def called(executor: Any, *args: Any, **kwargs: Any) -> Any:
        grid = executor.grid
        executor.grid = (lambda meta: tuple(grid(meta))) if callable(grid) else tuple(grid)
        return call(executor, *args, **kwargs)

    interpreter.GridExecutor.__call__ = called  # type: ignore[method-assign]
    interpreter._implicit_cvt = converted
    interpreter._patch_lang = patched
    for name, function in functions.items():
        for module in (libdevice, of_cuda):
            setattr(module, name, function)


def cast_by_torch(set_attribute: Callable[[Any, str, Any], None] = setattr, *, saturates: bool = True) -> None:
    """Replace the casts of the interpreter, which truncate to bfloat16, lose carries in FP8 and lack fnuz dtypes.

    They round to the nearest, ties to even. Beyond the largest value FP8 saturates, as compiled for NVIDIA's GPUs, or
    becomes NaN or infinite, as in torch.

    Args:
        set_attribute: sets an attribute of an object, like `setattr`.
        saturates: whether FP8 saturates.
    """
    types = {
        tl.bfloat16: torch.bfloat16,
        tl.float16: torch.float16,
        tl.float32: torch.float32,
        tl.float8e4nv: torch.float8_e4m3fn,
        tl.float8e5: torch.float8_e5m2,
        tl.float8e4b8: torch.float8_e4m3fnuz,
        tl.float8e5b16: torch.float8_e5m2fnuz,
    }
    narrow = {of for of in types if of not in (tl.float16, tl.float32)}
    usual_cast = interpreter.InterpreterBuilder.cast_impl
    usual_patch = interpreter._patch_lang_core

    def cast(builder: Any, source: Any, target: Any, *_: Any) -> Any:
        old, new = source.dtype.scalar, target.scalar
        if not narrow & {old, new} or not {old, new} <= types.keys():
            return usual_cast(builder, source, target)
        values = torch.from_numpy(np.array(source.data, order="C")).view(types[old])
        if new.is_fp8() and saturates:
            most = torch.finfo(types[new]).max
            values = values.float().clamp(-most, most)
        result = values.to(types[new])
        if new == tl.float8e4nv:
            result.view(torch.uint8)[values.float().abs() > 464] = 0x7F
        np_dtype = interpreter._get_np_dtype(new)
        return interpreter.TensorHandle(result.view(getattr(torch, str(np_dtype))).numpy(), new)

    def patch_with_fnuz(language: Any, scope: Any) -> None:
        usual_patch(language, scope)
        to_ir = language.dtype.to_ir

        def to_any_ir(dtype: Any, builder: Any) -> Any:
            fnuz = dtype in (tl.float8e4b8, tl.float8e5b16)
            return getattr(builder, f"get_{dtype.name}_ty")() if fnuz else to_ir(dtype, builder)

        scope.set_attr(language.dtype, "to_ir", to_any_ir)

    for name in ("cast_impl", "create_fp_to_fp"):
        set_attribute(interpreter.InterpreterBuilder, name, cast)
    set_attribute(interpreter, "_patch_lang_core", patch_with_fnuz)


def observe(observer: Any, begin: Callable[[Any, Mapping[str, Any]], None]) -> tuple[Any, Any]:
    """Let an observer load and store in place of the interpreter.

    Args:
        observer: has the methods of the interpreter.
        begin: called before each launch with the kernel's function and its arguments by name.

    Returns:
        The builder, whose `grid_idx` is the program, and the interpreter that loads and stores.
    """
    usual = interpreter._interpreter
    interpreter._interpreter = observer
    arguments = interpreter.GridExecutor._init_args_hst

    def prepared(executor: Any, args: Any, kwargs: Any) -> Any:
        result = arguments(executor, args, kwargs)
        begin(executor.fn, {**dict(zip(executor.arg_names, result[0], strict=False)), **result[1]})
        return result

    interpreter.GridExecutor._init_args_hst = prepared  # type: ignore[method-assign]
    return interpreter.interpreter_builder, usual
