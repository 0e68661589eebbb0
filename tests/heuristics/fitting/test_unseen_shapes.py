"""The list of shapes for the next held-out measurement: what it promises, and that the script still draws it."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from normtune.tuner.plan.grids import GRIDS, MAX_ELEMENTS, shapes_of

HERE = Path(__file__).parent


def test_the_list_is_what_the_script_draws_and_has_no_hidden_size_that_was_measured():
    spec = spec_from_file_location("unseen_shapes", HERE.parents[2] / "benchmarks" / "unseen_shapes.py")
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    listed, too_large = shapes_of(HERE / "unseen_shapes.csv")
    assert listed == script.draw()
    assert len(listed) == 128 and not too_large
    assert all(rows <= 262144 and 64 <= hidden <= 32768 and hidden % 8 == 0 for rows, hidden in listed)
    assert all(2 * rows * hidden <= 2 * MAX_ELEMENTS == 512 * 2**20 for rows, hidden in listed)
    sizes = {hidden for _, hidden in listed}
    assert len(sizes) == len(listed)
    assert sum(hidden % 128 == 0 for hidden in sizes) == 64
    earlier, _ = shapes_of(HERE / "held_out_shapes.csv")
    assert not sizes & {hidden for known in (*GRIDS.values(), earlier) for _, hidden in known}
