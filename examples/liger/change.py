"""A fit of Liger-Kernel's RMSNorm kernels as a change of Liger-Kernel: a diff, the text of a pull request, its times.

pip install liger-kernel==0.8.5
python examples/liger/change.py examples/liger/rms_norm_h200.parquet --out liger.diff

The measurements are those of rms_norm.py. `git apply` takes the diff in a checkout of that version. GPUs like the
measured one take the fitted thresholds, others Liger's own condition. A pass has eight of them, which are quick to
review; the text says what more would gain. The times have the columns of Liger's `benchmark/data`.
"""

import argparse
import ast
import difflib
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from textwrap import indent
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

import normtune

# Regions of a pass.
LEAVES = 9
VERSION, FILE, ROW_MODE = "0.8.5", "ops/rms_norm.py", " or row_mode"
SIZES = {"rows": "n_rows", "hidden": "n_cols"}
# Names of a pass: its operator, the function that launches it, and what the choice returns.
PASSES = {
    "forward": ("liger_rms_norm", "rms_norm_forward", "BLOCK_ROW, num_warps"),
    "backward": ("liger_rms_norm_backward", "rms_norm_backward", "BLOCK_ROW, num_warps, programs"),
}


def branches(tree: Any, margin: str = "    ") -> Iterator[str]:
    """The code of a tree, the low side of each threshold first."""
    if not hasattr(tree, "threshold"):
        yield f"{margin}return {', '.join(map(str, tree.config))}"
        return
    low = "<" if tree.first == tree.threshold else "<="
    yield f"{margin}if {SIZES[tree.axis]} {low} {tree.threshold}:"
    yield from branches(tree.low, f"{margin}    ")
    yield from branches(tree.high, margin)


def choices(table: Any) -> tuple[str, dict[str, str]]:
    """The code of the functions that choose, and by pass the call of them."""
    device, calls = table.device, {}
    if device.target.startswith("sm_"):
        major, minor = divmod(int(device.target[3:]), 10)
        test = f"not torch.version.hip and torch.cuda.get_device_capability(X.device) == ({major}, {minor})"
    else:
        test = f'torch.cuda.get_device_properties(X.device).gcnArchName.startswith("{device.target}")'
    label = re.sub(r"[^\w .-]", "?", device.label, flags=re.ASCII)
    lines = ["def _is_fitted(X):", f'    """Whether launches were measured on a GPU of its kind: {label}."""']
    lines += [f'    return X.device.type == "cuda" and {test}']
    for name, (operator, _, answer) in PASSES.items():
        functions = {
            f"_{name}_launch_{function.key.dtype}": function
            for function in table.functions
            if function.key.text == operator
        }
        for choice, function in functions.items():
            lines += ["", "", f"def {choice}(n_rows, n_cols):"]
            lines += [f'    """{answer}; 0 rows: the row kernel. Fitted to {label}, {function.key.dtype}."""']
            lines += branches(function.tree)
        if functions:
            entries = [f"    torch.{dtype}: {choice}," for choice, one in functions.items() for dtype in one.dtypes]
            lines += ["", "", f"_{name.upper()}_LAUNCH = {{", *entries, "}"]
            calls[name] = f"_{name.upper()}_LAUNCH.get(X.dtype, {next(iter(functions))})(n_rows, n_cols)"
    return "\n".join([*lines, "", "", ""]), calls


