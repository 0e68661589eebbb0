"""The tables of a store.

Out: the SQLAlchemy tables and the version of the schema. `connect` and `store` open and fill them; `records` defines
the values; `older` reads and converts the tables of versions before 4.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
)

# To be raised with every change of a table. Stores of a greater version are refused. Version 4 stores each fingerprint
# once, rounds only where they have gaps, and identifies a measurement by numbers in place of a hash: 168 bytes for one
# of 16 samples in SQLite, its indexes included.
SCHEMA_VERSION = 4

metadata = MetaData()

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
    UniqueConstraint("operator", "variant", "dtype", "rows", "hidden"),
)

config = Table(
    "config",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("config", Text, nullable=False, unique=True),  # Config.to_json
)

fingerprint = Table(
    "fingerprint",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("fingerprint", Text, nullable=False, unique=True),
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
    UniqueConstraint("run_id", "problem_id", "config_id", "first_round"),
)

# Failures are few: with this and the numbers of all, those of each status are known without reading a sample.
Index(
    "measurement_failed",
    *(measurement.c.run_id, measurement.c.problem_id, measurement.c.status),
    sqlite_where=measurement.c.status != "ok",
    postgresql_where=measurement.c.status != "ok",
)
