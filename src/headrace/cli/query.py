"""``headrace query``: read views, by name or with SQL."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.errors import QueryRefused, UsageError, ViewNotBuilt, ViewUnknown
from headrace.cli.options import Data
from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb

if TYPE_CHECKING:
    from headrace.stores.reader import Scan, StoreReader

__all__ = ["command", "query"]

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_LIMIT = 1_000
_TIMEOUT_S = 30.0


@verb(
    "query",
    examples="""
    headrace query examples.shop:app revenue
    headrace query examples.shop:app 'SELECT product_id, sum(amount) FROM revenue GROUP BY 1' --json
    headrace query ./headrace-data/shop.db revenue --limit 0
    headrace query examples.shop:app found --match '+coffee "dark roast" -decaf'
    """,
)
def query(
    session: Session,
    source: Annotated[
        str,
        typer.Argument(metavar="MODULE:APP|FILE", help="The app, e.g. shop:app, or a SQLite file of views."),
    ],
    view_or_sql: Annotated[
        str, typer.Argument(metavar="VIEW|SQL", help="The name of a view, or a SELECT in SQLite's SQL.")
    ],
    match: Annotated[
        str | None,
        typer.Option(
            "--match",
            metavar="WORDS",
            help="Print only rows that match these words, best match first; for views with a full-text index.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=0, help="Maximum number of rows; 0 for all.")
    ] = _LIMIT,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="Timeout of the query.")
    ] = _TIMEOUT_S,
    data: Data = None,
) -> None:
    """Read a view, or query views with SQL.

    Every view is a read-only table with the view's name. A query reads all views of a file in one consistent state, and
    each view at the end of a batch. Decimals and times are strings in canonical form; bytes are base64.
    """
    import contextlib

    from headrace.stores import errors
    from headrace.stores.sqlite.reader import SqliteReader

    view = view_or_sql if _NAME.fullmatch(view_or_sql) else None
    if view is None and match is not None:
        raise UsageError("--match cannot be combined with SQL", hint="name a view instead of a SELECT")
    reader, view = _reader(session, source, view, data)
    with contextlib.closing(reader):
        if view is not None:
            _require_built(reader, view)
            result = reader.scan(view, timeout, match)
        else:
            assert isinstance(reader, SqliteReader)
            result = reader.statement(view_or_sql, timeout)
        try:
            more = _print_rows(session, result, limit)
        except errors.QueryRefused as refused:
            raise UsageError(refused.message, hint=refused.hint) from refused
        except errors.QueryFailed as failed:
            raise QueryRefused(failed.message, hint=failed.hint) from failed
    if more:
        session.out.note(f"more rows exist: raise --limit (now {limit}), or set it to 0 for all")


def _reader(
    session: Session, source: str, view: str | None, data: Path | None
) -> tuple[StoreReader, str | None]:
    """Return the reader, and the view that serves the name."""
    from headrace.cli.app_loader import load_checked_app, serving_view, views_of
    from headrace.model.store import describe_location
    from headrace.stores.registry import open_reader, open_sqlite
    from headrace.stores.sqlite.reader import SqliteReader

    if Path(source).is_file():
        return SqliteReader(Path(source)), view
    if "/" in source or source.endswith(".db"):
        raise UsageError(
            f"file {source} does not exist", hint="name a SQLite file of views, or an app as MODULE:APP"
        )
    app = load_checked_app(source)
    if view is not None:
        view = serving_view(session, app, view)
        (serving,) = views_of(app, [view])
        reader = open_reader(serving, app.name, session.data_dir(data))
        store_location = describe_location(serving, app.name, session.data_dir(data))
    else:
        path = session.data_dir(data) / f"{app.name}.db"
        reader = open_sqlite(path)
        store_location = str(path)
    if reader is None:
        raise ViewNotBuilt(
            f"no view has been built yet: {store_location} does not exist",
            hint=f"follow the views: headrace view follow {source}",
        )
    return reader, view


def _require_built(reader: StoreReader, view: str) -> None:
    parts = reader.parts(view)
    if any(stored.part == "serving" for stored in parts):
        return
    if parts:
        raise ViewNotBuilt(
            f"view {view!r} is being built and cannot be queried yet",
            hint="wait until it is built; headrace view describe shows its position",
        )
    raise ViewUnknown(reader.where, view, sorted({stored.view for stored in reader.views()}))


def _print_rows(session: Session, result: Scan, limit: int) -> bool:
    """Print the rows. Return whether more rows exist."""
    import itertools

    with result as (names, rows):
        printed = itertools.islice(rows, limit) if limit else rows
        if session.out.as_json:
            for row in printed:
                session.out.json_line(dict(zip(names, map(_json, row), strict=True)))
        else:
            table = [dict(zip(names, map(_json, row), strict=True)) for row in printed]
            session.out.table(table, empty="no rows")
        return next(rows, None) is not None if limit else False


def _json(value: object) -> object:
    """Convert a value to JSON as in the log: bytes and infinite numbers become strings."""
    import base64
    import math

    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def command() -> Command:
    return build(query)
