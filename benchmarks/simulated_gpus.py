"""Made-up GPUs, and the losses of tables of different coordinates on them. None of this was measured on such a GPU.

The model: at r rows a GPU of S multiprocessors takes the H200's time at 132 r / S rows (interpolated in the logarithms
of rows and time), but at least the time in which its memory moves the bytes that are read, and those written beyond its
L2 cache. With `walks`, programs of columns take as long as on the H200 at the same rows once there are no more of them
than multiprocessors, because each walks through all rows. The model leaves out clocks, latencies, and the compilation
of a kernel for another architecture.
"""

import math
from typing import NamedTuple

import numpy as np

from normtune.heuristics.any_gpu.function import lost_on
from normtune.heuristics.any_gpu.joint import Joint, Part
from normtune.heuristics.any_gpu.legality import EveryGpu
from normtune.heuristics.regret.legality import all_variants
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.tablefile.relative_tree import ROWS_PER_SM
from normtune.kernels.target import TARGETS
from normtune.results.exchange.recording import load_recording

H200 = TARGETS["sm_90"]
LEAVES = 12
Times = dict[tuple[int, int, Config], float]


class Gpu(NamedTuple):
    """A made-up GPU: multiprocessors, MB of L2 cache, bytes per nanosecond (None: as the H200's per multiprocessor)."""

    name: str
    sms: int
    l2_mb: int
    bandwidth: float | None
    walks: bool


GPUS = (
    Gpu("H200 (measured)", 132, 60, None, False),
    Gpu("36 SMs, scaled", 36, 32, None, False),
    Gpu("36 SMs", 36, 32, 448, True),
    Gpu("84 SMs", 84, 6, 936, True),
    Gpu("148 SMs", 148, 126, 8000, True),
)


def times(name: str, dtype: str = "bfloat16") -> Times:
    """Median nanoseconds of each (rows, hidden, config) of the recorded H200."""
    frame = load_recording("nvidia-h200").current().select([name], [dtype]).frame
    frame = frame[(frame["variant"] == "") & (frame["status"] == "ok")]
    configs = {text: RMSNormConfig.from_json(text) for text in frame["config"].unique()}
    columns = (frame["rows"], frame["hidden"], frame["config"], frame["samples"])
    return {
        (int(rows), int(hidden), configs[text]): float(np.median(samples))
        for rows, hidden, text, samples in zip(*columns, strict=True)
        if configs[text].schedule != "copy"
    }


def simulated(name: str, known: Times, gpu: Gpu, dtype: str = "bfloat16") -> Part:
    """The timing matrix of an operator on a made-up GPU; the legality of its launches is the H200's."""
    spec = operator(name)
    target = H200._replace(sms=gpu.sms, l2_bytes=gpu.l2_mb << 20)
    configs = tuple(sorted({config for _, _, config in known}))
    shapes, regret = [], []
    for rows, hidden in sorted({shape[:2] for shape in known}):
        problem = Problem.of(name, rows, hidden, dtype)
        found = {
            config: max(at, _memory(spec, problem, gpu))
            for config in configs
            if spec.is_legal(config, problem, target) and (at := _at(known, rows, hidden, config, gpu))
        }
        if len(found) > 2:
            best = min(found.values())
            shapes.append((rows, hidden))
            regret.append([round(1e6 * math.log(found[one] / best)) if one in found else -1 for one in configs])
    table = np.array(regret, np.int64)
    return Part(target, TimingMatrix(Key.of(name, "", dtype), tuple(shapes), configs, np.maximum(table, 0), table >= 0))


def _at(known: Times, rows: int, hidden: int, config: Config, gpu: Gpu) -> float | None:
    ratio = H200.sms / gpu.sms
    if gpu.walks and config.finish == "columns" and ratio > 1:
        ratio = max(1.0, min(ratio, -(-hidden // config.block_col) / gpu.sms))
    wanted = max(1.0, rows * ratio)
    low = 1 << (int(wanted).bit_length() - 1)
    share = math.log2(wanted / low)
    below, above = known.get((low, hidden, config)), known.get((2 * low if share > 1e-9 else low, hidden, config))
    return below ** (1 - share) * above**share if below and above else None


def _memory(spec, problem: Problem, gpu: Gpu) -> float:
    if gpu.bandwidth is None:
        return 0.0
    moved = {role: sum(b.nbytes for b in spec.buffers(problem) if b.role == role) for role in ("input", "output")}
    return (moved["input"] + max(0, moved["output"] - (gpu.l2_mb << 20))) / gpu.bandwidth


def _tree(parts: list[Part], size: str):
    spec = operator(parts[0].matrix.key.operator)
    legal = EveryGpu(spec, [H200._replace(sms=1 if size == "rows" else 192)], ["bfloat16"], all_variants(spec))
    if size == "rows":
        parts = [Part(part.target._replace(sms=1), part.matrix) for part in parts]
    return Joint(parts, legal, LEAVES).tree(LEAVES)


def report() -> None:
    """Print the mean loss, percent, per GPU and coordinate of the trees, fitted to the H200 alone and to all others."""
    print(f"trees of {LEAVES} leaves; mean percent lost; all but the first GPU are simulated, bfloat16")
    print("| operator | fitted to | cut beside hidden |" + "".join(f" {gpu.name} |" for gpu in GPUS))
    print("|---|---|---|" + "---:|" * len(GPUS))
    for name in ("rms_norm_forward", "rms_norm_backward"):
        known = times(name)
        parts = [simulated(name, known, gpu) for gpu in GPUS]
        for size in ("rows", ROWS_PER_SM):
            alone = _tree(parts[:1], size)
            others = [_tree(parts[:place] + parts[place + 1 :], size) for place in range(len(parts))]
            for title, trees in (("the H200", [alone] * len(parts)), ("all others", others)):
                cells = []
                for part, tree in zip(parts, trees, strict=True):
                    on = Part(part.target._replace(sms=1), part.matrix) if size == "rows" else part
                    cells.append(f" {100 * math.expm1(lost_on(operator(name), on, tree).mean / 1e6):.2f} |")
                print(f"| {name} | {title} | {size} |" + "".join(cells), flush=True)
