"""Where a store is: a URL, checked once, and the store's name in messages, which has no password.

In: the value of `--store`, or NORMTUNE_STORE. Out: a `StoreUrl`, which is handed on; `connect` opens it.
"""

import os
import re
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL

from normtune.errors import UsageError

DEFAULT_STORE = "sqlite:///normtune.db"
_DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}
_FORMS = "expected sqlite:///FILE or postgresql://USER@HOST/DATABASE"
# Texts that look like a connection to a database: libpq's form, or a URL with a part missing.
_CONNECTION = re.compile(
    r"\s*postgres(?:ql)?(?:\+\w+)?:|[^/\s]+:[^/\s]*@"
    r"|(?:^|\s)(?:host|hostaddr|user|password|passfile|dbname|service)\s*=",
    re.IGNORECASE,
)
_SECRET = re.compile(r"(pass(?:word|wd)?=)[^&]*", re.IGNORECASE)


@dataclass(frozen=True)
class StoreUrl:
    """Where a store is.

    Attributes:
        url: with the driver that normtune uses, and the password.
        path: the file of an SQLite store; None for another database.
        is_read_only: whether the URL of an SQLite store says mode=ro.
        name: for messages: the file, or the URL without the password; and NORMTUNE_STORE if that has it.
        option: the words of a printed command that name it: ` --store FILE`; empty where it is the default anyway.
    """

    url: URL
    path: Path | None
    is_read_only: bool
    name: str
    option: str

    @classmethod
    def of(cls, store: str | os.PathLike[str] | None) -> "StoreUrl":
        """Where `--store` says, else the variable NORMTUNE_STORE, else `DEFAULT_STORE`.

        Args:
            store: value of `--store`; None if it is not given. A path without a scheme is an SQLite file.

        Raises:
            UsageError: it is no URL of an SQLite or PostgreSQL database.
        """
        url = _url_of(store)
        name, default = _name(url), ""
        with suppress(UsageError):  # NORMTUNE_STORE may be wrong where `--store` is given
            default = _name(_url_of(None))
        is_variable = name == default and bool(os.environ.get("NORMTUNE_STORE"))
        path = _path(url)
        return cls(
            url=url,
            path=path,
            is_read_only=path is not None and bool(url.query),
            name=f"{name} (NORMTUNE_STORE)" if is_variable else name,
            option="" if name == default else f" --store {shlex.quote(name)}",
        )


def _url_of(store: str | os.PathLike[str] | None) -> URL:
    """The URL that SQLAlchemy opens. Arguments and errors as `StoreUrl.of`."""
    if store is None:
        source, text = "NORMTUNE_STORE", os.environ.get("NORMTUNE_STORE") or DEFAULT_STORE
    else:
        source, text = "--store", os.fspath(store)
    if not text.strip():
        raise UsageError(f"{source} is empty: expected a file such as normtune.db or a URL such as {DEFAULT_STORE}")
    if "://" in text:
        url, safe_text = _parsed(text, source)
    elif _CONNECTION.match(text) or ("=" in text and _CONNECTION.search(text)):
        raise UsageError(f"{source} is neither a file nor a URL (it may have a password, and is not shown): {_FORMS}")
    elif "?" in text or not text.isprintable():
        raise UsageError(f"{source} is {text!r}: a file of that name cannot be a store, choose another")
    else:  # a shell leaves the ~ of --store=~/x.db as it is
        url, safe_text = URL.create("sqlite", database=os.path.expanduser(text)), text
    path = url.database or ""
    if url.get_backend_name() == "sqlite" and (
        not path or path.startswith((":", "file:")) or not path.isprintable()  # to SQLite, these are no files
    ):
        raise UsageError(f"{source} is {safe_text!r}: a store is a file on disk, expected sqlite:///FILE")
    return url


def _parsed(text: str, source: str) -> tuple[URL, str]:
    """A text with a scheme as a URL with the driver that normtune uses, and as messages may show it."""
    scheme, _, rest = text.partition("://")
    place, _, query = text.partition("?")
    # Of all but a file only the scheme is shown: the rest may be a password at any place.
    safe_text = place if scheme == "sqlite" and "@" not in rest else f"{scheme}://{'***' if rest else ''}"
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise UsageError(f"{source} is {'not shown' if ':' in scheme else repr(safe_text)}: {_FORMS}") from None
    backend = url.get_backend_name()
    if backend not in _DRIVERS:
        raise UsageError(f"{source} is a URL of {backend[:20]!r}: {_FORMS}")
    if backend == "postgresql" and text.count("@") > 1:  # what follows the first would count as the host, and be shown
        raise UsageError(f"{source} is {safe_text!r}, with several @: write those of a name or password as %40")
    if backend == "sqlite" and url.database and url.query not in ({}, {"mode": "ro"}):
        options = _SECRET.sub(r"\1***", query)
        raise UsageError(
            f"{source} is {safe_text!r}: mode=ro, to read only, is the one option that a store takes, not {options!r}"
        )
    return url.set(drivername=_DRIVERS[backend]), safe_text


def _path(url: URL) -> Path | None:
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


def _name(url: URL) -> str:
    """The file, or the URL without the password and without the values of its options."""
    if path := _path(url):
        return str(path)
    place, mark, query = url.render_as_string(hide_password=True).partition("?")
    return place + mark + re.sub("=[^&]*", "=***", query)
