"""The tables of a store.

Out: the SQLAlchemy tables and the version of the schema. `connect` makes them; `records` defines the values.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, ForeignKey, Integer, LargeBinary, SmallInteger, Table, Text

# To be raised with every change of a table. A measurement of 16 samples takes 168 bytes in SQLite, indexes included.
SCHEMA_VERSION = 5
# The columns of a measurement for the values of records.TimedCode, in their order.
DIGESTS = ("launch", "assembly")
# Columns of a measurement that version 4 lacks.
NEW_COLUMNS = ("assembly",)

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
    Column("checksum", BigInteger),  # see Row.crc
    # Null where the code is not known, as for imported measurements. Not in the checksum: if they are damaged, at most
    # a measurement is repeated.
    *(Column(name, LargeBinary) for name in DIGESTS),
    # Identifies a measurement; also the index by which the measurements of a run are found and counted.
    sa.UniqueConstraint("run_id", "problem_id", "config_id", "first_round"),
)

# The requests of sweeps that a run completed: all that they wanted is stored. `data drop` and its undo empty the table.
completion = Table(
    "completion",
    metadata,
    Column("run_id", ForeignKey("run.id"), primary_key=True),
    Column("request", Text, primary_key=True),  # its key
)

# The tables by version that is read. One before SCHEMA_VERSION is upgraded when it is opened to be written.
TABLES = {4: {*metadata.tables} - {completion.name}, SCHEMA_VERSION: {*metadata.tables}}


@sa.event.listens_for(measurement, "after_create")
def _index_failures(_: Any, connection: sa.Connection, **__: Any) -> None:
    # Failures are few: with this and the numbers of all, those of each status are known without reading a sample. As
    # text, because an `Index` with a condition imports PostgreSQL's dialect, a tenth of the start of a command.
    connection.exec_driver_sql(
        "CREATE INDEX measurement_failed ON measurement (run_id, problem_id, status) WHERE status != 'ok'"
    )
