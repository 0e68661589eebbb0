"""Laws, timing matrices and texts of tables that tests make up."""

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np

from normtune.heuristics.fitting.case import TableEntry
from normtune.heuristics.fitting.figures import Figures, Loss
from normtune.heuristics.regret.best_times import BestTimes
from normtune.heuristics.regret.matrix import MISSING, Rounds, TimingMatrix
from normtune.heuristics.writing.entries import table_text
from normtune.heuristics.writing.regenerate import Command, command_of
from normtune.kernels.box import Box, Interval
from normtune.kernels.key import Key
from normtune.kernels.problem import MAX_ROWS, axes_of
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile.facts import decoded, encoded
from normtune.kernels.tablefile.header import body_hash, parse
from normtune.results.evidence import Evidence

SHAPES = [(rows, hidden) for rows in (1, 64, 1024, 4096, 65536) for hidden in (64, 128, 256, 512, 1024, 2048, 4096)]


def eight(config, problem):
    """A law by which rows of 8 warps are best everywhere, which `penalty` likes nowhere."""
    return 0.0 if config == RMSNormConfig("row", 1, 8) else 0.1


def rounds_of(labels, logs):
    """Rounds of logs (problems, configs, N); configs with equal logs on a problem have equal launches."""
    rows, places = [np.full(logs.shape[2], MISSING, np.int32)], np.zeros(logs.shape[:2], np.int32)
    for problem, of_problem in enumerate(logs.astype(np.int32)):
        known = {rows[0].tobytes(): 0}
        for config, own in enumerate(of_problem):
            if own.tobytes() not in known:
                known[own.tobytes()] = len(rows)
                rows.append(own)
            places[problem, config] = known[own.tobytes()]
    return Rounds(labels, places, np.stack(rows))


def matrix_of(regret, problems, configs, usable=None, weights=None, **more):
    """A matrix of `toy` in bfloat16; all is usable unless told."""
    regret = np.array(regret, np.int64)
    usable = np.ones(regret.shape, np.bool_) if usable is None else np.array(usable)
    weights = None if weights is None else np.array(weights, np.int64)
    key = Key.of("toy", "", more.pop("dtype", "bfloat16"))
    return TimingMatrix(key, tuple(problems), tuple(configs), regret, usable, weights=weights, **more)


def as_measured(evidence):
    """Evidence of another program as if normtune had measured it."""
    return Evidence(evidence.frame, tuple(run._replace(protocol={}) for run in evidence.runs))


# Options of `normtune fit` whose value is no text, or whose name differs in Python.
_OPTIONS = {
    "--leaves": ("leaves", int),
    "--max-configs": ("max_configs", int),
    "--max-slowdown": ("max_slowdown", float),
    "--tie": ("tie_percent", float),
}


# A word that a command line has as $'...', which `shlex` does not know.
_ESCAPED = re.compile(r"(?<!\S)\$'((?:[^'\\]|\\x[0-9a-f]{2})*)'(?!\S)")


def _unescaped(word):
    plain = re.sub(r"\\x(..)", lambda byte: chr(int(byte[1], 16)), word[1])
    return shlex.quote(os.fsdecode(plain.encode("latin-1")))


def words_of(line):
    """The words of a line of a shell."""
    return shlex.split(_ESCAPED.sub(_unescaped, line))


def as_command(text):
    """A fit in one line, with options of the command and of Python, as the facts of a header have it."""
    options: dict[str, Any] = {}
    command: dict[str, Any] = {}
    for word, value in pairwise([*words_of(text), ""]):
        name = word.removeprefix("--").replace("-", "_")
        if word in ("--load", "--operator"):
            of, name = (command, "load") if word == "--load" else (options, "operators")
            of.setdefault(name, []).append(value)
        elif word in ("--store", "--out", "--evidence"):
            command[name] = value
        elif word in ("--portable", "--batch-invariant"):
            options[name] = True
        elif word.startswith("--"):
            name, kind = _OPTIONS.get(word, (name, str))
            options[name] = kind(value)
    return decoded(Command, {**command, "options": options}, "command")


def decided(leaves, **more):
    """What an earlier fit decided for a function of so many leaves."""
    return TableEntry(Key.of("", "", ""), Figures(leaves, leaves, 0, Loss(0, 0, 0, 0, 0), 0, **more))


def options_of(text):
    """The options in such a line."""
    return as_command(text).fit_options()


def module_of(text):
    """The names of a table's module, which runs."""
    names = {"__name__": "table"}
    exec(compile(text, "table", "exec"), names)
    return names


def regenerate(header):
    """The command of a header as a line for a shell."""
    return command_of(header).line()


def rehashed(text, **facts):
    """The text of a table with the hash of its own body and other facts, as if it had been written so."""
    header, body = parse(text, "table")
    changed = {"command": encoded(command_of(header))} | facts | {"body": body_hash(body)}
    return table_text(header._replace(**changed), body)


def everywhere(functions):
    """Measured sizes of functions: all that there are."""
    return {
        function.key: Box(Interval(axis, 1, MAX_ROWS) for axis in axes_of(function.key.family))
        for function in functions
    }


def partitions(box, count):
    """Every way to cut a `Box` of bins into `count` boxes, one cut after another."""
    if count == 1:
        yield [box]
    for axis, least, most in box:
        for first, fewer in product(range(least + 1, most + 1), range(1, count)):
            low, high = box.cut(axis, first)
            for left in partitions(low, fewer):
                for right in partitions(high, count - fewer):
                    yield left + right


def timed(matrix: TimingMatrix, best: Sequence[int], failed: Sequence[tuple[int, int]] = ()) -> TimingMatrix:
    """The matrix with the best time of each problem, ns, and the places of failures."""
    broken = np.zeros(matrix.usable.shape, np.bool_)
    for place in failed:
        broken[place] = True
    return replace(matrix, times=BestTimes(np.array(best, np.int64), broken, {}))
