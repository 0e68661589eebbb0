"""Error rates of `normtune check --device` between stale and fresh tables, counted on planted tables.

    python benchmarks/staleness.py [--device replay:nvidia-h200] [--repeats 30] [--first-seed N] [--kinds NAME,...]
        [--races 44] [--json FILE]
    python benchmarks/staleness.py --device cuda:0 [--table FILE] [--budget 60] [--repeats 1] [--json FILE] ...

A replay checks tables on shapes that they were not fitted on: tables of half of the recorded shapes, as the fields of a
chessboard have one colour, on the other half, both ways round, with as many leaves as cross-validation chooses and with
up to 40, whose claimed loss is that on their own half; and the shipped table on sweeps that it was not fitted to, where
it is only fresh. A check of a fresh table has all plain functions. A fault is planted in one of them at a time, in
turn, and only that one is checked, at the error rates of a whole table. `--races` is the most races of a function: 40
shapes and four second looks.

Tables of own shapes are fitted to 3 to 30 recorded shapes of one function, as of a user with few models, another table
for each check, and checked on the other recorded shapes between these. Those of the relatives of RMSNorm are only
fresh, because not every config was recorded there, so what a fault costs is not known.

On a GPU each check opens the device anew; a fresh one has `--budget` seconds for all functions of the table, a planted
one a third of that for the one function.

Kinds:

- `fresh`: the unchanged table.
- `swapped`: two of the six configs of the most shapes in each other's place.
- `leaf_15`, `leaf_50`: a leaf's config 15 and 50 % slower, in that leaf.
- `config_10`, `config_30`, `config_100`: a config this much slower at every launch, as by a driver.
- `up`, `down`: every threshold times 2, and divided by 2.
- `dtype`: the function of another dtype.
- `portable`, `liger`: the portable table, and the rule of Liger-Kernel, in its place.
- `fewer_sms`, `more_sms`, only on request: thresholds in rows scaled as for a GPU of 36 multiprocessors beside 132, and
  the other way round.

The recording tells whether a planted fault costs anything: the table is stale if the mean over all shapes is over twice
the claimed loss and over 3 %, or if a config cannot be launched. Ends with 1 if of the stale tables of a kind more than
one in 20 was called OK, or of the fresh checks more than one in 100 STALE; tables of own shapes are counted apart.
"""

import argparse
import json
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from normtune.benchmarks.planted import FRESH, KINDS, PlantedCourse
from normtune.kernels.problem import Shape
from normtune.kernels.tablefile import locate
from normtune.tuner.checking import subject
from normtune.tuner.checking.recheck import measure
from normtune.tuner.checking.shapes import population
from normtune.tuner.checking.subject import Checked, TableUnderTest
from normtune.tuner.checking.verdict import AMBIGUOUS, OK, OK_ERROR, STALE, STALE_ERROR, UNMEASURED, of_table
from normtune.tuner.device.bench import Bench
from normtune.tuner.device.open import open_device
from normtune.tuner.machine.processes import SPAWN
from normtune.tuner.plan.grids import MAX_ELEMENTS

if TYPE_CHECKING:  # a check on a GPU needs no pyarrow
    from normtune.benchmarks.replays import Replay

NOT_BY_DEFAULT = ("fewer_sms", "more_sms")
OF_TABLES = ("dtype",)  # need a table of several functions
DEFAULT_KINDS = tuple(kind for kind in KINDS if kind not in NOT_BY_DEFAULT)
_H200 = locate.SHIPPED / "nvidia_h200.py"
_HERE = Path(__file__).parent
_EVIDENCE = (
    _HERE / "results" / "nvidia_h200" / "used.parquet",
    _HERE / "results" / "nvidia_h200" / "second_sweep.parquet",
)
_LEAST_STALE = 29_559  # millionths of a logarithm: 3 %


