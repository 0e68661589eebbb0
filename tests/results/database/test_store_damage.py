"""A damaged store, a full disk, a read-only disk, two writers: one line of error, and no loss."""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.results.database.store import Store
from normtune.results.evidence import Evidence
from normtune.tests.commands import one_line, printed_by, python
from normtune.tests.results.stores import alter, loaded, merge

# Adds a problem at a time, as a sweep does, in a process that can write files of so many bytes.
FILLS_THE_DISK = """
import resource, sys
import numpy as np
from normtune.errors import NormtuneError
from normtune.kernels.rms_norm.operator import RMSNormConfig as Config
from normtune.kernels.problem import Problem
from normtune.results.records import Device, Measurement, Run
from normtune.results.database.store import Store

limit, path = int(sys.argv[1]), sys.argv[2]
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
run = Run("r", Device("GPU", "sm_90", 132, 1, 1, "GPU-0", "570"), {"torch": "2"}, "2026-11-21T10:00:00+00:00", {})
rounds = np.arange(64, dtype=np.int32)
configs = [Config("row", 1, warps) for warps in range(1, 33)]
done = 0
try:
    with Store.open(f"sqlite:///{path}") as store:
        store.begin_run(run)
        for rows in range(1, 200):
            problem = Problem.of("rms_norm_forward", rows, 64, "bfloat16")
            store.add([Measurement(problem, one, "r", "sha256:0", "ok", "", rounds, rounds + 1) for one in configs])
            done += 1
except NormtuneError as error:
    print(done, error)
"""


@pytest.fixture
def many(make, make_run) -> Evidence:
    """Enough measurements for a store of several pages a table."""
    items = [
        make((3000 + rows, 3100), problem=make().problem._replace(rows=rows), config=RMSNormConfig("row", 1, warps))
        for rows in range(1, 60)
        for warps in (1, 2)
    ]
    items += [
        make((), problem=make().problem._replace(rows=rows), config=RMSNormConfig("row", 1, 32)) for rows in range(1, 9)
    ]
    return Evidence.from_measurements(items, [make_run()])


@pytest.mark.slow
def test_flipped_bits_and_lost_ends_are_told_and_never_a_traceback(many, tmp_path):
    path = tmp_path / "store.db"
    merge(f"sqlite:///{path}", many)
    good = path.read_bytes()
    draw = random.Random(7)
    told = set()
    for _ in range(150):
        content = bytearray(good)
        for _ in range(draw.choice([1, 4, 40])):
            content[draw.randrange(len(content))] = draw.randrange(256)
        path.write_bytes(content[: draw.randrange(len(content))] if draw.random() < 0.1 else content)
        try:
            with Store.open(f"sqlite:///{path}", create=False) as store:
                store.runs(), store.tally(), store.coverage(many.devices()[0]), store.load()
        except NormtuneError as error:
            assert "\n" not in str(error)
            told.add("damaged" if "is damaged (" in str(error) else str(error))
    assert "damaged" in told
    assert all("with url" in line or line == "damaged" for line in told), told


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1 << 10, 50 << 10, 400 << 10])
def test_a_full_disk_is_told_and_what_was_committed_stays(tmp_path, limit):
    path = tmp_path / "store.db"
    done = python("-c", FILLS_THE_DISK, limit, path)
    assert (done.returncode, done.stderr) == (0, "")
    count, _, told = done.stdout.strip().partition(" ")
    assert f"the store {path} cannot be used (" in told
    assert told.endswith("what was stored before is kept, free some space and run the same command again")
    if int(count):
        with Store.open(f"sqlite:///{path}") as store:
            evidence = store.load()
            assert len(evidence.frame) == 32 * int(count)
            assert store.merge(evidence) == 0
    assert (int(count) > 0) == (limit > 100 << 10)


READS_ON_A_FULL_DISK = """
import resource, sys
from normtune.errors import NormtuneError
from normtune.results.database.store import Store

resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
try:
    with Store.open(sys.argv[1], create=False) as store:
        print(store.load().digest(), sum(one.measurements for one in store.counts()))
except NormtuneError as error:
    print(error)
"""


