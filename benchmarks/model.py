"""What a model gets: the time of a training step, of one token and of 64, with the norms of each library in the model.

    python benchmarks/model.py [--rounds 5] [--layers 8] [--models llama,gemma] [--sides torch,normtune] [--json FILE]

Two models of transformers without downloads: one like Llama (hidden 2048), one like Gemma 3 (hidden 1152, norms of
queries and keys, weights stored around zero). `none` has no norms at all: what is left of a step. normtune's norms are
those of `normtune.patch`; `normtune:formula` and `normtune:kernel` pin what `torch.compile` sees. Each side is eager,
compiled, and compiled with CUDA graphs, in a process of its own, as compiled graphs of one process are looked through
in turn. All sides are timed in turns, and each round begins with another one, as a GPU in use gets slower; the least
time of all rounds counts, as hosts are noisy. `kernels` is the sum of what a step runs on the GPU, by the profiler:
less that of `none`, it is what norms take. Losses are compared first.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import torch
import transformers
import triton
from torch.nn.functional import rms_norm

import normtune
from normtune.benchmarks.lib.profiled import kernel_times
from normtune.kernels.calling.compiled import Compiled

SIDES = ("none", "transformers", "torch", "liger", "normtune")
WAYS = ("eager", "compiled", "graphs")
KERNELS = " kernels"
# Tokens of a training step, and of the forwards of a server: sequences x tokens, calls a round.
TRAINING = "training step"
WORKS = {TRAINING: ((4, 2048), 6), "1 token": ((1, 1), 30), "64 tokens": ((1, 64), 20)}
VOCABULARY = 32000
# Relative difference of two losses in bfloat16, whose rounding differs.
CLOSE = 2e-3
Key = tuple[str, str, str]  # side, way, work
Job = tuple[str, int, str, list[str]]  # model, layers, side, ways


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--models", default="llama,gemma")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--json", type=Path, help="write the times here too")
    options = parser.parse_args()
    name = torch.cuda.get_device_name()
    print(f"{name}, bfloat16, torch {torch.__version__}, triton {triton.__version__}, {options.layers} layers, ms:")
    cells = []
    for model in options.models.split(","):
        jobs = [(model, options.layers, side, options.ways.split(",")) for side in options.sides.split(",")]
        least = _least(jobs, options.rounds)
        _print(model, least)
        cells += [{"model": model, "side": side, "way": way, "work": work, "ms": ms} for (side, way, work), ms in least]
    if options.json:
        software = {"torch": torch.__version__, "triton": triton.__version__}
        found = {"device": name, "software": software, "layers": options.layers, "cells": cells}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def _least(jobs: list[Job], rounds: int) -> list[tuple[Key, float]]:
    """The least of all rounds, ms, by call; the sides in turns."""
    pipes = []
    for job in jobs:
        ours, theirs = get_context("spawn").Pipe()
        get_context("spawn").Process(target=_serve, args=(theirs, *job), daemon=True).start()
        theirs.close()
        pipes.append(ours)
    losses = [pipe.recv() for pipe in pipes]
    normed = [(side, found) for (_, _, side, _), found in zip(jobs, losses, strict=True) if side != "none"]
    for side, found in normed:
        for way, loss in found.items():
            wanted = next(iter(normed[0][1].values()))
            if abs(loss - wanted) > CLOSE * wanted:
                raise SystemExit(f"the norms of {side}, {way}, give the loss {loss}: expected {wanted}")
    least: dict[Key, float] = {}
    turns = list(zip(jobs, pipes, strict=True))
    for _ in range(rounds):
        for way, work, kind in product(WAYS, WORKS, ("", KERNELS)):
            for (_, _, side, ways), pipe in turns:
                if way in ways and _takes_part(side, way, work) and not (kind and way == "graphs"):
                    pipe.send((way, work, kind))
                    key = side, way, work + kind
                    least[key] = min(least.get(key, float("inf")), pipe.recv())
        turns.append(turns.pop(0))
    for pipe in pipes:
        pipe.send(None)
    return list(least.items())


def _takes_part(side: str, way: str, work: str) -> bool:
    """Liger's kernel does not trace under Inductor of torch 2.11; graphs are for forwards."""
    return not (side == "liger" and way != "eager") and not (work == TRAINING and way == "graphs")


