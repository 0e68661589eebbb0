"""The figures of the documents are those of the committed results."""

import json
import re
import shutil
from pathlib import Path

import pytest

from normtune.benchmarks import against_copy, figures, peers_report, staleness
from normtune.benchmarks.lib import blocks

pytestmark = pytest.mark.slow  # a benchmark, or what documents say of it

RESULTS = Path("benchmarks/results/nvidia_h200")


def test_documents_are_what_the_results_say() -> None:
    for document, figure in (
        (figures.README, "| the same in float32 | "),
        (figures.DOCUMENT, "| forward, bfloat16 | "),
    ):
        text = document.read_text()
        edited = text.replace(figure, f"{figure}0.01 and ", 1)
        assert edited != text
        assert blocks.filled(edited, "figures", figures.DOCUMENTS[document]) == text, figures.COMMAND


def test_no_prose_repeats_a_figure(root: Path) -> None:
    """Beside generated figures; two tables and the reasons of choices are written by hand."""
    text = (root / "docs/results.md").read_text()
    (section,) = re.findall(r"^## Kernels\n(.*?)^### Tables on another GPU", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"<!-- figures: .*?<!-- end -->|`[^`]*`|\]\([^)]*\)", "", section, flags=re.DOTALL)
    assert "Against other libraries" in prose
    assert not re.findall(r"\d+\.\d+ (?:%|us\b)|\d+ (?:%|us\b|ns\b|s\b|times\b|GB\b)", prose)
    readme = (root / "README.md").read_text()
    (section,) = re.findall(r"^## Results\n(.*?)^## ", readme, re.MULTILINE | re.DOTALL)
    assert not re.findall(r"\d+[.,]\d+|\d+ %", re.sub("<!-- figures: .*?<!-- end -->", "", section, flags=re.DOTALL))


def test_the_page_on_large_stores_has_the_figures_of_its_benchmark(root: Path) -> None:
    (section,) = re.findall(r"^## Large stores\n(.*)", (root / "docs/cluster.md").read_text(), re.MULTILINE | re.DOTALL)
    cells = re.findall(r"^\| \S.*? \| (.*) \| (.*) \|$", section, re.MULTILINE)
    for column, database in enumerate(("sqlite", "postgresql")):
        found = json.loads((root / f"benchmarks/results/scale/{database}.json").read_text())
        fits = [found[name] for name in ("fit_of_one", "fit_alone")]
        assert [row[column] for row in cells] == [
            str(found["bytes_per_measurement"]),
            f"{found['bytes'] / found['measurements'] / 100:.2f} GB",
            f"{found['measurements_a_second']:,}",
            f"{found['measurements_a_core_second']:,}",
            f"{found['list']['seconds']}, {found['list']['core_seconds']}",
            *(f"{fit['core_seconds']}, {fit['peak_mb']}" for fit in fits),
        ]


def test_the_table_over_the_copy_that_is_kept_is_that_of_the_recording(root: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["against_copy.py"])
    against_copy.main()
    assert capsys.readouterr().out == (root / RESULTS / "against_copy.md").read_text()


def test_a_block_too_few_or_too_many_is_named() -> None:
    text = "".join(f"<!-- figures: {name} -->\n<!-- end -->\n" for name in figures.BLOCKS if name != "host")
    with pytest.raises(SystemExit, match=r"expected each of setting, .*, host"):
        blocks.filled(text, "figures", figures.BLOCKS)
    text += "<!-- figures: host -->\n<!-- end -->\n<!-- figures: weather -->\n<!-- end -->\n"
    with pytest.raises(SystemExit, match=r"has the blocks .*weather"):
        blocks.filled(text, "figures", figures.BLOCKS)


def test_check_writes_nothing_and_fails_where_a_figure_is_another(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "README.md"
    text = "# A\n<!-- figures: one -->\n\n| 1.0 |\n\n<!-- end -->\nB\n<!-- figures: two -->\n<!-- end -->\n"
    file.write_text(text)
    monkeypatch.setattr(figures, "DOCUMENTS", {file: {"one": lambda: ["", "| 2.0 |", ""], "two": lambda: []}})
    monkeypatch.setattr("sys.argv", ["figures.py", "--check"])
    with pytest.raises(SystemExit, match=r"README\.md is out of date: run `python benchmarks/figures\.py`"):
        figures.main()
    assert file.read_text() == text
    monkeypatch.setattr("sys.argv", ["figures.py"])
    figures.main()
    assert file.read_text() == text.replace("1.0", "2.0")
    monkeypatch.setattr("sys.argv", ["figures.py", "--check"])
    figures.main()


@pytest.fixture
def results(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results of its own."""
    shutil.copytree(root / RESULTS, tmp_path / "results")
    monkeypatch.setattr(figures, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def test_shapes_at_which_normtune_loses_are_named_worst_first(results: Path) -> None:
    def line(rows: int, ours: float) -> str:
        sides = {
            "normtune": {"version": "1", "median_us": ours},
            "torch": {"version": "2.11.0+cu130", "median_us": 2.0},
        }
        head = {"pass": "forward", "dtype": "float32", "rows": rows, "hidden": 64, "device": "GPU"}
        return json.dumps(head | {"sides": sides | {"copy": {"median_us": 1.0}}})

    found = [line(rows, 2.0 + rows / 100) for rows in range(1, 12)] + [line(100, 1.0)]
    (results / "peers.jsonl").write_text("\n".join(found) + "\n")
    lines = list(figures.peers())
    assert "Peers: torch 2.11.0." in lines
    assert any(text.startswith("| forward, float32 | ") and "| 11 of 12 |" in text for text in lines)
    (named,) = (text for text in lines if text.startswith("- "))
    assert named.startswith("- forward, float32, lost: 11 x 64 (1.05), 10 x 64 (1.05), ")
    assert named.endswith("4 x 64 (1.02) and 3 more") and named.count("(") == figures.NAMED
    (results / "peers.jsonl").write_text(line(1, 1.0) + "\n")
    assert not [text for text in figures.peers() if text.startswith("- ")]
    assert len(peers_report.read(results / "peers.jsonl")) == 1


def test_the_headline_is_of_the_results(results: Path) -> None:
    before = figures.headline()
    document = json.loads((results / "sweep.json").read_text())
    (results / "sweep.json").write_text(json.dumps(document | {"wall_s": 1234}))
    after = figures.headline()
    assert any("default sweep takes 1234 s" in line for line in after) and before != after


def test_counts_of_checks_are_those_of_the_results(results: Path) -> None:
    path = results / "staleness_replay.json"
    document = json.loads(path.read_text())
    for tables, of in (("tables", ""), ("own shapes", " of own shapes")):
        rates = staleness.Rates(**document["rates"][tables])
        fresh = rates.fresh - rates.fresh_ambiguous - rates.fresh_stale, rates.fresh_ambiguous, rates.fresh_stale
        missed = rates.stale_ok, rates.stale_ambiguous, rates.stale - rates.stale_ok - rates.stale_ambiguous
        for title, counts in (("fresh tables", fresh), ("stale functions", missed)):
            assert " | ".join(map(str, (f"| {title}{of}", sum(counts), *counts))) + " |" in figures.staleness()
    path.write_text(json.dumps(document | {"counts": document["counts"][:1]}))
    first = document["counts"][0]
    verdicts = " | ".join(str(first.get(name, 0)) for name in ("OK", "AMBIGUOUS", "STALE"))
    assert f"| fresh tables | {first['checks']} | {verdicts} |" in figures.staleness()
