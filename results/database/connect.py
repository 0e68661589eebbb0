"""Open the database of a store, with the tables of `schema`.

In: a URL. Out: a SQLAlchemy engine. Every failure of a database becomes one line that says what to do. `store` reads
and writes measurements.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import sqlalchemy as sa

from normtune.errors import NormtuneError, UsageError
from normtune.results.database import schema
from normtune.results.database.sqlite_file import check_file, opened_to_read
from normtune.results.database.url import StoreUrl

# Longest wait for another process that writes, such as the import of a large file.
BUSY_SECONDS = 30.0
# Advisory lock of those who create the tables of a PostgreSQL store; any number that is nobody else's.
_PREPARING = 0x6E6F726D74756E65
_DAMAGED = "the store {name} is damaged ({line}): restore a copy, or sweep into another with --store"
# What to tell, by the words of which a database says one.
_MESSAGES = (
    (("not a database",), "{name} is not a SQLite database: name another file with --store"),
    (("malformed", "no such", "decode"), _DAMAGED),
    (
        ("permission denied", "read-only transaction"),
        "the store {name} cannot be used ({line}): to write to it, grant this role SELECT, INSERT, UPDATE and DELETE "
        "on its tables and USAGE on their sequences, and let its owner open it once, or name another with --store",
    ),
    (
        ("readonly", "unable to open"),
        "the store {name} cannot be opened for writing ({line}): SQLite needs write permission on the file and its "
        "folder; change it, or copy it with the files beside it elsewhere and name the copy with --store",
    ),
    (
        ("is full", "disk I/O"),
        "the store {name} cannot be used ({line}): the disk is full or failing, and even reading may need 32 KB; "
        "what was stored before is kept, free some space and run the same command again",
    ),
    (
        ("locked", "lock timeout"),
        "the store {name} is locked by another process for over {seconds:g} s: try again when it is done",
    ),
    (("",), "the store {name} failed ({line}): check its database, or name another store with --store"),
)
# Option of a transaction that will write. SQLite then takes its lock at the beginning, where it waits for it; a
# transaction that writes after reading would fail at once.
WRITE = {"normtune_write": True}


def connect(store: StoreUrl, create: bool) -> sa.Engine:
    """An engine whose database has the tables of this version; with `create` it may be written to, and is created.

    Raises:
        UsageError: it is another program's, or its folder does not exist.
        NormtuneError: it is damaged, cannot be opened or written, or is of another schema.
    """
    url, path = store.url, store.path
    options: dict[str, Any] = {}
    if path is not None:
        check_file(path, store, create)
        url = url.set(query={})
        if create:
            options = {"connect_args": {"timeout": BUSY_SECONDS}}
        else:
            options = {"creator": partial(opened_to_read, path.absolute(), BUSY_SECONDS)}
    elif "connect_timeout" not in url.query:
        options = {"connect_args": {"connect_timeout": max(2, int(BUSY_SECONDS))}}
    try:
        engine = sa.create_engine(url, **options)
    except ImportError as error:  # psycopg without a libpq raises no ModuleNotFoundError
        reason = f"the module {error.name} is missing" if error.name else str(error).splitlines()[0]
        raise NormtuneError(
            f"cannot open {store.name}: {reason}; `pip install 'psycopg[binary]'` installs it"
        ) from None
    if path is None:
        sa.event.listen(engine, "connect", _on_connect_to_server)
    else:
        sa.event.listen(engine, "connect", _on_connect)
        if store.is_read_only:  # in place of SQLite's mode=ro, which leaves the files of the write-ahead log behind
            sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA query_only = ON"))
        sa.event.listen(engine, "begin", _on_begin)
    try:
        with translated(store.name):
            _prepare(engine, store, create)
    except BaseException:
        engine.dispose()
        raise
    return engine


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Turn a failure of the database into an error of one line: a `UsageError` for a file that is no database."""
    try:
        yield
    except sa.exc.SQLAlchemyError as error:
        text = str(error.orig if isinstance(error, sa.exc.DBAPIError) else error)
        raise (UsageError if "not a database" in text else NormtuneError)(_explanation(name, text)) from None
    except UnicodeDecodeError as error:
        raise NormtuneError(_DAMAGED.format(name=name, line=error)) from None


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn what content of others causes into a `NormtuneError`: a flipped bit may make a text a number."""
    try:
        yield
    except (ValueError, LookupError, TypeError, RecursionError, OverflowError) as error:
        reason = str(error)[:200] if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise NormtuneError(_DAMAGED.format(name=name, line=reason)) from None


def _explanation(name: str, text: str) -> str:
    """One line about a failure of which the database says `text`."""
    line = (text.strip().splitlines() or ["unknown failure"])[0]
    message = next(message for words, message in _MESSAGES if any(word in line for word in words))
    return message.format(name=name, line=line, seconds=BUSY_SECONDS)


def _on_connect(connection: Any, _record: Any) -> None:
    # _on_begin begins transactions: the sqlite3 module would do so before INSERT, but not before SELECT.
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA trusted_schema = OFF")  # a store may come from anybody


def _on_connect_to_server(connection: Any, _record: Any) -> None:
    # PostgreSQL waits for a lock without a limit. Set outside of a transaction, whose rollback would undo it.
    connection.autocommit = True
    connection.execute(f"SET lock_timeout = {int(1000 * BUSY_SECONDS)}")
    connection.autocommit = False


def _on_begin(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("normtune_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _prepare(engine: sa.Engine, store: StoreUrl, create: bool) -> None:
    """Check that the database is a store before anything is written, and create missing tables."""
    with engine.connect() as connection:
        version = _version(connection, store.name)
        if not create:
            if not version:
                raise UsageError(f"the store {store.name} is empty: run `normtune sweep{store.option}` first")
            return
        if store.path and (trigger := _name_in(connection, "type = 'trigger'")):  # code of others may run for ever
            export = f"`normtune data export --out FILE.parquet{store.option}`"
            raise NormtuneError(
                f"the store {store.name} has a trigger, {trigger[:40]!r}, which normtune never creates: {export} "
                "writes a file, which another store merges"
            )
    if store.path:
        with engine.connect() as connection:
            # Outside of a transaction, and after the checks, because it changes the file.
            driver: Any = connection.connection.driver_connection
            driver.execute("PRAGMA journal_mode = WAL")
    with engine.connect().execution_options(**WRITE) as connection, connection.begin():
        if not store.path:
            # One after another, or two that create the tables at once would fail.
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_PREPARING)))
        # Takes the lock even if the tables exist, so that a store that cannot be written fails before any work.
        if (version := _version(connection, store.name)) != schema.SCHEMA_VERSION:
            if version:
                _add_columns(connection)
            schema.metadata.create_all(connection)
            connection.execute(schema.schema.delete())
            connection.execute(schema.schema.insert().values(version=schema.SCHEMA_VERSION))
        if not store.path:
            _try_to_write(connection)


def _add_columns(connection: sa.Connection) -> None:
    """Add what measurements of version 4 lack."""
    for name in schema.NEW_COLUMNS:
        kind = schema.measurement.c[name].type.compile(connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {schema.measurement.name} ADD COLUMN {name} {kind}")


def _name_in(connection: sa.Connection, condition: str) -> str:
    """Name of one of the things in an SQLite file of which this is true; empty if there is none."""
    return str(connection.exec_driver_sql(f"SELECT max(name) FROM sqlite_master WHERE {condition}").scalar() or "")


def _check_computed(connection: sa.Connection, name: str) -> None:
    """Refuse a file with virtual tables or generated columns: 64 KB of these may claim gigabytes."""
    computed = _name_in(connection, "type = 'table' AND rootpage = 0")
    for table in schema.metadata.tables:
        columns = connection.exec_driver_sql(f'PRAGMA table_xinfo("{table}")').mappings()
        computed = computed or next((f"{table}.{column['name']}" for column in columns if column["hidden"]), "")
    if computed:
        raise NormtuneError(
            f"the store {name} computes {computed[:80]!r} instead of storing it, which normtune never does: name "
            "another store with --store"
        )


def _try_to_write(connection: sa.Connection) -> None:
    """Write nothing, so that a role without permission fails before anything is measured."""
    for table in schema.metadata.sorted_tables:
        if table is schema.schema:
            continue
        names = [column.name for column in table.c if column.name != "id"]
        nothing = sa.select(*table.c[tuple(names)]).where(sa.false())
        connection.execute(sa.insert(table).from_select(names, nothing))
        if "id" in table.c:
            connection.execute(sa.select(sa.func.nextval(sa.func.pg_get_serial_sequence(table.name, "id"))))
    for table in (schema.run, schema.measurement):
        connection.execute(sa.update(table).where(sa.false()).values(id=sa.null()))
    connection.execute(sa.delete(schema.completion).where(sa.false()))


def _version(connection: sa.Connection, name: str) -> int:
    """Version of the schema of a store; 0 if the database is empty.

    Raises:
        UsageError: the database is of another program.
        NormtuneError: the store is damaged, or of another version than is read.
    """
    tables = set(sa.inspect(connection).get_table_names())
    if connection.dialect.name == "sqlite":
        _check_computed(connection, name)
    if schema.schema.name in tables:
        version = connection.execute(sa.select(sa.func.max(schema.schema.c.version))).scalar() or 0
        if version not in schema.TABLES:
            known = " and ".join(map(str, schema.TABLES))
            raise NormtuneError(
                f"the store {name} has schema {version}, this normtune knows {known}: update normtune, or name another "
                "store with --store"
            )
        if missing := sorted(schema.TABLES[version] - tables):
            raise NormtuneError(f"the store {name} is damaged (schema {version}, tables missing: {missing})")
        return version
    # Any table makes a SQLite file another program's; in a PostgreSQL database, which is shared, only our names do.
    others = tables if connection.dialect.name == "sqlite" else tables & set(schema.metadata.tables)
    if others:
        raise UsageError(
            f"{name} is the database of another program (it has a table {sorted(others)[0]!r}): "
            "name another store with --store"
        )
    return 0
