"""Runs as JSON values for stores and files, and checks of runs that are read from them."""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from normtune.kernels.tablefile.locate import slug
from normtune.results.records import REPLAY_PREFIX, Device, Run

# Entries of a protocol that only the store itself writes: the day on which the run was set aside, and how often it was
# set aside or taken back.
DROPPED, DROPS = OF_STORE = ("dropped", "drops")
# Entries of version 0.1.0, for what is a table of the store now.
_FORMER = ("finished", "finished_at")
# Prefix of the uuid of a device outside of its store.
_HASHED = "hash:"
# Dates that sort as texts in the order of time; hours may be missing.
_STARTED = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)


def to_plain(run: Run) -> dict[str, Any]:
    """Convert a run to JSON values; numpy scalars in its protocol become Python numbers."""
    return json_value({**run._asdict(), "device": run.device._asdict()})


def from_plain(value: Any) -> Run:
    """Inverse of `to_plain`, without entries that former versions wrote into a protocol.

    Raises:
        ValueError: a field is missing, unknown or of another type.
    """
    if not isinstance(value, dict) or set(value) != set(Run._fields):
        raise ValueError(f"not a run: {str(value)[:80]!r}")
    device, software = value["device"], value["software"]
    if not isinstance(device, dict) or set(device) != set(Device._fields):
        raise ValueError(f"not a device: {str(device)[:80]!r}")
    for name, kind in Device.__annotations__.items():
        if not isinstance(device[name], kind) or isinstance(device[name], bool):
            raise ValueError(f"{name} of a device is {device[name]!r}, expected {kind.__name__}")
    for name in ("id", "started"):
        if not isinstance(value[name], str) or not value[name]:
            raise ValueError(f"{name} of a run is {value[name]!r}, expected a text")
    if not isinstance(software, dict) or not all(isinstance(version, str) for version in software.values()):
        raise ValueError(f"software of a run is {software!r}, expected versions by name")
    if not _is_flat(value["protocol"]):
        raise ValueError("protocol of a run is nested too deep")
    if not isinstance(value["protocol"], dict):
        raise ValueError(f"protocol of a run is {value['protocol']!r}, expected values by name")
    protocol = {name: entry for name, entry in value["protocol"].items() if name not in _FORMER}
    return Run(value["id"], Device(**device), software, value["started"], protocol)


def _is_flat(value: object, levels: int = 20) -> bool:
    """Whether lists and dictionaries are nested at most `levels` deep."""
    if not isinstance(value, dict | list):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_flat(part, levels - 1) for part in parts)


def check_started(started: str) -> None:
    """Raise ValueError if the start of a run is not a date."""
    try:
        if not _STARTED.fullmatch(started):
            raise ValueError
        datetime.fromisoformat(started)
    except ValueError:
        raise ValueError(f"a run started {started[:40]!r}, expected a date such as 2026-11-23T12:00:00+00:00") from None


def ahead(runs: Iterable[Run]) -> list[Run]:
    """The runs that started after tomorrow, by this machine's clock, and would count as the newest until then."""
    tomorrow = (datetime.now(UTC) + timedelta(days=2)).strftime("%Y-%m-%d")
    return [run for run in runs if run.started >= tomorrow]


def anonymous(run: Run) -> Run:
    """The run without the identifier of its GPU, which files and tables must not reveal.

    It is replaced by a hash that is salted with the run's random id, so that two files do not show that the same GPU
    measured both. A replay keeps its name, and of an unpaired run no identifier is known.
    """
    if run.is_unpaired or run.device.uuid.startswith((REPLAY_PREFIX, _HASHED)):
        return run
    text = f"{run.id} {run.device.uuid}".encode("utf-8", "surrogateescape")
    hashed = _HASHED + hashlib.blake2b(text, digest_size=16).hexdigest()
    return run._replace(device=run.device._replace(uuid=hashed))


def measurer(device: Device) -> str:
    """Who measured: a hash of the GPU's identifier, equal for all runs of a store by this GPU. A replay has none."""
    if device.uuid.startswith(REPLAY_PREFIX):
        return ""
    return hashlib.blake2b(device.uuid.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def check_same(stored: Run, other: Run) -> None:
    """Raise ValueError if two runs with one id differ; of their protocols, regime and pairing are compared."""
    stored, other = anonymous(stored), anonymous(other)  # a run of the store may come back from a file
    for name in ("device", "software", "started", "regime", "is_unpaired"):
        if getattr(stored, name) != getattr(other, name):
            raise ValueError(
                f"run {stored.id} is stored with another {name}: {getattr(stored, name)!r}, not "
                f"{getattr(other, name)!r}"
            )


def drops(protocol: Mapping[str, Any]) -> int:
    """How often a run was set aside or taken back."""
    count = protocol.get(DROPS)
    return count if isinstance(count, int) else 0


def changes(runs: Iterable[Run]) -> dict[str, int]:
    """How often each run was set aside or taken back, by its id; without those that never were."""
    return {run.id: drops(run.protocol) for run in runs if drops(run.protocol)}


def joined_protocol(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The protocol of a run of which two stores have these: any order of any number of stores gives the same.

    A sweep begins with a part of the protocol that it ends with, so the larger one is taken. Whether the run is set
    aside is as where that was changed more often.
    """
    aside = max(one, other, key=lambda protocol: (drops(protocol), protocol.get(DROPPED, "")))
    return without_store(max(one, other, key=_order)) | of_store(aside)


def of_store(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a protocol that only the store itself writes."""
    return {name: value for name, value in protocol.items() if name in OF_STORE}


def without_store(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """A protocol without the entries that only the store itself writes."""
    return {name: value for name, value in protocol.items() if name not in OF_STORE}


def _order(protocol: Mapping[str, Any]) -> tuple[int, str]:
    """Order of what sweeps wrote."""
    written = without_store(protocol)
    return len(written), json.dumps(written, sort_keys=True)


def json_value(value: Any) -> Any:
    """Convert a value to JSON values."""
    if isinstance(value, dict):
        return {str(key): json_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(part) for part in value]
    return value.item() if hasattr(value, "item") else value


def check_joining(runs: Iterable[Run], names: Collection[str]) -> None:
    """Refuse runs of the future, and a GPU's name that differs from a stored one in capitals, spaces or dashes alone.

    Tables of GPUs with such names would be one file. `names` are the stored labels.

    Raises:
        ValueError: there is such a run or name.
    """
    for run in ahead(runs):
        raise ValueError(
            f"run {run.id} started {run.started[:40]}, after tomorrow by this machine's clock, and would be the newest "
            "until then"
        )
    stored = {slug(name): name for name in names}
    for name in (run.device.label for run in runs):
        if name not in names and slug(name) in stored:
            raise ValueError(f"it is of {name!r}, the store has {stored[slug(name)]!r}: give the same name by --name")
