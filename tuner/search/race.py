"""A race, which times a config for as long as it may be the best.

In: the configs of a task. Out: batches of the configs still in the race; the times are examined after each batch. A
config leaves when it is slower than the leader by more than 0.5 % (`paired`). The race ends when no other config can be
faster than the leader by more than that, or after 64 rounds.
"""

from collections.abc import Sequence

from normtune.kernels.config import Config
from normtune.tuner.search.paired import standing
from normtune.tuner.search.protocol import Batch, Race

# Numbers of blocks after which the times are examined: rounds 6 to 64.
LOOKS = (3, 4, 6, 8, 12, 16, 24, 32)
# Probability that a race drops a config that is as fast as the best, divided equally among the looks.
ALPHA = 0.05


def race(configs: Sequence[Config], looks: Sequence[int] = LOOKS) -> Race:
    """The batches of a race of these configs; `looks` are the numbers of blocks after which times are examined."""
    alive, blocks = list(configs), 0
    for look in looks:
        samples = yield Batch(alive, look - blocks)
        blocks = look
        now = standing(samples, alive, ALPHA / len(looks))
        alive = [config for config in alive if config in samples and not (now and config in now.slower)]
        if len(alive) < 2 or (now and now.is_settled):
            return
