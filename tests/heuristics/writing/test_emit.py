import ast
import importlib.util
import socket
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from normtune import __version__
from normtune.errors import NormtuneError
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.fitting.result import Fit
from normtune.heuristics.regret.legality import served_variants
from normtune.heuristics.writing.emit import module_text
from normtune.kernels.box import Box
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.header import body_hash, parse
from normtune.kernels.tablefile.parse import trees
from normtune.kernels.tablefile.tree import Leaf, choose, regions
from normtune.kernels.target import TARGETS
from normtune.results.evidence import Evidence
from normtune.tests.heuristics.made_up import SHAPES, as_command, eight, module_of

pytestmark = pytest.mark.long

GOLDEN = Path(__file__).with_name("golden_table.txt")
COMMAND = "normtune fit --store normtune.db --out heuristics.py"


@pytest.fixture
def fitted(measure, penalty, run) -> Fit:
    """Three dtypes, of which two share, and a variant of its own in one of them."""
    cells = [
        cell
        for dtype, law in (("bfloat16", penalty), ("float16", penalty), ("float32", eight))
        for cell in measure(law, SHAPES, dtype=dtype)
    ]
    return fit(Evidence.from_measurements(cells + measure(eight, SHAPES, variant="no_keep"), [run]))


@pytest.fixture
def table(fitted: Fit, tmp_path: Path) -> locate.LoadedTable:
    path = tmp_path / "heuristics.py"
    path.write_text(module_text(fitted, as_command(COMMAND)))
    return locate.load(path)


@pytest.mark.slow
def test_the_text_is_the_golden_one(fitted: Fit) -> None:
    # A wanted change of the code that is written is made in the golden file as well.
    assert module_text(fitted, as_command(COMMAND)) == GOLDEN.read_text()


@pytest.mark.slow
def test_ruff_finds_no_fault(table: locate.LoadedTable) -> None:
    if importlib.util.find_spec("ruff") is None:
        pytest.skip("ruff is not installed")
    ruff = [sys.executable, "-m", "ruff"]
    options = ["--isolated", "--no-cache"]
    rules = "--select=E,F,W,I,UP,B,SIM,RUF,D,N,C4,PIE,RET,ANN,A"
    google = 'lint.pydocstyle.convention = "google"'
    style = ["--ignore=D103", "--config", google, "--target-version=py39", "--line-length=88"]
    linted = subprocess.run(
        [*ruff, "check", *options, rules, *style, table.source], check=False, capture_output=True, text=True
    )
    assert linted.returncode == 0, linted.stdout


@pytest.mark.slow
def test_the_module_is_python_39_and_stands_alone(table: locate.LoadedTable) -> None:
    ast.parse(table.source.read_text(), feature_version=(3, 9))
    code = (
        f"import sys; sys.path.insert(0, {str(table.source.parent)!r}); import heuristics as h; "
        "print(h.lookup('toy', 'float16', 4096, 128)[:3] == ('block_row', 4, 4), h.lookup('toy', 'float32', 1, 1))"
    )
    run = subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.startswith("True Config(schedule='row', block_row=1, num_warps=8,")


@pytest.mark.slow
def test_dtypes_that_share_have_one_function_and_the_variant_has_its_own(table: locate.LoadedTable) -> None:
    assert [*map(str, table.trees)] == [
        "toy bfloat16",
        "toy float16",
        "toy float32",
        "toy:no_keep bfloat16",
        "toy:no_keep float16",
    ]
    assert table.trees[Key.parse("toy", "float16")] is table.trees[Key.parse("toy", "bfloat16")]
    assert table.trees[Key.parse("toy", "float32")] is not table.trees[Key.parse("toy", "bfloat16")]
    assert table.lookup("toy:no_keep", "bfloat16", 4096, 128) == RMSNormConfig("row", 1, 8)


@pytest.mark.slow
def test_an_unknown_operator_or_dtype_is_named(table: locate.LoadedTable) -> None:
    for lookup in (table.lookup, module_of(table.source.read_text())["lookup"]):
        with pytest.raises(ValueError, match="no table for 'toy' in 'int8': expected one of toy bfloat16, toy float16"):
            lookup("toy", "int8", 1, 1)