class Part(NamedTuple):
    """The data of a replay's table, or the evidence of a check of the shipped one.

    Attributes:
        half: of the recording.
        leaves: the most leaves of a function; None for as many as by default.
        evidence: replaces a half of the recording.
        own: how the names of operators begin whose functions are fitted to a user's own shapes; empty for a half.
        is_relative: whether these operators have a recording of their own.
    """

    half: int = 0
    leaves: int | None = None
    evidence: Path | None = None
    own: str = ""
    is_relative: bool = False

    @property
    def name(self) -> str:
        if self.own:
            return f"own shapes, {self.own}"
        if self.evidence:
            return self.evidence.name
        return f"half {self.half}, {f'{self.leaves} leaves' if self.leaves else 'cross-validated'}"


_RELATIVES = "fused_add_rms_norm", "qk_norm", "rms_norm_gated", "rms_norm_quantize_fp8"
PARTS = (
    *(Part(half, leaves) for leaves in (None, 40) for half in (0, 1)),
    *(Part(evidence=path) for path in _EVIDENCE),
    *(Part(own=f"rms_norm_{way}") for way in ("forward", "backward")),
    *(Part(own=name, is_relative=True) for name in _RELATIVES),
)


class Case(NamedTuple):
    """A table, and the data of its check.

    Attributes:
        name: of both.
        table: in its fresh state.
        replay: the evidence; None for a GPU.
        is_unseen: whether a recorded shape of a function is for the check, because the fit did not see it; None for
            all shapes.
    """

    name: str
    table: TableUnderTest
    replay: "Replay | None"
    is_unseen: Callable[[Checked, Shape], bool] | None

    def shapes(self, one: Checked) -> list[Shape] | None:
        """The shapes on which a function can be checked; None for all."""
        if self.replay is None:
            return None
        timed = [shape for shape in self.replay.timed(one) if self.table.box.holds(shape)]
        return timed if self.is_unseen is None else [shape for shape in timed if self.is_unseen(one, shape)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="replay:nvidia-h200", help="cuda:N or replay:NAME")
    parser.add_argument(
        "--repeats",
        type=int,
        default=30,
        help="checks of each kind and table; on a replay three times as many fresh ones",
    )
    parser.add_argument("--first-seed", type=int, default=1000, help="the least of the seeds")
    parser.add_argument("--table", type=Path, default=_H200, help="the table that is checked on a GPU")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for a check of a fresh table on a GPU")
    parser.add_argument("--races", type=int, default=44, help="races a function on a replay, at most")
    parser.add_argument("--kinds", default=",".join(DEFAULT_KINDS), help="what is planted")
    parser.add_argument("--json", type=Path, help="write the counts here too")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"unknown kinds {', '.join(sorted(unknown))}: expected some of {', '.join(KINDS)}")
    begun = time.monotonic()
    if options.device.startswith("replay:"):
        name = options.device.partition(":")[2]
        work = partial(replay_of, name=name, kinds=kinds, options=options)
        with ProcessPoolExecutor(mp_context=SPAWN) as pool:
            checks = [check for part in pool.map(work, PARTS) for check in part]
    else:
        case = Case(options.table.name, subject.read(options.table), None, None)
        checks = []
        for kind in kinds:
            for seed in range(options.first_seed, options.first_seed + options.repeats):
                checks.append(on_gpu(case, kind, seed, options.device, options.budget))
                print(json.dumps(checks[-1]), flush=True)
    for group in counts(checks):
        print(told(group))
    wrong = {
        title: found
        for title, is_own in (("tables", False), ("own shapes", True))
        if (found := [check for check in checks if check["own"] is is_own])
    }
    for title, found in wrong.items():
        print("\n".join(f"{title}, {line}" for line in rates(found).lines()))
    if options.json:
        document = {"device": options.device, "races": options.races, "budget_seconds": options.budget}
        document |= {"seconds": round(time.monotonic() - begun, 1)}
        document |= {"rates": {title: rates(found)._asdict() for title, found in wrong.items()}}
        document |= {"counts": counts(checks)}
        if not options.device.startswith("replay"):
            document["checks"] = checks
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if not all(rates(found).are_kept() and not missed(found) for found in wrong.values()):
        raise SystemExit(1)


