"""Header, fit, show, diff, report and JSON give a function one loss: where its choice is timed, with their share."""

import pytest

import normtune
from normtune.heuristics.api.maps import maps_of
from normtune.heuristics.api.report import report
from normtune.heuristics.comparing.contenders import side
from normtune.heuristics.comparing.difference import difference
from normtune.heuristics.regret.matrix import timing_matrix
from normtune.heuristics.writing.entries import comment, decisions, timed_share
from normtune.heuristics.writing.report import verdict
from normtune.kernels.tablefile.locate import load_table
from normtune.kernels.target import TARGETS
from normtune.results.evidence import Evidence
from normtune.tests.heuristics.made_up import SHAPES


@pytest.fixture
def partly(measure, penalty, run) -> Evidence:
    """float16 shares the function of bfloat16, whose choice it has not timed at a third of the shapes."""
    whole = measure(penalty, SHAPES)
    table = normtune.fit(Evidence.from_measurements(whole, [run]))
    cells = [
        cell
        for cell in measure(penalty, SHAPES, dtype="float16")
        if cell.config != table.lookup("toy", "bfloat16", *cell.problem.shape) or cell.problem.rows not in (64, 4096)
    ]
    return Evidence.from_measurements(whole + cells, [run])


def test_every_output_has_the_loss_of_the_header(partly: Evidence, spec, here) -> None:
    table = normtune.fit(partly)
    table.save("table.py")
    (share,) = table.shared
    loss, key = share.figures.loss, share.key
    assert (loss.problems, loss.untimed) == (21, 14) and loss.bound is not None
    share_text = timed_share(loss)
    loaded = load_table("table.py")
    assert decisions(loaded.header)[key].figures.loss == loss
    own = decisions(loaded.header)[share.donor].figures.loss
    assert f" at {own.problems + 21} of {own.problems + 35} shapes" in comment(loaded.header)
    (shown,) = (one for of, one in maps_of(partly, loaded)[0].maps.items() if of.dtype == "float16")
    assert shown.loss._replace(mean=loss.mean) == loss  # a map has equal weights
    (function,) = (one for one in report("table.py", data=partly).devices[0].functions if one.title == str(key))
    assert ("", f"  timed {share_text}") in function.verdict
    matrix = timing_matrix(partly, spec, key, TARGETS["sm_90"])
    of_diff = difference(spec, matrix, TARGETS["sm_90"], side("table.py"), side("liger")).loss(0)
    assert of_diff._replace(mean=loss.mean, luck=loss.luck) == loss._replace(luck=loss.luck)
    assert any(line.endswith("  float16 (0.0 %), timed at 21 of 35 shapes") for line in verdict(table.fit))
    row = table.figures().set_index("dtype").loc["float16"]
    assert (row["problems"], row["untimed"]) == (21, 14) and row["plain"] <= row["worst"]
