"""Open the database of a store, with the tables of `schema`.

In: a URL. Out: a SQLAlchemy engine. Every failure of a database becomes one line that says what to do. `store` reads
and writes measurements.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import URL

from normtune.errors import NormtuneError, UsageError
from normtune.results.database import schema
from normtune.results.database.url import display_name, parse, sqlite_path, store_option

# Longest wait for another process that writes, such as the import of a large file.
BUSY_SECONDS = 30.0
# Beginnings of the names of SQLite's errors where it cannot make files beside a store.
_NO_FILES = ("SQLITE_IOERR", "SQLITE_FULL", "SQLITE_CANTOPEN", "SQLITE_READONLY")
# Advisory lock of those who create the tables of a PostgreSQL store; any number that is nobody else's.
_PREPARING = 0x6E6F726D74756E65
_DAMAGED = "the store {name} is damaged ({line}): restore a copy, or sweep into another with --store"
# What to tell, by the words of which a database says one.
_MESSAGES = (
    (("not a database",), "{name} is not a SQLite database: name another file with --store"),
    (("malformed", "no such", "decode"), _DAMAGED),
    (
        ("permission denied", "read-only transaction"),
        "the store {name} cannot be used ({line}): to write to it, grant this role SELECT, INSERT and UPDATE on its "
        "tables and USAGE on their sequences, or name another store with --store",
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


def connect(url: str, create: bool) -> sa.Engine:
    """An engine whose database has the tables of this version; with `create` it may be written to, and is created.

    Raises:
        UsageError: the URL is of another database, or its folder does not exist.
        NormtuneError: it is damaged, cannot be opened or written, or is of another schema.
    """
    parsed = parse(url)
    path, name = sqlite_path(parsed), display_name(parsed)
    options: dict[str, Any] = {}
    if path is not None:
        if create and parsed.query:
            raise UsageError(
                f"the store {name} has to be written, but its URL says mode=ro: leave that out, or name another store"
            )
        _check_path(path, parsed, create)
        if create:
            options = {"connect_args": {"timeout": BUSY_SECONDS}}
        else:
            options = {"creator": partial(_opened_to_read, path.absolute())}
    elif "connect_timeout" not in parsed.query:
        options = {"connect_args": {"connect_timeout": max(2, int(BUSY_SECONDS))}}
    try:
        engine = sa.create_engine(parsed.set(query={}) if path else parsed, **options)
    except ImportError as error:  # psycopg without a libpq raises no ModuleNotFoundError
        reason = f"the module {error.name} is missing" if error.name else str(error).splitlines()[0]
        raise NormtuneError(f"cannot open {name}: {reason}; `pip install 'psycopg[binary]'` installs it") from None
    if path is None:
        sa.event.listen(engine, "connect", _on_connect_to_server)
    else:
        sa.event.listen(engine, "connect", _on_connect)
        if parsed.query:  # in place of SQLite's mode=ro, which leaves the files of the write-ahead log behind
            sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA query_only = ON"))
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
    """Turn a failure of the database into an error of one line: a `UsageError` for a file that is no database."""
    name = display_name(url)
    try:
        yield
    except sa.exc.SQLAlchemyError as error:
        text = str(error.orig if isinstance(error, sa.exc.DBAPIError) else error)
        raise (UsageError if "not a database" in text else NormtuneError)(_explanation(name, text)) from None
    except UnicodeDecodeError as error:
        raise NormtuneError(_DAMAGED.format(name=name, line=error)) from None


@contextmanager
def readable(url: URL) -> Iterator[None]:
    """Turn what content of others causes into a `NormtuneError`: a flipped bit may make a text a number."""
    try:
        yield
    except (ValueError, LookupError, TypeError, RecursionError, OverflowError) as error:
        reason = str(error)[:200] if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise NormtuneError(_DAMAGED.format(name=display_name(url), line=reason)) from None


def _explanation(name: str, text: str) -> str:
    """One line about a failure of which the database says `text`."""
    line = (text.strip().splitlines() or ["unknown failure"])[0]
    message = next(message for words, message in _MESSAGES if any(word in line for word in words))
    return message.format(name=name, line=line, seconds=BUSY_SECONDS)


def _check_path(path: Path, url: URL, create: bool) -> None:
    name, option = display_name(url), store_option(url)
    try:
        if path.is_dir():
            raise UsageError(f"the store {name} is a folder: expected a file such as {path / 'normtune.db'}")
        if path.parent.exists() and not path.parent.is_dir():
            raise UsageError(f"the store {name} cannot exist: {path.parent} is no folder; name another with --store")
        if not path.parent.is_dir():
            raise UsageError(f"the folder of the store {name} does not exist: create {path.parent} or name another")
        if path.exists() and not path.is_file():  # SQLite would wait for the other end of a pipe
            raise UsageError(f"the store {name} is no regular file: name another with --store")
        if not create and not path.exists():
            raise UsageError(f"there is no store {name}: name one that exists, or run `normtune sweep{option}` first")
        if create and path.suffix == ".parquet":
            raise UsageError(
                f"the store {name} has the name of a Parquet file, which is only read: name another, as normtune.db; "
                "`data export` writes one"
            )
    except OSError as error:
        raise NormtuneError(
            f"the store {name} cannot be examined ({error.strerror or error}): name another with --store"
        ) from None


def _opened_to_read(path: Path) -> sqlite3.Connection:
    """A connection that only reads.

    SQLite makes files beside a store with a write-ahead log even to read it, unless it is opened as immutable. Where it
    cannot, as in a read-only folder or on a full disk, nobody can write to the store. A log that is not empty has
    measurements and must be read.
    """
    connect = partial(sqlite3.connect, timeout=BUSY_SECONDS, check_same_thread=False)
    connection = connect(path)
    try:
        connection.execute("SELECT name FROM sqlite_master LIMIT 1")
    except sqlite3.DatabaseError as error:
        connection.close()
        log = Path(f"{path}-wal")
        if not error.sqlite_errorname.startswith(_NO_FILES) or (log.exists() and log.stat().st_size):
            raise
        connection = connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)
    return connection


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


def _prepare(engine: sa.Engine, name: str, create: bool) -> None:
    """Check that the database is a store before anything is written, and create missing tables."""
    is_sqlite = engine.dialect.name == "sqlite"
    with engine.connect() as connection:
        is_store = _is_store(connection, name)
        if not create:
            if not is_store:
                raise UsageError(f"the store {name} is empty: run `normtune sweep{store_option(engine.url)}` first")
            return
        if is_sqlite and (trigger := _name_in(connection, "type = 'trigger'")):  # code of others may run for ever
            export = f"`normtune data export --out FILE.parquet{store_option(engine.url)}`"
            raise NormtuneError(
                f"the store {name} has a trigger, {trigger[:40]!r}, which normtune never creates: {export} writes a "
                "file, which another store merges"
            )
    if is_sqlite:
        with engine.connect() as connection:
            # Outside of a transaction, and after the checks, because it changes the file.
            driver: Any = connection.connection.driver_connection
            driver.execute("PRAGMA journal_mode = WAL")
    with engine.connect().execution_options(**WRITE) as connection, connection.begin():
        if not is_sqlite:
            # One after another, or two that create the tables at once would fail.
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_PREPARING)))
        # Takes the lock even if the tables exist, so that a store that cannot be written fails before any work.
        if not _is_store(connection, name):
            schema.metadata.create_all(connection)
            connection.execute(schema.schema.insert().values(version=schema.SCHEMA_VERSION))
        if not is_sqlite:
            _try_to_write(connection)


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
    for table in (schema.run, schema.problem, schema.config, schema.fingerprint, schema.measurement):
        names = [column.name for column in table.c if column is not table.c.id]
        nothing = sa.select(*table.c[tuple(names)]).where(sa.false())
        connection.execute(sa.insert(table).from_select(names, nothing))
        connection.execute(sa.select(sa.func.nextval(sa.func.pg_get_serial_sequence(table.name, "id"))))
        if table in (schema.run, schema.measurement):
            connection.execute(sa.update(table).where(sa.false()).values({names[0]: sa.null()}))


def _is_store(connection: sa.Connection, name: str) -> bool:
    """Whether the database is a store, False if it is empty; an error if it is of another program or version."""
    tables = set(sa.inspect(connection).get_table_names())
    if connection.dialect.name == "sqlite":
        _check_computed(connection, name)
    if schema.schema.name in tables:
        version = connection.execute(sa.select(sa.func.max(schema.schema.c.version))).scalar() or 0
        if version != schema.SCHEMA_VERSION:
            raise NormtuneError(
                f"the store {name} has schema {version}, this normtune knows {schema.SCHEMA_VERSION}: update normtune, "
                "or name another store with --store"
            )
        if lacking := sorted(set(schema.metadata.tables) - tables):
            raise NormtuneError(f"the store {name} is damaged (schema {version}, tables missing: {lacking})")
        return True
    # Any table makes a SQLite file another program's; in a PostgreSQL database, which is shared, only our names do.
    others = tables if connection.dialect.name == "sqlite" else tables & set(schema.metadata.tables)
    if others:
        raise UsageError(
            f"{name} is the database of another program (it has a table {sorted(others)[0]!r}): "
            "name another store with --store"
        )
    return False


class FileIdentity:
    """The file of an open store, at an absolute path; None for a database without a file.

    SQLite keeps writing to a file that was removed or replaced, and reports success; `check` finds that.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path.absolute() if path else None
        self._status = self.path.stat() if self.path else None

    def check(self) -> None:
        """Raise `NormtuneError` if the file was removed, replaced or truncated."""
        if self.path is None or self._status is None:
            return
        try:
            status = self.path.stat()
            if not os.path.samestat(status, self._status):
                raise NormtuneError(f"the store {self.path} was replaced by another file while it was written")
            if status.st_size < self._status.st_size and status.st_size < _header_size(self.path):
                raise NormtuneError(f"the store {self.path} was truncated while it was written")
        except OSError as error:
            event = "was removed" if isinstance(error, FileNotFoundError) else f"cannot be reached ({error.strerror})"
            raise NormtuneError(f"the store {self.path} {event} while it was written") from None
        self._status = status


def _header_size(path: Path) -> int:
    """Size of a file according to its header, which VACUUM lowers before it truncates the file."""
    with path.open("rb") as file:
        header = file.read(100)
    page = int.from_bytes(header[16:18], "big")
    return max(100, int.from_bytes(header[28:32], "big") * (65536 if page == 1 else page))
