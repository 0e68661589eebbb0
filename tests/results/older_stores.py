"""Makes a store what normtune's earlier schemas wrote, by their own rules."""

import hashlib
import json
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np

from normtune.results.statistics import summary

# Of version 3. Version 2 had no digests of code, version 1 no checksum either.
TABLE = """
CREATE TABLE measurement (
    id INTEGER NOT NULL PRIMARY KEY, "key" BLOB NOT NULL UNIQUE, run_id INTEGER NOT NULL REFERENCES run (id),
    problem_id INTEGER NOT NULL REFERENCES problem (id), config_id INTEGER NOT NULL REFERENCES config (id),
    fingerprint TEXT NOT NULL, status TEXT NOT NULL, reason TEXT NOT NULL, median INTEGER, low INTEGER, high INTEGER,
    samples BLOB NOT NULL, rounds BLOB NOT NULL, checksum BIGINT, launch BLOB, code BLOB, machine_code BLOB
)
"""
ADDED = {"checksum": 2, "launch": 3, "code": 3, "machine_code": 3}


def age(path: Path, version: int) -> None:
    """Put the measurements of a store into the table of an older version."""
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = connection.execute(
            "SELECT m.id, run.run, operator, rows, hidden, dtype, variant, config, fingerprint, status, reason, "
            "samples, rounds, first_round, run_id, problem_id, config_id, launch, code, machine_code "
            "FROM measurement m JOIN run ON run.id = run_id "
            "JOIN problem ON problem.id = problem_id JOIN config ON config.id = config_id "
            "JOIN fingerprint ON fingerprint.id = fingerprint_id ORDER BY m.id"
        ).fetchall()
        connection.execute("DROP TABLE measurement")
        connection.execute("DROP TABLE fingerprint")
        connection.execute(TABLE)
        connection.execute("CREATE INDEX measurement_of_run ON measurement (run_id)")
        for number, run, *row in rows:
            problem, (config, fingerprint, status, reason, samples, rounds, first, *rest) = row[:5], row[5:]
            times = np.frombuffer(samples, "<i4")
            interval = summary(times) if len(times) else (None, None, None)
            rounds = rounds or np.arange(first, first + len(times), dtype="<i4").tobytes()
            text = json.dumps([run, *problem, config, first], separators=(",", ":"))
            told = run, " ".join(map(str, problem)), config, fingerprint, status, reason, *interval
            checksum = zlib.crc32(samples, zlib.crc32(rounds, zlib.crc32("\0".join(map(str, told)).encode())))
            numbers, code = rest[:3], rest[3:]
            values = number, hashlib.blake2b(text.encode(), digest_size=16).digest(), *numbers
            values += fingerprint, status, reason, *interval, samples, rounds, checksum, *code
            connection.execute(f"INSERT INTO measurement VALUES ({', '.join('?' * len(values))})", values)
        for column in (column for column, since in ADDED.items() if since > version):
            connection.execute(f"ALTER TABLE measurement DROP COLUMN {column}")
        connection.execute("UPDATE normtune_schema SET version = ?", [version])
