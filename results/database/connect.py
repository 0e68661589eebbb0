"""Open the database of a store, with the tables of `schema`.

In: a URL. Out: a SQLAlchemy engine; every failure of a database becomes one line that a user can act on. Reading and
writing measurements are left to `store`.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.engine import URL

from normtune.errors import NormtuneError, UsageError
from normtune.results.database import schema
from normtune.results.database.url import display_name, parse, sqlite_path

# A sweep waits so long for another process that writes, such as the import of a large file, before it gives up.
BUSY_SECONDS = 30.0
# Begins a transaction that will write; SQLite then takes its lock at once and waits for it, which it does not do when
# a transaction that has read turns to writing.
WRITE = {"normtune_write": True}


def connect(url: str, create: bool) -> sa.Engine:
    """An engine whose database has the tables of this version.

    Args:
        url: of a SQLite or PostgreSQL database.
        create: whether a database without tables gets them, and whether the store will be written to.

    Raises:
        UsageError: the URL is neither, or its folder does not exist.
        NormtuneError: the store does not exist, cannot be opened or written, or is of a newer normtune.
    """
    parsed = parse(url)
    path = sqlite_path(parsed)
    if path is not None:
        if create and parsed.query:
            raise UsageError(
                f"the store {path} is to be written, and its URL says mode=ro: leave that out, or name another store"
            )
        _check_path(path, create)
    name = display_name(parsed)
    try:
        engine = sa.create_engine(
            parsed.set(query={}) if path else parsed, **_engine_options(parsed, path if not create else None)
        )
    except ImportError as error:  # psycopg without a libpq raises no ModuleNotFoundError
        why = f"the module {error.name} is missing" if error.name else str(error).splitlines()[0]
        raise NormtuneError(f"cannot open {name}: {why}; `pip install 'psycopg[binary]'` brings it") from None
    if path is None:
        sa.event.listen(engine, "connect", _on_connect_to_server)
    else:
        sa.event.listen(engine, "connect", _on_connect)
        if parsed.query:
            sa.event.listen(engine, "connect", _on_connect_to_read)
        sa.event.listen(engine, "begin", _on_begin)
    try:
        with translated(parsed):
            _prepare(engine, name, create)
    except BaseException:
        engine.dispose()
        raise
    return engine


@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Turn a database error into one line.

    Raises:
        NormtuneError: the database reported a failure.
    """
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise NormtuneError(_explain(display_name(url), str(error.orig))) from None
    except sa.exc.SQLAlchemyError as error:
        raise NormtuneError(_explain(display_name(url), str(error))) from None
    except UnicodeDecodeError as error:
        raise NormtuneError(damaged(display_name(url), str(error))) from None


def damaged(name: str, why: str) -> str:
    """Message about a store with content that normtune did not write."""
    return f"the store {name} is damaged ({why}): restore a copy, or sweep into another with --store"


def _explain(name: str, text: str) -> str:
    """Explain a database error in one line; `text` is the database's message."""
    line = text.strip().splitlines()[0] if text.strip() else "unknown failure"
    if "not a database" in line:
        return f"{name} is not a SQLite database: name another file with --store"
    if "malformed" in line or "no such" in line or "decode" in line:
        return damaged(name, line)
    if "permission denied" in line or "read-only transaction" in line:
        return (
            f"the store {name} cannot be used ({line}): to write to it, grant this role SELECT, INSERT and UPDATE on "
            "its tables and USAGE on their sequences, or name another store with --store"
        )
    if "readonly" in line or "unable to open" in line:
        return (
            f"the store {name} cannot be opened for writing ({line}): SQLite needs write permission on the file and "
            "its folder; change it, or copy it with the files beside it elsewhere and name the copy with --store"
        )
    if "is full" in line or "disk I/O" in line:
        return (
            f"the store {name} cannot be written ({line}): the disk is full or failing; what was stored before is "
            "kept, free some space and run the same command again"
        )
    if "locked" in line or "lock timeout" in line:
        return f"the store {name} is locked by another process for over {BUSY_SECONDS:g} s: try again when it is done"
    return f"the store {name} failed ({line}): see that its database works, or name another store with --store"


