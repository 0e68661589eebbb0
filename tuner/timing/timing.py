"""Times of kernels on a CUDA GPU, with a cold cache unless another regime is chosen.

In: the configs of one problem. Out: nanoseconds, one number per config and round. The protocol of the regime `cold`:

* One CUDA graph per config. A read of twice the L2 evicts the cache. An untimed launch warms weight and instructions
  and leaves the cache as in a stream of such launches. Timed launches on disjoint slices follow, between two event
  nodes; the time is their mean. The protocol is the same at every size, so that times of neighbouring sizes can be
  compared. The two events cost 2 us together; fewer launches are timed only where this is below 0.5 %.
* One round replays every config once, in shuffled order. Module `rounds` voids disturbed ones, which are repeated.
* All rounds of a block use the same offsets and graphs; the next block has new ones.

`warm` evicts nothing: all launches of a graph use one slice, after `WARM_LEAD_IN` untimed ones, so that the L2 holds as
much as it can. `eager` uses no graph: Python makes the launches, on cold slices (module `batch`).
"""

import time
from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from normtune.kernels.call import AnyLaunch, ForeignKernel, KernelCall, is_foreign
from normtune.kernels.calling.launcher import BoundLaunch, bind_launch
from normtune.kernels.config import COPY
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import IN_OUT, Buffer, Problem
from normtune.kernels.spec_faults import OperatorError
from normtune.results.records import ROUNDS_PER_BLOCK
from normtune.results.regimes import COLD, EAGER, WARM
from normtune.tuner.timing import gate, memory
from normtune.tuner.timing.arena import Arena
from normtune.tuner.timing.batch import Captured, EagerCall, Streamed
from normtune.tuner.timing.gate import LaunchFailedError, failure, launch
from normtune.tuner.timing.protocol import SENTINEL_BYTES, SENTINEL_COPIES, SLOW_SECONDS, timed_launches
from normtune.tuner.timing.rounds import Rounds, RoundWatch, Timed

# Untimed launches of the regime `warm`: the first fills the cache, the second runs with a full one.
WARM_LEAD_IN = 2
WARM_UP_SECONDS = 0.5

Label = TypeVar("Label", bound=Hashable)