def changed(source: str, table: Any) -> str:
    """The text of Liger's file with the launches of a table.

    Raises:
        ValueError: the table is not of Liger's operators, or the file has another form than in `VERSION`.
    """
    code, calls = choices(table)
    if not calls:
        raise ValueError(f"the table has none of {', '.join(operator for operator, *_ in PASSES.values())}")
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}

    def text(node: ast.AST) -> str:
        return ast.get_source_segment(source, node) or ""

    def before_launch(function: ast.FunctionDef, lines: Sequence[str]) -> tuple[int, int, str]:
        place = next(node for node in function.body if isinstance(node, ast.If) and text(node.test) == "W is not None")
        return place.lineno, place.lineno, indent("\n".join(lines), " " * place.col_offset) + "\n\n"

    edits = []  # the first line to replace, numbered from 1, the line behind the last, and the new text
    try:
        for name, call in calls.items():
            _, launcher, answer = PASSES[name]
            function = functions[launcher]
            condition = next(
                node for node in ast.walk(function) if isinstance(node, ast.If) and text(node.test).endswith(ROW_MODE)
            )
            rows = next(
                node
                for node in condition.orelse
                if isinstance(node, ast.Assign) and text(node).startswith("BLOCK_ROW = ")
            )
            lines = [f"BLOCK_ROW = 0 if {text(condition.test).removesuffix(ROW_MODE)} else {text(rows.value)}"]
            lines += ["if _is_fitted(X) and not row_mode:", f"    {answer} = {call}"]
            lines += ["    sm_count *= programs"] * (name == "backward")
            margin = " " * condition.col_offset
            edits += [before_launch(function, lines), (rows.lineno, rows.lineno + 1, "")]
            edits += [(condition.lineno, condition.lineno + 1, f"{margin}if not BLOCK_ROW{ROW_MODE}:\n")]
        if "backward" not in calls:  # the backward launches with the warps that the forward returns
            edits += [before_launch(functions["rms_norm_backward"], ["_, num_warps = calculate_settings(n_cols)"])]
        first = functions["rms_norm_forward"].lineno
    except (KeyError, StopIteration):
        raise ValueError(
            f"{FILE} has another form than in version {VERSION}: install liger-kernel=={VERSION}"
        ) from None
    lines = source.splitlines(True)
    for begin, end, new in sorted([*edits, (first, first, code)], reverse=True):
        lines[begin - 1 : end - 1] = [new]
    return "".join(lines)


def times(table: normtune.Table, operator: str, dtype: str, todays: Any) -> dict[tuple[int, int], tuple[float, float]]:
    """Microseconds of today's launch and of the table's at each shape with times of both."""
    frame = normtune.show(table.evidence).query("operator == @operator and dtype == @dtype and status == 'ok'")
    both = {}
    for (rows, hidden), shape in frame.groupby(["rows", "hidden"]):
        fitted = table.lookup(operator, dtype, int(rows), int(hidden))
        today = todays(type(fitted))(SimpleNamespace(rows=rows, hidden=hidden), None)
        best = shape.loc[shape["best_ratio"].idxmin()]
        found = [shape[(shape[[*config._fields]] == [*config]).all(axis=1)] for config in (today, fitted)]
        if all(map(len, found)):
            before, after = (one["best_ratio"].iloc[0] * best["median_us"] / best["best_ratio"] for one in found)
            both[rows, hidden] = before, after
    return both


def benchmark_lines(table: normtune.Table, todays: Any) -> Iterator[dict[str, Any]]:
    """The times of `times` as lines of Liger-Kernel's `benchmark/data/all_benchmark_data.csv`, by column.

    The provider `liger` is today's launch, `liger_fitted` that of the table. Milliseconds of the kernels alone.
    """
    measured: dict[Any, list[Any]] = {}
    for one in table.evidence.measurements():
        measured.setdefault((*one.problem.columns, one.config), []).append(one.samples)
    run = max(table.evidence.runs, key=lambda run: run.started)
    for name, (operator, *_) in PASSES.items():
        for key in (function.key for function in table.functions if function.key.text == operator):
            for rows, hidden in times(table, operator, key.dtype, todays):
                fitted = table.lookup(operator, key.dtype, rows, hidden)
                today = todays(type(fitted))(SimpleNamespace(rows=rows, hidden=hidden), None)
                for provider, config in (("liger", today), ("liger_fitted", fitted)):
                    samples = np.concatenate(measured[operator, rows, hidden, key.dtype, "", config])
                    low, middle, high = (round(float(ns) / 1e6, 6) for ns in np.quantile(samples, (0.2, 0.5, 0.8)))
                    yield {
                        "kernel_name": "rms_norm",
                        "kernel_provider": provider,
                        "kernel_operation_mode": name,
                        "metric_name": "speed",
                        "metric_unit": "ms",
                        "x_name": "T",
                        "x_label": "Sequence length",
                        "x_value": rows,
                        "y_value_50": middle,
                        "y_value_20": low,
                        "y_value_80": high,
                        "extra_benchmark_config_str": json.dumps(
                            {"hidden_size": hidden, "dtype": f"torch.{key.dtype}", "eps": 1e-6}
                        ),
                        "gpu_name": table.device.label,
                        "timestamp": run.started.replace("T", " ")[:19],
                        "liger_version": VERSION,
                    }


