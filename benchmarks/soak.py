"""Threads, streams and graphs at once for minutes, every result compared with float64; memory returns to its start.

    python benchmarks/soak.py [--minutes 10] [--threads 8] [--streams 3] [--seed 0]

Each thread draws shapes, dtypes, strides, offsets in memory, weights and gradients of its own; a further one captures
CUDA graphs and replays them. Ends with 1 if a result is wrong or memory grew by a megabyte.
"""

import argparse
import gc
import random
import sys
import threading
import time
from collections import Counter

DTYPES = ("bfloat16", "float16", "float32")
HIDDEN = (1, 7, 64, 96, 128, 256, 511, 768, 1000, 1024, 2048, 3072, 4096, 5120, 8192, 12288, 16384)
MOST_ELEMENTS = 1 << 21


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    import torch

    def allocated() -> int:
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    run(options, 0.1 * options.minutes, options.seed)  # loads everything that is loaded once
    before = allocated()
    done, errors = run(options, 0.9 * options.minutes, options.seed + 1)
    after = allocated()
    for error in errors:
        print(error)
    print(f"{torch.cuda.get_device_name()}: {sum(done.values())} calls compared, {dict(done)}; {len(errors)} errors")
    print(f"memory allocated: {before} bytes before, {after} after")
    sys.exit(bool(errors) or abs(after - before) >= 1 << 20)


def run(options: argparse.Namespace, minutes: float, seed: int) -> tuple[Counter, list[str]]:
    """All threads for some minutes: number of compared results, by kind, and errors."""
    import torch

    end, done, errors, lock = time.monotonic() + 60 * minutes, Counter(), [], threading.Lock()
    # Made once: torch hands out the same few streams in turns, and no other thread may use one under capture.
    *streams, captured = (torch.cuda.Stream() for _ in range(options.streams + 1))

    def work(index: int) -> None:
        case, count = Case(seed * 1000 + index), Counter()
        try:
            with torch.cuda.stream(streams[index % len(streams)]):
                while time.monotonic() < end and not errors:
                    count[case.once()] += 1
        except Exception as error:
            errors.append(f"thread {index}: {case.told}: {type(error).__name__}: {error}")
        with lock:
            done.update(count)

    def capture() -> None:
        case, count = Case(seed * 1000 + 999), Counter()
        try:
            while time.monotonic() < end and not errors:
                count[case.graph(captured)] += 1
        except Exception as error:
            errors.append(f"graphs: {case.told}: {type(error).__name__}: {error}")
        with lock:
            done.update(count)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(options.threads)]
    threads.append(threading.Thread(target=capture))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done, errors


class Case:
    """Random calls, with their comparison."""

    def __init__(self, seed: int) -> None:
        import torch

        self.random = random.Random(seed)
        self.generator = torch.Generator("cuda").manual_seed(seed)
        self.told = ""

    def tensor(self, rows: int, hidden: int, dtype):
        """Values of a matrix with random offset and strides."""
        import torch

        kind, lead = self.random.choice(("plain", "slice", "offset", "turned", "every other row")), 0
        shape = {"slice": (rows, hidden + 3), "every other row": (2 * rows, hidden), "turned": (hidden, rows)}
        size = shape.get(kind, (rows, hidden))
        if kind == "offset":
            lead = self.random.randrange(1, 9)
        values = (
            torch.randn(size[0] * size[1] + lead, generator=self.generator, device="cuda").to(dtype)[lead:].view(size)
        )
        self.told += f" {kind}"
        views = {"slice": values[:, 3:], "every other row": values[::2], "turned": values.t()}
        return views.get(kind, values)

    def draw(self):
        """x, weight, dy, eps, offset and the mode."""
        import torch

        hidden = self.random.choice(HIDDEN)
        rows = self.random.randint(1, max(1, self.random.choice((8, 300, MOST_ELEMENTS)) // hidden))
        dtype = getattr(torch, self.random.choice(DTYPES))
        weight_dtype = self.random.choice((dtype, dtype, torch.float32, torch.float16))
        mode = self.random.random() < 0.2
        self.told = f"{rows} x {hidden} {dtype}, weight {weight_dtype}, batch-invariant {mode}:"
        x, dy = self.tensor(rows, hidden, dtype), self.tensor(rows, hidden, dtype)
        weight = torch.randn(hidden, generator=self.generator, device="cuda").to(weight_dtype)
        if self.random.random() < 0.1:
            weight = None
        return x, weight, dy, self.random.choice((1e-6, 1e-5, 0.0)), self.random.choice((0.0, 1.0)), mode

    def once(self) -> str:
        """One call, forward alone or with its gradients, compared."""
        import torch

        import normtune

        x, weight, dy, eps, offset, mode = self.draw()
        if self.random.random() < 0.4:
            with torch.no_grad():
                compare((normtune.rms_norm(x, weight, eps, offset, mode),), x, weight, dy, eps, offset)
            return "forward"
        needs = self.random.choice(((True, True), (True, False), (False, True)))
        if weight is None:
            needs = (True, False)
        x = x.detach().requires_grad_(needs[0])
        weight = None if weight is None else weight.requires_grad_(needs[1])
        leaves = [leaf for leaf, need in zip((x, weight), needs, strict=True) if need]
        y = normtune.rms_norm(x, weight, eps, offset, mode)
        compare((y, *torch.autograd.grad(y, leaves, dy)), x, weight, dy, eps, offset, needs)
        return "forward and backward"

    def graph(self, stream) -> str:
        """A call captured on values, replayed on others, compared."""
        import torch

        import normtune

        x, weight, dy, eps, offset, mode = self.draw()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(stream):
            graph = torch.cuda.CUDAGraph()
            # Other threads allocate meanwhile.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                y = normtune.rms_norm(x, weight, eps, offset, mode)
            x.copy_(dy)
            graph.replay()
            compare((y,), x, weight, dy, eps, offset)
        stream.synchronize()
        return "graph"


def compare(found, x, weight, dy, eps, offset, needs=(True, True)) -> None:
    """Raise ArithmeticError if a result differs from float64 by more than rounding allows."""
    import torch

    exact, wide_dy = x.detach().double(), dy.double()
    scale = torch.ones_like(exact[0]) if weight is None else weight.detach().double() + offset
    rstd = torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps)
    xhat = exact * rstd
    wanted = [(xhat * scale, (xhat * scale).abs())]
    if len(found) > 1:
        gradient = wide_dy * scale
        product = gradient * xhat
        terms = rstd * (gradient.abs() + xhat.abs() * product.abs().mean(-1, keepdim=True))
        parts = wide_dy * xhat
        both = [
            (rstd * (gradient - xhat * product.mean(-1, keepdim=True)), terms),
            (parts.sum(0), parts.abs().sum(0)),
        ]
        wanted += [pair for pair, need in zip(both, needs, strict=True) if need]
    for one, (value, size) in zip(found, wanted, strict=True):
        allowed = torch.finfo(one.dtype).eps * value.abs() + 64 * 2**-23 * size + torch.finfo(one.dtype).tiny
        finite = value.abs() < torch.finfo(one.dtype).max  # 0 / 0 is nothing to compare, either
        if bool((((one.double() - value).abs() > allowed) | one.isnan())[finite].any()):
            worst = ((one.double() - value).abs() / allowed).max().item()
            raise ArithmeticError(f"off by {worst:.3g} times what rounding allows")


if __name__ == "__main__":
    main()
