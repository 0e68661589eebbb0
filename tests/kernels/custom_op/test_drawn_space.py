"""An operator whose space is a function that draws its configs: the example of docs/operators.md, swept and fitted."""

import re
from functools import partial
from pathlib import Path

import pytest

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.api.fit import fit
from normtune.kernels import load_file, operator
from normtune.kernels.config import COPY, Implementation
from normtune.kernels.config_space import Drawn
from normtune.kernels.custom_op.decorator import kernel_operator
from normtune.kernels.spec_faults import OperatorError
from normtune.kernels.target import TARGETS
from normtune.results.database.store import Store
from normtune.results.records import Outcome
from normtune.tests.commands import one_line
from normtune.tests.tuner.benches import MadeUp, search_of, sweep
from normtune.tuner.inspection.inspect import inspect_operator
from normtune.tuner.plan.plan import plan, problems
from normtune.tuner.search.registry import search
from normtune.tuner.search.rounds import timed
from normtune.tuner.sweep import api
from normtune.tuner.sweep.report import pruned_lines
from normtune.tuner.sweep.work import Backlog

ROOT = Path(__file__).parents[3]
H200 = TARGETS["sm_90"]
SHAPES = [(rows, hidden) for rows in (1, 64, 4096) for hidden in (64, 1000, 16384)]
LISTED = 'space={"block_row": (1, 2, 4, 8, 16, 32), "num_warps": (1, 2, 4, 8, 16, 32)},'


@pytest.fixture
def drawn(tmp_path, operators_forgotten):
    """The example of softmax with the space of the documentation, and its file."""
    (function,) = re.findall(
        r"```python\n(def space\(trial, problem\):.*?)```", (ROOT / "docs/operators.md").read_text(), re.S
    )
    text = (ROOT / "examples" / "softmax.py").read_text()
    assert LISTED in text
    text = text.replace(LISTED, "space=space,").replace(
        "@kernel_operator", f"import normtune\n\n\n{function}\n\n@kernel_operator"
    )
    file = tmp_path / "drawn_softmax.py"
    file.write_text(text.replace("def softmax(", "def drawn_softmax("))
    load_file.load(file)
    return operator.operator("drawn_softmax"), file


class Softmax(MadeUp):
    """Fastest with four warps and four rows; the library is slow. A problem may return, in later rounds."""

    def measure(self, task, race):
        first = 100 * sum(one.problem == task.problem for one in self.measured)
        self.measured.append(task)
        samples = timed(self, task.configs, race, first)
        return {config: Outcome("ok", "", one.rounds, one.nanoseconds) for config, one in samples.items()}

    @staticmethod
    def block(configs):
        def nanoseconds(config):
            if isinstance(config, Implementation) or config == COPY:
                return 5000
            return 1000 + 100 * abs(config.num_warps - 4) + 10 * abs(config.block_row - 4)

        return {config: [nanoseconds(config)] * 2 for config in configs}


@pytest.mark.parametrize("name", ["plane", pytest.param("optuna:TPESampler", marks=pytest.mark.slow)])
def test_the_example_is_planned_swept_and_fitted(drawn, tmp_path, name) -> None:
    spec, _ = drawn
    assert isinstance(spec.space_at("full", spec.problem(1, 64, "float32"), H200), Drawn)
    shapes = SHAPES[::2]
    chosen = plan(problems([spec.name], ["float32"], shapes), "full", H200, is_sampled=True)
    assert len(chosen.pools) == len(shapes) and not chosen.is_empty
    strategy = partial(search(name), seed=1)
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        backlog = Backlog.of(chosen, search_of(chosen, strategy, {}).pending())
        assert len(backlog.tasks) == len(shapes) and backlog.cells
        bench = Softmax()
        summary = sweep(bench, store, chosen, strategy)
        assert (summary.problems, summary.left, dict(summary.failures)) == (len(shapes), 0, {})
        evidence = store.load()
        timed = {(one.problem, one.config) for one in evidence.measurements() if one.config != COPY}
        for problem in (task.problem for task in chosen.tasks):
            configs = [config for at, config in timed if at == problem]
            launches = [spec.launch(config, problem, H200) for config in configs]
            assert len({*launches}) == len(launches) >= 2 and (name == "plane" or Implementation("torch") in configs)
            # The best of those that can be drawn.
            most = 64 * 32 * 4 // (1 << (problem.hidden - 1).bit_length())
            kernels = [config for config in configs if not isinstance(config, Implementation)]
            if most >= 4:
                assert min(abs(one.num_warps - 4) + abs(one.block_row - 4) / 10 for one in kernels) < 1
        again = sweep(Softmax(), store, chosen, strategy)
        assert again.known >= len(shapes) - 1  # the model of plane may find one more config worth its time
        (leaf, *_) = [one for one in fit(store, operators=[spec.name]).lookup(spec.name, "float32", 4096, 64)][:1]
        assert leaf in (1, 2, 4, 8, 16, 32)


