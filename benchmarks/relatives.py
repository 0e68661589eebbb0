"""The relatives of RMSNorm beside their peers, and beside a plain copy of as many bytes: kernel time, cold.

    python benchmarks/relatives.py [--cases gated,fp8_row] [--shapes 4096x4096,64x4096] [--dtypes bfloat16]
                                   [--budget SECONDS]

A case is a call as users make it: `fused_add`, `gated`, `fp8_static`, `fp8_row`, `fp8_block`, `fp8_transpose`
(static, in both layouts), and the backward of the first two. Every installed peer takes part: Inductor with the plain
formula, `chain` (RMSNorm of torch, then torch's other operations), Liger-Kernel, quack, flash-linear-attention. All
sides are checked against float64 first, get the same number of samples, and are resumed, as in `benchmarks/peers.py`.
The cases are in `benchmarks/cases.py`; `benchmarks/relatives_report.py` makes the table.
"""

from normtune.benchmarks.cases import RELATIVES
from normtune.benchmarks.peers import main

if __name__ == "__main__":
    main(RELATIVES, "bfloat16", "relatives.jsonl", __doc__)
