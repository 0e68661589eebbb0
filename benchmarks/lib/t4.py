"""Search spaces that other auto-tuners recorded, read from T4 files.

In: the path of a T4 results file (JSON, also gzipped), as the benchmark hub of the auto-tuning community has them, and
the cache file of Kernel Tuner beside it, if there is one. Out: a `RecordedSpace`, which `simulation`
replays. T4: https://github.com/AutoTuningAssociation/autotuning_methodology (schemas/T4.json).

A recorded space is no evidence and is never stored. A store compares times of the same round only, and the samples of a
T4 file were taken config by config, hours apart; round numbers for them would be invented. Nor does the file name what
a measurement belongs to: multiprocessors and target of the device, a dtype, rows and a hidden size.
"""

import gzip
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.errors import NormtuneError, reason_of
from normtune.kernels.config import Config, Knob, class_of

# Seconds per unit of time; the hub's own files write it with one L.
_UNITS = {
    "nanoseconds": 1e-9,
    "microseconds": 1e-6,
    "miliseconds": 1e-3,
    "milliseconds": 1e-3,
    "seconds": 1.0,
}
# Times of a config besides those of its launches.
_OVERHEADS = ("compilation", "framework", "validation", "search_algorithm")


class Recorded(NamedTuple):
    """A config that was timed.

    Attributes:
        nanoseconds: int64, the samples in the order they were taken.
        objective: the file's own figure for the config, ns; as a rule the mean of the samples.
    """

    nanoseconds: NDArray[np.int64]
    objective: float


class RecordedSpace(NamedTuple):
    """Every config of one kernel on one device.

    Attributes:
        name: of the file, without its endings.
        timed: the configs with samples, ordered; the others failed.
        overhead: of every config, seconds of compiling, checking and everything else but the launches.
    """

    name: str
    timed: Mapping[Config, Recorded]
    overhead: Mapping[Config, float]

    @property
    def configs(self) -> list[Config]:
        return sorted(self.overhead)


def is_t4(path: Path) -> bool:
    """Whether a file has the endings of a T4 file."""
    return path.name.endswith((".json", ".json.gz"))


def read_t4(path: Path) -> RecordedSpace:
    """The recorded space of a T4 file. Where it lacks samples, they are taken from the cache file beside it.

    Raises:
        NormtuneError: it cannot be read, is no T4 file, or holds no timed config.
    """
    try:
        return _space(path, _document(path))
    except KeyError as error:
        reason = f"no {error}"
    except (
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RecursionError,
        OSError,
        EOFError,
        zlib.error,
    ) as error:
        reason = reason_of(error)
    raise NormtuneError(f"{path} is no T4 file ({reason}): expected results of schema 1")


def _space(path: Path, document: Any) -> RecordedSpace:
    version = str(document["schema_version"])
    if version.split(".")[0] != "1":
        raise ValueError(f"schema_version is {version[:20]!r}, known is 1")
    unit = document.get("metadata", {}).get("timeunit", "milliseconds")
    if unit not in _UNITS:
        raise ValueError(f"timeunit is {str(unit)[:20]!r}, known are {', '.join(_UNITS)}")
    results: Sequence[Any] = document["results"]
    if not isinstance(results, list) or not results:
        raise ValueError("results is no list of configs")
    configs = _configs([result["configuration"] for result in results])
    samples_of = _cache(path)
    timed: dict[Config, Recorded] = {}
    overhead: dict[Config, float] = {}
    for config, result in zip(configs, results, strict=True):
        if config in overhead:
            raise ValueError(f"the config {config.to_json()} is there twice")
        times = result["times"]
        overhead[config] = _UNITS[unit] * sum(times.get(name, 0.0) for name in _OVERHEADS)
        if result["invalidity"] != "correct":
            continue
        value = _time(result["measurements"][0]["value"])
        key = ",".join(str(knob) for knob in result["configuration"].values())
        runtimes = times.get("runtimes") or samples_of.get(key, {}).get("times") or [value]
        to_ns = _UNITS[unit] * 1e9
        nanoseconds = np.maximum(1, np.rint(np.array([*map(_time, runtimes)]) * to_ns)).astype(np.int64)
        timed[config] = Recorded(nanoseconds, value * to_ns)
    if not timed:
        raise ValueError("no config was timed")
    return RecordedSpace(_stem(path), dict(sorted(timed.items())), overhead)


def _configs(texts: Sequence[Mapping[str, Any]]) -> list[Config]:
    """The configs of a file: knobs are its tunable parameters, integers or, where one is not, texts."""
    names = list(texts[0])
    for values in texts:
        if sorted(values) != sorted(names):
            raise ValueError(f"configs have different parameters: {sorted(names)} and {sorted(values)}"[:200])
    integers = {name: all(isinstance(values[name], int) for values in texts) for name in names}
    config_class = class_of(tuple(Knob(name, int if integers[name] else str) for name in names))
    return [
        config_class(**{name: int(values[name]) if integers[name] else str(values[name]) for name in names})
        for values in texts
    ]


def _cache(path: Path) -> dict[str, Any]:
    """The entries of Kernel Tuner's cache file beside a T4 file; empty if there is none."""
    beside = path.with_name(_stem(path) + (".json.gz" if path.name.endswith(".gz") else ".json"))
    entries: dict[str, Any] = _document(beside)["cache"] if beside != path and beside.is_file() else {}
    return entries


def _document(path: Path) -> Any:
    with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
        return json.load(file)


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json").removesuffix("_T4")


def _time(value: Any) -> float:
    number = float(value)
    if isinstance(value, str) or not 0 < number < math.inf:
        raise ValueError(f"a time is {str(value)[:40]!r}, expected a positive number")
    return number
