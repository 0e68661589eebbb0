"""Checks every access to memory of kernels in Triton's interpreter.

In: a process that has imported no kernels yet. Out: an interpreter that stops at an access outside of the tensors of a
launch, or to memory that another program wrote.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from normtune.kernels.custom_op.recording import is_descriptor
from normtune.tuner.inspection.interpreter_inside import observe


class AccessError(Exception):
    """A forbidden access of a kernel; the text names the access and the tensor."""


class _Range(NamedTuple):
    """The memory of a tensor of a launch.

    Attributes:
        name: of the kernel's argument.
        start, end: addresses of its first byte and behind its last.
        writers: for each byte the program of this launch that wrote it last, -1 for none.
    """

    name: str
    start: int
    end: int
    writers: Any


class Watch:
    """Checks each access of kernels to memory.

    Attributes:
        faults: the faulty accesses; each stopped a launch.
        repeats: the kernels and tensors of which several programs write an element, with equal values.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.repeats: list[str] = []
        self._kernel = ""
        self._ranges: list[_Range] = []
        self._is_atomic = False

    def install(self) -> None:
        """Check the accesses of this process from now on."""
        self._builder, self._usual = observe(self, self._begin)

    def _begin(self, function: Any, arguments: Mapping[str, Any]) -> None:
        is_ours = function.__module__.startswith("normtune.")
        self._kernel, self._is_atomic, self._ranges = function.__name__, False, []
        for name, argument in arguments.items():
            value = argument.base if is_descriptor(argument) else argument
            if isinstance(value, Tensor) and not is_ours:
                sizes = zip(value.shape, value.stride(), strict=True)
                length = (1 + sum((extent - 1) * stride for extent, stride in sizes)) * value.element_size()
                start = value.data_ptr()
                length = length if value.numel() else 0
                self._ranges.append(_Range(name, start, start + length, np.full(length, -1, np.int64)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("atomic"):
            self._is_atomic = True
        return getattr(self._usual, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        """The same as the interpreter's; stops at a wrong read."""
        for one, offsets, _ in self._accesses("reads", pointers, mask, np.dtype(dtype).itemsize):
            writers = one.writers[offsets]
            if not self._is_atomic and ((writers != -1) & (writers != self._program)).any():
                self._stop(f"reads elements of {one.name} that another program writes: their order is not fixed")
        return self._usual.load(pointers, mask, other, dtype)

    def store(self, pointers: Any, value: Any, mask: Any) -> None:
        """The same as the interpreter's; stops at a wrong write."""
        value = np.broadcast_to(value, np.shape(pointers))
        for one, offsets, is_inside in self._accesses("writes", pointers, mask, value.dtype.itemsize):
            writers = one.writers[offsets]
            shared = (writers != -1) & (writers != self._program)
            if shared.any() and not self._is_atomic:
                there = np.asarray(pointers)[is_inside]
                before = self._usual.load(
                    there, np.ones(there.shape, bool), np.zeros(there.shape, value.dtype), value.dtype
                )
                if (before != value[is_inside])[shared].any():
                    self._stop(f"writes elements of {one.name} that another program also writes: the last one wins")
                text = (
                    f"several programs of {self._kernel} write the same elements of {one.name}, here equal values: "
                    "is each row of its own program, at every number of rows?"
                )
                if text not in self.repeats:
                    self.repeats.append(text)
            for byte in range(value.dtype.itemsize):
                one.writers[offsets + byte] = self._program
        self._usual.store(pointers, value, mask)

    @property
    def _program(self) -> int:
        x, y, z = self._builder.grid_idx
        return int(x + (y << 21) + (z << 42))

    def _accesses(self, verb: str, pointers: Any, mask: Any, size: int) -> list[tuple[_Range, Any, Any]]:
        """For each accessed tensor the offsets of the elements, bytes, and a mask of the pointers into it."""
        if not self._ranges:
            return []
        pointers = np.asarray(pointers)
        active = np.broadcast_to(np.asarray(mask, bool), pointers.shape)
        outside = active.copy()
        accesses = []
        for one in self._ranges:
            is_inside = outside & (pointers >= one.start) & (pointers + size <= one.end)
            if is_inside.any():
                accesses.append((one, (pointers[is_inside] - one.start).astype(np.int64), is_inside))
                outside &= ~is_inside
        if outside.any():
            self._stop(f"{verb} {_place_outside(pointers[outside], self._ranges)}: expected a mask, or another grid")
        return accesses

    def _stop(self, text: str) -> None:
        fault = f"{self._kernel} {text}"
        if fault not in self.faults:
            self.faults.append(fault)
        raise AccessError(fault)


def _place_outside(pointers: Any, ranges: Sequence[_Range]) -> str:
    """The place of pointers outside of all tensors, in words."""
    first = int(pointers.flat[0])
    nearest = min(ranges, key=lambda one: min(abs(first - one.start), abs(first - one.end)))
    side = "before the beginning" if first < nearest.start else "behind the end"
    return f"{pointers.size} elements {side} of {nearest.name}"
