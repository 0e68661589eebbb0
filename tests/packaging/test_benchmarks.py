"""Statements about the peers match the measurements beside them."""

import json
from pathlib import Path

import pytest

from normtune.benchmarks import peers_report as report

pytestmark = pytest.mark.slow  # a benchmark, or what documents say of it

RESULTS = Path("benchmarks/results/nvidia_h200")


def test_the_tables_are_those_of_the_samples(root: Path) -> None:
    assert (root / RESULTS / "peers.md").read_text() == report.report(root / RESULTS / "peers.jsonl") + "\n"


def test_a_table_marks_what_is_lost_and_leaves_out_who_failed(tmp_path: Path) -> None:
    def cell(rows: int, **medians: float) -> str:
        sides = {side: {"version": "1", "median_us": time} for side, time in medians.items()}
        head = {"pass": "forward", "dtype": "float32", "rows": rows, "hidden": 64, "device": "GPU"}
        return json.dumps(head | {"sides": sides | {"slow": {"version": "1", "failed": "no"}}})

    file = tmp_path / "peers.jsonl"
    file.write_text(
        cell(1, normtune=2.0, copy=1.0, torch=4.0) + "\n" + cell(2, normtune=3.0, copy=3.0, torch=1.5) + "\n"
    )
    lines = report.report(file).splitlines()
    assert "| over the fastest peer | 1.00 |" in lines
    assert "| lost: above 1.03 times (backward 1.00) and 0.1 us more | 1 of 2 |" in lines
    assert "| worst | 2 x 64 (2.00), 1 x 64 (0.50) |" in lines
    assert "| 1 x 64 | 1.00 | 2.00 | 4.00 | - | 0.50 | 2.00 |" in lines
    assert "| 2 x 64 | 3.00 | 3.00 | 1.50 | - | **2.00** | 1.00 |" in lines
    assert lines[-1].startswith("| geometric mean; 1 of 2 lost |") and lines[-1].endswith("| 1.00 | 1.41 |")


def test_every_problem_has_as_many_samples_of_each_side(root: Path) -> None:
    for line in (root / RESULTS / "peers.jsonl").read_text().splitlines():
        counts = {len(side["samples_ns"]) for side in json.loads(line)["sides"].values() if "samples_ns" in side}
        assert counts == {20}


def test_the_questions_are_asked_of_the_shapes_they_name() -> None:
    def timed(rows: int, hidden: int, ours: float, fastest: float = 1.0, copy: float = 1.0) -> report.Timed:
        cell = {"pass": "backward", "dtype": "float32", "rows": rows, "hidden": hidden}
        return report.Timed(rows, hidden, ours, fastest, copy, report.bytes_moved(cell))

    narrow, large, wide = timed(8192, 1024, 1.1), timed(16384, 4096, 1.2), timed(8192, 32768, 2.0)
    assert [one.nbytes >> 20 for one in (narrow, large, wide)] == [96, 768, 3072]
    small = timed(1024, 1024, 4.5, fastest=4.45, copy=1.5)
    lines = report.targets({("backward", "float32"): [narrow, large, wide, small], ("forward", "float32"): [small]})
    answers = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ")[1:] for line in lines}
    # 4.5 is over 4.45, but by less than 0.1 us.
    assert answers["lost: above 1.03 times (backward 1.00) and 0.1 us more"] == ["2 of 4", "0 of 1"]
    assert answers["over the copy, from 64 MB (shapes)"] == ["1.382 (3)", "-"]
    assert answers["- 64 to 256 MB, hidden to 8192"] == ["1.100 (1)", "-"]
    assert answers["- from 256 MB, hidden to 8192"] == ["1.200 (1)", "-"]
    assert answers["- from 256 MB, hidden 8193 to 16384"] == ["-", "-"]
    assert answers["- from 256 MB, hidden 16385 to 32768"] == ["2.000 (1)", "-"]
    assert answers["us over the copy, to 1024 rows and 16 MB"] == ["3.00, at most 3.00 (1)", "-"]
