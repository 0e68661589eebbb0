import os
from dataclasses import replace

import pytest

from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.writing.emit import module_text
from normtune.results.evidence import Evidence
from normtune.results.parallel import maps
from normtune.tests.heuristics.made_up import as_command
from normtune.tests.kernels.problems import changed
from normtune.tests.kernels.registry import registered

pytestmark = pytest.mark.long


@pytest.fixture
def three(spec, measure, penalty, run, monkeypatch) -> Evidence:
    """Three operators; the second is measured in float32, and at a single shape in bfloat16."""
    shapes = [(rows, hidden) for rows in (1, 64, 4096, 65536) for hidden in (64, 256, 1024, 4096)]
    items = list(measure(penalty, shapes))
    for name, dtype in (("toy_two", "float32"), ("toy_three", "bfloat16")):
        registered(monkeypatch, replace(spec, name=name))
        items += [
            item._replace(problem=changed(item.problem, operator=name))
            for item in measure(penalty, shapes, dtype=dtype)
        ]
    alone = measure(penalty, shapes[:1])
    items += [item._replace(problem=changed(item.problem, operator="toy_two")) for item in alone]
    return Evidence.from_measurements(items, [run])


@pytest.mark.slow
@pytest.mark.parametrize("leaves", [6, None])
def test_any_number_of_processes_gives_the_same_table(leaves, three: Evidence, tmp_path, monkeypatch) -> None:
    path = tmp_path / "mix.csv"
    path.write_text("rows,hidden,weight,operator\n64,64,1,toy\n64,256,3,toy_three\n64,64,1,toy_two\n1,2,1,\n")
    options = FitOptions(leaves=leaves, weights=str(path))
    monkeypatch.setattr(maps, "LEAST_SECONDS", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    here = fit(three, options)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(5)})
    children, fork = [], os.fork
    monkeypatch.setattr(os, "fork", lambda: children.append(fork()) or children[-1])
    there = fit(three, options)
    assert len(children) == 3, "each operator is fitted in a process of its own"
    assert there == here
    assert module_text(there, as_command("normtune fit")) == module_text(here, as_command("normtune fit"))
    assert {one.key.operator for one in there.functions} == {"toy", "toy_two", "toy_three"}
    assert there.notes == (f"1 line of {path} match no measurement, the first is 1 x 2 ({path}, line 5)",)