def test_what_times_all_configs_refuses_the_space_in_a_line_and_a_portfolio_draws_a_few(drawn) -> None:
    spec, _ = drawn
    wanted = problems([spec.name], ["float32"], SHAPES[::4])
    with one_line(
        UsageError, "operator 'drawn_softmax' draws its configs.*expected a strategy that leaves configs out"
    ):
        plan(wanted, "default", H200)
    few = plan(wanted, "portfolio", H200)
    assert all(2 <= len(task.candidates) <= 17 for task in few.tasks)


@pytest.mark.slow
def test_a_planned_sweep_tells_how_many_configs_were_drawn(drawn) -> None:
    spec, file = drawn
    dry = {"operators": spec.name, "rows": [64], "hidden": [64], "dry_run": True, "store": file.parent / "none.db"}
    with one_line(UsageError, "expected a strategy that leaves configs out, such as plane"):
        api.sweep(**dry, strategy="exhaustive")
    planned = api.sweep(**dry, strategy="optuna:TPESampler").to_plain()["plan"]
    assert planned["problems"] == 1 and planned["configs"] >= 2 and planned["configs_left_out"] == {}
    assert planned["large_spaces"]["configs"] is None and planned["large_spaces"]["configs_asked"] > 10


def test_the_plan_says_that_its_configs_cannot_be_counted(drawn) -> None:
    spec, _ = drawn
    chosen = plan(problems([spec.name], ["float32"], SHAPES[:4]), "full", H200, is_sampled=True)
    search("optuna:TPESampler")(chosen.tasks, {})
    first, *others = pruned_lines(chosen)
    asked = sum(pool.requested for pool in chosen.pools)
    assert asked and first.startswith(f"  {asked} of the configs that a function draws at 4 problems were resolved")
    assert not others  # what the function draws is legal


def of_space(space, **changes):
    arguments = {
        "config": operator.operator("drawn_softmax").config,
        "space": space,
        "buffers": {"x": "input", "y": "output"},
        "reference": lambda x: x,
        "name": "faulty",
    }
    return kernel_operator(**(arguments | changes))(lambda x, y, config: None)


@pytest.mark.parametrize(
    ("space", "told"),
    [
        (lambda trial: {}, r"space is a function that does not take \(trial, problem\)"),
        (
            lambda trial, problem: {"num_warps": 4, "rows": 1},
            r"its space returns .*: expected a value for each of the knobs",
        ),
        (lambda trial, problem: {"num_warps": 4.0}, "its space returns 4.0 for num_warps: expected int"),
        (lambda trial, problem: {"num_warps": 3}, "num_warps of a config is 3, expected a power of 2"),
        (
            lambda trial, problem: {"num_warps": trial.suggest_int("warps", 2, 1)},
            "its space raises ValueError: warps from 2 to 1",
        ),
        (
            lambda trial, problem: {
                "num_warps": trial.suggest_categorical("warps", (2, 4)[trial.suggest_int("rows", 0, 1) :])
            },
            "its space raises ValueError: warps is drawn from one of .* and in another trial from one of .* add what",
        ),
        (lambda trial, problem: trial.number, "its space raises AttributeError"),
    ],
)
def test_a_function_that_draws_no_config_is_told_in_a_line(drawn, space, told) -> None:
    with pytest.raises(NormtuneError, match=told) as caught:
        of_space(space)
    assert "\n" not in str(caught.value) and isinstance(caught.value, UsageError | OperatorError)
    assert "faulty" not in operator.operators()


def test_a_space_that_draws_nothing_is_refused(drawn) -> None:
    def nothing(trial, problem):
        raise operator.IllegalConfigError("never")

    with one_line(UsageError, "its space draws no config at faulty"):
        of_space(nothing)


@pytest.mark.slow
def test_the_example_is_inspected_without_a_gpu(drawn) -> None:
    _, file = drawn
    (found,) = inspect_operator(file, operator="drawn_softmax")
    assert not found.faults and not found.warnings and found.exit_code == 0
    assert ("space", "configs that a function draws, of which a sample is inspected") in found.lines
