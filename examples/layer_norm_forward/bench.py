"""Microseconds of `layer_norm` in bfloat16 beside torch's own functions: python bench.py --table FILE --json FILE."""

import os
import sys

if not sys.flags.safe_path:  # operator.py of this folder would hide the standard library's module
    sys.path.insert(0, os.path.dirname(sys.path.pop(0)))

import argparse
import json

import torch

import normtune
from layer_norm_forward.function import layer_norm

SHAPES = [(1, 4096), (16, 8192), (64, 1024), (512, 768), (1024, 4096), (2048, 12288), (4096, 5120)]
SHAPES += [(8192, 2048), (32768, 1024), (262144, 64)]
CALLS, ROUNDS, INPUT_BYTES = 32, 30, 256 << 20  # inputs of large calls take more bytes than a cache of the GPU holds
FUNCTIONS = {
    "layer_norm": layer_norm,
    "F.layer_norm": lambda x, *affine: torch.nn.functional.layer_norm(x, x.shape[-1:], *affine),
    "native_layer_norm": lambda x, *affine: torch.native_layer_norm(x, x.shape[-1:], *affine, 1e-5),
}


def times(rows, hidden):
    """Least microseconds a call of each function, from CUDA graphs that are replayed in turns."""
    x, *affine = (torch.randn(size, device="cuda").bfloat16() for size in ((rows, hidden), hidden, hidden))
    inputs = [x.clone() for _ in range(min(CALLS, 1 + INPUT_BYTES // x.nbytes))]
    graphs = {name: torch.cuda.CUDAGraph() for name in FUNCTIONS}
    for name, graph in graphs.items():
        FUNCTIONS[name](x, *affine)  # compiles
        with torch.cuda.graph(graph):
            for call in range(CALLS):
                FUNCTIONS[name](inputs[call % len(inputs)], *affine)
    least = dict.fromkeys(FUNCTIONS, float("inf"))
    for name in [*FUNCTIONS] * ROUNDS:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graphs[name].replay()
        end.record()
        end.synchronize()
        least[name] = min(least[name], 1000 * begin.elapsed_time(end) / CALLS)
    return {"rows": rows, "hidden": hidden, **least, "ratio": least["F.layer_norm"] / least["layer_norm"]}


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--table", help="of `normtune fit`; the default config without it")
parser.add_argument("--json", help="file for the times")
options = parser.parse_args()
normtune.use_table(options.table)
results = [times(*shape) for shape in SHAPES]
print("|", " | ".join(results[0]), "|\n|" + "---:|" * len(results[0]))
for one in results:
    print("|", " | ".join(str(round(value, 2)) for value in one.values()), "|")
if options.json:
    with open(options.json, "w") as file:
        json.dump(results, file, indent=1)
