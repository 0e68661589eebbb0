"""Stored measurements, compared with the code that the present kernels launch.

In: the coverage of a store, a target. Out: `Comparison`: measurements of the present code, those of other code, and
undecided ones. Triton runs only for measurements with another fingerprint, launch or version of Triton.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from normtune.kernels.call import AnyLaunch
from normtune.kernels.config import COPY, Config
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import OperatorSpec, find, operator
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.results.records import Coverage, launch_digest
from normtune.tuner.compiling.pool import UNDIGESTED, codes_of
from normtune.tuner.plan.binaries import jobs_of
from normtune.tuner.plan.resume import Stored
from normtune.tuner.staleness.code import triton_version

# Suffix of the fingerprint of measurements whose code differs from the present code, although the sources are equal.
OTHER_CODE = " (other code)"
_NAMED = 5
Pair = tuple[Problem, Config]


class Comparison(NamedTuple):
    """Result for stored measurements whose sources, launch or version of Triton changed.

    Attributes:
        same: measurements with unchanged code.
        changed: measurements whose code, launch or legality changed.
        undecided: number of measurements whose code cannot be compared, by reason; their fingerprint decides.
        fingerprints: (old, new) fingerprint of measurements that have to be stored with another one.
        lines: the result as text; empty if there is nothing to report.
    """

    same: tuple[Pair, ...]
    changed: tuple[Pair, ...]
    undecided: Counter[str]
    fingerprints: dict[Pair, tuple[str, str]]
    lines: tuple[str, ...]

    def applied(self, stored: Stored) -> Stored:
        """The stored coverage with the new fingerprints."""
        new = {pair: stored[pair]._replace(fingerprint=present) for pair, (_, present) in self.fingerprints.items()}
        return {**stored, **new}


def compare(stored: Stored, target: Target, most_binaries: int | None = None) -> Comparison:
    """Compare the measured code with the code that the present sources launch.

    Args:
        stored: coverage of a store.
        target: of the launches.
        most_binaries: nothing is compiled if more binaries are needed; None for no limit.

    Raises:
        NormtuneError: no process that compiles can start.
    """
    same: list[Pair] = []
    changed: list[Pair] = []
    undecided: Counter[str] = Counter()
    launch_of: dict[Pair, AnyLaunch] = {}
    for pair, coverage, spec in _of_known_operators(stored):
        launch = spec.launch_of(pair[1], pair[0], target)
        has_same_sources = coverage.fingerprint == fingerprint(spec)
        if has_same_sources and (
            coverage.code is None or (launch is not None and launch_digest(launch) == coverage.code.launch)
        ):
            continue
        if reason := _undecidable(coverage):
            undecided[reason] += not has_same_sources
        elif launch is None:
            changed.append(pair)
        else:
            launch_of[pair] = launch
    launches = [(problem, launch) for (problem, _), launch in launch_of.items()]
    if most_binaries is not None and (count := len(jobs_of(launches))) > most_binaries:
        undecided[f"they are of {count} binaries"] += len(launch_of)
        launch_of, launches = {}, []
    codes = codes_of(launches, target.name)
    for pair, launch in launch_of.items():
        timed, present = stored[pair].code, codes.get((pair[0], launch))
        if present and not present.code:
            undecided[UNDIGESTED] += stored[pair].fingerprint != fingerprint(operator(pair[0].operator))
        else:
            (same if timed and present and present.code == timed.code else changed).append(pair)
    lines = []
    if same:
        lines.append(f"the kernels' sources changed, the compiled code of {_counted(len(same))} did not: kept")
    if changed:
        lines.append(f"the compiled code of {_counted(len(changed))} changed: {_named(changed)}")
    for reason, count in sorted((+undecided).items()):
        lines.append(f"the kernels' sources changed, {_counted(count)} count as stale by them: {reason}")
    return Comparison(tuple(same), tuple(changed), +undecided, _fingerprints(stored, same, changed), tuple(lines))


def compare_instructions(stored: Stored, target: Target) -> Comparison:
    """Compare the machine code of measurements of the present kernels by another Triton with that of this Triton.

    Digests of Triton's intermediate code cannot be compared between versions, so all binaries are compiled.
    Measurements without a digest of their machine code count as changed.

    Raises:
        NormtuneError: no process that compiles can start.
    """
    triton = triton_version()
    launch_of: dict[Pair, AnyLaunch] = {}
    changed: list[Pair] = []
    unknown: list[Pair] = []
    for pair, coverage, spec in _of_known_operators(stored):
        if not triton or coverage.triton in ("", triton) or coverage.fingerprint != fingerprint(spec):
            continue
        launch = spec.launch_of(pair[1], pair[0], target)
        if launch is None:
            changed.append(pair)
        elif coverage.code is None or not coverage.code.machine:
            unknown.append(pair)
        else:
            launch_of[pair] = launch
    codes = codes_of([(problem, launch) for (problem, _), launch in launch_of.items()], target.name, is_compiled=True)
    same: list[Pair] = []
    for pair, launch in launch_of.items():
        timed, present = stored[pair].code, codes.get((pair[0], launch))
        (same if timed and present and present.machine == timed.machine else changed).append(pair)
    lines = []
    if count := len(same) + len(changed) + len(unknown):
        lines.append(f"Triton {triton} compiles {len(same)} of {count} stored measurements to the same instructions")
    if changed:
        lines.append(f"{len(changed)} to other instructions, to be measured again: {_named(changed)}")
    if unknown:
        lines.append(f"{len(unknown)} without a stored digest of their instructions are measured again")
    stale = (*changed, *unknown)
    return Comparison(tuple(same), stale, Counter(), _fingerprints(stored, (), stale), tuple(lines))


def is_other_code(stored: Stored, problems: Collection[Problem]) -> bool:
    """Whether times of these problems are of other code than the present one, although the sources are equal."""
    other = {name: fingerprint(operator(name)) + OTHER_CODE for name in {problem.operator for problem in problems}}
    problem_set = set(problems)
    return any(state.fingerprint == other[pair[0].operator] for pair, state in stored.items() if pair[0] in problem_set)


def _of_known_operators(stored: Stored) -> Iterator[tuple[Pair, Coverage, OperatorSpec]]:
    specs = {name: find(name) for name in {problem.operator for problem, _ in stored}}
    for pair, coverage in stored.items():
        spec = specs[pair[0].operator]
        if pair[1] != COPY and spec:
            yield pair, coverage, spec


def _undecidable(coverage: Coverage) -> str:
    """Why the code of a measurement cannot be compared with the present code; empty if it can."""
    if coverage.code is None or not coverage.code.code:
        return "they were stored without a digest of their code"
    present = triton_version()
    if not present:
        return "triton, which compiles the kernels, is not installed"
    if coverage.triton != present:
        return f"they were compiled by Triton {coverage.triton}, here is {present}"
    return ""


def _fingerprints(stored: Stored, same: Iterable[Pair], changed: Iterable[Pair]) -> dict[Pair, tuple[str, str]]:
    pairs = {}
    for problem, config in same:
        new = fingerprint(operator(problem.operator))
        for pair in ((problem, config), (problem, COPY)):
            if pair in stored and stored[pair].fingerprint != new:
                pairs[pair] = stored[pair].fingerprint, new
    for pair in changed:
        old = stored[pair].fingerprint
        if old == fingerprint(operator(pair[0].operator)):
            pairs[pair] = old, old + OTHER_CODE
    return pairs


def _named(pairs: Iterable[Pair]) -> str:
    """The configs of some pairs as text: the first `_NAMED`, and the number of the others."""
    configs = sorted({config for _, config in pairs})
    more = f" and {len(configs) - _NAMED} more configs" if len(configs) > _NAMED else ""
    return "; ".join(map(str, configs[:_NAMED])) + more


def _counted(count: int) -> str:
    return f"{count} stored measurement{'' if count == 1 else 's'}"
