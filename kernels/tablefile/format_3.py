"""Reads headers of tables in formats 1 to 3, whose facts are English sentences.

In: the lines of such a header. Out: `Header`; facts that the sentences lack have their default. This module is frozen:
normtune no longer writes these formats, and reads its own sentences nowhere else. A header may come from anybody, so
the time of each regular expression is linear in the line: numbers have a maximal length, and a figure is found by its
name.
"""

import os
import re
import shlex
from itertools import pairwise
from typing import Any

from normtune.kernels.tablefile.header import ANY_GPU, Data, Gpu, Header, log_ppm_of

_DEVICE = re.compile(r"(.+), (\S+), ([1-9][0-9]{0,8}) SMs(?:, ([0-9]{1,6}) MB of L2 cache)?")
_MEASURED = re.compile(r"rows ([0-9]{1,40}) to ([0-9]{1,40}), hidden ([0-9]{1,40}) to ([0-9]{1,40})")
_COUNT = re.compile(r"(?<![0-9])([0-9]{1,40}) measurements(?:, ([0-9-]{1,10}))?(?:, ([a-z]{1,9})\))?")
_PERCENT = r"(-[0-9]{1,2}(?:\.[0-9]{1,9})?|[0-9]{1,9}(?:\.[0-9]{1,9})?) %"
_SHARED = re.compile(r"(\S+) (\S+): as (\S+) (\S+), (.*)")
_REGRET = re.compile(r"(\S+) (\S+): ([0-9]{1,9}) lea(?:f|ves)(?: \(of ([0-9]{1,9})(?:, ([0-9]{1,9}) kept)?\))?,(.*)")
_CONFIGS = re.compile(r"(?<![0-9])([0-9]{1,9}) configs?,")
_SLOWER = re.compile(rf"(?<![0-9])([0-9]{{1,9}}) shapes? up to {_PERCENT} slower")
_UNCOMPARED = re.compile(r"(?<![0-9])([0-9]{1,9}) shapes? not compared")
_COST = re.compile(rf"\bcosts {_PERCENT} \(worst {_PERCENT}\) beside ")
_SHARING = re.compile(rf"\bsharing costs {_PERCENT}")
_NOWHERE_SLOWER = " nowhere slower than what was in use"
# Names of figures in a sentence; "mean" is the part of "plain mean" that nothing stands before.
_FIGURES = {
    "cross_validated": re.compile(rf"(?<!plain )\bcross-validated {_PERCENT}"),
    "plain_validated": re.compile(rf"\bplain cross-validated {_PERCENT}"),
    "extrapolated": re.compile(rf"\bextrapolated {_PERCENT}"),
    "gap": re.compile(rf", within {_PERCENT} of the best"),
}
_LOSSES = {
    "mean": re.compile(rf"(?<!plain )\bmean {_PERCENT}"),
    "plain": re.compile(rf"\bplain mean {_PERCENT}"),
    "worst": re.compile(rf"\bworst {_PERCENT}"),
}
# Options of `normtune fit` in a command, by their names in Python, with the type of a value; None for a flag.
_OPTIONS: dict[str, tuple[str, type | None]] = {
    "--leaves": ("leaves", int),
    "--operator": ("operators", tuple),
    "--objective": ("objective", str),
    "--max-slowdown": ("max_slowdown", float),
    "--tie": ("tie_percent", float),
    "--max-configs": ("max_configs", int),
    "--weights": ("weights", str),
    "--baseline": ("baseline", str),
    "--same-bits-as": ("same_bits_as", str),
    "--batch-invariant": ("batch_invariant", None),
    "--regime": ("regime", str),
}
_FILES = ("--store", "--recording", "--out", "--evidence")
_FLAGS = ("--install", "--all-devices")


def header(entries: list[tuple[str, str]]) -> Header:
    """The facts in lines of a name and a text each.

    Raises:
        KeyError: the line of this name is missing.
        ValueError: a line has another form, or a number too large.
    """
    of_name: dict[str, list[str]] = {}
    for name, text in entries:
        of_name.setdefault(name, []).append(text)
    device, software = of_name["Device"][0], of_name["Software"][0]
    measured = _MEASURED.search(of_name["Measured"][0])
    sizes = [int(size) for size in measured.groups()] if measured else []
    functions = [*map(_function, of_name["Regret"])]
    of_name["Regenerate"]
    return Header(
        device=None if device == ANY_GPU else _gpu(device),
        software=dict(part.rsplit(" ", 1) for part in software.split(", ") if " " in part),
        data=_data(of_name["Data"][0]),
        kernels=dict((name, value) for name, value in (line.split(" ", 1) for line in of_name["Kernels"])),
        measured={"rows": (sizes[0], sizes[1]), "hidden": (sizes[2], sizes[3])} if measured else {},
        command={},
        functions=tuple(function for function in functions if function),
        body=of_name["Body"][0],
        fitted=tuple(map(_gpu, of_name.get("Fitted", ()))),
        searched=tuple(of_name.get("Searched", ())),
        replaced="Replaced" in of_name,
        format=int(of_name["Format"][0]),
        lines=tuple(entry for entry in entries if entry[0] not in ("Body", "Format")),
    )


