"""Boxes of sizes: the shapes that a leaf of a tree answers for, or that an operator takes."""

from collections.abc import Iterable
from typing import NamedTuple

from normtune.kernels.problem import AXES, MAX_ROWS, Shape
from normtune.kernels.sizes import located


class Interval(NamedTuple):
    """The sizes along an axis from `least` to `most`, ends included."""

    axis: str
    least: int
    most: int


class Box(tuple[Interval, ...]):
    """An interval of sizes for each axis, in their order."""

    __slots__ = ()

    @classmethod
    def of(cls, **edges: tuple[int, int]) -> "Box":
        """The box with the least and the most of each axis: `Box.of(rows=(1, 8), hidden=(64, 128))`."""
        return cls(Interval(axis, *ends) for axis, ends in edges.items())

    @classmethod
    def around(cls, boxes: "Iterable[Box]") -> "Box":
        """The least box that holds others, at least one, of the same axes."""
        return cls(
            Interval(parts[0].axis, min(part.least for part in parts), max(part.most for part in parts))
            for parts in zip(*boxes, strict=True)
        )

    @property
    def is_empty(self) -> bool:
        """Whether an axis has no integer between its edges."""
        return any(least > most for _, least, most in self)

    @property
    def largest(self) -> Shape:
        """The largest shape in it."""
        return tuple(interval.most for interval in self)

    def __str__(self) -> str:
        return ", ".join(f"{axis} {least} to {most}" for axis, least, most in self)

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of its axes; a derived one is the last."""
        return tuple(interval.axis for interval in self)

    def holds(self, shape: Shape) -> bool:
        """Whether a shape lies between the edges, those of a derived size among them."""
        sizes = located(shape, self.axes)
        return all(least <= size <= most for size, (_, least, most) in zip(sizes, self, strict=True))

    def overlap(self, other: "Box") -> "Box":
        """What lies between the edges of both."""
        return Box(
            Interval(one.axis, max(one.least, two.least), min(one.most, two.most))
            for one, two in zip(self, other, strict=True)
        )

    def with_interval(self, interval: Interval) -> "Box":
        """The box with another interval along its axis."""
        return Box(interval if one.axis == interval.axis else one for one in self)

    def within_twice(self) -> "Box":
        """The sizes within a factor of two of its own, up to the largest of any shape."""
        return Box(Interval(axis, -(-least // 2), min(2 * most, MAX_ROWS)) for axis, least, most in self)

    def along(self, axis: str) -> Interval:
        """Its interval of an axis."""
        return next(interval for interval in self if interval.axis == axis)

    def cut(self, axis: str, first: int) -> "tuple[Box, Box]":
        """Its parts below and from `first` of an axis on; one of them is empty where that does not cut it.

        Both are the whole box where that does not bound the axis, such as a derived size of another operator.
        """
        if axis not in self.axes:
            return self, self
        bounds = self.along(axis)
        low = bounds._replace(most=min(bounds.most, first - 1))
        return self.with_interval(low), self.with_interval(bounds._replace(least=max(bounds.least, first)))


# No size of any shape is larger.
EVERYWHERE = Box(Interval(axis, 1, MAX_ROWS) for axis in AXES)
