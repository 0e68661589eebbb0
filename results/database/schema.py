"""The tables of a store, and the measurements of stores of older versions.

Out: the SQLAlchemy tables and the version of the schema. `connect` makes them; `records` defines the values.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, ForeignKey, Integer, LargeBinary, SmallInteger, Table, Text

# To be raised with every change of a table. Stores of a greater version are refused. Version 4 stores each fingerprint
# once, rounds only where they have gaps, and identifies a measurement by numbers in place of a hash: 168 bytes for one
# of 16 samples in SQLite, its indexes included.
SCHEMA_VERSION = 4

metadata = sa.MetaData()

schema = Table("normtune_schema", metadata, Column("version", Integer, primary_key=True, autoincrement=False))

run = Table(
    "run",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run", Text, nullable=False, unique=True),  # Run.id
    Column("started", Text, nullable=False),
    Column("device", Text, nullable=False),  # JSON of the fields of Device
    Column("software", Text, nullable=False),  # JSON
    Column("protocol", Text, nullable=False),  # JSON
)

problem = Table(
    "problem",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("operator", Text, nullable=False),
    Column("variant", Text, nullable=False),
    Column("dtype", Text, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("hidden", BigInteger, nullable=False),
    sa.UniqueConstraint("operator", "variant", "dtype", "rows", "hidden"),
)

# Config.to_json and fingerprints, each once.
config, fingerprint = (
    Table(
        name,
        metadata,
        Column("id", Integer, primary_key=True),
        Column(name, Text, nullable=False, unique=True),
    )
    for name in ("config", "fingerprint")
)

measurement = Table(
    "measurement",
    metadata,
    Column("id", Integer, primary_key=True),  # grows with time: the newest of one run is the greatest
    Column("run_id", ForeignKey("run.id"), nullable=False),
    Column("problem_id", ForeignKey("problem.id"), nullable=False),
    Column("config_id", ForeignKey("config.id"), nullable=False),
    Column("first_round", Integer, nullable=False),  # -1 for a failure, which has no rounds
    Column("fingerprint_id", ForeignKey("fingerprint.id"), nullable=False),
    Column("revision", SmallInteger, nullable=False),  # how often the fingerprint was replaced
    Column("status", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("median", Integer),  # ns; null where there are no samples
    Column("samples", LargeBinary, nullable=False),  # little-endian int32, ns
    Column("rounds", LargeBinary, nullable=False),  # as samples, one for each; empty where they follow one another
    Column("checksum", BigInteger),  # see rows.checksum; null where a store of version 1 was
    # See records.TimedCode; null where it is not known, as for imported measurements. Not in the checksum: if they are
    # damaged, at most a measurement is repeated.
    Column("launch", LargeBinary),
    Column("code", LargeBinary),
    Column("machine_code", LargeBinary),
    # Identifies a measurement; also the index by which the measurements of a run are found and counted.
    sa.UniqueConstraint("run_id", "problem_id", "config_id", "first_round"),
)


@sa.event.listens_for(measurement, "after_create")
def _index_failures(_: Any, connection: sa.Connection, **__: Any) -> None:
    # Failures are few: with this and the numbers of all, those of each status are known without reading a sample. As
    # text, because an `Index` with a condition imports PostgreSQL's dialect, a tenth of the start of a command.
    connection.exec_driver_sql(
        "CREATE INDEX measurement_failed ON measurement (run_id, problem_id, status) WHERE status != 'ok'"
    )


# Before version 4 a measurement had its fingerprint and rounds in full, an interval of the median, and a hash of what
# identifies it; version 1 had no checksum, version 2 no digests of the timed code.
_ADDED = {"checksum": 2, "launch": 3, "code": 3, "machine_code": 3}
_BEFORE_4 = (
    *("id", "run_id", "problem_id", "config_id", "fingerprint", "status", "reason", "median", "low", "high"),
    *("rounds", "samples", *_ADDED),
)


def measurements_before_4(version: int, name: str = measurement.name) -> Any:
    """The measurements of an older version, in a table of this name; what it did not have is null."""
    columns: list[Any] = [
        sa.column(column) if version >= _ADDED.get(column, 1) else sa.null().label(column) for column in _BEFORE_4
    ]
    return sa.select(*columns).select_from(sa.table(name)).subquery()
