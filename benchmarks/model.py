"""What a model gets: the time of a training step, of one token and of 64, with the norms of each library in the model.

    python benchmarks/model.py [--rounds 4] [--layers 8] [--models llama,gemma] [--sides torch,normtune] [--json FILE]

Two models of transformers without downloads: one like Llama (hidden 2048), one like Gemma 3 (hidden 1152, norms of
queries and keys, weights stored around zero). `none` has no norms at all: what is left of a step. normtune's norms are
those of `normtune.patch`; `normtune:formula` and `normtune:kernel` pin what `torch.compile` sees. Each side is eager,
compiled, and compiled with CUDA graphs. All sides run in turns; the least median of the rounds counts, as hosts are
noisy. The losses of all sides are compared first.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
import triton
from torch.nn.functional import rms_norm

import normtune

SIDES = ("none", "transformers", "torch", "liger", "normtune")
WAYS = ("eager", "compiled", "graphs")
# Tokens of a training step, and of the forwards of a server: sequences x tokens, calls a round.
WORKS = {"training step": ((4, 2048), 6), "1 token": ((1, 1), 30), "64 tokens": ((1, 64), 20)}
VOCABULARY = 32000
# Relative difference of two losses in bfloat16, whose rounding differs.
CLOSE = 2e-3
Key = tuple[str, str, str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--models", default="llama,gemma")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--budget", type=float, default=float("inf"), help="begin no round after so many seconds")
    parser.add_argument("--json", type=Path, help="write the times here too")
    options = parser.parse_args()
    end = time.monotonic() + options.budget
    # Sides share code: past the limit they would silently run without a compiler.
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1000
    name = torch.cuda.get_device_name()
    print(f"{name}, bfloat16, torch {torch.__version__}, triton {triton.__version__}, {options.layers} layers, ms:")
    cells = []
    for model in options.models.split(","):
        calls = dict(_calls(model, options.layers, options.sides.split(","), options.ways.split(",")))
        least = _least(calls, options.rounds, end)
        _print(model, least)
        cells += [dict(zip(("model", "side", "way", "work"), key, strict=True), ms=ms) for key, ms in least.items()]
    if options.json:
        software = {"torch": torch.__version__, "triton": triton.__version__}
        found = {"device": name, "software": software, "layers": options.layers, "cells": cells}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def _calls(model: str, layers: int, sides: list[str], ways: list[str]) -> Iterator[tuple[Key, tuple[Callable, int]]]:
    """Each call to time, and how often a round."""
    for side in sides:
        made = _model(model, layers, side)
        for way in ways:
            if way != "eager" and side == "liger":  # its kernel does not trace under Inductor of torch 2.11
                continue
            modes = {"eager": None, "compiled": {}, "graphs": {"mode": "reduce-overhead"}}
            function = made if modes[way] is None else torch.compile(made, dynamic=False, **modes[way])
            for work, (shape, count) in WORKS.items():
                if work == "training step" and way == "graphs":
                    continue
                torch.manual_seed(0)  # all sides have the same tokens, and the same loss
                ids = torch.randint(0, VOCABULARY, shape, device="cuda")
                yield (model, side, way, work), (_call(made, function, ids, work == "training step", side), count)


def _call(made: Any, function: Any, ids: Any, is_training: bool, side: str) -> Callable[[], Any]:
    """A training step, which returns its loss, or a forward."""
    pinned = side.partition(":")[2] or "auto"

    def call() -> Any:
        normtune.use(compiled=pinned)
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


def _least(calls: dict[Key, tuple[Callable[[], Any], int]], rounds: int, end: float) -> dict[Key, float]:
    """The least of the medians of all rounds, ms, by call; sides in turns. No second round begins after `end`."""
    losses = {}
    for key, (call, _) in calls.items():  # compiles, and records graphs
        for _ in range(3):
            loss = call()
        if loss is not None and key[1] != "none":
            losses[key] = float(loss)
            wanted = next(iter(losses.values()))
            if abs(losses[key] - wanted) > CLOSE * wanted:
                raise SystemExit(f"{' '.join(key)} has the loss {losses[key]}: expected {wanted}")
    least: dict[Key, float] = {}
    for number in range(rounds):
        if number and time.monotonic() > end:
            break
        for key, (call, count) in calls.items():
            least[key] = min(least.get(key, float("inf")), median(_times(call, count)))
    return least


def _times(call: Callable[[], Any], count: int) -> Iterator[float]:
    for turn in range(count + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if turn > 1:  # after another side, caches are its own
            yield (time.perf_counter() - start) * 1e3


def _print(model: str, least: dict[Key, float]) -> None:
    sides = list(dict.fromkeys(side for _, side, _, _ in least))
    print(f"\n| {model} | {' | '.join(sides)} |\n|---|{'---:|' * len(sides)}")
    for work in WORKS:
        for way in WAYS:
            row = [least.get((model, side, way, work)) for side in sides]
            if any(row):
                cells = " | ".join(f"{ms:.3f}" if ms else "-" for ms in row)
                print(f"| {work}, {way} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
