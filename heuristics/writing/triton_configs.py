"""The configs of a table as lists for `triton.autotune`, which times them at each shape.

In: a table. Out: a module with a list for each operator.
"""

import os
from pathlib import Path

from normtune.heuristics.writing.write import WRITTEN, check_text, write_table
from normtune.kernels.arguments import checked
from normtune.kernels.config import COMPILER_KNOBS, Config, compiler_options, identifier
from normtune.kernels.tablefile import template
from normtune.kernels.tablefile.header import UNPAIRED
from normtune.kernels.tablefile.loaded import LoadedTable
from normtune.kernels.tablefile.locate import load_table
from normtune.kernels.tablefile.tree import configs_of


@checked
def export_table(table: str | os.PathLike[str], path: str | os.PathLike[str], force: bool = False) -> None:
    """Write the configs of a table as lists of `triton.Config`, one for each operator, as `normtune table export` does.

    Functions of the batch-invariant mode are left out. `fit(max_configs=...)` bounds the length of a list.

    Args:
        table: its file, or the name of a shipped table.
        path: of the Python module; a file that normtune wrote there before is replaced.
        force: whether to replace a file that normtune did not write.

    Raises:
        UsageError: there is no such table, or the file should not be replaced.
        NormtuneError: writing failed.
    """
    loaded, file = load_table(table), Path(path)
    check_text(file, force)
    write_table(_text(loaded), file)


def _text(table: LoadedTable) -> str:
    header = table.header
    lines = [
        f"# {WRITTEN}. Data: {header.data.digest}{f' ({UNPAIRED})' * header.data.unpaired}",
        f'"""Configs for `triton.autotune`, of the table for {header.label}, {header.target}."""',
        *("", "from triton import Config"),
    ]
    trees = {key: tree for key, tree in table.trees.items() if not key.is_batch_invariant}
    for name in sorted({key.operator for key in trees}):
        configs = {config for key, tree in trees.items() if key.operator == name for config in configs_of(tree)}
        lines += ["", f"{identifier(name).upper()}_CONFIGS = [", *map(_triton_config, sorted(configs)), "]"]
    return "\n".join([*lines, ""])


def _triton_config(config: Config) -> str:
    values = dict(zip(config._fields, config, strict=True))
    knobs = (
        f"{template.literal(name)}: {template.literal(value)}"
        for name, value in values.items()
        if name not in COMPILER_KNOBS
    )
    options = [f"{name}={value}" for name, value in compiler_options(values).items()]
    return template.in_parentheses("    Config", [f"{{{', '.join(knobs)}}}", *options], ",")
