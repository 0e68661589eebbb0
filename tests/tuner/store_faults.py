"""Faults of a SQLite store's file during a sweep, and how much is in it."""

import os
import shutil
import sqlite3

from normtune.results.database.store import Store


def count(path, where=""):
    """How many measurements there are, also while a sweep writes."""
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            return connection.execute(f"SELECT count(*) FROM measurement {where}").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


def removed(path):
    path.unlink()


def replaced(path):
    other = path.with_name("other.db")
    Store.open(f"sqlite:///{other}").close()
    other.replace(path)


def emptied(path):
    os.truncate(path, 0)


def folder_removed(path):
    shutil.rmtree(path.parent)
