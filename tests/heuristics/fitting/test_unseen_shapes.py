"""Shapes that no table was fitted to: what their list promises, and what the tables of both GPUs lose there.

`normtune sweep --shapes tests/heuristics/fitting/unseen_shapes.csv` measured them on an H200. Whoever uses these
figures to change the fit, the grids or a table has used them up, and must draw and measure new shapes. So it was with
those of `used_shapes.csv`, which both GPUs measured.
"""

import math
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from normtune.heuristics.fitting.figures import of_configs
from normtune.heuristics.regret.matrix import timing_matrix
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.tablefile.locate import SHIPPED, read
from normtune.kernels.tablefile.parse import trees
from normtune.kernels.tablefile.tree import choose
from normtune.kernels.target import target_for
from normtune.results.exchange.parquet_csv import read_parquet
from normtune.results.exchange.recording import load_recording
from normtune.tuner.plan.grids import GRIDS, MAX_ELEMENTS, shapes_of

HERE = Path(__file__).parent
MEASURED = HERE.parents[2] / "benchmarks" / "results"


def test_the_list_is_what_the_script_draws_and_has_no_hidden_size_that_was_measured():
    spec = spec_from_file_location("unseen_shapes", HERE.parents[2] / "benchmarks" / "unseen_shapes.py")
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    [(_, _, listed, too_large)] = shapes_of(HERE / "unseen_shapes.csv")
    assert listed == script.draw()
    assert len(listed) == 128 and not too_large
    assert all(rows <= 262144 and 64 <= hidden <= 32768 and hidden % 8 == 0 for rows, hidden in listed)
    assert all(2 * rows * hidden <= 2 * MAX_ELEMENTS == 512 * 2**20 for rows, hidden in listed)
    sizes = {hidden for _, hidden in listed}
    assert len(sizes) == len(listed)
    assert sum(hidden % 128 == 0 for hidden in sizes) == 64
    earlier = [shapes_of(HERE / name)[0].shapes for name in ("held_out_shapes.csv", "used_shapes.csv")]
    assert not sizes & {hidden for known in (*GRIDS.values(), *earlier) for _, hidden in known}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpu", "shapes", "name", "timed", "mean", "worst"),
    [
        ("nvidia_h200", "unseen", "rms_norm_forward", 127, 1.004, 1.08),
        ("nvidia_h200", "unseen", "rms_norm_backward", 128, 1.018, 1.14),
        ("nvidia_h200", "used", "rms_norm_forward", 127, 1.01, 1.17),
        ("nvidia_h200", "used", "rms_norm_backward", 128, 1.02, 1.15),
        ("nvidia_h100_80gb_hbm3", "used", "rms_norm_forward", 125, 1.005, 1.07),
        ("nvidia_h100_80gb_hbm3", "used", "rms_norm_backward", 112, 1.012, 1.15),
    ],
)
def test_a_table_loses_little_there(gpu, shapes, name, timed, mean, worst):
    measured, spec = read_parquet(MEASURED / gpu / f"{shapes}.parquet"), operator(name)
    recorded = load_recording(gpu.replace("_", "-")).select([name], ["bfloat16"]).frame
    assert not {*measured.frame["hidden"]} & {*recorded["hidden"][recorded["variant"] == ""]}
    key, target = spec.key("bfloat16"), target_for("sm_90", 132)
    matrix, tree = timing_matrix(measured, spec, key, target), trees(read(SHIPPED / f"{gpu}.py"))[key]
    choices = [choose(tree, shape) for shape in matrix.problems]

    def regret(index, choice):
        """Of the choice, or of a timed config with the same launch."""
        problem = Problem.at(key, matrix.problems[index])
        launch = spec.launch_of(choice, problem, target)
        same = [config for config in matrix.configs if spec.launch_of(config, problem, target) == launch]
        return next((loss for config in same if (loss := matrix.loss(index, config)) is not None), None)

    loss = of_configs(matrix, choices, [regret(index, choice) for index, choice in enumerate(choices)])
    assert loss.problems == timed and loss.untimed == len(choices) - timed  # at the others the search timed others
    assert len(choices) == 128
    assert loss.mean <= 1e6 * math.log(mean)
    assert loss.worst <= 1e6 * math.log(worst)