def replay_of(part: Part, name: str, kinds: Sequence[str], options: argparse.Namespace) -> list[dict[str, object]]:
    """All checks of one part: `repeats` of each kind, three times as many fresh ones; twice as many own tables."""
    from normtune.benchmarks.replays import Replay, half_table, own_table
    from normtune.results.exchange.parquet_csv import read_parquet
    from normtune.results.exchange.recording import load_recording

    seeds = range(options.first_seed, options.first_seed + 3 * options.repeats)
    if part.evidence:
        replay = Replay(part.evidence.name, read_parquet(part.evidence))
        case = Case(part.name, subject.read(_H200), replay, None)
        return [replayed(case, FRESH, seed, options.races) for seed in seeds if FRESH in kinds]
    recording = load_recording(f"{name}-{part.own.replace('_', '-')}" if part.is_relative else name)
    replay = Replay(name, recording)
    if not part.own:
        table = half_table(recording, part.half, part.leaves)
        case = Case(part.name, table, replay, lambda one, shape: replay.half(one, shape) != part.half)
        of_kinds = [(kind, seed) for kind in kinds for seed in (seeds if kind == FRESH else seeds[: options.repeats])]
        return [replayed(case, kind, seed, options.races) for kind, seed in of_kinds]
    checks = []
    for seed in seeds[: 2 * options.repeats]:
        table, own = own_table(recording, part.own, seed)
        case = Case(part.name, table, replay, lambda one, shape, own=own: shape not in own)  # type: ignore[misc]
        if case.shapes(table.functions[0]):
            checks += [
                replayed(case, kind, seed, options.races)
                for kind in kinds
                if kind == FRESH or not (part.is_relative or kind in OF_TABLES)
            ]
    return checks


def replayed(case: Case, kind: str, seed: int, most: int) -> dict[str, object]:
    """Check one table in this process and return the outcome; with at most `most` races per function."""
    if case.replay is None:
        raise ValueError(f"{case.name} has nothing to replay")
    plain = [place for place, one in enumerate(case.table.functions) if one.is_plain and case.shapes(one)]
    places = plain if kind == FRESH else [plain[seed % len(plain)]]
    bench: Any = case.replay.seeded(seed, most * len(places))
    asked = prepared(case, kind, seed, places, bench)
    measure(asked, bench, None)
    return outcome(case, kind, seed, asked, places)


def on_gpu(case: Case, kind: str, seed: int, device: str, budget: float) -> dict[str, object]:
    """Check one table on a GPU and return the outcome."""
    begun = time.monotonic()
    bench = open_device(device, case.table.regime)
    try:
        plain = [place for place, one in enumerate(case.table.functions) if one.is_plain]
        places = list(range(len(case.table.functions))) if kind == FRESH else [plain[seed % len(plain)]]
        asked = prepared(case, kind, seed, places, bench)
        limit = budget if kind == FRESH else budget / 3
        done = measure(asked, bench, limit - (time.monotonic() - begun))
    finally:
        bench.close()
    return outcome(case, kind, seed, asked, places) | {
        "seconds": round(time.monotonic() - begun, 1),
        "races": len(done.summary.measured),
        "unfinished": done.summary.left,
        "functions": [
            {
                "function": str(one.key),
                "verdict": found.verdict,
                "why": found.why,
                "shapes": len(found.findings),
                "mean_millionths": found.mean and round(found.mean.mean),
                "high_millionths": found.mean and round(found.mean.high(OK_ERROR)),
                "worst_millionths": max((finding.loss for finding in found.findings), default=None),
                "promised_millionths": found.promise.mean,
            }
            for one, found in asked.judged()
            if found.verdict != UNMEASURED
        ],
    }


def prepared(case: Case, kind: str, seed: int, places: Sequence[int], bench: Bench) -> PlantedCourse:
    """The session of a check with a planted fault; functions outside of the check have no shapes.

    Args:
        case: the table.
        kind: of the fault.
        seed: of the shapes, and of the fault.
        places: indices of the checked functions.
        bench: the device of the check.
    """
    functions = list(case.table.functions)
    plants = {}
    for place in places:
        one = functions[place]
        shapes = population(case.table.box, seed, MAX_ELEMENTS, case.shapes(one))
        plants[place] = KINDS[kind](one, shapes, case.table, random.Random(f"{seed} {kind}"))
        functions[place] = one._replace(tree=plants[place].tree)
    checked = {id(functions[place]) for place in places}
    shapes_of = [case.shapes(one) if id(one) in checked else () for one in functions]
    asked = PlantedCourse(functions, case.table.box, bench.target, seed, shapes_of)
    asked.plants = plants
    return asked