@pytest.mark.slow
def test_the_header_tells_of_the_data_and_not_of_where_it_was_written(fitted: Fit) -> None:
    text = module_text(fitted, as_command(COMMAND))
    header, body = parse(text, "table")
    assert header.body == body_hash(body)
    assert header.data[:3] == (fitted.data.digest, fitted.data.measurements, "2026-11-20")
    assert text.split("\n")[1:3] == [
        "# Regenerate: normtune fit --like heuristics.py",
        f"# Test GPU, sm_90, 132 SMs: {fitted.data.measurements} measurements, 2026-11-20",
    ]
    for told in (date.today().isoformat(), socket.gethostname(), f"normtune {__version__}", str(Path.home())):
        assert told not in text.replace("2026-11-20", "")


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.one_of(st.integers(1, MAX_ROWS), st.integers(1, 70000)),
    hidden=st.one_of(st.integers(1, 16384), st.integers(1, 600)),
    data=st.data(),
)
def test_every_lookup_resolves_to_a_legal_launch(
    table: locate.LoadedTable, spec: OperatorSpec, rows: int, hidden: int, data: st.DataObject
) -> None:
    key = data.draw(st.sampled_from(list(table.trees)))
    variants = served_variants(spec, key)
    config = RMSNormConfig(*table.lookup(key.text, key.dtype, rows, hidden))
    for variant in variants:
        assert spec.is_legal(config, Problem.of("toy", rows, hidden, key.dtype, variant), TARGETS["sm_90"])


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(1, MAX_ROWS), hidden=st.integers(1, 16384), data=st.data())
def test_the_code_the_tree_and_the_regions_say_the_same(
    table: locate.LoadedTable, fitted: Fit, rows: int, hidden: int, data: st.DataObject
) -> None:
    text = table.source.read_text()
    read, lookup = trees(text), module_of(text)["lookup"]
    function = data.draw(st.sampled_from(fitted.functions))
    for key in function.served:
        found = RMSNormConfig(*lookup(key.text, key.dtype, rows, hidden))
        assert found == table.lookup(key.text, key.dtype, rows, hidden)
        assert found == choose(function.tree, (rows, hidden)) == choose(read[key], (rows, hidden))
        whole = Box.of(rows=(1, MAX_ROWS), hidden=(1, 16384))
        holding = [config for config, box in regions(read[key], whole) if box.holds((rows, hidden))]
        assert holding == [found]


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["return OTHER", "return 1", "if rows > 5:", "x = 1"])
def test_code_of_another_form_is_refused(table: locate.LoadedTable, wrong: str) -> None:
    text = table.source.read_text()
    broken = text.replace("    if hidden <= 512:", f"    {wrong}", 1)
    assert broken != text
    with pytest.raises(NormtuneError, match="a form that normtune does not write"):
        trees(broken)


def test_a_hostile_name_stays_in_its_comment(evidence: Evidence) -> None:
    run = evidence.runs[0]
    named = run._replace(device=run.device._replace(name='GPU"\n"""; raise SystemExit  # \u2028x'))
    text = module_text(fit(Evidence(evidence.frame, (named,)), FitOptions(leaves=1)), as_command("normtune fit"))
    header, _ = parse(text, "table")
    assert header.gpu == 'GPU" """; raise SystemExit # x'
    assert len([node for node in ast.parse(text).body if isinstance(node, ast.Raise)]) == 0


def test_replayed_data_say_so(evidence: Evidence) -> None:
    run = evidence.runs[0]
    replayed = run._replace(device=run.device._replace(uuid="replay:test-gpu"))
    header, _ = parse(
        module_text(fit(Evidence(evidence.frame, (replayed,)), FitOptions(leaves=1)), as_command("normtune fit")),
        "table",
    )
    assert header.label == "Test GPU (replay)"
    assert header.gpu == "Test GPU"


@pytest.mark.slow
def test_two_configs_of_one_name_are_refused(fitted: Fit) -> None:
    from dataclasses import replace

    odd = [replace(fitted.functions[0], tree=Leaf(RMSNormConfig(name, 1, 4))) for name in ("a-b", "a.b")]
    with pytest.raises(NormtuneError, match="would both be named"):
        module_text(
            replace(fitted, functions=(odd[0], replace(odd[1], key=odd[1].key._replace(dtype="float32")))),
            as_command(COMMAND),
        )
