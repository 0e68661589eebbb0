"""Every table from a fit, on every known target: a legal launch at every shape, and its binary."""

import random
from collections.abc import Iterable, Iterator
from functools import cache
from math import log

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from normtune.errors import NormtuneError
from normtune.heuristics.fitting.case import Case
from normtune.heuristics.fitting.function import fit_function
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.regret.legality import Legality, all_variants
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.kernels.call import AnyLaunch
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import IllegalConfigError, OperatorSpec, operator
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.header import Header
from normtune.kernels.tablefile.parse import trees
from normtune.kernels.tablefile.tree import Leaf, Split, Tree, choose, regions
from normtune.kernels.target import TARGETS, Target, target_for
from normtune.tests.heuristics.made_up import rounds_of
from normtune.tuner.compiling.pool import compile_all
from normtune.tuner.plan.binaries import compile_class, jobs_of
from normtune.tuner.plan.grids import GRIDS, shapes
from normtune.tuner.plan.plan import plan, problems

OWN = ("rms_norm_forward", "rms_norm_backward")
SIZES = st.one_of(st.integers(1, 65536), st.integers(1, 300), st.sampled_from([2**power for power in range(17)]))
ROWS = st.one_of(st.integers(1, MAX_ROWS), st.integers(1, 5000), st.sampled_from([1, 2, 4096, 4097, MAX_ROWS]))


@cache
def space(name: str, target: str, kind: str) -> tuple[Config, ...]:
    """The configs that a sweep of a few shapes tries anywhere."""
    spec = operator(name)
    found: set[Config] = set()
    for rows in (1, 64, 4096, 65536):
        for hidden in (32, 64, 500, 1024, 4096, 8192, 20000, 32768, 65536):
            found |= set(spec.space(kind, Problem.of(name, rows, hidden, "bfloat16"), TARGETS[target]))
    return tuple(sorted(found))


def random_matrix(
    draw: random.Random, spec: OperatorSpec, target: Target, dtype: str, variant: str, configs: list[Config]
) -> TimingMatrix | None:
    """Times of some configs on some shapes, where they are legal; None of too few."""
    rows = sorted(draw.sample([1, 2, 7, 64, 100, 1000, 4096, 4097, 65536, 10**6, MAX_ROWS], draw.randint(1, 4)))
    hidden = sorted(
        draw.sample([1, 17, 64, 100, 768, 1000, 4096, 8192, 12288, 20000, 32768, 65536], draw.randint(2, 5))
    )
    pairs = [(count, size) for count in rows for size in hidden]
    usable = np.array(
        [
            [spec.is_legal(config, Problem.of(spec.name, *shape, dtype, variant), target) for config in configs]
            for shape in pairs
        ]
    )
    kept = [place for place in range(len(pairs)) if usable[place].any()]
    if len(kept) < 2:
        return None
    usable = usable[kept]
    usable &= np.array([[draw.random() < 0.9 for _ in configs] for _ in kept])
    logs = np.array([[draw.randint(0, 400_000) for _ in configs] for _ in kept], np.int64)
    best = np.where(usable, logs, np.iinfo(np.int64).max).min(axis=1, keepdims=True)
    regret = np.where(usable & (best < np.iinfo(np.int64).max), logs - best, 0)
    rounds = 6
    paired = np.repeat(logs[:, :, None], rounds, axis=2).astype(np.int32)
    labels = np.broadcast_to(np.arange(rounds, dtype=np.int32), (len(kept), rounds)).copy()
    chosen = tuple(pairs[place] for place in kept)
    if not usable.any(axis=1).all():
        return None
    return TimingMatrix(
        Key.of(spec.name, variant, dtype), chosen, tuple(configs), regret, usable, rounds_of(labels, paired)
    )


def random_tree(draw: random.Random, configs: list[Config], depth: int) -> Tree:
    if not depth:
        return Leaf(draw.choice(configs))
    axis, sizes = draw.choice([("rows", [2, 60, 64, 4096, 5000]), ("hidden", [16, 700, 1024, 4096, 30000])])
    parts = random_tree(draw, configs, depth - 1), random_tree(draw, configs, depth - 1)
    return Split(axis, draw.choice(sizes), *parts)


