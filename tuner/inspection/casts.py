"""Replaces casts of Triton's interpreter, which truncate to bfloat16, lose carries in FP8 and lack fnuz dtypes.

In: a function that sets an attribute. Out: an interpreter whose casts between float dtypes round to the nearest, ties
to even. Beyond the largest value FP8 saturates, as compiled for NVIDIA's GPUs, or becomes NaN or infinite, as in torch.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch


def cast_by_torch(set_attribute: Callable[[Any, str, Any], None] = setattr, *, saturates: bool = True) -> None:
    """Replace the casts of the interpreter of this process.

    Args:
        set_attribute: sets an attribute of an object, like `setattr`.
        saturates: whether FP8 saturates.
    """
    from triton import language as tl
    from triton.runtime import interpreter

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
