"""Kernels of other libraries are tuned by the launchers that these ship, and Liger's own table is one of its sweep."""

import re
from pathlib import Path

import pytest

import normtune
from normtune.kernels import fingerprint, operator
from normtune.kernels.target import TARGETS
from normtune.tests.commands import main

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("operators_forgotten")]
HERE = Path(__file__).with_name("libraries")
ROOT = Path(__file__).parents[3]
LIGER = ROOT / "examples" / "liger"
H200 = TARGETS["sm_90"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "count", "promoted"),
    [
        ("liger", 5, {}),  # casts its floats since Liger-Kernel#1350
        ("fla", 6, {"fla_l2norm": ["eps"], "fla_rms_norm": ["eps"]}),
        (
            "conch",
            7,
            {"conch_rms_norm": ["epsilon"], "conch_fused_add_rms_norm": ["epsilon"], "conch_gemma_rms_norm": ["eps"]},
        ),
    ],
)
def test_launchers_of_a_library_are_right_as_they_are(library, count, promoted) -> None:
    found = normtune.inspect_operator(HERE / f"{library}.py")
    assert [(one.operator, one.faults) for one in found if one.exit_code or one.faults] == []
    in_fp64 = re.compile(r"\w+ computes in fp64 where .* passes the float (\w+) as fp64: ")
    warned = {one.operator: [in_fp64.match(text)[1] for text in one.warnings] for one in found if one.warnings}
    assert warned == promoted
    assert len(found) == count
    sources = {
        read.module for one in found for read in fingerprint.sources(operator.operator(one.operator)).definitions
    }
    assert all(any(name.startswith(package) for name in sources) for package in ("normtune_operators", library))


def test_files_of_other_libraries_say_how_they_are_tried_and_the_table_has_them() -> None:
    rows = re.findall(r"^\| .+ ([0-9a-f]{7,}) \|", (ROOT / "docs" / "operators.md").read_text(), re.M)
    files = sorted((ROOT / "examples" / "libraries").glob("*.py"))
    commits = set()
    for file in files:
        text = file.read_text()
        told = re.search(
            r"^git clone https://github\.com/\S+/([\w-]+)   # commit (\w+)\n.*PYTHONPATH=(\1)\S* ?(?:\n|)"
            rf"normtune inspect examples/libraries/{file.name}$",
            text,
            re.M,
        )
        assert told and text.count("\n") <= 70, file
        commits.add(told[2])
    assert sorted(rows) == sorted(commits) and len(files) == 11


@pytest.mark.slow
def test_the_table_of_liger_is_that_of_its_sweep() -> None:
    done = main("check", "--load", LIGER / "rms_norm.py", LIGER / "rms_norm_h200.py")
    assert (done.exit_code, done.output.splitlines()[0]) == (0, f"{LIGER / 'rms_norm_h200.py'}: OK"), done.output
    assert "its kernels are those that were measured" in done.output
