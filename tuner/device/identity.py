"""Of which kernels the stored times are: a timing belongs to the compiled code of its config.

In: the coverage of a store, a target. Out: `Comparison`: whose sources changed and whose code did not, whose code did,
and what cannot be decided. The syntax hash and the launch are the quick look, which needs no Triton; only where one of
them differs does Triton's frontend run.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from normtune.kernels.config import COPY, Config
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import AnyLaunch, OperatorSpec, operators
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.results.database.store import Coverage, Store
from normtune.results.records import Device, launch_digest
from normtune.results.regimes import COLD
from normtune.tuner.device.compiling import codes_of
from normtune.tuner.plan.binaries import jobs_of
from normtune.tuner.plan.resume import Stored

# Ends the fingerprint of what was timed with other code although its sources, as far as they are hashed, are the same.
OTHER_CODE = " (other code)"
_NAMED = 5


@dataclass(frozen=True)
class Comparison:
    """Stored measurements whose sources or launch changed.

    Attributes:
        same: whose compiled code did not change.
        changed: whose compiled code, launch or legality did.
        undecided: how many others there are, by the reason why their code cannot be compared: the syntax hash decides.
        fingerprints: (old, new) fingerprint of those whose stored one does not say which they are.
    """

    same: tuple[tuple[Problem, Config], ...] = ()
    changed: tuple[tuple[Problem, Config], ...] = ()
    undecided: Counter[str] = field(default_factory=Counter)
    fingerprints: dict[tuple[Problem, Config], tuple[str, str]] = field(default_factory=dict)

    def applied(self, stored: Stored) -> Stored:
        """What is stored, with the fingerprints of what it belongs to."""
        new = {pair: stored[pair]._replace(fingerprint=said) for pair, (_, said) in self.fingerprints.items()}
        return {**stored, **new}

    def lines(self) -> list[str]:
        """What it says, in words; empty where no source changed."""
        lines = []
        if self.same:
            lines.append(f"the kernels' sources changed, the compiled code of {_counted(len(self.same))} did not: kept")
        if self.changed:
            lines.append(f"the compiled code of {_counted(len(self.changed))} changed: {named(self.changed)}")
        for reason, count in sorted(self.undecided.items()):
            lines.append(f"the kernels' sources changed, {_counted(count)} count as stale by them: {reason}")
        return lines


def triton_version() -> str:
    """The version of Triton that compiles here; empty where there is none."""
    try:
        from triton import __version__
    except ImportError:
        return ""
    return str(__version__)


def compare(stored: Stored, target: Target, most_binaries: int | None = None) -> Comparison:
    """Compare what was timed with what the present sources launch.

    Args:
        stored: what was timed.
        target: for which it is launched.
        most_binaries: where more would have to be looked at, nothing is compared; None for no limit.

    Raises:
        NormtuneError: no process that compiles can start.
    """
    known = operators()
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
        if why := _undecidable(coverage):
            undecided[why] += coverage.fingerprint != fingerprint(spec)
        elif launch is None:
            changed.append((problem, config))
        else:
            asked[problem, config] = launch
    pairs = [(problem, launch) for (problem, _), launch in asked.items()]
    if most_binaries is not None and (count := len(jobs_of(pairs))) > most_binaries:
        return Comparison(undecided=undecided + Counter({f"they are of {count} binaries": len(asked)}))
    codes = codes_of(pairs, target.name)
    same: list[tuple[Problem, Config]] = []
    for pair, launch in asked.items():
        timed = stored[pair].code
        (same if timed and codes.get((pair[0], launch)) == timed.code else changed).append(pair)
    return Comparison(tuple(same), tuple(changed), +undecided, _fingerprints(stored, same, changed))


def renew(store: Store, device: Device, target: Target, regime: str = COLD) -> Comparison:
    """Compare all that a store holds of devices of a kind, and let it say to which kernels that belongs.

    Raises:
        NormtuneError: the store failed, or no process that compiles can start.
    """
    found = compare(store.coverage(device, regime), target)
    if found.fingerprints:
        store.set_fingerprints(device, found.fingerprints)
    return found


def named(pairs: Iterable[tuple[Problem, Config]]) -> str:
    """The configs of some pairs, the first of them by name."""
    configs = sorted({config for _, config in pairs})
    more = f" and {len(configs) - _NAMED} more configs" if len(configs) > _NAMED else ""
    return "; ".join(map(str, configs[:_NAMED])) + more


def _is_same_at_first_look(coverage: Coverage, spec: OperatorSpec, launch: AnyLaunch | None) -> bool:
    if coverage.fingerprint != fingerprint(spec):
        return False
    return coverage.code is None or (launch is not None and launch_digest(launch) == coverage.code.launch)


def _undecidable(coverage: Coverage) -> str:
    """Why the code of a measurement cannot be compared with today's; empty where it can."""
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
    found = {}
    for problem, config in same:
        new = fingerprint(operators()[problem.operator])
        for pair in ((problem, config), (problem, COPY)):
            if pair in stored and stored[pair].fingerprint != new:
                found[pair] = stored[pair].fingerprint, new
    for pair in changed:
        old = stored[pair].fingerprint
        if old == fingerprint(operators()[pair[0].operator]):
            found[pair] = old, old + OTHER_CODE
    return found


def _counted(count: int) -> str:
    return f"{count} stored measurement{'' if count == 1 else 's'}"