class Timer:
    """State shared by all problems on a device: stream, arena, evicting read, sentinel, rounds.

    Args:
        device: the GPU.
        sms: its number of multiprocessors.
        cache_bytes: size of the cache in front of its memory.
        watch: of the GPU.
        seed: of everything drawn.
    """

    def __init__(self, device: torch.device, sms: int, cache_bytes: int, watch: RoundWatch, seed: int = 0) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.arena = Arena(device, seed)
        words = -(-2 * cache_bytes // (4 * memory.READ_WORDS)) * memory.READ_WORDS
        self._evicting = torch.zeros(words, dtype=torch.int32, device=device)
        self._sink = torch.zeros(1, dtype=torch.int32, device=device)
        read = memory.read_call(self._evicting, self._sink, 4 * sms)
        self._read = BoundLaunch([read], [self._evicting, self._sink], 0, device.index)
        self._workspace = torch.empty(0, dtype=torch.float32, device=device)
        pair = torch.zeros(2, SENTINEL_BYTES // 4, dtype=torch.float32, device=device)
        self.evict()
        memory.copy(pair[0], pair[1])  # compiles, which is not possible during a capture
        torch.cuda.synchronize(device)
        copies = [{"source": pair[0], "target": pair[1]}] * (1 + SENTINEL_COPIES)
        self._sentinel = Captured(self, _copy, copies, lead_in=1)
        self.rounds = Rounds(self._sentinel, partial(torch.cuda.synchronize, device), watch, seed)

    def evict(self) -> None:
        """Read twice the size of the cache on the current stream."""
        self._read(self._evicting, self._sink)

    def workspace(self, elements: int) -> Tensor:
        """Float32 workspace of at least `elements`, shared by all launches, which run one after another."""
        if self._workspace.numel() < elements:
            self._workspace = torch.empty(elements, dtype=torch.float32, device=self.device)
        return self._workspace

    def warm_clocks(self) -> None:
        """Keep the GPU busy until its clocks have risen."""
        end = time.monotonic() + WARM_UP_SECONDS
        while time.monotonic() < end:
            for _ in range(20):
                self._sentinel.replay()
            torch.cuda.synchronize(self.device)


def _copy(tensors: Mapping[str, Tensor]) -> None:
    memory.copy(tensors["source"], tensors["target"])


class CudaSession(Generic[Label]):
    """Timing of the launches of one problem in a regime: a `search.rounds.ProblemSession` with labels of any type."""

    def __init__(
        self,
        timer: Timer,
        spec: OperatorSpec,
        problem: Problem,
        launches: Mapping[Label, AnyLaunch],
        regime: str = COLD,
    ) -> None:
        self._timer = timer
        self._spec = spec
        self._problem = problem
        self._launches = dict(launches)
        self._regime = regime
        self._prepared: dict[Label, BoundLaunch | None] = {}
        self._slow: set[Label] = set()
        self._footprint = spec.bytes_moved(problem)
        words = (-(-self._footprint // 8),)  # half of the bytes are read, half are written
        self._copy_buffers = (Buffer("source", words, "float32", "input"), Buffer("target", words, "float32", "output"))
        self._in_out = [buffer.name for buffer in spec.buffers(problem) if buffer.role == IN_OUT]
        self._own_inputs: Mapping[str, Tensor] = {}
        if spec.has_own_inputs:
            generator = torch.Generator(timer.device).manual_seed(problem.hidden)
            self._own_inputs = gate.inputs_of(spec, problem, generator, timer.device, hostile=False)
        first = self._draw(1)[0] if self._in_out else {}
        self._before = {name: first[name].clone() for name in self._in_out}
        # Allocated now: a capture must not allocate.
        timer.workspace(max((resolved.workspace for resolved in launches.values()), default=0))

    def warm_up(self, labels: Sequence[Label]) -> dict[Label, LaunchFailedError]:
        """Launch each config to find failures before a capture, and slow launches; returns the failures."""
        tensors = self._draw(1)[0]
        failed: dict[Label, LaunchFailedError] = {}
        events = {}
        for label in labels:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            try:
                launch_once = self.launcher(label)
                launch_once(tensors)
                begin.record()
                launch_once(tensors)
                end.record()
            except LaunchFailedError as error:
                failed[label] = error
                continue
            events[label] = begin, end
        failed |= self._uncapturable([label for label in events if self._is_foreign(label)])
        torch.cuda.synchronize(self._timer.device)
        self._slow = {label for label, pair in events.items() if pair[0].elapsed_time(pair[1]) > 1e3 * SLOW_SECONDS}
        return failed

    def _is_foreign(self, label: Label) -> bool:
        return is_foreign(self._launches.get(label))

    def _uncapturable(self, labels: Sequence[Label]) -> dict[Label, LaunchFailedError]:
        """Failures of a capture: another library's code may wait for the device, or allocate too much at once."""
        failed = {}
        for label in labels:
            try:
                self._timed(label, self._draw(1 + timed_launches(self._footprint)))
            except LaunchFailedError as error:
                failed[label] = error
            # Raised by the end of a broken capture.
            except RuntimeError as error:
                failed[label] = failure(error)
        return failed

    def block(self, labels: Sequence[Label]) -> dict[Label, list[int]]:
        """Draw new offsets, capture the graphs, and time `ROUNDS_PER_BLOCK` rounds; nanoseconds by label."""
        slices = self._draw(1 if self._regime == WARM else 1 + timed_launches(self._footprint))
        copies = self._timer.arena.slices(self._copy_buffers, len(slices))
        timed = {label: self._timed(label, copies if label == COPY else slices) for label in labels}
        return self._timer.rounds.of(timed, ROUNDS_PER_BLOCK, repeatable=self._regime != EAGER)

    def _timed(self, label: Label, slices: Sequence[Mapping[str, Tensor]]) -> Timed:
        launch_once = self.launcher(label, keeps=True)
        restore = self._restore if self._in_out and label != COPY else None
        if self._regime == WARM:
            count = 1 if label in self._slow else timed_launches(self._footprint)
            same = [slices[0]] * (WARM_LEAD_IN + count)
            return Captured(self._timer, launch_once, same, WARM_LEAD_IN, evicted=False, restore=restore)
        lead_in = 1
        if label in self._slow:
            slices, lead_in = slices[:1], 0
        batch = Streamed if self._regime == EAGER else Captured
        return batch(self._timer, launch_once, slices, lead_in, restore=restore)

    def compare(self, labels: Sequence[Label], often: Collection[Label]) -> dict[Label, LaunchFailedError]:
        """Compare the outputs of each config with the reference, on data like that of the timing.

        Args:
            labels: configs to compare.
            often: labels whose outputs are compared in many calls; those of the others are compared in one.

        Returns:
            The failures.
        """
        tensors = self._draw(1)[0]
        self._restore(tensors)
        expected = gate.reference_of(self._spec, self._problem, tensors)
        outputs = {name: tensors[name] for name in expected}
        many = max(1, min(gate.CALLS, gate.CALLS_BYTES // self._footprint))
        advice = gate.advice_of(self._spec)
        failed = {}
        for label in labels:
            launch_once = partial(self.launcher(label), tensors)
            try:
                gate.check_calls(launch_once, outputs, expected, many if label in often else 1, self._before, advice)
            except LaunchFailedError as error:
                failed[label] = error
        return failed

    def _restore(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in self._before.items():
            tensors[name].copy_(tensor)

    def launcher(self, label: Label, keeps: bool = False) -> EagerCall:
        """A function that launches on a set of tensors, on the current stream.

        It `keeps` the tensors that an implementation returns, or else copies them into those passed.
        """
        if not self._is_foreign(label) and (prepared := self._prepared_launch(label)) is not None:
            return partial(self._launch_prepared, prepared)
        resolved, workspace = self._launches[label], self._timer.workspace(0)
        # In eager mode an implementation's results are freed at once, as in a model.
        results: deque[Any] | None = deque(maxlen=0 if self._regime == EAGER else None) if keeps else None

        def calls(tensors: Mapping[str, Tensor]) -> Sequence[KernelCall]:
            kernel_calls = self._spec.calls(resolved, self._problem, tensors, workspace, self._spec.scalars)
            for call in kernel_calls:
                if isinstance(call.kernel, ForeignKernel):
                    call.kernel.results = results
            return kernel_calls

        def launch_once(tensors: Mapping[str, Tensor]) -> None:
            launch(partial(calls, tensors))

        return launch_once

    @property
    def _workspace(self) -> Tensor | None:
        """The workspace of all launches; None in eager mode, in which each launch allocates one, as a user's does."""
        return None if self._regime == EAGER else self._timer.workspace(0)

    def _launch_prepared(self, prepared: BoundLaunch, tensors: Mapping[str, Tensor]) -> None:
        """Launch without Triton's argument binder, which takes most of the time of a capture."""
        shared = self._workspace
        try:
            prepared(*tensors.values(), None, *([] if shared is None else [shared]))
        except Exception as error:
            raise failure(error, was_prepared=True) from None

    def _prepared_launch(self, label: Label) -> BoundLaunch | None:
        """The prepared launch; None if the order of a kernel's arguments permits none, an error in `eager`."""
        if label not in self._prepared:
            try:
                self._prepared[label] = self._prepare(label)
            except ValueError as error:
                if self._regime == EAGER:
                    raise OperatorError(f"operator {self._spec.name!r} cannot be timed in eager: {error}") from None
                self._prepared[label] = None
            except Exception as error:
                raise failure(error, was_prepared=True) from None
        return self._prepared[label]

    def _prepare(self, label: Label) -> BoundLaunch:
        if label == COPY:
            pair = self._timer.arena.slices(self._copy_buffers, 1)[0]
            call = memory.copy_call(pair["source"], pair["target"])
            shared = self._workspace
            arguments = [*pair.values(), None, *([] if shared is None else [shared])]
            return BoundLaunch([call], arguments, 0, self._timer.device.index)
        # Kernels of a variant get None for a tensor that the variant leaves out.
        tensors = {**self._draw(1)[0], "left out": None}
        resolved = self._launches[label]
        return bind_launch(self._spec, resolved, self._problem, tensors, self._spec.scalars, workspace=self._workspace)

    def _draw(self, count: int) -> list[dict[str, Tensor]]:
        slices = self._timer.arena.slices(self._spec.buffers(self._problem), count)
        for tensors in slices:
            for name, values in self._own_inputs.items():
                tensors[name].copy_(values)
        return slices
