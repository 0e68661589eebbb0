"""Options of `normtune diff`, for the command and the Python function."""

import os
from dataclasses import KW_ONLY, MISSING, dataclass

from normtune.results.options import keyword, option
from normtune.results.source import Measured, Selection, data_option


@dataclass(frozen=True)
class DiffRequest(Selection):
    """Arguments of `diff`."""

    first: str | os.PathLike[str] = option(
        "The file of a table, or the name of a shipped table (`nvidia-h200`) or of a rule (`liger`).", default=MISSING
    )
    second: str | os.PathLike[str] = option("The other one.", default=MISSING)
    data: Measured = data_option()
    _: KW_ONLY
    weights: str | os.PathLike[str] | None = keyword(
        "CSV file of the shapes to compare, with columns rows, hidden and weight. Default: all, of equal weight."
    )
