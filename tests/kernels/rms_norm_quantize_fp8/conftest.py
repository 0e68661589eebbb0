"""The interpreter with torch's casts.

Its own truncate to bfloat16, lose carries in FP8 and know no fnuz dtype.
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def torch_casts() -> Iterator[None]:
    """Casts between float dtypes round to the nearest, ties to even; beyond the largest value FP8 overflows."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    import triton.language as tl
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
    cast = interpreter.InterpreterBuilder.cast_impl
    patch_language = interpreter._patch_lang_core

    def cast_by_torch(self: Any, source: Any, target: Any, *_: Any) -> Any:
        old, new = source.dtype.scalar, target.scalar
        if not narrow & {old, new} or not {old, new} <= types.keys():
            return cast(self, source, target)
        values = torch.from_numpy(np.array(source.data, order="C")).view(types[old])
        made = values.to(types[new])
        if new == tl.float8e4nv:
            made.view(torch.uint8)[values.float().abs() > 464] = 0x7F
        plain = interpreter._get_np_dtype(new)
        return interpreter.TensorHandle(made.view(getattr(torch, str(plain))).numpy(), new)

    def patch_with_fnuz(language: Any, scope: Any) -> None:
        patch_language(language, scope)
        to_ir = language.dtype.to_ir

        def to_any_ir(self: Any, builder: Any) -> Any:
            fnuz = self in (tl.float8e4b8, tl.float8e5b16)
            return getattr(builder, f"get_{self.name}_ty")() if fnuz else to_ir(self, builder)

        scope.set_attr(language.dtype, "to_ir", to_any_ir)

    with pytest.MonkeyPatch.context() as patch:
        builder = interpreter.InterpreterBuilder
        for name in ("cast_impl", "create_fp_to_fp"):
            patch.setattr(builder, name, cast_by_torch)
        patch.setattr(interpreter, "_patch_lang_core", patch_with_fnuz)
        yield