@pytest.mark.parametrize("query", ["", pytest.param("?mode=ro", marks=pytest.mark.slow)])
def test_a_store_is_read_where_the_disk_is_full(stored, varied, query: str):
    told = printed_by(READS_ON_A_FULL_DISK, f"sqlite:///{stored}{query}")
    assert told == f"{varied.digest()} {len(varied.frame)}\n"


@pytest.mark.slow
def test_a_log_that_cannot_be_read_on_a_full_disk_is_told(stored, varied, make, make_run, tmp_path):
    copy = tmp_path / "copy.db"
    with Store.open(f"sqlite:///{stored}") as store:
        store.begin_run(make_run(9))
        store.add([make(run=make_run(9))])
        for end in ("", "-wal"):
            shutil.copy(f"{stored}{end}", f"{copy}{end}")
    told = printed_by(READS_ON_A_FULL_DISK, f"sqlite:///{copy}")
    assert f"the store {copy} cannot be used (" in told and "even reading may need 32 KB" in told
    with Store.open(f"sqlite:///{copy}", create=False) as store:
        assert len(store.load().frame) == len(varied.frame) + 1


@pytest.mark.slow
def test_two_processes_fill_one_store_at_once(tmp_path):
    path = tmp_path / "store.db"
    command = [sys.executable, "-c", FILLS_THE_DISK.replace("range(1, 200)", "range(1, 40)"), str(1 << 30), str(path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    assert [one.communicate()[0] for one in both] == ["", ""]
    assert len(loaded(f"sqlite:///{path}").frame) == 32 * 39


@pytest.fixture
def archived():
    """A folder that can be entered and read, by everybody."""
    import tempfile

    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    if os.geteuid() != 0 and os.getuid() == 0:
        os.seteuid(0)
    folder.chmod(0o755)
    shutil.rmtree(folder)


def only_read(folder: Path) -> None:
    """From here on nothing can be written in this folder, by root neither."""
    folder.chmod(0o555)
    if os.geteuid() == 0:
        os.seteuid(65534)


def test_a_store_in_a_folder_that_is_only_read_is_read(archived, varied):
    path = archived / "50% #1?.db"
    merge(f"sqlite:///{archived}/store.db", varied)
    (archived / "store.db").rename(path)
    only_read(archived)
    url = f"sqlite:///{str(path).replace('%', '%25').replace('?', '%3F')}"
    assert loaded(url).digest() == varied.digest()
    assert os.listdir(archived) == [path.name]
    with pytest.raises(NormtuneError, match="cannot be opened for writing"):
        Store.open(url)


def test_what_a_killed_writer_left_in_its_log_is_never_passed_over(archived, varied, make, make_run):
    path = archived / "store.db"
    with Store.open(f"sqlite:///{path}") as store:
        store.merge(varied)
        # A copy of a store that is open has a log; nothing folds it in.
        store.begin_run(make_run(9))
        store.add([make(run=make_run(9))])
        for name in ("store.db", "store.db-wal"):
            shutil.copy(archived / name, archived / f"copy.db{name.removeprefix('store.db')}")
    only_read(archived)
    with pytest.raises(NormtuneError, match="copy it with the files beside it"):
        Store.open(f"sqlite:///{archived / 'copy.db'}", create=False)


@pytest.mark.parametrize("create", [True, False])
def test_a_pipe_and_a_device_are_no_stores_and_are_not_waited_for(tmp_path, create):
    os.mkfifo(tmp_path / "pipe.db")
    for path in (tmp_path / "pipe.db", Path("/dev/null")):
        with pytest.raises(NormtuneError, match=f"the store {path} is no regular file: name another"):
            Store.open(f"sqlite:///{path}", create=create)


def test_names_that_the_system_refuses(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"file/store\.db cannot exist: .*file is no folder"):
        Store.open(f"sqlite:///{tmp_path}/file/store.db")
    with pytest.raises(NormtuneError, match=r"cannot be examined \(File name too long"):
        Store.open(f"sqlite:///{tmp_path}/{'a' * 300}.db")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("column", ["device", "software", "protocol"])
@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"a":' * 300 + "1" + "}" * 300, "9" * 8000])
def test_json_of_any_depth_is_damage(stored, column, text):
    alter(stored, f"UPDATE run SET {column} = ?", values=[text])
    with Store.open(f"sqlite:///{stored}") as store:
        for attempt in (store.runs, store.load, store.tally):
            with one_line(NormtuneError, "is damaged", 599):
                attempt()


def test_a_store_with_a_trigger_is_read_and_not_written(stored, varied):
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    alter(stored, f"CREATE TRIGGER slow BEFORE INSERT ON run BEGIN {endless}; END")
    with pytest.raises(
        NormtuneError, match=r"has a trigger, 'slow', which normtune never creates: `normtune data export --out"
    ):
        Store.open(f"sqlite:///{stored}")
    assert loaded(f"sqlite:///{stored}").digest() == varied.digest()


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE measurement RENAME COLUMN reason TO other; "
        "ALTER TABLE measurement ADD COLUMN reason TEXT AS (hex(zeroblob(400000000))) VIRTUAL",
        "CREATE VIRTUAL TABLE more USING fts5(text)",
    ],
)
@pytest.mark.parametrize("create", [False, True])
def test_a_store_that_computes_what_it_holds_is_refused(stored, change, create):
    alter(stored, *change.split("; "))
    with pytest.raises(NormtuneError, match=r"computes '(measurement\.reason|more)' instead of storing it"):
        Store.open(f"sqlite:///{stored}", create=create)


