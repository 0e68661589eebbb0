"""Number of rounds of each config."""

from normtune.kernels.config import COPY
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.tuner.plan.plan import Task
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.search.adaptive import Adaptive
from normtune.tuner.search.exhaustive import Exhaustive
from normtune.tuner.search.rounds import timed

FAST, CLOSE, SLOW, BROKEN = (RMSNormConfig("row", 1, warps) for warps in (1, 2, 4, 8))
TIMES = {FAST: 100, CLOSE: 109, SLOW: 111, COPY: 1}


class Fixed:
    def __init__(self):
        self.blocks = []

    def block(self, configs):
        self.blocks.append(list(configs))
        return {config: [TIMES[config]] * 2 for config in configs if config in TIMES}


def race(session, configs, search):
    """All samples; what is launched does not matter."""
    task = Task(None, tuple(Candidate(config, None) for config in configs))
    return timed(session, configs, search((), {}).batches(task))


def test_adaptive_gives_six_rounds_to_all_and_sixteen_to_the_close():
    session = Fixed()
    found = race(session, [SLOW, FAST, CLOSE, BROKEN], Adaptive)
    assert {config: len(samples.rounds) for config, samples in found.items()} == {
        FAST: 16,
        CLOSE: 16,
        SLOW: 6,
        COPY: 16,
    }
    assert found[FAST].rounds == list(range(16))
    assert all(BROKEN not in block for block in session.blocks[3:])


def test_exhaustive_gives_sixteen_to_all():
    found = race(Fixed(), [SLOW, FAST, CLOSE], Exhaustive)
    assert {len(samples.nanoseconds) for samples in found.values()} == {16}


def test_the_copy_is_no_rival():
    class OnlySlow(Fixed):
        def block(self, configs):
            return {config: [10 if config == COPY else 1000] * 2 for config in configs}

    found = race(OnlySlow(), [SLOW, FAST], Adaptive)
    assert {len(samples.rounds) for samples in found.values()} == {16}
