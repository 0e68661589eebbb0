"""Every config of every committed table is legal, compiles for its target within limits, and is right in float32."""

from collections import defaultdict

import pytest

from normtune.kernels.operator import operator
from normtune.kernels.problem import ITEMSIZE, MAX_ROWS
from normtune.kernels.tablefile import locate
from normtune.kernels.target import TARGETS, target_for
from normtune.kernels.tiles import trial
from normtune.tests.heuristics.made_up import module_of
from normtune.tuner.compiling.pool import compile_all
from normtune.tuner.plan.binaries import jobs_of
from normtune.tuner.plan.pool import Candidate

TABLES = {path.stem: locate.load(path) for path in locate.shipped()}
# Tables of RMSNorm; the launches of its relatives are run by their own tests.
OWN = {name: table for name, table in TABLES.items() if all(operator(key.operator).is_default for key in table.trees)}
ROWS = (*(2**power for power in range(19)), 3, 100, 5000, MAX_ROWS)
HIDDEN = (1, 64, 96, 128, 200, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 5120, 8192, 12288, 16384, 32768, 65536)
INTERPRETED = TARGETS["sm_80"]._replace(sms=3)  # the interpreter knows no dependent launches and no rows fetched ahead


def used(table):
    """(key, config) to the problems that get it, over shapes within and beyond the measured box."""
    found = defaultdict(list)
    lookup = module_of(table.source.read_text())["lookup"]
    for key in table.trees:
        spec = operator(key.operator)
        for hidden in HIDDEN:
            for rows in ROWS if hidden <= spec.max_hidden else ():
                problem = spec.problem(rows, hidden, key.dtype, key.usual.variant)
                found[key, spec.config(*lookup(key.text, key.dtype, rows, hidden))].append(problem)
    return found


def interpreted(table):
    """(operator, problem in float32, candidate) for each launch of the table that differs in what the interpreter sees.

    Warps, stages and alignment are the compiler's: 133 configs of the H200 are 60 launches.
    """
    narrowest = {}
    for (key, config), problems in used(table).items():
        key = key._replace(dtype="")
        narrowest[key, config] = min(narrowest.get((key, config), 200), *(problem.hidden for problem in problems))
    found = {}
    for (key, config), hidden in narrowest.items():
        spec = operator(key.operator)
        problem = spec.problem(1000, hidden, "float32", key.usual.variant)
        if not spec.is_legal(config, problem, INTERPRETED):
            continue  # in float32 its tile is too large; the GPU's own tests try it
        # Ten tiles and a part for each program, and a second turn of a program of columns.
        launch = spec.resolve(config, problem, INTERPRETED, None)
        problem = problem._replace(rows=min(1000, max(launch.slice_row, 30 * launch.block_row) + 7))
        launch = spec.resolve(config, problem, INTERPRETED, None)
        seen = launch._replace(num_warps=1, num_stages=1, alignment=1)
        found.setdefault((problem, seen), (spec, problem, Candidate(config, launch)))
    return list(found.values())


def test_there_are_tables():
    assert {table.header.gpu for table in TABLES.values()} >= {"NVIDIA H200"}
    for table in OWN.values():
        tried = interpreted(table)
        assert len(tried) >= 20
        assert {spec.name for spec, *_ in tried} == {key.operator for key in table.trees}


def launches(table, target):
    """(key without dtype, config) to the (problem, launch) pairs of the narrowest and the widest tile in each dtype."""
    found = defaultdict(list)
    for (key, config), problems in used(table).items():
        spec = operator(key.operator)
        pairs = [(problem, spec.resolve(config, problem, target, None)) for problem in problems]
        found[key._replace(dtype=""), config] += [ends(pairs, key=lambda pair: pair[0].hidden) for ends in (min, max)]
    return found


def assert_all_compile(pairs, target, workers=None):
    jobs = jobs_of(pairs)
    assert jobs
    for compiled in compile_all(jobs, target.name, workers):
        assert compiled.status == "ok", compiled
        assert compiled.shared_bytes <= target.shared_bytes
        assert compiled.threads <= target.max_threads


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", list(TABLES))
def test_configs_compile_ahead_of_time_for_the_target_where_they_hold_most(name):
    """Of configs that differ in sizes alone, but for their warps, the one that holds most; `make test-all` has all."""
    table = TABLES[name]
    target = target_for(table.header.target, table.header.sms)
    of_operator = defaultdict(list)
    for (key, config), pairs in launches(table, target).items():
        kind = [value for value in config if isinstance(value, str)]
        of_operator[key.operator, config.num_warps, *kind] += pairs

    def held(pair):
        problem, launch = pair
        tile = getattr(launch, "norm", launch)
        width = getattr(tile, "block_col", problem.hidden)
        return tile.block_row * width * ITEMSIZE[problem.dtype], not problem.variant

    # A process of Triton begins with two seconds of hashing its own files.
    assert_all_compile([max(pairs, key=held) for pairs in of_operator.values()], target, workers=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TABLES))
def test_configs_compile_ahead_of_time_in_every_dtype_and_variant_that_uses_them(name):
    table = TABLES[name]
    target = target_for(table.header.target, table.header.sms)
    assert_all_compile([pair for pairs in launches(table, target).values() for pair in pairs], target)


@pytest.mark.one_in(79)
@pytest.mark.interpreter
@pytest.mark.parametrize(
    ("spec", "problem", "candidate"),
    [
        pytest.param(*one, id=f"{name}-{one[1]}-{one[2].config}")
        for name, table in OWN.items()
        for one in interpreted(table)
    ],
)
def test_configs_are_right_in_float32(spec, problem, candidate, monkeypatch, counted_loops):
    import torch

    from normtune.tuner.timing import gate as gates

    monkeypatch.setattr(gates, "CALLS", 2)  # interpreted programs run one after another: no race is lost
    monkeypatch.setattr(trial, "PASSES", 2)  # and there is no pipeline to be filled
    gates.gate(spec, problem, candidate, INTERPRETED, torch.device("cpu"))
