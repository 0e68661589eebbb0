"""The devices of a sweep: opened in the background, and in groups of like ones, each of which shares a search.

In: the names of the devices, the runs of a store. Out: their identities, from the driver as long as they are not open;
benches.
"""

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import TypeVar

from normtune.errors import NormtuneError
from normtune.results.records import REPLAY_PREFIX, Run
from normtune.tuner.compiling.binaries import Compilers
from normtune.tuner.device.bench import Bench
from normtune.tuner.device.engine import Identity
from normtune.tuner.device.limits import limits_of
from normtune.tuner.device.open import opener_of
from normtune.tuner.device.unopened import Named, unopened

_Device = TypeVar("_Device", bound=Bench | Identity)


class Devices:
    """The devices of a sweep.

    Args:
        names: as in `open.names_of`.
        regime: of the timing.
        runs: of the store.
        compilers: shared by the devices.
        closing: closes the benches.

    Attributes:
        lost: why devices could not be opened, by name.
    """

    def __init__(
        self, names: str | None, regime: str, runs: Collection[Run], compilers: Compilers, closing: ExitStack
    ) -> None:
        self.lost: dict[str, str] = {}
        self._named: list[Named] = unopened(names, regime, runs)
        self._regime = regime
        self._compilers = compilers
        self._closing = closing
        self._benches: list[Bench] = []

    @property
    def identities(self) -> list[Identity]:
        """Identities of all devices; none if one has to be opened first."""
        identities = [identity for _, identity in self._named if identity]
        return identities if len(identities) == len(self._named) else []

    def start(self) -> list[Bench]:
        """Start opening the devices, once; the compilers of those that are known start, too."""
        if not self._benches:
            for index, (name, identity) in enumerate(self._named):
                count = [other for other, _ in self._named[:index]].count(name)
                title = f"{name}#{count + 1}" if count else name or "cuda:0"  # a recording may be there often
                bench = Bench(opener_of(name, self._regime), self._compilers, title)
                self._closing.callback(bench.close)
                self._benches.append(bench)
                if identity and identity.compiles:
                    bench.expect(identity.target.name)
                    bench.prepare(())
        return self._benches

    def open(self) -> list[Bench]:
        """Wait until the devices are open.

        Raises:
            NormtuneError: none can be opened.
        """
        opened = []
        for bench in self.start():
            try:
                bench.open()
            except NormtuneError as error:
                if len(self._benches) == 1:
                    raise
                self.lost[bench.name] = str(error)
                bench.close()
            else:
                opened.append(bench)
        if not opened:
            raise NormtuneError("; ".join(self.lost.values()))
        return opened


def alike(devices: Sequence[_Device]) -> list[list[_Device]]:
    """Groups of devices of one kind, in the order of the first of each."""
    kinds = dict.fromkeys(one.device.kind for one in devices)
    return [[one for one in devices if one.device.kind == kind] for kind in kinds]


def check_limits(group: Sequence[Bench]) -> None:
    """Raise NormtuneError if devices of one kind, whose measurements the store keeps as one, have unlike limits."""
    if len(group) == 1 or group[0].device.uuid.startswith(REPLAY_PREFIX):
        return
    by_limits = dict(zip(limits_of([bench.device for bench in group]), group, strict=True))
    if len(by_limits) > 1:
        limits = "; ".join(f"{bench.name} {limits}" for limits, bench in by_limits.items())
        raise NormtuneError(
            f"GPUs of the name {group[0].device.label!r} differ ({limits}), and a store keeps the times of one name as "
            "those of one kind of GPU: sweep them apart, each --device into a --store of its own"
        )