def _gpu(text: str) -> Gpu:
    match = _DEVICE.fullmatch(text)
    if match is None:
        raise ValueError(f"Device is {text!r}, expected a name, a target and SMs")
    return Gpu(match[1], match[2], int(match[3]), int(match[4] or 0) << 20)


def _data(text: str) -> Data:
    match = _COUNT.search(text)
    if match is None:
        raise ValueError(f"Data is {text!r}, expected the digest of measurements, and their number")
    return Data(text.split()[0], int(match[1]), match[2] or "", match[3] or "")


def _function(line: str) -> dict[str, Any]:
    """The figures in a line, as in `heuristics.writing.entries`; empty if the line has another form."""
    if match := _SHARED.fullmatch(line):
        key, dtype, *donor, text = match.groups()
        cost = _SHARING.search(text)
        return {
            **{"key": key, "dtype": dtype, "donor": donor, "cost": log_ppm_of(cost[1]) if cost else 0},
            **{"figures": {"leaves": 0, "asked": 0, "configs": 0, "gap": 0, "loss": _loss(text)}},
        }
    if not (match := _REGRET.fullmatch(line)):
        return {}
    key, dtype, leaves, asked, kept, text = match.groups()
    configs, slow, unknown, beside = (one.search(text) for one in (_CONFIGS, _SLOWER, _UNCOMPARED, _COST))
    figures: dict[str, Any] = {"leaves": int(leaves), "asked": int(asked or leaves), "gap": 0}
    figures |= {"configs": int(configs[1]) if configs else 0, "loss": _loss(text)}
    figures |= {"kept": int(kept or 0), "strict": _NOWHERE_SLOWER in text}
    figures |= {name: log_ppm_of(found[1]) for name, one in _FIGURES.items() if (found := one.search(text))}
    figures["gap"] = max(0, figures["gap"] - 1)  # it was rounded up
    figures |= {"slower": {"problems": int(slow[1]), "most": log_ppm_of(slow[2])}} if slow else {}
    figures |= {"uncompared": int(unknown[1])} if unknown else {}
    entry = {"key": key, "dtype": dtype, "figures": figures}
    if beside:
        mean, worst = map(log_ppm_of, beside.groups())
        entry["beside"] = {"mean": mean, "worst": worst, "problems": 0, "bounded": 0}
    return entry


def _loss(text: str) -> dict[str, int]:
    found = {name: log_ppm_of(one[1]) for name, figure in _LOSSES.items() if (one := figure.search(text))}
    mean = found.get("mean", 0)
    return {"mean": mean, "plain": mean, "ninetieth": 0, "worst": 0, "problems": 0} | found


def command(text: str) -> dict[str, Any]:
    """The command in the line `Regenerate` as data, as headers of format 4 have it.

    Raises:
        ValueError: it cannot be parsed.
    """
    words = [_unescaped(word) if _is_escaped(word) else word for word in shlex.split(text)]
    options: dict[str, Any] = {}
    command: dict[str, Any] = {"options": options}
    for word, value in pairwise([*words, ""]):
        if not word.startswith("--"):
            continue
        if word in _FILES:
            command[word[2:]] = value
        elif word in _FLAGS:
            command[word[2:].replace("-", "_")] = True
        elif word == "--load":
            command.setdefault("load", []).append(value)
        else:
            name, kind = _OPTIONS.get(word, (word[2:].replace("-", "_"), None if value.startswith("--") else str))
            if kind is tuple:
                options.setdefault(name, []).append(value)
            else:
                options[name] = True if kind is None else _number(kind, value)
    return command


def _number(kind: type, text: str) -> Any:
    """A value of an option; an invalid number stays text, and a fit with these options refuses it."""
    try:
        return kind(text)
    except ValueError:
        return text


def _is_escaped(word: str) -> bool:
    """Whether a word was written as $'...', a form that shlex does not know."""
    return word.startswith("$") and "\\" in word


def _unescaped(word: str) -> str:
    content = os.fsencode(word.removeprefix("$"))
    return os.fsdecode(re.sub(rb"\\x([0-9a-f]{2})", lambda match: bytes.fromhex(match[1].decode()), content))
