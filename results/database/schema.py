"""The tables of a store.

Out: the SQLAlchemy tables and the version of the schema. `connect` and `store` open and fill them; `records` defines
the values.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

# To be raised with every change of a table. Stores of a greater version are refused.
SCHEMA_VERSION = 3
# The first version whose measurements have a checksum. Older stores are read as they are, and altered before a write.
CHECKSUM_VERSION = 2
# The first version whose measurements have digests of the timed code.
CODE_VERSION = 3

# The version that added a column to the table of measurements.
ADDED = {"checksum": CHECKSUM_VERSION, "launch": CODE_VERSION, "code": CODE_VERSION, "machine_code": CODE_VERSION}

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

measurement = Table(
    "measurement",
    metadata,
    Column("id", Integer, primary_key=True),  # grows with time: the newest of one run is the greatest
    Column("key", LargeBinary, nullable=False, unique=True),  # 16 bytes, see store.content_key
    Column("run_id", ForeignKey("run.id"), nullable=False),
    Column("problem_id", ForeignKey("problem.id"), nullable=False),
    Column("config_id", ForeignKey("config.id"), nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("median", Integer),  # ns; null where there are no samples, as low and high
    Column("low", Integer),
    Column("high", Integer),
    Column("samples", LargeBinary, nullable=False),  # little-endian int32, ns
    Column("rounds", LargeBinary, nullable=False),  # little-endian int32, one for each sample
    Column("checksum", BigInteger),  # see sql_rows.checksum; null where a store of version 1 was
    # See records.TimedCode; null where it is not known, as for imported measurements. Not in the checksum: if they are
    # damaged, at most a measurement is repeated.
    Column("launch", LargeBinary),
    Column("code", LargeBinary),
    Column("machine_code", LargeBinary),
    Index("measurement_of_run", "run_id"),
)
