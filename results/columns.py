"""Measurements as columns, for stores and files.

In: measurements. Out: their columns, as lists and flat arrays. `evidence` makes a data frame of them, which a sweep
does not need.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from normtune.kernels.config import Config
from normtune.results.records import Measurement

TEXTS = ("operator", "variant", "dtype", "config", "run", "fingerprint", "status", "reason")
COLUMNS = (
    *("operator", "variant", "dtype", "rows", "hidden", "config", "run", "fingerprint", "status", "reason"),
    *("rounds", "samples", "code"),
)
_Integer = TypeVar("_Integer", np.int32, np.int64)


def columns_of(measurements: Iterable[Measurement]) -> dict[str, list[Any]]:
    """Convert measurements to the columns of `Evidence.frame`; reasons become one line."""
    rows = [
        (
            *(item.problem.operator, item.problem.variant, item.problem.dtype, item.problem.rows, item.problem.hidden),
            *(_config_text(type(item.config), item.config), item.run, item.fingerprint, item.status),
            *(one_line(item.reason), np.asarray(item.rounds, np.int32), np.asarray(item.samples, np.int32), item.code),
        )
        for item in measurements
    ]
    parts = map(list, zip(*rows, strict=True)) if rows else ([] for _ in COLUMNS)
    return dict(zip(COLUMNS, parts, strict=True))


@lru_cache(maxsize=1 << 16)
def _config_text(kind: type[Config], config: Config) -> str:
    """Its JSON. Configs of two classes may be equal."""
    return config.to_json()


def flatten(arrays: Sequence[NDArray[np.int32]]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Lengths of the arrays, and their concatenation."""
    lengths = np.fromiter((len(array) for array in arrays), np.int64, len(arrays))
    return lengths, np.concatenate(arrays) if arrays else np.empty(0, np.int32)


def split(lengths: NDArray[np.int64], flat: NDArray[_Integer]) -> list[NDArray[_Integer]]:
    """Inverse of `flatten`: the arrays, as views of `flat`."""
    ends: list[int] = np.cumsum(lengths).tolist()
    return [flat[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)] if ends else []


def first_rounds(rounds: Sequence[NDArray[np.int32]]) -> list[int]:
    """First round of each measurement; -1 for a failure, which has none."""
    return [int(numbers[0]) if len(numbers) else -1 for numbers in rounds]


def one_line(text: str) -> str:
    """The text without line breaks and without characters that a database cannot hold."""
    return text and " ".join(text.replace("\0", " ").encode("utf-8", "replace").decode().split())
