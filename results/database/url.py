"""The URL of a store: checked, and shown in messages without its password.

In: the value of `--store` or NORMTUNE_STORE. Out: a SQLAlchemy URL, which `connect` opens.
"""

import os
import re
import shlex
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


def resolve_url(option: str | None) -> str:
    """URL of the store: the option, else the variable NORMTUNE_STORE, else `DEFAULT_STORE`.

    Args:
        option: value of `--store`; None if not given. A path without a scheme is a SQLite file.

    Raises:
        UsageError: it is no URL of a SQLite or PostgreSQL database.
    """
    source, text = "--store", option
    if text is None:
        source, text = "NORMTUNE_STORE", os.environ.get("NORMTUNE_STORE") or DEFAULT_STORE
    if not text.strip():
        raise UsageError(f"{source} is empty: expected a file such as normtune.db or a URL such as {DEFAULT_STORE}")
    if "://" not in text:
        if _CONNECTION.match(text) or ("=" in text and _CONNECTION.search(text)):
            raise UsageError(
                f"{source} is neither a file nor a URL (it may have a password, and is not shown): {_FORMS}"
            )
        if "?" in text or not text.isprintable():
            raise UsageError(f"{source} is {text!r}: a file of that name cannot be a store, choose another")
        return f"sqlite:///{os.path.expanduser(text)}"  # a shell leaves the ~ of --store=~/x.db as it is
    parse(text, source)
    return text


def parse(url: str, source: str = "the store") -> URL:
    """Parse a URL, and replace its driver by the one that normtune uses.

    Raises:
        UsageError: it is no URL of a SQLite or PostgreSQL database.
    """
    scheme, _, rest = url.partition("://")
    place, _, query = url.partition("?")
    # Of all but a file only the scheme is shown: the rest may be a password at any place.
    safe_text = repr(place if scheme == "sqlite" and "@" not in rest else f"{scheme}://{'***' if rest else ''}")
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        raise UsageError(f"{source} is {'not shown' if ':' in scheme else safe_text}: {_FORMS}") from None
    backend = parsed.drivername.partition("+")[0]
    if backend not in _DRIVERS:
        raise UsageError(f"{source} is a URL of {backend[:20]!r}: {_FORMS}")
    if backend == "postgresql" and url.count("@") > 1:  # the text after the first would count as the host, and be shown
        raise UsageError(f"{source} is {safe_text}, with several @: write those of a name or password as %40")
    name = parsed.database or ""
    if backend == "sqlite" and (not name or name.startswith((":", "file:")) or not name.isprintable()):
        raise UsageError(f"{source} is {safe_text}: a store is a file on disk, expected sqlite:///FILE")
    if backend == "sqlite" and parsed.query not in ({}, {"mode": "ro"}):
        options = _SECRET.sub(r"\1***", query)
        raise UsageError(
            f"{source} is {safe_text}: mode=ro, to read only, is the one option that a store takes, not {options!r}"
        )
    return parsed.set(drivername=_DRIVERS[backend])


def sqlite_path(url: URL) -> Path | None:
    """The file of a SQLite URL; None for other databases."""
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


def display_name(url: URL) -> str:
    """Name of the store for messages: its file, or the URL without the password; and NORMTUNE_STORE if that has it."""
    source = " (NORMTUNE_STORE)" if os.environ.get("NORMTUNE_STORE") and _name(url) == _default() else ""
    return _name(url) + source


def store_option(url: URL) -> str:
    """The words of a printed command that name a store: ` --store FILE`; empty where it is the default anyway."""
    return "" if _name(url) == _default() else f" --store {shlex.quote(_name(url))}"


def _name(url: URL) -> str:
    path = sqlite_path(url)
    if path is not None:
        return str(path)
    place, mark, query = url.render_as_string(hide_password=True).partition("?")
    return place + mark + re.sub("=[^&]*", "=***", query)


def _default() -> str:
    """The name of the store without an option; empty if NORMTUNE_STORE has none."""
    try:
        return _name(parse(resolve_url(None)))
    except UsageError:
        return ""
