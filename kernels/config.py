"""What a table entry says: how a kernel is launched for a whole region of shapes.

In: nothing. Out: `Config`, the value that spaces enumerate, sweeps time, tables return and
`OperatorSpec.resolve` turns into a `Launch` for one problem. Knows no operator, no shape and no GPU.
"""

import json
from typing import Any, NamedTuple

SCHEDULES = ("row", "block_row", "persistent", "split")
FINISHES = ("none", "reduce", "dependent", "columns")


class Config(NamedTuple):
    """How an operator is launched: hashable, ordered, equal to the plain tuple of its fields.

    Attributes:
        schedule: `row` (one row a program), `block_row` (`block_row` rows a program), `persistent`
            (a fixed grid strides over the rows) or `split` (columns in chunks).
        block_row: rows a program holds at once; lowered by `resolve` where the tile would not fit.
        num_warps: warps a program.
        num_stages: depth of the software pipeline of the row loop; 1 where there is no loop. In `split`, 2 fetches the
            next row into the last-level cache.
        programs_per_sm: size of the fixed grid in programs a multiprocessor; 0 where the grid follows the rows.
        finish: how sums over rows end: `none` (the operator has none), `reduce` (a second kernel sums partial sums),
            `dependent` (that kernel is brought to the GPU early) or `columns` (programs of their own sum columns).
        block_col: columns a chunk in `split`, columns a program sums with finish `columns`, else 0.
    """

    schedule: str
    block_row: int = 1
    num_warps: int = 4
    num_stages: int = 1
    programs_per_sm: int = 0
    finish: str = "none"
    block_col: int = 0

    def __str__(self) -> str:
        """One line, only the fields that say something: `persistent block_row=4 warps=8 stages=3 programs_per_sm=2`."""
        parts = [self.schedule]
        if self.block_row > 1:
            parts.append(f"block_row={self.block_row}")
        parts.append(f"warps={self.num_warps}")
        if self.num_stages > 1:
            parts.append(f"stages={self.num_stages}")
        if self.programs_per_sm:
            parts.append(f"programs_per_sm={self.programs_per_sm}")
        if self.finish != "none":
            parts.append(f"finish={self.finish}")
        if self.block_col:
            parts.append(f"block_col={self.block_col}")
        return " ".join(parts)

    def to_json(self) -> str:
        """The canonical text of this config: sorted keys, no spaces; equal configs give equal bytes."""
        return json.dumps(self._asdict(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Config":
        """The config that `to_json` wrote.

        Raises:
            ValueError: the text is not a JSON object of exactly these fields with the right types.
        """
        try:
            fields: dict[str, Any] = json.loads(text)
            config = cls(**fields)
        except (json.JSONDecodeError, TypeError) as error:
            raise ValueError(f"not a config: {text!r} ({error})") from None
        for name, kind in cls.__annotations__.items():
            value = getattr(config, name)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise ValueError(f"not a config: {name} is {value!r}, expected {kind.__name__}, in {text!r}")
        return config
