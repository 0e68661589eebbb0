"""Faults of a SQLite store's file during a sweep."""

import os
import shutil

from normtune.results.database.store import Store


def removed(path):
    path.unlink()


def replaced(path):
    other = path.with_name("other.db")
    with Store.open(f"sqlite:///{other}"):
        pass
    other.replace(path)


def emptied(path):
    os.truncate(path, 0)


def folder_removed(path):
    shutil.rmtree(path.parent)
