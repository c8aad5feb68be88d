"""``headrace query``: read views, by name or with SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.errors import QueryRefused, UsageError, ViewNotBuilt, ViewUnknown
from headrace.cli.options import Data
from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb

if TYPE_CHECKING:
    from headrace.stores.reader import StoreReader
    from headrace.stores.sqlite.reader import SqliteReader

__all__ = ["command", "query"]

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_LIMIT = 1_000
_TIMEOUT_S = 30.0


@verb(
    "query",
    examples="""
    headrace query examples.shop:app revenue
    headrace query examples.shop:app 'SELECT product_id, sum(amount) FROM revenue GROUP BY ALL' --json
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
        str, typer.Argument(metavar="VIEW|SQL", help="The name of a view, or a SELECT in DuckDB's SQL.")
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

    SQL is DuckDB's, as in the web UI and over the PostgreSQL protocol. Every view of the app, in any store, is a
    read-only table with the view's name, and is read at the end of a batch. search('view', 'words') returns the rows
    that match in a full-text index. Decimals and times are strings in canonical form; bytes are base64.
    """
    if _NAME.fullmatch(view_or_sql):
        more = _query_view(session, source, view_or_sql, match, limit, timeout, data)
    elif match is not None:
        raise UsageError("--match cannot be combined with SQL", hint="name a view instead of a SELECT")
    else:
        more = _query_sql(session, source, view_or_sql, limit, timeout, data)
    if more:
        session.out.note(f"more rows exist: raise --limit (now {limit}), or set it to 0 for all")


def _query_view(
    session: Session,
    source: str,
    view: str,
    match: str | None,
    limit: int,
    timeout_s: float,
    data: Path | None,
) -> bool:
    """Print the rows of a view. Return whether more rows exist."""
    import contextlib

    from headrace.stores import errors

    reader, view = _reader(session, source, view, data)
    with contextlib.closing(reader):
        _require_built(reader, view)
        try:
            with reader.scan(view, timeout_s, match) as (names, rows):
                return _print_rows(session, names, rows, limit)
        except errors.QueryRefused as refused:
            raise UsageError(refused.message, hint=refused.hint) from refused
        except errors.QueryFailed as failed:
            raise QueryRefused(failed.message, hint=failed.hint) from failed


def _query_sql(
    session: Session, source: str, sql: str, limit: int, timeout_s: float, data: Path | None
) -> bool:
    """Print the result of a SELECT. Return whether more rows exist."""
    import contextlib

    from headrace.cli.app_loader import load_checked_app, serving_view
    from headrace.cli.sql import SqlRunner, app_sources, file_sources

    with contextlib.ExitStack() as stack:
        if _is_file(source):
            reader = stack.enter_context(contextlib.closing(_sqlite_reader(source)))
            sources = file_sources(reader)
        else:
            app = load_checked_app(source)
            sources = app_sources(app, session.data_dir(data), lambda name: serving_view(session, app, name))
        runner = stack.enter_context(contextlib.closing(SqlRunner(sources, session.settings().serve)))
        result = runner.run(sql, timeout_s)
        return _print_rows(session, result.columns, iter(result.rows), limit)


def _is_file(source: str) -> bool:
    if Path(source).is_file():
        return True
    if "/" in source or source.endswith(".db"):
        raise UsageError(
            f"file {source} does not exist", hint="name a SQLite file of views, or an app as MODULE:APP"
        )
    return False


def _sqlite_reader(source: str) -> SqliteReader:
    from headrace.stores.sqlite.reader import SqliteReader

    return SqliteReader(Path(source))


def _reader(session: Session, source: str, view: str, data: Path | None) -> tuple[StoreReader, str]:
    """Return the reader, and the view that serves the name."""
    from headrace.cli.app_loader import load_checked_app, serving_view, views_of
    from headrace.model.store import describe_location
    from headrace.stores.registry import open_reader

    if _is_file(source):
        return _sqlite_reader(source), view
    app = load_checked_app(source)
    view = serving_view(session, app, view)
    (serving,) = views_of(app, [view])
    reader = open_reader(serving, app.name, session.data_dir(data))
    if reader is None:
        store_location = describe_location(serving, app.name, session.data_dir(data))
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


def _print_rows(session: Session, names: Sequence[str], rows: Iterator[Sequence[object]], limit: int) -> bool:
    """Print the rows. Return whether more rows exist."""
    import itertools

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