def spread(sizes: Iterable[int], most: int = 7) -> list[int]:
    """At most so many of the sizes, from the least to the largest."""
    ordered = sorted({*sizes})
    count = min(most, len(ordered))
    return [ordered[round(place * (len(ordered) - 1) / max(1, count - 1))] for place in range(count)]


def price(function: Any, full: Any) -> str:
    """What the thresholds of a function lose, and those of the full tree, against the best launch of each shape."""
    # The best is chosen and scored on two halves of the times, so that a loss near none may be below it.
    lost = [f"{max(0.0, 100 * math.expm1(one.figures.loss.plain / 1e6)):.1f} %" for one in (function, full)]
    counts = [one.figures.leaves - 1 for one in (function, full)]
    return (
        f"{counts[0]} thresholds: {lost[0]} from the best launch of each shape. {counts[1]} would be {lost[1]} from it."
    )


def pull_request(table: normtune.Table, full: normtune.Table, todays: Any) -> Iterator[str]:
    """The lines of a pull request.

    Args:
        table: of the change.
        full: with as many leaves as cross-validation chooses.
        todays: gives Liger's present rule in configs of a class.
    """
    fullest = {function.key: function for function in full.functions}
    yield f"Launches of RMSNorm by thresholds, fitted to kernel times on {table.device.label}. GPUs of other kinds keep"
    yield "today's condition. No kernel changes. Microseconds of today's launch → the fitted one, inputs not in the L2:"
    for name, (operator, *_) in PASSES.items():
        for function in (one for one in table.functions if one.key.text == operator):
            both = times(table, operator, function.key.dtype, todays)
            logs = [math.log(before / after) for before, after in both.values()]
            faster, slower = (100 * math.expm1(log) for log in (fmean(logs), max(0, -min(logs))))
            yield ""
            gains = f"{faster:.0f} % faster on average, at most {slower:.1f} % slower."
            yield f"{name.capitalize()}, {function.key.dtype}, {len(both)} shapes: {gains}"
            yield price(function, fullest[function.key])
            columns = spread(hidden for _, hidden in both)
            yield from ("", f"| rows | {' | '.join(f'h={hidden}' for hidden in columns)} |")
            yield "|---:" * (len(columns) + 1) + "|"
            for rows in spread(rows for rows, _ in both):
                cells = [" → ".join(f"{time:.1f}" for time in both.get((rows, hidden), ())) for hidden in columns]
                yield f"| {rows} | {' | '.join(cells)} |"


def main() -> None:
    """Fit, and write the diff and the text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="store or Parquet file of a sweep of rms_norm.py")
    parser.add_argument("--leaves", type=int, default=LEAVES, help=f"at most so many regions of a pass [{LEAVES}]")
    parser.add_argument(
        "--out", type=Path, default=Path("liger.diff"), help="the diff; beside it text in .md, times in .csv"
    )
    options = parser.parse_args()
    found = find_spec("liger_kernel")
    if not found or not found.submodule_search_locations:
        raise SystemExit(f"{parser.prog}: it changes the installed Liger-Kernel: pip install liger-kernel=={VERSION}")
    path = Path(found.submodule_search_locations[0]) / FILE
    sys.path.append(str(Path(__file__).parent))
    todays = import_module("rms_norm").todays  # registers the operators, too
    try:
        table, full = (normtune.fit(options.data, leaves=most, baseline="default") for most in (options.leaves, None))
        before = path.read_text("utf-8")
        after, name = changed(before, table), f"src/liger_kernel/{FILE}"
    except (normtune.NormtuneError, ValueError) as error:
        raise SystemExit(f"{parser.prog}: {error}") from None
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{name}", f"b/{name}")
    text, data = options.out.with_suffix(".md"), options.out.with_suffix(".csv")
    options.out.write_text("".join(lines), "utf-8")
    text.write_text("\n".join([*pull_request(table, full, todays), ""]), "utf-8")
    pd.DataFrame(benchmark_lines(table, todays)).to_csv(data, index=False)
    print(f"wrote {options.out}, {text} and {data}")


if __name__ == "__main__":
    main()
