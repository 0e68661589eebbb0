"""A file or URL that cannot be a store gives a one-line error and stays unchanged."""

import builtins
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

import pytest
import sqlalchemy as sa

from normtune.errors import NormtuneError, UsageError
from normtune.results.database import connect
from normtune.results.database.reading import stored_rows, stored_runs
from normtune.results.database.store import Store
from normtune.results.database.url import StoreUrl
from normtune.tests import commands
from normtune.tests.commands import one_line
from normtune.tests.results.stores import alter, loaded, merge, record


@pytest.fixture
def unprivileged():
    """A folder of root's, seen by a user who may read only."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    if os.geteuid() != 0:
        yield folder
        folder.chmod(0o755)
        shutil.rmtree(folder)
        return
    yield folder
    os.seteuid(0)
    shutil.rmtree(folder)


def become_reader(folder: Path) -> None:
    """From here on the folder and what is in it can only be read."""
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    if os.geteuid() == 0:
        os.seteuid(65534)


def refused(url: str, told: str, create: bool = True, kind: type[NormtuneError] = NormtuneError) -> None:
    with one_line(kind, told):
        Store.open(url, create=create)


@pytest.mark.parametrize("create", [True, False])
def test_a_file_that_is_no_database(tmp_path, create):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to have a header\n" * 40)
    before = path.read_bytes()
    refused(f"sqlite:///{path}", "notes.txt is not a SQLite database", create)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("version", [99, 3])
def test_a_store_of_another_schema(stored, create, version):
    alter(stored, f"UPDATE normtune_schema SET version = {version}")
    alter(stored, "PRAGMA journal_mode = DELETE")
    before = stored.read_bytes()
    told = f"schema {version}, this normtune knows 4 and 5: update normtune, or name another store"
    refused(f"sqlite:///{stored}", told, create)
    assert stored.read_bytes() == before


def make_former(url: str) -> None:
    """Give a store the schema of version 0.1.0, and an entry that this wrote into protocols."""
    engine = sa.create_engine(StoreUrl.of(url).url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE completion")
        connection.exec_driver_sql("ALTER TABLE measurement DROP COLUMN assembly")
        connection.exec_driver_sql("UPDATE normtune_schema SET version = 4")
        connection.exec_driver_sql("""UPDATE run SET protocol = replace(protocol, '{', '{"finished":"a","drops":1,')""")
    engine.dispose()


def test_a_store_of_version_0_1_0_is_upgraded_when_it_is_written(url, make, make_run):
    record(url, make_run(), [make()])
    make_former(url)
    with Store.open(url, create=False) as store:
        assert len(store.load().frame) == 1 and store.completed_requests(make_run().device, "cold") == set()
        assert store.runs()[0].protocol == make_run().protocol | {"drops": 1}
    for request in ("a", "b"):
        with Store.open(url) as store:
            assert store.add([make()]) is None and len(store.load().frame) == 1
            store.complete(make_run().id, request)
    with Store.open(url, create=False) as store:
        assert store.completed_requests(make_run().device, "cold") == {"a", "b"}


def test_a_store_of_version_0_1_0_that_is_only_read_stays_as_it_is(stored, varied):
    make_former(f"sqlite:///{stored}")
    before = stored.read_bytes()
    with Store.open(f"sqlite:///{stored}?mode=ro", create=False) as store:
        assert store.load().digest() == varied.digest()
    merge(stored.with_name("new.db"), loaded(stored))
    with Store.open(stored.with_name("other.db")) as store, Store.open(stored, create=False) as source:
        assert store.merge(source) == len(varied.frame)
    assert stored.read_bytes() == before


@pytest.mark.parametrize("create", [True, False])
def test_a_database_of_another_program(tmp_path, create):
    path = tmp_path / "other.db"
    alter(path, "CREATE TABLE customers (name TEXT)")
    before = path.read_bytes()
    refused(f"sqlite:///{path}", "of another program .*'customers'", create)
    assert path.read_bytes() == before


@pytest.mark.parametrize("table", ["measurement", "completion"])
def test_a_store_that_lacks_a_table(stored, table):
    alter(stored, f"DROP TABLE {table}")
    refused(f"sqlite:///{stored}", f"damaged .*'{table}'")


def test_a_store_with_foreign_values(stored):
    with Store.open(f"sqlite:///{stored}") as store:
        with store._reading() as connection:
            rows = [*stored_rows(connection, stored_runs(connection))]
        for row in rows:
            checksum = row._replace(samples=b"0").crc
            alter(
                stored, "UPDATE measurement SET samples = '0', checksum = ? WHERE id = ?", values=(checksum, row.number)
            )
        alter(stored, "UPDATE measurement SET samples = CAST(samples AS BLOB)")
        with one_line(NormtuneError, "samples are cut off"):
            store.load()
        alter(stored, "UPDATE measurement SET checksum = NULL")
        assert store.load().frame.empty and store.damaged.total() == len(rows)


def test_a_store_whose_pages_are_overwritten(stored):
    content = bytearray(stored.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    stored.write_bytes(content)
    with pytest.raises(NormtuneError, match="is damaged"), Store.open(f"sqlite:///{stored}") as store:
        store.load()


def test_reading_where_there_is_nothing(tmp_path):
    refused(
        f"sqlite:///{tmp_path / 'none.db'}",
        "there is no store .*none.db: name one that exists, or run `normtune sweep --store .*none.db` first",
        create=False,
    )
    assert os.listdir(tmp_path) == []
    (tmp_path / "empty.db").touch()
    told = "empty.db is empty: run `normtune sweep --store .*empty.db` first"
    refused(f"sqlite:///{tmp_path / 'empty.db'}", told, create=False)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("none.db", "there is no store none.db (NORMTUNE_STORE): name one that exists, or run `normtune sweep` first"),
        (
            "sqlite:///none/x.db",
            "the folder of the store none/x.db (NORMTUNE_STORE) does not exist: create none or nam",
        ),
        ("notes.txt", "notes.txt (NORMTUNE_STORE) is not a SQLite database: name another file with --store"),
        ("none.parquet", "NORMTUNE_STORE: none.parquet does not exist"),
        ("mysql://x", "NORMTUNE_STORE is a URL of 'mysql'"),
    ],
)
def test_the_variable_is_named_where_it_named_the_store(text: str, told: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("not a database, but long enough to have a header\n" * 40)
    monkeypatch.setenv("NORMTUNE_STORE", text)
    assert commands.refused("show").startswith(told)
    monkeypatch.setenv("NORMTUNE_STORE", "other.db")
    assert "NORMTUNE_STORE" not in commands.refused("show", "--store", text)


def test_a_missing_folder_and_a_folder(tmp_path):
    refused(f"sqlite:///{tmp_path}/none/store.db", "none/store.db does not exist: create", kind=UsageError)
    refused(f"sqlite:///{tmp_path}", "is a folder")


def test_a_read_only_store_can_be_neither_opened_for_writing_nor_written(unprivileged, varied):
    path = unprivileged / "store.db"
    merge(f"sqlite:///{path}", varied)
    before = path.read_bytes()
    become_reader(unprivileged)
    refused(f"sqlite:///{path}", "store.db cannot be opened for writing")
    refused(f"sqlite:///{unprivileged / 'new.db'}", "new.db cannot be opened for writing")
    assert path.read_bytes() == before


def test_a_locked_store_is_left_after_a_while(stored, varied, make, make_run, monkeypatch):
    monkeypatch.setattr(connect, "BUSY_SECONDS", 0.05)
    with Store.open(f"sqlite:///{stored}") as store:
        other = sqlite3.connect(stored, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(NormtuneError, match="is locked by another process"):
            store.begin_run(make_run(9))
        refused(f"sqlite:///{stored}", "is locked by another process")
        assert loaded(f"sqlite:///{stored}").digest() == varied.digest()
        other.execute("ROLLBACK")
        other.close()
        store.begin_run(make_run(9))
        store.add([make(run=make_run(9))])
        assert len(store.load().frame) == len(varied.frame) + 1


def test_a_lock_of_a_server_is_waited_for_a_while(server, make, make_run, monkeypatch):
    monkeypatch.setattr(connect, "BUSY_SECONDS", 0.2)
    other = sa.create_engine(StoreUrl.of(server).url)
    with Store.open(server) as store:
        store.begin_run(make_run())
        with other.connect() as holding:
            holding.execute(sa.text("LOCK TABLE measurement IN ACCESS EXCLUSIVE MODE"))
            for attempt in (lambda: store.add([make()]), store.load, lambda: Store.open(server)):
                with one_line(NormtuneError, r"is locked by another process for over 0\.2 s"):
                    attempt()
        store.add([make()])
        assert len(store.load().frame) == 1
    other.dispose()


def test_a_role_that_may_only_read_is_told_so_before_anything_is_measured(server, make, make_run):
    record(server, make_run(), [make()])
    admin = sa.create_engine(StoreUrl.of(server).url, isolation_level="AUTOCOMMIT")
    reader = admin.url.set(username="normtune_reader", password="p@ss/word")
    with admin.connect() as opened:
        opened.execute(sa.text("CREATE ROLE normtune_reader LOGIN PASSWORD 'p@ss/word'"))
        try:
            opened.execute(sa.text("GRANT SELECT ON ALL TABLES IN SCHEMA public TO normtune_reader"))
            url = reader.render_as_string(hide_password=False)
            assert len(loaded(url).frame) == 1
            refused(
                url,
                r"cannot be used \(permission denied for table config\): to write to it, grant this role SELECT, INS",
            )
            opened.execute(sa.text("GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO normtune_reader"))
            refused(url, r"permission denied for sequence config_id_seq")
            opened.execute(sa.text("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO normtune_reader"))
            with Store.open(url) as store:
                store.begin_run(make_run(2))
                store.drop(make_run(2).id)
                assert len(store.runs(dropped=True)) == 2
            make_former(server)
            refused(url, r"permission denied for schema public\): .*, and let its owner open it once")
        finally:
            opened.execute(sa.text("DROP OWNED BY normtune_reader"))
            opened.execute(sa.text("DROP ROLE normtune_reader"))
    admin.dispose()


@pytest.mark.parametrize(
    "store",
    [
        "postgresql://me:hunter2@127.0.0.1:1/db",
        "postgresql://me:hunter2@x@127.0.0.1:1/db",
        "postgresql://me:a@hunter2@127.0.0.1:1/db",
        "postgresql://me:a@hunter2:9@127.0.0.1:1/db",
        "postgresql://me:a@b/hunter2@127.0.0.1:1/db",
        "postgresql://me:hunter2?a@127.0.0.1:1/db",
        "postgresql://me:hunter2@127.0.0.1:port/db",
        "postgresql://127.0.0.1:1/db?password=hunter2",
        "postgresql://127.0.0.1:1/db?options=-c%20password%3Dhunter2",
        "postgresql://h:hunter2/db",
        "me:hunter2@127.0.0.1/db",
        "postgresql://127.0.0.1:1/db?user=me&PASSWORD=hunter2",
        "postgresql://127.0.0.1:port/db?user=me&password=hunter2",
        "postgresql://127.0.0.1:1/db?user=me&sslpassword=hunter2&connect_timeout=2",
        "postgres://me:hunter2@127.0.0.1/db",
        "mysql://me:hunter2@127.0.0.1/db",
        "sqlite://me:hunter2@127.0.0.1/",
        "sqlite:///x.db?password=hunter2",
        "postgresql:me:hunter2@127.0.0.1/db",
        "postgresql:/me:hunter2@127.0.0.1/db",
        "host=127.0.0.1 dbname=db password=hunter2",
        "dbname = db user = me password = 'hunter2'",
        " password=hunter2 host=127.0.0.1",
        "me:hunter2@127.0.0.1://db",
    ],
)
@pytest.mark.parametrize("is_variable", [False, True])
def test_no_form_of_a_url_shows_its_password(store, is_variable, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NORMTUNE_STORE", store)
    with one_line(NormtuneError) as caught:
        Store.open(None if is_variable else store)
    assert "hunter2" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_file_with_such_a_word_in_its_name_is_a_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("my password.db", "a=b.db", "host.db", "me@home.db", "postgres.db"):
        Store.open(name).close()
        assert os.path.isfile(name)


def test_a_missing_driver_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.split(".")[0] == "psycopg":
            raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    refused("postgresql://me:secret@localhost/tuning", "module psycopg is missing; `pip install 'psycopg")
    with pytest.raises(NormtuneError) as caught:
        Store.open("postgresql://me:secret@localhost/tuning")
    assert "secret" not in str(caught.value)


def test_a_url_that_says_read_only_is_read_and_never_written(stored, varied, make_run):
    url = f"sqlite:///{stored}?mode=ro"
    before, files = Path(stored).read_bytes(), os.listdir(Path(stored).parent)
    refused(url, r"has to be written, but its URL says mode=ro: leave that out, or name another", kind=UsageError)
    with Store.open(url, create=False) as opened:
        assert opened.load().digest() == varied.digest()
        with pytest.raises(
            NormtuneError, match=r"cannot be opened for writing \(attempt to write a readonly database\)"
        ):
            opened.begin_run(make_run(9))
    assert Path(stored).read_bytes() == before
    assert os.listdir(Path(stored).parent) == files
    missing = Path(stored).with_name("none.db")
    refused(f"sqlite:///{missing}?mode=ro", "there is no store", create=False)
    assert not missing.exists()


@pytest.mark.parametrize("options", ["mode=rw", "mode=ro&cache=shared", "immutable=1", "timeout=3", "mode=ro&mode=ro"])
@pytest.mark.parametrize("create", [True, False])
def test_other_options_of_sqlite_are_refused(tmp_path, create, options):
    told = f"mode=ro, to read only, is the one option that a store takes, not '{options}'"
    refused(f"sqlite:///{tmp_path / 'store.db'}?{options}", told, create, UsageError)
    assert os.listdir(tmp_path) == []


def test_the_url_comes_from_the_option_then_the_variable_then_the_default(monkeypatch):
    monkeypatch.delenv("NORMTUNE_STORE", raising=False)
    assert StoreUrl.of(None).path == Path("normtune.db")
    monkeypatch.setenv("NORMTUNE_STORE", "fleet.db")
    assert StoreUrl.of(None).path == Path("fleet.db")
    assert StoreUrl.of("/data/x y.db").path == Path("/data/x y.db")
    assert StoreUrl.of("postgresql://h/db").name == "postgresql+psycopg://h/db"
    monkeypatch.setenv("NORMTUNE_STORE", "")
    assert StoreUrl.of(None).path == Path("normtune.db")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("", "--store is empty"),
        ("mysql://h/db", "--store is a URL of 'mysql'"),
        ("://", "--store is '://': expected sqlite:///FILE"),
        ("postgresql://h:port/db", "expected sqlite:///FILE"),
        ("a?b.db", "cannot be a store"),
    ],
)
def test_a_url_that_cannot_be_a_store(value, told):
    with pytest.raises(UsageError, match=told):
        StoreUrl.of(value)


def test_the_variable_is_named_when_it_is_wrong(monkeypatch):
    monkeypatch.setenv("NORMTUNE_STORE", "redis://h")
    with pytest.raises(UsageError, match="NORMTUNE_STORE is a URL of 'redis'"):
        StoreUrl.of(None)


def test_a_bare_path_with_odd_characters_is_that_file(tmp_path, varied):
    names = ["50% & #1 äö.db", "50%41@+.db"]
    for name in names:
        merge(tmp_path / name, varied)
        assert StoreUrl.of(tmp_path / name).name == str(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == sorted(names)
