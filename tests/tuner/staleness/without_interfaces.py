"""Compiles a job with a Triton that lacks one of the interfaces which the digest reads, each in turn.

Out: a line for each: its object, its name, the job's status, whether the digest needed a binary.
"""

import sys
import tempfile
from types import ModuleType

from normtune.kernels.operator import operator
from normtune.kernels.target import TARGETS
from normtune.tuner.compiling import compiler
from normtune.tuner.plan.binaries import Job
from normtune.tuner.staleness.code import Assembler

MODULES = ("triton", "triton._C.libtriton", "triton.compiler", "triton.runtime.driver")
VIEWED = {
    ("triton", "knobs"),
    ("knobs", "runtime"),
    ("triton._C.libtriton", "ir"),
    ("triton.runtime.driver", "driver"),
    ("driver", "active"),
}


class View(ModuleType):
    """An object of Triton's as the digest sees it: without some attributes, noting which are read."""

    def __init__(self, of, kind, read, gone):
        vars(self).update(_of=of, _kind=kind, _read=read, _gone=gone)

    def __getattr__(self, name):
        if (self._kind, name) in self._gone:
            raise AttributeError(f"{self._kind} has no {name}")
        if not name.startswith("__"):
            self._read[self._kind, name] = None
        value = getattr(self._of, name)
        if (self._kind, name) == ("triton.compiler", "make_backend"):
            return lambda target: View(value(target), "backend", self._read, self._gone)
        return View(value, name, self._read, self._gone) if (self._kind, name) in VIEWED else value

    def __setattr__(self, name, value):
        if (self._kind, name) in self._gone:
            raise AttributeError(f"{self._kind} has no {name}")
        setattr(self._of, name, value)


def compiled(job, gone=()):
    """What a job compiles to, digested with a Triton that lacks these; what the digest reads."""
    read = {}
    for call in compiler._calls(job.problem, job.launch):
        for kept, keys, *_ in call.kernel.device_caches.values():
            kept.clear(), keys.clear()
    compiler._ASSEMBLER = Assembler()
    real = {name: sys.modules[name] for name in MODULES}
    digest = Assembler.of_call

    def of_call(self, call):
        sys.modules.update({name: View(module, name, read, gone) for name, module in real.items()})
        try:
            return digest(self, call)
        finally:
            sys.modules.update(real)

    Assembler.of_call = of_call
    try:
        return compiler.compile_job(job, False, only_codes=True), read
    finally:
        Assembler.of_call = digest


compiler.activate("sm_90", 0, tempfile.mkdtemp())
spec = operator("rms_norm_forward")
problem = spec.problem(64, 256, "bfloat16")
launch = spec.launch(spec.default_config(problem, TARGETS["sm_90"]), problem, TARGETS["sm_90"])
job = Job(problem, launch, ((problem, launch),))
whole, read = compiled(job)
assert (whole.status, whole.undigested) == ("ok", "") and whole.codes[0].assembly
for gone in read:
    done, _ = compiled(job, {gone})
    (code,) = done.codes
    assert code == whole.codes[0]
    print(*gone, done.status, bool(done.kernels), sep="|")
