"""Stored measurements, compared with the code that the present kernels launch.

In: the coverage of a store, a target. Out: `Comparison`: measurements of the present code, those of other code, and
undecided ones. Assembly is made only for measurements with another fingerprint, launch or version of Triton.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from normtune.kernels.call import AnyLaunch
from normtune.kernels.config import COPY, Config
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import OperatorSpec, find, operator
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.results.records import Coverage, launch_digest
from normtune.tuner.compiling.pool import codes_of
from normtune.tuner.plan.binaries import jobs_of
from normtune.tuner.plan.resume import Stored
from normtune.tuner.staleness.code import REFUSED, triton_version

# Why measurements of the present sources are stale, as `Coverage.why_stale` says it.
OTHER_CODE = "its compiled code changed"
# Why code cannot be compared.
_NO_DIGEST = "they were stored without a digest of their code"
_NO_TRITON = "triton, which compiles the kernels, is not installed"
UNDIGESTED = "this Triton gives no digest of their code"
_NAMED = 5
Pair = tuple[Problem, Config]


class Comparison(NamedTuple):
    """Result for stored measurements whose sources, launch or version of Triton changed.

    Attributes:
        same: measurements with unchanged code.
        changed: measurements whose code, launch or legality changed, or of another Triton without a digest.
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
        """The stored coverage with the new fingerprints, and with `why_stale`."""
        new = {pair: stored[pair]._replace(fingerprint=present) for pair, (_, present) in self.fingerprints.items()}
        stale = {pair: stored[pair]._replace(why_stale=OTHER_CODE) for pair in self.changed}
        return {**stored, **new, **stale}


def compare(
    stored: Stored, target: Target, most_binaries: int | None = None, across_tritons: bool = False
) -> Comparison:
    """Compare the measured code with the code that the present sources launch.

    Args:
        stored: coverage of a store.
        target: of the launches.
        most_binaries: nothing is compiled if more binaries are needed; None for no limit.
        across_tritons: whether to compare measurements of the present sources by another Triton, too.

    Raises:
        NormtuneError: no process that compiles can start.
    """
    launch_of: dict[Pair, AnyLaunch | None] = {}
    of_other_triton: set[Pair] = set()
    undigested: list[Pair] = []
    undecided: Counter[str] = Counter()
    for pair, coverage, spec in _of_known_operators(stored):
        launch = spec.launch_of(pair[1], pair[0], target)
        has_same_sources = coverage.fingerprint == fingerprint(spec)
        is_digested = coverage.code is not None and coverage.code.assembly != b""
        if has_same_sources and across_tritons and coverage.triton not in ("", triton_version() or coverage.triton):
            of_other_triton.add(pair)
        elif has_same_sources and _is_launched(coverage, launch):
            continue
        if is_digested and triton_version():
            launch_of[pair] = launch
        elif pair in of_other_triton:
            undigested.append(pair)
        else:
            undecided[_NO_TRITON if is_digested else _NO_DIGEST] += not has_same_sources
    jobs = jobs_of((problem, launch) for (problem, _), launch in launch_of.items() if launch)
    if most_binaries is not None and len(jobs) > most_binaries:
        undecided[f"they are of {len(jobs)} binaries"] += len(launch_of)
        launch_of = {}
    same: list[Pair] = []
    changed: list[Pair] = []
    for pair, assembly in assemblies_of(launch_of, target).items():
        timed = stored[pair].code
        if timed and assembly:
            (same if assembly == timed.assembly else changed).append(pair)
        else:
            undecided[UNDIGESTED] += stored[pair].fingerprint != fingerprint(operator(pair[0].operator))
    lines = []
    if count := len({*same} - of_other_triton):
        lines.append(f"the kernels' sources changed, the compiled code of {_counted(count)} did not: kept")
    if of_other_triton:
        count, total = len(of_other_triton.intersection(same)), len(of_other_triton)
        lines.append(f"Triton {triton_version()} compiles {count} of {total} stored measurements to the same code")
    if changed:
        lines.append(f"the compiled code of {_counted(len(changed))} changed: {_named(changed)}")
    if undigested:
        lines.append(f"{len(undigested)} by another Triton without a digest of their code are measured again")
    for reason, count in sorted((+undecided).items()):
        lines.append(f"the kernels' sources changed, {_counted(count)} count as stale by them: {reason}")
    return Comparison(tuple(same), (*changed, *undigested), +undecided, _fingerprints(stored, same), tuple(lines))


def assemblies_of(launch_of: Mapping[Pair, AnyLaunch | None], target: Target) -> dict[Pair, bytes]:
    """Digests of the assembly of the launches, `REFUSED` without one; empty where `codes_of` has none.

    Raises:
        NormtuneError: no process that compiles can start.
    """
    codes = codes_of(((problem, launch) for (problem, _), launch in launch_of.items() if launch), target.name)
    return {pair: codes[pair[0], launch].assembly if launch else REFUSED for pair, launch in launch_of.items()}


def is_other_code(stored: Stored, problems: Collection[Problem]) -> bool:
    """Whether times of these problems are of other code than the present one, although the sources are equal."""
    problem_set = set(problems)
    return any(state.why_stale and problem in problem_set for (problem, _), state in stored.items())


def _is_launched(coverage: Coverage, launch: AnyLaunch | None) -> bool:
    """Whether the timed launch is the present one, as far as it is known."""
    if coverage.code is None:
        return True
    return launch is not None and launch_digest(launch) == coverage.code.launch


def _of_known_operators(stored: Stored) -> Iterator[tuple[Pair, Coverage, OperatorSpec]]:
    specs = {name: find(name) for name in {problem.operator for problem, _ in stored}}
    for pair, coverage in stored.items():
        spec = specs[pair[0].operator]
        if pair[1] != COPY and spec:
            yield pair, coverage, spec


def _fingerprints(stored: Stored, same: Iterable[Pair]) -> dict[Pair, tuple[str, str]]:
    pairs = {}
    for problem, config in same:
        new = fingerprint(operator(problem.operator))
        for pair in ((problem, config), (problem, COPY)):
            if pair in stored and stored[pair].fingerprint != new:
                pairs[pair] = stored[pair].fingerprint, new
    return pairs


def _named(pairs: Iterable[Pair]) -> str:
    """The configs of some pairs as text: the first `_NAMED`, and the number of the others."""
    configs = sorted({config for _, config in pairs})
    more = f" and {len(configs) - _NAMED} more configs" if len(configs) > _NAMED else ""
    return "; ".join(map(str, configs[:_NAMED])) + more


def _counted(count: int) -> str:
    return f"{count} stored measurement{'' if count == 1 else 's'}"
