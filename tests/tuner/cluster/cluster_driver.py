"""A sweep of made-up, slow devices as a program: ADDRESS, or `none`, STORE, and the SECONDS of a block."""

import sys
import time

from normtune.results.parallel.interrupts import terminable
from normtune.tests.tuner.made_up_recording import PROBLEMS, evidence
from normtune.tuner.cluster import devices as devices_of_cluster
from normtune.tuner.device.replay import ReplayEngine
from normtune.tuner.sweep import devices as devices_of_host
from normtune.tuner.sweep.api import sweep
from normtune.tuner.sweep.spread import SharedSample


class SlowEngine(ReplayEngine):
    """A replay whose blocks take real time."""

    def block(self, configs):
        time.sleep(self.seconds)
        return super().block(configs)


def slow_engine(seconds):
    """It, of the made-up recording."""
    engine = SlowEngine("made-up", evidence=evidence())
    engine.seconds = seconds
    return engine


def main(address, store, seconds):
    opener = "normtune.tests.tuner.cluster.cluster_driver", "slow_engine", (float(seconds),)
    devices_of_host.opener_of = devices_of_cluster.opener_of = lambda *_: opener
    SharedSample.tasks = lambda self: []  # what every device measures is stored for each of them
    with terminable():
        swept = sweep(
            "replay:made-up",
            ray=None if address == "none" else address,
            operators=("rms_norm_forward",),
            dtypes=("bfloat16", "float32"),
            rows=sorted({problem.shape[0] for problem in PROBLEMS}),
            hidden=sorted({problem.shape[1] for problem in PROBLEMS}),
            space="default",
            strategy="exhaustive",
            store=store,
        )
    summary = swept.summary
    print(summary.problems, summary.known, summary.left)
    for name, reason in summary.lost.items():
        print(f"lost {name}: {reason}")


if __name__ == "__main__":
    main(*sys.argv[1:])
