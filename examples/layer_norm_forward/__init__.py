"""LayerNorm's forward as an operator of its own package, by the steps of CONTRIBUTING.md, "How to add an operator".

PYTHONPATH names the folder that has the package. Look without a GPU, sweep and fit on one, and time the table:

    export PYTHONPATH=examples
    normtune inspect examples/layer_norm_forward/operator.py
    normtune sweep --load examples/layer_norm_forward/operator.py --operator layer_norm_forward --dry-run
    normtune sweep --load examples/layer_norm_forward/operator.py --operator layer_norm_forward
    normtune fit --load examples/layer_norm_forward/operator.py --operator layer_norm_forward --out table.py
    python examples/layer_norm_forward/bench.py --table table.py --json times.json

In Python, `normtune.use_table("table.py")` and `from layer_norm_forward.function import layer_norm`.
"""
