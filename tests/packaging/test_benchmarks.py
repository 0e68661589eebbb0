"""What is said of the peers is what was measured beside them."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

RESULTS = Path("benchmarks/results/nvidia_h200")


@pytest.fixture
def report(root: Path):
    """The module of the report."""
    found = importlib.util.spec_from_file_location("peers_report", root / "benchmarks" / "peers_report.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_the_samples(root: Path, report) -> None:
    assert (root / RESULTS / "peers.md").read_text() == report.report(root / RESULTS / "peers.jsonl") + "\n"


def test_the_readme_says_the_means_of_the_tables(root: Path) -> None:
    text = (root / RESULTS / "peers.md").read_text()
    parts = re.findall(
        r"\*\*(\w+, \w+)\*\*\n.*?geometric mean; (\d+ of \d+) lost [| ]+([\d.]+) \| ([\d.]+) \|", text, re.S
    )
    assert len(parts) == text.count("geometric mean")
    readme = (root / "README.md").read_text()
    for work, lost, ratio, copied in parts:
        assert f"| {work} | {ratio} | {lost} | {copied} |" in readme


def test_a_table_marks_what_is_lost_and_leaves_out_who_failed(report, tmp_path: Path) -> None:
    def cell(rows: int, **medians: float) -> str:
        sides = {side: {"version": "1", "median_us": time} for side, time in medians.items()}
        head = {"pass": "forward", "dtype": "float32", "rows": rows, "hidden": 64, "device": "GPU"}
        return json.dumps(head | {"sides": sides | {"slow": {"version": "1", "failed": "no"}}})

    file = tmp_path / "peers.jsonl"
    file.write_text(
        cell(1, normtune=2.0, copy=1.0, torch=4.0) + "\n" + cell(2, normtune=3.0, copy=3.0, torch=1.5) + "\n"
    )
    lines = report.report(file).splitlines()
    assert "| 1 x 64 | 1.00 | 2.00 | 4.00 | - | 0.50 | 2.00 |" in lines
    assert "| 2 x 64 | 3.00 | 3.00 | 1.50 | - | **2.00** | 1.00 |" in lines
    assert lines[-1].startswith("| geometric mean; 1 of 2 lost |") and lines[-1].endswith("| 1.00 | 1.41 |")


def test_every_problem_has_as_many_samples_of_each_side(root: Path) -> None:
    for line in (root / RESULTS / "peers.jsonl").read_text().splitlines():
        counts = {len(side["samples_ns"]) for side in json.loads(line)["sides"].values() if "samples_ns" in side}
        assert counts == {20}
