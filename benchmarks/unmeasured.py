"""Loss of the portable table, fitted to an H200, on a GPU that it has not seen.

In: the shipped tables, and the published times of Liger-Kernel #1238 on an RTX 5060 Ti. Out: the choices of tables and
rules on the shapes of that proposal, with their times there. No GPU is needed.
"""

import json
from pathlib import Path

from normtune.heuristics.rules import RULES
from normtune.kernels.config import Config
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.tablefile import locate
from normtune.kernels.target import Target, target_for

DATA = Path(__file__).with_name("liger_1238_rtx_5060_ti.json")
FORWARD, BACKWARD = "rms_norm_forward", "rms_norm_backward"
Cell = tuple[str, int, int, float, float]


def cells(data: dict) -> list[Cell]:
    """(operator, rows, hidden, ms with a row per program, ms with a block of rows) of every shape with both kernels.

    The forward is the time of forward and backward together less the backward, so uncertain by 0.001 ms.
    """
    found = {(name, rows, hidden): times for name, rows, hidden, *times in data["cells"]}
    made: list[Cell] = []
    for name, rows, hidden in found:
        if name != "backward" or hidden > 512:
            continue
        backward, both = found[name, rows, hidden], found["forward and backward", rows, hidden]
        made.append((BACKWARD, rows, hidden, backward[0], backward[1]))
        made.append((FORWARD, rows, hidden, both[0] - backward[0], both[1] - backward[1]))
    return made


def choices(data: dict) -> dict[str, "dict[tuple[str, int, int], Config | None]"]:
    """The choice of each table and rule on that GPU, by (operator, rows, hidden)."""
    target = target_for(data["target"], data["sms"])._replace(l2_bytes=data["l2_bytes"])
    portable = locate.load(locate.SHIPPED / "portable.py")
    h200 = locate.load(locate.SHIPPED / "nvidia_h200.py")
    shapes = [cell[:3] for cell in cells(data)]
    chosen: dict[str, dict[tuple[str, int, int], Config | None]] = {}
    for title, table in (("portable table", portable), ("table of the H200", h200)):
        chosen[title] = {
            shape: operator(shape[0]).config(*table.lookup(shape[0], data["dtype"], *shape[1:])) for shape in shapes
        }
    for title, rule in (("Liger's rule", "liger"), ("Liger's rule with #1238", "liger_1238")):
        choose = RULES[rule].choose
        chosen[title] = {
            (name, rows, hidden): choose(Problem.of(name, rows, hidden, data["dtype"]), target)
            for name, rows, hidden in shapes
        }
    return {
        title: {shape: _legal(shape, one, data["dtype"], target) for shape, one in by.items()}
        for title, by in chosen.items()
    }


def _legal(shape: tuple[str, int, int], config: Config | None, dtype: str, target: Target) -> Config:
    """The config that dispatch would launch: the operator's default if this one is illegal."""
    name, rows, hidden = shape
    spec, problem = operator(name), Problem.of(name, rows, hidden, dtype)
    return config if config and spec.is_legal(config, problem, target) else spec.default_config(problem, target)


def compare(data: dict) -> list[tuple[str, str, int, int, float, float]]:
    """(name, operator, shapes, those with blocks of rows exactly where faster, mean and worst percent lost)."""
    lines = []
    for title, chosen in choices(data).items():
        for name in (FORWARD, BACKWARD):
            mine = [cell for cell in cells(data) if cell[0] == name]
            right, lost = 0, []
            for operator_name, rows, hidden, single, block in mine:
                config = chosen[operator_name, rows, hidden]
                in_blocks = config is not None and config.block_row > 1
                right += in_blocks == (block < single)
                lost.append(100 * ((block if in_blocks else single) / min(single, block) - 1))
            lines.append((title, name, len(mine), right, sum(lost) / len(lost), max(lost)))
    return lines


def table(data: dict) -> list[str]:
    """The comparison as lines of Markdown."""
    lines = [
        "| chosen by | operator | blocks of rows exactly where they are faster | loses, mean | loses, worst |",
        "|---|---|---:|---:|---:|",
    ]
    for title, name, count, right, mean, worst in compare(data):
        lines.append(f"| {title} | {name} | {right} of {count} | {mean:.1f} % | {worst:.1f} % |")
    return lines


def main() -> None:
    """Print the comparison."""
    data = json.loads(DATA.read_text())
    print(f"{data['gpu']}, {data['sms']} SMs, {data['dtype']}; times of {data['source']}")
    print("\n".join(table(data)))


if __name__ == "__main__":
    main()