def _check_path(path: Path, create: bool) -> None:
    try:
        if path.is_dir():
            raise NormtuneError(f"the store {path} is a folder: expected a file such as {path / 'normtune.db'}")
        if path.parent.exists() and not path.parent.is_dir():
            raise UsageError(f"the store {path} cannot be: {path.parent} is no folder; name another with --store")
        if not path.parent.is_dir():
            raise UsageError(f"the folder of the store {path} does not exist: create {path.parent} or name another")
        if path.exists() and not path.is_file():  # SQLite would wait for the other end of a pipe
            raise NormtuneError(f"the store {path} is no regular file: name another with --store")
        if not create and not path.exists():
            raise NormtuneError(f"there is no store {path}: run `normtune sweep` first, or name another with --store")
    except OSError as error:
        raise NormtuneError(
            f"the store {path} cannot be looked at ({error.strerror or error}): name another with --store"
        ) from None


def _engine_options(url: URL, only_read: Path | None) -> dict[str, Any]:
    """Options of the engine; `only_read` is the file of a store that is opened for reading."""
    if url.get_backend_name() != "sqlite":
        return {
            "connect_args": {} if "connect_timeout" in url.query else {"connect_timeout": max(2, int(BUSY_SECONDS))}
        }
    if only_read is not None and _is_frozen(only_read):
        name = f"file:{quote(str(only_read.absolute()))}?mode=ro&immutable=1"
        return {"creator": lambda: sqlite3.connect(name, uri=True, timeout=BUSY_SECONDS, check_same_thread=False)}
    return {"connect_args": {"timeout": BUSY_SECONDS}}


