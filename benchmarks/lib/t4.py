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

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.config import Config, Knob, class_of
from normtune.results.paths import unreadable

# Largest file that is read, unpacked. The hub's largest has 30 MB.
MOST_BYTES = 1 << 30
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
_MOST_CHARACTERS = 200


class Recorded(NamedTuple):
    """A config that was timed.

    Attributes:
        nanoseconds: int64, the samples in the order they were taken.
        objective: the file's own figure for the config, ns; as a rule the mean of the samples.
        overhead: seconds of compiling, checking and everything else but the launches.
    """

    nanoseconds: NDArray[np.int64]
    objective: float
    overhead: float


class Failed(NamedTuple):
    """A config that could not be timed.

    Attributes:
        reason: why, as the file has it: `compile`, `runtime`, `correctness`, ...
        overhead: seconds spent on it.
    """

    reason: str
    overhead: float


class RecordedSpace(NamedTuple):
    """Every config of one kernel on one device.

    Attributes:
        name: of the file, without its endings.
        device: as the cache file has it; empty where nothing names it.
        timed: the configs with samples, ordered.
        failed: the others, ordered.
    """

    name: str
    device: str
    timed: Mapping[Config, Recorded]
    failed: Mapping[Config, Failed]

    @property
    def configs(self) -> list[Config]:
        return sorted([*self.timed, *self.failed])


def is_t4(path: Path) -> bool:
    """Whether a file has the endings of a T4 file."""
    return path.name.endswith((".json", ".json.gz"))


def read_t4(path: Path) -> RecordedSpace:
    """The recorded space of a T4 file. Where it lacks samples, they are taken from the cache file beside it.

    Raises:
        UsageError: the file does not exist.
        NormtuneError: it cannot be read, is no T4 file, or holds no timed config.
    """
    document = _document(path)
    try:
        return _space(path, document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise NormtuneError(f"{path} is no T4 file ({why[:_MOST_CHARACTERS]}): expected results of schema 1") from None


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
    cache = _cache(path)
    samples_of = cache.get("cache", {})
    timed: dict[Config, Recorded] = {}
    failed: dict[Config, Failed] = {}
    for config, result in zip(configs, results, strict=True):
        if config in timed or config in failed:
            raise ValueError(f"the config {config.to_json()} is there twice")
        times = result["times"]
        overhead = _UNITS[unit] * sum(_number(name, times.get(name, 0.0)) for name in _OVERHEADS)
        if result["invalidity"] != "correct":
            failed[config] = Failed(str(result["invalidity"]), overhead)
            continue
        value = _time("the measurement", result["measurements"][0]["value"])
        key = ",".join(str(knob) for knob in result["configuration"].values())
        runtimes = times.get("runtimes") or samples_of.get(key, {}).get("times") or [value]
        samples = [_time("a runtime", runtime) for runtime in runtimes]
        to_ns = _UNITS[unit] * 1e9
        nanoseconds = np.maximum(1, np.rint(np.array(samples) * to_ns)).astype(np.int64)
        timed[config] = Recorded(nanoseconds, value * to_ns, overhead)
    if not timed:
        raise ValueError("no config was timed")
    device = str(cache.get("device_name", ""))
    return RecordedSpace(_stem(path), device, dict(sorted(timed.items())), dict(sorted(failed.items())))


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
    """The cache file of Kernel Tuner beside a T4 file; empty if there is none."""
    ending = ".json.gz" if path.name.endswith(".gz") else ".json"
    beside = path.with_name(_stem(path) + ending)
    document = _document(beside) if beside != path and beside.is_file() else {}
    return document if isinstance(document, dict) and isinstance(document.get("cache"), dict) else {}


def _document(path: Path) -> Any:
    """The JSON value of a file.

    Raises:
        UsageError: it does not exist.
        NormtuneError: it cannot be read.
    """
    if why := unreadable(path):
        raise UsageError(f"{path} {why}: expected a T4 file, results of an auto-tuner as JSON")
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise NormtuneError(f"{path} has over {MOST_BYTES} bytes: split it")
        return json.loads(content)
    except (OSError, EOFError, zlib.error) as error:
        raise NormtuneError(f"{path} cannot be read ({error}): see to its permissions, or copy it again") from None
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:_MOST_CHARACTERS]
        raise NormtuneError(f"{path} is no JSON file or a damaged one ({why}): copy it again") from None


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json").removesuffix("_T4")


def _number(name: str, value: Any) -> float:
    number = float(value)
    if isinstance(value, str) or not math.isfinite(number) or number < 0:
        raise ValueError(f"{name} is {str(value)[:40]!r}, expected a time")
    return number


def _time(name: str, value: Any) -> float:
    number = _number(name, value)
    if not number:
        raise ValueError(f"{name} is 0, expected a positive time")
    return number