def outcome(case: Case, kind: str, seed: int, asked: PlantedCourse, places: Sequence[int]) -> dict[str, object]:
    judged = [asked.judged()[place] for place in places]
    verdict, _ = of_table(judged)
    is_own = case.name in {part.name for part in PARTS if part.own}
    check: dict[str, object] = {"case": case.name, "own": is_own, "kind": kind, "seed": seed, "verdict": verdict}
    if len(places) == 1:
        check["function"] = str(judged[0][0].key)
    if case.replay:
        lost = [
            case.replay.truth(one, asked.plants[place], case.shapes(one) or ())
            for place, (one, _) in zip(places, judged, strict=True)
        ]
        check["stale"] = any(
            not truth.is_legal or (truth.mean or 0) > max(_LEAST_STALE, 2 * found.promise.mean)
            for truth, (_, found) in zip(lost, judged, strict=True)
        )
        check["loses_millionths"] = max(truth.mean or 0 for truth in lost)
    return check


class Rates(NamedTuple):
    """Error rates of a check.

    Attributes:
        fresh: checks of fresh tables.
        fresh_stale, fresh_ambiguous: number of these with that verdict.
        stale: checks of functions with a fault that makes them stale.
        stale_ok, stale_ambiguous: number of these with that verdict.
    """

    fresh: int
    fresh_stale: int
    fresh_ambiguous: int
    stale: int
    stale_ok: int
    stale_ambiguous: int

    def are_kept(self) -> bool:
        """Whether the rates are within the documented ones."""
        return self.fresh_stale <= STALE_ERROR * self.fresh and self.stale_ok <= OK_ERROR * self.stale

    def lines(self) -> list[str]:
        return [
            f"fresh: {self.fresh} checks, {self.fresh_stale} STALE, {self.fresh_ambiguous} AMBIGUOUS",
            f"stale: {self.stale} checks, {self.stale_ok} OK, {self.stale_ambiguous} AMBIGUOUS",
        ]


def rates(checks: Sequence[dict[str, object]]) -> Rates:
    of = Counter(
        (check["kind"] == FRESH, check["verdict"]) for check in checks if check["kind"] == FRESH or check.get("stale")
    )
    counted = [[of[is_fresh, verdict] for verdict in (OK, STALE, AMBIGUOUS)] for is_fresh in (True, False)]
    (_, fresh_stale, fresh_ambiguous), (stale_ok, _, stale_ambiguous) = counted
    return Rates(sum(counted[0]), fresh_stale, fresh_ambiguous, sum(counted[1]), stale_ok, stale_ambiguous)


def missed(checks: Sequence[dict[str, object]]) -> list[str]:
    """The kinds of which more than one in 20 stale functions, or more than one of fewer, was called OK."""
    by_kind = defaultdict(list)
    for check in checks:
        by_kind[str(check["kind"])].append(check)
    found = {kind: rates(group) for kind, group in by_kind.items()}
    return [kind for kind, own in found.items() if own.stale_ok > math.ceil(OK_ERROR * own.stale)]


def counts(checks: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Verdicts by case, kind and whether the fault makes the function stale."""
    groups: dict[tuple[object, ...], list[dict[str, object]]] = defaultdict(list)
    for check in checks:
        groups[check["case"], check["own"], check["kind"], check.get("stale")].append(check)
    found: list[dict[str, object]] = []
    for (case, own, kind, stale), group in groups.items():
        verdicts = Counter(str(check["verdict"]) for check in group)
        found.append({"case": case, "own": own, "kind": kind, "stale": stale, "checks": len(group), **verdicts})
    return found


def told(group: dict[str, object]) -> str:
    stale = {True: "stale", False: "not stale", None: "unknown"}[group["stale"]]  # type: ignore[index]
    verdicts = ", ".join(f"{group[name]} {name}" for name in (OK, AMBIGUOUS, STALE) if name in group)
    return f"{group['case']}, {group['kind']}, {stale}: {verdicts}"


if __name__ == "__main__":
    main()