def _is_frozen(path: Path) -> bool:
    """Whether nobody writes to a store and its folder is read-only, as on a mounted archive.

    SQLite reads a store with a write-ahead log only if it can put files beside it, unless it is told that nothing
    changes. A log that is not empty belongs to a writer, possibly a killed one, and must be read too.
    """
    log = Path(f"{path}-wal")
    if log.exists() and log.stat().st_size:
        return False
    return not os.access(path.absolute().parent, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _on_connect(connection: Any, _record: Any) -> None:
    # The sqlite3 module begins transactions by itself, before INSERT but not before SELECT; _on_begin does it instead.
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA trusted_schema = OFF")  # a store may come from anybody


def _on_connect_to_server(connection: Any, _record: Any) -> None:
    # PostgreSQL waits for a lock without end. Outside of a transaction, whose end would take the setting back.
    connection.autocommit = True
    connection.execute(f"SET lock_timeout = {int(1000 * BUSY_SECONDS)}")
    connection.autocommit = False


def _on_connect_to_read(connection: Any, _record: Any) -> None:
    # SQLite's own mode=ro leaves the files of the write-ahead log behind.
    connection.execute("PRAGMA query_only = ON")


def _on_begin(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("normtune_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _prepare(engine: sa.Engine, name: str, create: bool) -> None:
    """Check that the database is a store before anything is written, and create missing tables."""
    with engine.connect() as connection:
        found = _is_store(connection, name)
    if not create:
        if not found:
            raise NormtuneError(f"the store {name} holds nothing: run `normtune sweep` first")
        return
    if engine.dialect.name == "sqlite":
        _check_triggers(engine, name)
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            # Outside of a transaction, and only now: it changes the file.
            driver: Any = connection.connection.driver_connection
            driver.execute("PRAGMA journal_mode = WAL")
    with engine.connect().execution_options(**WRITE) as connection, connection.begin():
        # Even where the tables exist this takes the lock: a store that cannot be written is told before any work.
        if not _is_store(connection, name):
            schema.metadata.create_all(connection)
            connection.execute(schema.schema.insert().values(version=schema.SCHEMA_VERSION))
        elif (version := stored_version(connection)) < schema.SCHEMA_VERSION:
            for name in [name for name, since in schema.ADDED.items() if version < since]:
                column = sa.schema.CreateColumn(schema.measurement.c[name]).compile(dialect=connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {schema.measurement.name} ADD COLUMN {column}")
            connection.execute(schema.schema.update().values(version=schema.SCHEMA_VERSION))
        if engine.dialect.name == "postgresql":
            _try_to_write(connection)


def _check_triggers(engine: sa.Engine, name: str) -> None:
    """Refuse to write to a file with triggers: they are somebody else's code, and one may run for ever.

    Raises:
        NormtuneError: it has one.
    """
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'trigger' LIMIT 1").scalar()
    if found is not None:
        raise NormtuneError(
            f"the store {name} has a trigger, {str(found)[:40]!r}, which normtune never makes: `normtune data export` "
            "takes the measurements out, `normtune data import` into another store"
        )


def _check_computed(connection: sa.Connection, name: str) -> None:
    """Refuse a file whose tables compute what they hold: 64 KB may claim gigabytes.

    Raises:
        NormtuneError: a column is generated, or a table virtual.
    """
    virtual = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage = 0 LIMIT 1"
    found = connection.exec_driver_sql(virtual).scalar()
    for table in schema.metadata.tables:
        columns = connection.exec_driver_sql(f'PRAGMA table_xinfo("{table}")').mappings()
        found = found or next((f"{table}.{column['name']}" for column in columns if column["hidden"]), None)
    if found is not None:
        raise NormtuneError(
            f"the store {name} computes {str(found)[:80]!r} in place of holding it, which normtune never makes: name "
            "another store with --store"
        )


def _try_to_write(connection: sa.Connection) -> None:
    """Do what a sweep will do, and take it back: a role that may only read is told so before anything is measured."""
    with connection.begin_nested() as attempt:
        name = f"an attempt to write {uuid4().hex}"
        run = {"run": name, "started": "", "device": "{}", "software": "{}", "protocol": "{}"}
        problem = {"operator": name, "variant": "", "dtype": "", "rows": 1, "hidden": 1}
        measurement: dict[str, Any] = {"key": name.encode(), "fingerprint": "", "status": "", "reason": ""}
        for table, values in ((schema.run, run), (schema.problem, problem), (schema.config, {"config": name})):
            measurement[f"{table.name}_id"] = connection.execute(
                table.insert().values(values).returning(table.c.id)
            ).scalar_one()
        connection.execute(schema.measurement.insert().values(**measurement, samples=b"", rounds=b""))
        connection.execute(schema.run.update().where(schema.run.c.run == name).values(protocol="{}"))
        is_there = schema.measurement.c.key == name.encode()
        connection.execute(schema.measurement.update().where(is_there).values(fingerprint=""))
        attempt.rollback()


def stored_version(connection: sa.Connection) -> int:
    """Schema version of a store; 0 if it has none."""
    return connection.execute(sa.select(sa.func.max(schema.schema.c.version))).scalar() or 0


def _is_store(connection: sa.Connection, name: str) -> bool:
    """Whether the tables are there; False for an empty database.

    Raises:
        NormtuneError: the database belongs to another program or to a newer normtune.
    """
    tables = set(sa.inspect(connection).get_table_names())
    if connection.dialect.name == "sqlite":
        _check_computed(connection, name)
    if schema.schema.name in tables:
        version = stored_version(connection)
        if version > schema.SCHEMA_VERSION:
            raise NormtuneError(
                f"the store {name} has schema {version}, this normtune knows {schema.SCHEMA_VERSION}: update normtune"
            )
        missing = sorted(set(schema.metadata.tables) - tables)
        if version < 1 or missing:
            raise NormtuneError(f"the store {name} is damaged (schema {version}, tables missing: {missing})")
        return True
    # A SQLite file with any table is somebody's; a PostgreSQL database is shared, there only our names count.
    others = tables if connection.dialect.name == "sqlite" else tables & set(schema.metadata.tables)
    if others:
        raise NormtuneError(
            f"{name} is the database of another program (it has a table {sorted(others)[0]!r}): "
            "name another store with --store"
        )
    return False