def _serve(pipe: Any, model: str, layers: int, side: str, ways: list[str]) -> None:
    """Send the loss of each way, then the time of each call, or of its kernels, that is asked for, until None comes."""
    made = _model(model, layers, side)
    modes = {"compiled": None, "graphs": "reduce-overhead"}
    calls, losses = {}, {}
    for way, work in product(ways, WORKS):
        if _takes_part(side, way, work):
            function = torch.compile(made, dynamic=False, mode=modes[way]) if way in modes else made
            torch.manual_seed(0)  # all sides have the same tokens
            ids = torch.randint(0, VOCABULARY, WORKS[work][0], device="cuda")
            call = calls[way, work] = _call(made, function, ids, work == TRAINING)
            normtune.use(compiled=cast(Compiled, side.partition(":")[2] or "auto"))
            for _ in range(3):  # compiles, and records graphs
                loss = call()
            if loss is not None:
                losses[way] = float(loss)
    pipe.send(losses)
    for way, work, kind in iter(pipe.recv, None):
        call = calls[way, work]
        pipe.send(_kernels(call) if kind else min(_times(call, WORKS[work][1])))


def _call(made: Any, function: Any, ids: Any, is_training: bool) -> Callable[[], Any]:
    """A training step, which returns its loss, or a forward."""

    def call() -> Any:
        if not is_training:
            with torch.no_grad():
                function(input_ids=ids)
            return None
        loss = function(input_ids=ids, labels=ids).loss
        loss.backward()
        for parameter in made.parameters():
            parameter.grad = None
        return loss.detach()

    return call


def _model(name: str, layers: int, side: str) -> Any:
    shared = {
        "num_hidden_layers": layers,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "use_cache": False,
    }
    if name == "llama":
        config = transformers.LlamaConfig(
            hidden_size=2048, intermediate_size=5632, num_attention_heads=32, num_key_value_heads=8, **shared
        )
    else:
        config = transformers.Gemma3TextConfig(
            hidden_size=1152,
            intermediate_size=6912,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=256,
            layer_types=["full_attention"] * layers,
            **shared,
        )
    torch.manual_seed(0)
    with torch.device("cuda"):
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if side.startswith("normtune"):
        normtune.patch(made)
    for path, module in list(made.named_modules()):
        if side in ("none", "torch", "liger") and "RMSNorm" in type(module).__name__:
            made.set_submodule(path, _norm(side, module))
    return made


def _norm(side: str, before: Any) -> Any:
    """The norm of a side, with the weight of another module."""
    is_gemma = "Gemma" in type(before).__name__
    eps = before.eps if is_gemma else before.variance_epsilon
    shape = before.weight.shape
    if side == "none":
        return torch.nn.Identity()
    if side == "torch":
        made = _AroundZero(shape, eps, device="meta") if is_gemma else torch.nn.RMSNorm(shape, eps, device="meta")
    else:
        from liger_kernel.transformers.rms_norm import LigerRMSNorm

        casting = {"offset": 1.0, "casting_mode": "gemma", "init_fn": "zeros"} if is_gemma else {}
        made = LigerRMSNorm(shape[0], eps, in_place=False, **casting)
    made.weight = before.weight
    return made


class _AroundZero(torch.nn.RMSNorm):
    """torch's norm with a weight that is stored around zero."""

    def forward(self, x: Any) -> Any:
        return rms_norm(x, self.normalized_shape, 1 + self.weight, self.eps)


def _times(call: Callable[[], Any], count: int) -> Iterator[float]:
    for turn in range(count + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if turn > 1:  # after another side, caches are its own
            yield (time.perf_counter() - start) * 1e3


def _kernels(call: Callable[[], Any]) -> float:
    return sum(map(sum, kernel_times(call, 1).values())) / 1e3


def _print(model: str, found: list[tuple[Key, float]]) -> None:
    least = dict(found)
    sides = list(dict.fromkeys(side for side, _, _ in least))
    print(f"\n| {model} | {' | '.join(sides)} |\n|---|{'---:|' * len(sides)}")
    for work in dict.fromkeys(work for _, _, work in least):
        for way in WAYS:
            row = [least.get((side, way, work)) for side in sides]
            if any(row):
                cells = " | ".join(f"{ms:.3f}" if ms else "-" for ms in row)
                print(f"| {work}, {way} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