@pytest.mark.long
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**9), shapes=st.lists(st.tuples(ROWS, SIZES), min_size=8, max_size=8))
def test_whatever_is_fitted_is_legal_at_every_shape(seed: int, shapes: list[tuple[int, int]]) -> None:
    """Under random conditions, with any table in use before, for all dtypes and variants that it serves."""
    draw = random.Random(seed)
    spec, target = operator(draw.choice(OWN)), TARGETS[draw.choice(sorted(TARGETS))]
    dtype, variant = draw.choice(spec.dtypes), draw.choice(spec.variants)
    served = tuple(dict.fromkeys((dtype, *draw.sample(spec.dtypes, draw.randint(0, 2)))))
    known = list(space(spec.name, target.name, draw.choice(["default", "full"])))
    configs = sorted(draw.sample(known, min(len(known), draw.randint(3, 30))))
    matrix = random_matrix(draw, spec, target, dtype, variant, configs)
    if matrix is None:
        return
    options = FitOptions(
        leaves=draw.choice([1, 3, 8]),
        tie_percent=draw.choice([0, 1, 20]),
        max_slowdown=draw.choice([None, None, 1.4]),
        max_configs=draw.choice([None, None, 3]),
    )
    legality = Legality(spec, target, served, (variant,) if variant else all_variants(spec))
    before = random_tree(draw, configs, draw.randint(0, 3))
    incumbent = draw.choice([None, lambda shape: choose(before, shape)])
    try:
        tree = fit_function(Case(matrix, legality, options, incumbent)).tree
    except NormtuneError:  # no config is legal where these would have to answer
        return
    corners = [(box[0].most, box[1].most) for _, box in regions(tree, spec.whole)]
    for rows, hidden in [*shapes, *corners]:
        for key in legality.served:
            assert spec.is_legal(choose(tree, (rows, hidden)), Problem(key, rows, hidden), target)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(OWN),
    target=st.sampled_from(sorted(TARGETS)),
    place=st.integers(0, 10**6),
    dtype=st.sampled_from(["bfloat16", "float32"]),
    off=st.booleans(),
    rows=st.tuples(ROWS, ROWS),
    hidden=SIZES,
)
def test_the_number_of_rows_is_no_part_of_a_binary(
    name: str, target: str, place: int, dtype: str, off: bool, rows: tuple[int, int], hidden: int
) -> None:
    """But for one program, or few rows, that end the sums over rows by themselves: their binary has no partial sums."""
    spec = operator(name)
    configs = space(name, target, "full")
    config = configs[place % len(configs)]
    launches = []
    for count in rows:
        try:
            problem = Problem.of(name, count, hidden, dtype, spec.variants[off])
            launches.append(spec.resolve(config, problem, TARGETS[target], None))
        except IllegalConfigError:
            return
    first, second = (launch.in_place for launch in launches)  # the width of a part depends on rows
    if (first.workspace > 0) == (second.workspace > 0):
        assert first.binary == second.binary
    else:
        alone = first if not first.workspace else second
        assert alone.grid == 1
        other = second if alone is first else first
        assert alone.binary._replace(workspace=1, finish=other.finish) == other.binary


def class_of(problem: Problem, launch: AnyLaunch) -> object:
    """The compile class; those of parts of a row, whose width follows from rows, count as that of whole rows."""
    return compile_class(problem, launch.in_place)  # type: ignore[attr-defined]


@cache
def gated(target: str, sms: int, grid: str) -> frozenset[object]:
    """The classes that a sweep of a grid gates, of normtune's operators in all dtypes, and of their variants."""
    keys = [f"{name}:{variant}" if variant else name for name in OWN for variant in operator(name).variants]
    wanted = problems(keys, ["bfloat16", "float16", "float32"], shapes(grid))
    return frozenset(
        class_of(task.problem, candidate.launch)
        for task in plan(wanted, "default", target_for(target, sms)).tasks
        for candidate in task.candidates
    )


@cache
def classes(problem: Problem, target: Target) -> frozenset[object]:
    """The classes that a sweep of this problem gates."""
    (task,) = plan([problem], "default", target).tasks
    return frozenset(class_of(problem, candidate.launch) for candidate in task.candidates)


def functions() -> Iterator[tuple[str, Key]]:
    """Name of a shipped table and key of each of its functions of an operator that a plain sweep takes."""
    for path in locate.shipped():
        for key in trees(locate.read(path)):
            if operator(key.operator).is_default and not key.is_batch_invariant:
                yield path.stem, key


@cache
def shipped(table: str, key: Key) -> tuple[Header, Tree]:
    """The header of a shipped table, and the tree of one of its functions."""
    path = locate.SHIPPED / f"{table}.py"
    return locate.load(path).header, trees(locate.read(path))[key]


def launches_of(table: str, key: Key, sizes: range | tuple[int, ...]):
    """(rows, hidden, class) at each row count at which something begins or ends, for all of these hidden sizes."""
    header, tree = shipped(table, key)
    spec, target = operator(key.operator), target_for(header.target, header.sms)
    ends = {(box[0].least, box[0].most) for _, box in regions(tree, spec.whole)}
    for hidden in sizes:
        for rows in sorted({row for pair in ends for row in pair}):
            problem = Problem(key, rows, hidden)
            launch = spec.resolve(choose(tree, (rows, hidden)), problem, target, None)
            yield rows, hidden, class_of(problem, launch)


