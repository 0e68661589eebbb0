"""Kernels of the stored times: a timing belongs to the compiled code of its config.

In: the coverage of a store, a target. Out: `Comparison`: measurements with changed sources and the same code, those
with changed code, and undecided ones. Syntax hash and launch are the quick comparison, without Triton. Triton's
frontend runs only for measurements that differ in one of them.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from normtune.kernels.config import COPY, Config
from normtune.kernels.fingerprint import fingerprint, is_current
from normtune.kernels.operator import AnyLaunch, OperatorSpec, operator, operators
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.results.database.store import Coverage, Store
from normtune.results.records import Device, launch_digest
from normtune.results.regimes import COLD
from normtune.tuner.compiling.pool import UNDIGESTED, codes_of
from normtune.tuner.plan.binaries import jobs_of
from normtune.tuner.plan.resume import Stored

# Suffix of the fingerprint of measurements with other code although their sources, as far as hashed, are the same.
OTHER_CODE = " (other code)"
_NAMED = 5


@dataclass(frozen=True)
class Comparison:
    """Stored measurements whose sources or launch changed.

    Attributes:
        same: measurements whose compiled code did not change.
        changed: measurements whose compiled code, launch or legality changed.
        undecided: number of others, by the reason why their code cannot be compared; the syntax hash decides these.
        fingerprints: (old, new) fingerprint of measurements stored under the wrong one.
    """

    same: tuple[tuple[Problem, Config], ...] = ()
    changed: tuple[tuple[Problem, Config], ...] = ()
    undecided: Counter[str] = field(default_factory=Counter)
    fingerprints: dict[tuple[Problem, Config], tuple[str, str]] = field(default_factory=dict)

    def applied(self, stored: Stored) -> Stored:
        """The stored coverage, with the fingerprints of the kernels that it belongs to."""
        new = {pair: stored[pair]._replace(fingerprint=present) for pair, (_, present) in self.fingerprints.items()}
        return {**stored, **new}

    def lines(self) -> list[str]:
        """The comparison as text; empty if no source changed."""
        lines = []
        if self.same:
            lines.append(f"the kernels' sources changed, the compiled code of {_counted(len(self.same))} did not: kept")
        if self.changed:
            lines.append(f"the compiled code of {_counted(len(self.changed))} changed: {named(self.changed)}")
        for reason, count in sorted(self.undecided.items()):
            lines.append(f"the kernels' sources changed, {_counted(count)} count as stale by them: {reason}")
        return lines


def triton_version() -> str:
    """Version of the installed Triton; empty without one."""
    try:
        from triton import __version__
    except ImportError:
        return ""
    return str(__version__)


def compare(stored: Stored, target: Target, most_binaries: int | None = None) -> Comparison:
    """Compare the measured code with the code that the present sources launch.

    Args:
        stored: coverage of a store.
        target: of the launches.
        most_binaries: compile nothing if more would have to be; None for no limit.

    Raises:
        NormtuneError: no process that compiles can start.
    """
    known = operators()
    same: list[tuple[Problem, Config]] = []
    changed: list[tuple[Problem, Config]] = []
    undecided: Counter[str] = Counter()
    asked: dict[tuple[Problem, Config], AnyLaunch] = {}
    for (problem, config), coverage in stored.items():
        if config == COPY or problem.operator not in known:
            continue
        spec = known[problem.operator]
        launch = spec.launch_of(config, problem, target)
        if _is_same_at_first_look(coverage, spec, launch):
            continue
        if coverage.fingerprint != fingerprint(spec) and is_current(spec, coverage.fingerprint):
            same.append((problem, config))
        elif reason := _undecidable(coverage):
            undecided[reason] += coverage.fingerprint != fingerprint(spec)
        elif launch is None:
            changed.append((problem, config))
        else:
            asked[problem, config] = launch
    pairs = [(problem, launch) for (problem, _), launch in asked.items()]
    if most_binaries is not None and (count := len(jobs_of(pairs))) > most_binaries:
        undecided[f"they are of {count} binaries"] += len(asked)
        asked, pairs = {}, []
    codes = codes_of(pairs, target.name)
    for pair, launch in asked.items():
        timed, code = stored[pair].code, codes.get((pair[0], launch))
        if code == b"":
            undecided[UNDIGESTED] += stored[pair].fingerprint != fingerprint(known[pair[0].operator])
            continue
        (same if timed and code == timed.code else changed).append(pair)
    return Comparison(tuple(same), tuple(changed), +undecided, _fingerprints(stored, same, changed))


def renew(store: Store, device: Device, target: Target, regime: str = COLD, stored: Stored | None = None) -> Comparison:
    """Compare all that a store holds of devices of a kind, and correct the stored fingerprints.

    Args:
        store: of the measurements.
        device: of the kind.
        target: of the launches.
        regime: of the times.
        stored: coverage of the store; None to load it.

    Raises:
        NormtuneError: the store failed, or no process that compiles can start.
    """
    comparison = compare(store.coverage(device, regime) if stored is None else stored, target)
    if comparison.fingerprints:
        store.set_fingerprints(device, comparison.fingerprints)
    return comparison


def is_other_code(stored: Stored, problems: Collection[Problem]) -> bool:
    """Whether times of these problems are of other code, although the sources are the same as far as hashed."""
    other = {name: fingerprint(operator(name)) + OTHER_CODE for name in {problem.operator for problem in problems}}
    wanted = set(problems)
    return any(state.fingerprint == other[pair[0].operator] for pair, state in stored.items() if pair[0] in wanted)


def named(pairs: Iterable[tuple[Problem, Config]]) -> str:
    """The configs of some pairs: the first `_NAMED` by name, the number of the rest."""
    configs = sorted({config for _, config in pairs})
    more = f" and {len(configs) - _NAMED} more configs" if len(configs) > _NAMED else ""
    return "; ".join(map(str, configs[:_NAMED])) + more


def _is_same_at_first_look(coverage: Coverage, spec: OperatorSpec, launch: AnyLaunch | None) -> bool:
    if coverage.fingerprint != fingerprint(spec):
        return False
    return coverage.code is None or (launch is not None and launch_digest(launch) == coverage.code.launch)


def _undecidable(coverage: Coverage) -> str:
    """Reason why the code of a measurement cannot be compared with today's; empty if it can."""
    if coverage.code is None or not coverage.code.code:
        return "they were stored without a digest of their code"
    present = triton_version()
    if not present:
        return "there is no triton here to compile what they launch"
    if coverage.triton != present:
        return f"they were compiled by Triton {coverage.triton}, here is {present}"
    return ""


def _fingerprints(
    stored: Stored, same: Iterable[tuple[Problem, Config]], changed: Iterable[tuple[Problem, Config]]
) -> dict[tuple[Problem, Config], tuple[str, str]]:
    pairs = {}
    for problem, config in same:
        new = fingerprint(operators()[problem.operator])
        for pair in ((problem, config), (problem, COPY)):
            if pair in stored and stored[pair].fingerprint != new:
                pairs[pair] = stored[pair].fingerprint, new
    for pair in changed:
        old = stored[pair].fingerprint
        if old == fingerprint(operators()[pair[0].operator]):
            pairs[pair] = old, old + OTHER_CODE
    return pairs


def _counted(count: int) -> str:
    return f"{count} stored measurement{'' if count == 1 else 's'}"
