"""Random draws in place of Optuna's trials."""

from random import Random

import optuna
import pytest

from normtune.kernels.random_trial import RandomTrial

ASKED = [
    ("suggest_int", (1, 7), {}),
    ("suggest_int", (1, 7), {"step": 3}),
    ("suggest_int", (1, 9), {"log": True}),
    ("suggest_float", (0.5, 1.0), {"step": 0.25}),
    ("suggest_categorical", ((1, "a", None),), {}),
]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("method", "limits", "options"), ASKED)
def test_the_values_and_their_shares_are_those_of_optunas_random_sampler(method, limits, options) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study, random, count = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)), Random(0), 1500
    theirs = [getattr(study.ask(), method)("a", *limits, **options) for _ in range(count)]
    ours = [getattr(RandomTrial(random, {}), method)("a", *limits, **options) for _ in range(count)]
    assert {*map(str, ours)} == {*map(str, theirs)}
    for value in {*theirs}:
        assert abs(ours.count(value) - theirs.count(value)) < 0.06 * count


def test_floats_lie_between_their_limits_and_their_logarithms_evenly() -> None:
    random = Random(0)
    plain = [RandomTrial(random, {}).suggest_float("a", -2.0, 6.0) for _ in range(1000)]
    logs = [RandomTrial(random, {}).suggest_float("a", 1e-4, 1.0, log=True) for _ in range(1000)]
    assert -2 <= min(plain) < -1.9 and 5.9 < max(plain) <= 6
    assert min(logs) >= 1e-4 and max(logs) <= 1 and 450 < sum(value < 1e-2 for value in logs) < 550


def test_a_name_that_is_asked_for_again_keeps_its_value() -> None:
    trial = RandomTrial(Random(3), {})
    first = trial.suggest_int("a", 0, 10**6)
    assert trial.suggest_int("a", 0, 10**6) == first and trial.params == {"a": first}


@pytest.mark.parametrize(
    ("method", "limits", "options"),
    [
        ("suggest_int", (3, 2), {}),
        ("suggest_int", (1, 2), {"step": 0}),
        ("suggest_int", (0, 2), {"log": True}),
        ("suggest_float", (2.0, 1.0), {}),
        ("suggest_float", (0.0, 1.0), {"log": True}),
        ("suggest_categorical", ((),), {}),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_its_name(method, limits, options) -> None:
    with pytest.raises(ValueError, match="the_name"):
        getattr(RandomTrial(Random(0), {}), method)("the_name", *limits, **options)


KINDS = [
    ("suggest_int", (1, 7), {}),
    ("suggest_int", (1, 9), {}),
    ("suggest_int", (1, 9), {"log": True}),
    ("suggest_float", (1.0, 9.0), {}),
    ("suggest_float", (1.0, 9.0), {"log": True}),
    ("suggest_categorical", ((1, 2),), {}),
    ("suggest_categorical", ([1, 2],), {}),
    ("suggest_categorical", ((1, 2, 4),), {}),
]


@pytest.mark.parametrize("earlier", KINDS)
@pytest.mark.parametrize("later", KINDS)
def test_a_name_has_one_kind_of_value_in_all_trials_as_in_a_study_of_optuna(earlier, later) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def accepts(trials) -> bool:
        try:
            for trial, (method, limits, options) in zip(trials, (earlier, later), strict=True):
                getattr(trial, method)("a", *limits, **options)
        except ValueError:
            return False
        return True

    study, kinds = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)), {}
    ours = accepts([RandomTrial(Random(0), kinds), RandomTrial(Random(1), kinds)])
    assert ours == accepts([study.ask(), study.ask()])
