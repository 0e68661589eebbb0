"""Stored times after a change of Triton: they hold for configs whose instructions did not change.

In: the coverage of a store, a target. Out: `Recompiled`: measurements of another Triton whose config compiles to the
same instructions here, those with others, and those without a digest to compare. Digests of Triton's own code do not
compare between its versions, so all binaries are compiled.
"""

from dataclasses import dataclass

from normtune.kernels.config import COPY, Config
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import AnyLaunch, operators
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.tuner.compiling.pool import machines_of
from normtune.tuner.device.identity import OTHER_CODE, named, triton_version
from normtune.tuner.plan.resume import Stored

ProblemConfig = tuple[Problem, Config]


@dataclass(frozen=True)
class Recompiled:
    """Measurements of the present kernels under another Triton.

    Attributes:
        triton: version here.
        same: measurements whose instructions are the same.
        changed: measurements whose instructions, launch or legality are others.
        unknown: measurements whose instructions were not stored; they count as changed.
    """

    triton: str = ""
    same: tuple[ProblemConfig, ...] = ()
    changed: tuple[ProblemConfig, ...] = ()
    unknown: tuple[ProblemConfig, ...] = ()

    def fingerprints(self, stored: Stored) -> dict[ProblemConfig, tuple[str, str]]:
        """(old, new) fingerprint of what is to be measured again."""
        before = {pair: stored[pair].fingerprint for pair in (*self.changed, *self.unknown)}
        return {pair: (old, old + OTHER_CODE) for pair, old in before.items()}

    def applied(self, stored: Stored) -> Stored:
        """The stored coverage, with these fingerprints."""
        new = {pair: stored[pair]._replace(fingerprint=new) for pair, (_, new) in self.fingerprints(stored).items()}
        return {**stored, **new}

    def lines(self) -> list[str]:
        """The comparison as text; empty if nothing was compiled by another Triton."""
        count = len(self.same) + len(self.changed) + len(self.unknown)
        if not count:
            return []
        line = f"Triton {self.triton} compiles {len(self.same)} of {count} stored measurements to the same instructions"
        lines = [line]
        if self.changed:
            lines.append(f"to others {len(self.changed)}, to be measured again: {named(self.changed)}")
        if self.unknown:
            lines.append(f"{len(self.unknown)} were stored without a digest of their instructions: measured again")
        return lines


def recompiled(stored: Stored, target: Target) -> Recompiled:
    """Compile what another Triton compiled, and compare.

    Raises:
        NormtuneError: no process that compiles can start.
    """
    known, present = operators(), triton_version()
    asked: dict[ProblemConfig, AnyLaunch] = {}
    changed: list[ProblemConfig] = []
    unknown: list[ProblemConfig] = []
    for (problem, config), coverage in stored.items():
        if config == COPY or problem.operator not in known or coverage.triton in ("", present) or not present:
            continue
        if coverage.fingerprint != fingerprint(known[problem.operator]):
            continue  # stale already
        launch = known[problem.operator].launch_of(config, problem, target)
        if launch is None:
            changed.append((problem, config))
        elif coverage.code is None or not coverage.code.machine:
            unknown.append((problem, config))
        else:
            asked[problem, config] = launch
    machines = machines_of([(problem, launch) for (problem, _), launch in asked.items()], target.name)
    same: list[ProblemConfig] = []
    for pair, launch in asked.items():
        code = stored[pair].code
        is_same = code is not None and machines.get((pair[0], launch)) == code.machine
        (same if is_same else changed).append(pair)
    return Recompiled(present, tuple(same), tuple(changed), tuple(unknown))
