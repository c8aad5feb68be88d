"""The declared store of a view, and its location. ``headrace.stores`` has the code that accesses stores.

An address can name an environment variable, for example ``$DATABASE_URL``. The variable is read when the store is
opened, and its value is never displayed. Passwords in addresses are never displayed either.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.model.declarations import View

__all__ = [
    "Delta",
    "MissingAddress",
    "OnRead",
    "Postgres",
    "Redis",
    "SQLite",
    "Search",
    "Store",
    "describe_location",
    "file_of",
    "prefix_of",
    "redact_address",
    "resolve_address",
]
_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
# Matches up to the last @: a password that is not URL-encoded can contain @ and slashes.
_USER = re.compile(r"//.*@", re.DOTALL)
_SECRET = re.compile(
    r"((?:password|passfile|sslpassword|username|user)\s*=\s*)(?:'(?:[^'\\]|\\.)*'|[^&\s]*)",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class SQLite:
    """A SQLite file. The default path is ``<app>.db`` in the data directory, so that an app's views can be joined."""

    path: str = ""


@dataclass(frozen=True, slots=True)
class Postgres:
    """A table with the name of the view, in a schema of a PostgreSQL database."""

    url: str = "$DATABASE_URL"
    schema: str = "public"


@dataclass(frozen=True, slots=True)
class Redis:
    """A Redis hash ``<prefix><view>`` for each view. A field of the hash is a row: its name is the row's key, its value
    the row as JSON. The default prefix is ``<app>:``.
    """

    url: str = "$REDIS_URL"
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Search:
    """A full-text index in a directory. The default path is ``<app>.search`` in the data directory.

    ``fields`` names the fields that can be searched; the default is all text fields.
    """

    path: str = ""
    fields: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", tuple(self.fields))


@dataclass(frozen=True, slots=True)
class Delta:
    """A Delta table in a directory. The default path is ``<app>.lake`` in the data directory."""

    path: str = ""


@dataclass(frozen=True, slots=True)
class OnRead:
    """No store. Each query to the server reads the topic to its end and computes the last row of each key. The query
    fails if the topic has more than ``records_max`` records.
    """

    records_max: int = 100_000


Store = SQLite | Postgres | Redis | Search | Delta | OnRead


def file_of(view: View, app: str, data: Path) -> Path | None:
    """Return the path of a store that consists of files: the view's own path, or the app's default in the data
    directory. Returns None for a store on a server and for a view that is computed on read.
    """
    match view.store:
        case SQLite(path):
            return Path(path) if path else data / f"{app}.db"
        case Search(path):
            return Path(path) if path else data / f"{app}.search"
        case Delta(path):
            return Path(path) if path else data / f"{app}.lake"
        case Postgres() | Redis() | OnRead():
            return None
        case _ as never:
            assert_never(never)


def describe_location(view: View, app: str, data: Path) -> str:
    """Describe the location of the store for display, without passwords."""
    match view.store:
        case Postgres(url, schema):
            return f"{redact_address(url)}, schema {schema}"
        case Redis(url):
            return f"{redact_address(url)}, prefix {prefix_of(view, app)}"
        case OnRead():
            return "computed on read"
    return str(file_of(view, app, data))


def prefix_of(view: View, app: str) -> str:
    """Return the prefix of a view's keys in Redis."""
    return (view.store.prefix if isinstance(view.store, Redis) else "") or f"{app}:"


class MissingAddress(HeadraceError):
    code = "HR-STORE-ADDRESS"


def resolve_address(address: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the address, or the value of the environment variable if the address is ``$NAME``."""
    match = _VARIABLE.fullmatch(address)
    if match is None:
        return address
    value = environ.get(match[1], "")
    if not value:
        raise MissingAddress(
            f"the environment variable {match[1]} is not set; it must contain the address of a store",
            hint=f"export {match[1]}=..., or set the address in the app",
        )
    return value


def redact_address(address: str) -> str:
    """Return an address for display and logs: an address without user and password, or the name of the variable."""
    if _VARIABLE.fullmatch(address):
        return address
    return _SECRET.sub(r"\1...", _USER.sub("//", address))
