"""Prepared launches, of `eager` and of the other regimes, pass the gate, variants and the copy included."""

from types import SimpleNamespace

import pytest
import torch

from normtune.errors import NormtuneError
from normtune.kernels.calling.launcher import BoundLaunch
from normtune.kernels.config import COPY
from normtune.kernels.key import Key
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.spec_faults import OperatorError
from normtune.kernels.target import TARGETS
from normtune.tuner.plan.plan import candidates
from normtune.tuner.timing import memory, timing
from normtune.tuner.timing.arena import Arena
from normtune.tuner.timing.gate import LaunchFailedError
from normtune.tuner.timing.timing import CudaSession

pytestmark = pytest.mark.interpreter

TARGET = TARGETS["sm_80"]  # without what the interpreter cannot run
CPU = torch.device("cpu")
KEYS = ("rms_norm_forward", "rms_norm_forward:no_rstd", "rms_norm_backward", "rms_norm_backward:no_dweight")


@pytest.fixture
def timer():
    workspace = torch.zeros(1 << 20)
    return SimpleNamespace(device=CPU, arena=Arena(CPU, 0), workspace=lambda elements: workspace)


def session_of(timer, key, regime="eager", count=4):
    problem = Problem(Key.parse(key, "float32"), 33, 96)
    spec = operator(problem.operator)
    kept, _ = candidates(spec, spec.space("default", problem, TARGET), problem, TARGET)
    launches = {candidate.config: candidate.launch for candidate in kept[:: max(1, len(kept) // count)]}
    return CudaSession(timer, spec, problem, launches, regime), list(launches)


@pytest.mark.slow
@pytest.mark.parametrize("regime", ["cold", "eager"])
@pytest.mark.parametrize("key", KEYS)
def test_launches_are_right_on_every_slice(timer, key, regime):
    session, configs = session_of(timer, key, regime)
    assert len(configs) >= 3
    assert session.compare(configs, []) == {}
    # Prepared on other tensors than it is launched on now.
    assert session.compare(configs, []) == {}
    assert all(session._prepared[config] for config in configs)


def test_tensors_behind_other_arguments_are_launched_without_preparation(timer, monkeypatch):
    session, (config, *_) = session_of(timer, "rms_norm_forward", "cold")

    def prepared(*arguments, **options):
        raise ValueError("expected its tensors before its other arguments")

    monkeypatch.setattr(timing, "bind_launch", prepared)
    assert session.compare([config], []) == {}
    assert session._prepared == {config: None}


def test_a_wrong_result_is_seen_in_the_eager_launch(timer):
    session, (config, *_) = session_of(timer, "rms_norm_forward")
    right = session.launcher(config)

    def wrong(tensors):
        right(tensors)
        tensors["y"][32, 95] += 1

    session.launcher = lambda label: wrong
    (error,) = session.compare([config], []).values()
    assert error.status == "wrong_result"


def test_the_copy_copies(timer):
    session, _ = session_of(timer, "rms_norm_forward")
    launch = session.launcher(COPY)
    for tensors in timer.arena.slices(session._copy_buffers, 2):
        tensors["target"].zero_()
        launch(tensors)
        assert torch.equal(tensors["source"], tensors["target"])
    assert memory.copy_call(tensors["source"], tensors["target"]).args[2] == tensors["source"].numel()


def test_calls_that_raise_are_no_outcome_of_a_config(timer, monkeypatch):
    session, (config, *_) = session_of(timer, "rms_norm_forward")

    def calls(*arguments, **scalars):
        raise ValueError("rows are beyond me")

    monkeypatch.setattr(type(session._spec), "calls_function", lambda spec: calls)
    told = r"^operator 'rms_norm_forward': its calls raises ValueError: rows are beyond me \(test_launches_interp"
    with pytest.raises(OperatorError, match=told):
        session.launcher(config)


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (RuntimeError("Triton Error [CUDA]: invalid argument"), LaunchFailedError, "^RuntimeError: Triton Error"),
        (AttributeError("it has no calls"), AttributeError, "it has no calls"),
        (
            OSError(28, "No space left on device"),
            NormtuneError,
            r"^no kernel can be launched \(OSError: .* No space left",
        ),
    ],
)
def test_an_error_of_a_launch_is_the_outcome_of_its_config_unless_it_is_ours(timer, monkeypatch, error, kind, told):
    session, (config, *_) = session_of(timer, "rms_norm_forward")
    launch_once = session.launcher(config)

    def fail(*arguments):
        raise error

    monkeypatch.setattr(BoundLaunch, "__call__", fail)
    with pytest.raises(kind, match=told):
        launch_once(timer.arena.slices(session._spec.buffers(session._problem), 1)[0])
