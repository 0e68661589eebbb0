"""An engine that fails every config whose kernels are not in a cache of its worker."""

import os
import tempfile

from normtune.results.records import Outcome
from normtune.tests.tuner.made_up_recording import evidence
from normtune.tuner.compiling.compiler import activate, compile_job
from normtune.tuner.device.replay import ReplayEngine
from normtune.tuner.plan.binaries import jobs_of


class ArrivingEngine(ReplayEngine):
    """A replay that loads the binaries, without a GPU."""

    def identify(self):
        self._own = tempfile.TemporaryDirectory()
        os.environ["TRITON_CACHE_DIR"] = self._own.name  # not the user's, which a test before has filled
        activate(self._target.name, 0, tempfile.gettempdir())
        return super().identify()._replace(compiles=True)

    def gate(self, problem, candidate):
        (job,) = jobs_of([(problem, candidate.launch)])
        made = compile_job(job, keep_assembly=False).new_kernels
        return Outcome("wrong_result", "compiled on the node of the GPU") if made else None


def arriving_engine():
    """It, of the made-up recording."""
    return ArrivingEngine("made-up", evidence=evidence())
