import os
from dataclasses import replace

import pytest

from normtune.heuristics.fitting import parallel, pipeline
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.writing.emit import module_text
from normtune.kernels import operator as door
from normtune.results.evidence import Evidence
from normtune.tests.heuristics.made_up import as_command
from normtune.tests.kernels.problems import changed

pytestmark = pytest.mark.long


@pytest.fixture
def three(spec, measure, penalty, run, monkeypatch) -> Evidence:
    """Three operators; the second is measured in float32, and at a single shape in bfloat16."""
    shapes = [(rows, hidden) for rows in (1, 64, 4096, 65536) for hidden in (64, 256, 1024, 4096)]
    items = list(measure(penalty, shapes))
    for name, dtype in (("toy_two", "float32"), ("toy_three", "bfloat16")):
        monkeypatch.setitem(door._OPERATORS, name, replace(spec, name=name))
        items += [
            item._replace(problem=changed(item.problem, operator=name))
            for item in measure(penalty, shapes, dtype=dtype)
        ]
    alone = measure(penalty, shapes[:1])
    items += [item._replace(problem=changed(item.problem, operator="toy_two")) for item in alone]
    return Evidence.from_measurements(items, [run])


@pytest.mark.slow
def test_operators_in_processes_of_their_own_give_the_same_table(three: Evidence, tmp_path, monkeypatch) -> None:
    path = tmp_path / "mix.csv"
    path.write_text("rows,hidden,weight,operator\n64,64,1,toy\n64,256,3,toy_three\n1,2,1,\n")
    options = FitOptions(leaves=6, weights=str(path))
    here = fit(three, options)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(parallel, "_MANY", 1)
    parent, seen = os.getpid(), []
    monkeypatch.setattr(pipeline, "_matrices", _told(pipeline._matrices, seen, parent))
    there = fit(three, options)
    assert seen == [], "operators were fitted in this process"
    assert there == here
    assert module_text(there, as_command("normtune fit")) == module_text(here, as_command("normtune fit"))
    assert {one.key.operator for one in there.functions} == {"toy", "toy_two", "toy_three"}
    assert [note.split(":")[0] for note in there.notes] == [
        f"1 line of {path} match no measurement, the first is 1 x 2 ({path}, line 4)",
        f"no weight in {path} for toy_two bfloat16, toy_two float32",
    ]


def _told(function, seen: list[int], parent: int):
    def wrapped(*arguments):
        if os.getpid() == parent:
            seen.append(parent)
        return function(*arguments)

    return wrapped