def test_a_store_whose_run_is_gone_is_damaged(stored):
    alter(stored, "DELETE FROM run WHERE id = 1")
    with (
        Store.open(f"sqlite:///{stored}", create=False) as store,
        pytest.raises(NormtuneError, match=r"is damaged \(KeyError: None\)"),
    ):
        store.tally()


def flip(path: Path, column: str, draw: random.Random) -> None:
    """Flip a bit in a value of one measurement."""
    connection = sqlite3.connect(path)
    rows = connection.execute(f"SELECT id, {column} FROM measurement WHERE length({column}) > 0").fetchall()
    number, value = draw.choice(rows)
    content = bytearray(value if isinstance(value, bytes) else str(value).encode())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(3)
    changed = bytes(content) if isinstance(value, bytes) else content.decode()
    connection.close()
    alter(path, f"UPDATE measurement SET {column} = ? WHERE id = ?", values=(changed, number))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("column", ["samples", "first_round", "revision", "status", "reason", "median", "checksum"])
def test_a_flipped_bit_costs_its_measurement_and_is_told(many, tmp_path, column):
    path = tmp_path / "store.db"
    draw = random.Random(column)
    for _ in range(10):
        path.unlink(missing_ok=True)
        merge(f"sqlite:///{path}", many)
        flip(path, column, draw)
        with Store.open(f"sqlite:///{path}", create=False) as store:
            assert len(store.load().frame) == len(many.frame) - 1
            assert sum(store.damaged.values()) == 1
            assert store.damage.startswith(f"the store {path} has 1 damaged measurement, left out here: rms_norm_forw")
            assert len(store.coverage(many.devices()[0])) == len(many.frame) - 1


def test_a_flipped_bit_in_a_shape_or_a_config_costs_what_was_measured_there(many, tmp_path):
    path = tmp_path / "store.db"
    merge(f"sqlite:///{path}", many)
    alter(path, "UPDATE problem SET rows = rows + 1024 WHERE rows = 20")
    alter(path, "UPDATE config SET config = replace(config, 'row', 'rov')")
    with Store.open(f"sqlite:///{path}", create=False) as store:
        assert store.load().frame.empty and not store.coverage(many.devices()[0])
        assert "and of 56 more problems" in store.damage