RECORDED = tuple(sorted({hidden for _, hidden in GRIDS["recording"]}))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("table", "key"), list(functions()), ids=str)
def test_at_measured_hidden_sizes_each_launch_is_of_a_class_that_a_sweep_gates(table: str, key: Key) -> None:
    """At every number of rows; beyond the grid too, where the config is of the default space."""
    header, tree = shipped(table, key)
    spec, target, grid = operator(key.operator), target_for(header.target, header.sms), sorted(shapes("recording"))

    @cache
    def answered(rows: int, hidden: int) -> object:
        """The class of what the table launches there, which every sweep of its GPU times."""
        problem = Problem(key, rows, hidden)
        return class_of(problem, spec.launch(choose(tree, (rows, hidden)), problem, target))

    def is_gated(rows: int, hidden: int, wanted: object) -> bool:
        """Most are at the nearest number of rows; a binary may also serve other hidden sizes."""
        measured = sorted((count for count, size in grid if size == hidden), key=lambda count: abs(log(count / rows)))
        own = Problem(key, rows, hidden)
        if any(wanted == answered(count, hidden) for count in measured):
            return True
        nearest = Problem(key, measured[0], hidden)
        if rows > max(measured) and choose(tree, (rows, hidden)) not in spec.space("default", nearest, target):
            return True
        if wanted == class_of(own, spec.launch(spec.default_config(own, target), own, target)):
            return True  # every sweep times it
        return any(wanted in classes(Problem(key, count, hidden), target) for count in measured) or wanted in gated(
            header.target, header.sms, "recording"
        )

    missed = [
        (rows, hidden)
        for rows, hidden, wanted in launches_of(table, key, RECORDED)
        if not is_gated(rows, hidden, wanted)
    ]
    assert missed == []


# Each alignment, with a column mask, just above each power of two and just below, and the powers without one.
UNMEASURED = tuple(
    sorted(
        {
            low + step
            for low in (2**power for power in range(16))
            for step in (0, 1, 2, 4, 8, 16, low - 1)
            if step <= low
        }
    )
)


def tried_here(table: str, key: Key, places: Iterable[tuple[int, int]]):
    """Problem and candidate of the table at each (rows, hidden), on this machine's GPU, whose limits come first."""
    from normtune.kernels.calling.device import describe
    from normtune.tuner.plan.pool import Candidate

    header, tree = shipped(table, key)
    target = describe(0)
    if target.name != header.target:
        pytest.skip(f"the table is for {header.target}")
    tried = []
    for rows, hidden in places:
        problem, config = Problem(key, rows, hidden), choose(tree, (rows, hidden))
        tried.append((problem, Candidate(config, operator(key.operator).resolve(config, problem, target, None))))
    assert tried
    return target, tried


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(("table", "key"), list(functions()), ids=str)
def test_what_no_sweep_gates_passes_the_gate(table: str, key: Key) -> None:
    """No grid has hidden sizes that are no multiple of 16, nor has each tile a size that needs a mask."""
    import torch

    from normtune.tuner.timing.gate import gate

    header, _ = shipped(table, key)
    known = gated(header.target, header.sms, "recording")
    open_classes = {
        found: (rows, hidden) for rows, hidden, found in launches_of(table, key, UNMEASURED) if found not in known
    }
    target, tried = tried_here(table, key, open_classes.values())
    for compiled in compile_all(jobs_of((problem, candidate.launch) for problem, candidate in tried), target.name):
        assert compiled.status == "ok", compiled
    for problem, candidate in tried:
        gate(operator(problem.operator), problem, candidate, target, torch.device("cuda", 0))


# Tiles without and with a mask, one tile and chunks.
WIDE_WEIGHTS = (64, 128, 256, 512, 768, 1000, 1024, 2048, 4096, 5120, 8192, 16384)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(("table", "key"), [one for one in functions() if one[1].dtype != "float32"], ids=str)
def test_float32_weights_pass_the_gate(table: str, key: Key) -> None:
    """They are other binaries than those that a sweep gates."""
    import torch

    from normtune.tuner.timing.gate import gate

    found = {wanted: (rows, hidden) for rows, hidden, wanted in launches_of(table, key, WIDE_WEIGHTS)}
    target, tried = tried_here(table, key, found.values())
    for problem, candidate in tried:
        gate(operator(problem.operator), problem, candidate, target, torch.device("cuda", 0), wide=True)
