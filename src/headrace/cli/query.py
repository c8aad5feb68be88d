"""``headrace query``: what the views hold, as anybody may read it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.errors import QueryRefused, UsageError, ViewNotBuilt, ViewUnknown
from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb
from headrace.cli.view.options import Data

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from headrace.views.reader import Reader
    from headrace.views.rows import Row

__all__ = ["command", "query"]

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_LIMIT = 1_000
_MATCHES_MAX = 100_000
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
        typer.Argument(
            metavar="MODULE:APP|FILE", help="The app, as Python would import it, or a SQLite file of views."
        ),
    ],
    what: Annotated[
        str, typer.Argument(metavar="VIEW|SQL", help="A view's name, or a SELECT in SQLite's SQL.")
    ],
    match: Annotated[
        str | None,
        typer.Option(
            "--match",
            metavar="WORDS",
            help="Only rows with these words, the best first; for views with a full-text index.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=0, help="At most so many rows; 0 for all.")
    ] = _LIMIT,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="Stop what takes longer.")
    ] = _TIMEOUT_S,
    data: Data = None,
) -> None:
    """Read a view, or ask several with SQL.

    Every view is a table with its name. Only reading is possible, and what is read is one state of all views of a file,
    each as of the end of a batch. Exact numbers and times are text, in their one form; bytes are shown as base64.
    """
    import contextlib

    from headrace.views.errors import QueryFailed
    from headrace.views.sqlite_reading import SqliteReader

    view = what if _NAME.fullmatch(what) else None
    if view is None and match is not None:
        raise UsageError("--match searches one view", hint="name the view, not a SELECT")
    reader, view = _reader(session, source, view, data)
    with contextlib.closing(reader):
        if view is not None:
            _expect_built(reader, view)
            asked = (
                reader.reading(view, timeout) if match is None else _matching(reader, view, match, timeout)
            )
        else:
            assert isinstance(reader, SqliteReader)
            asked = reader.query(what, timeout)
        try:
            more = _show(session, asked, limit)
        except QueryFailed as failed:
            raise QueryRefused(failed.message, hint=failed.hint) from failed
    if more:
        session.out.note(f"there are more rows; --limit says how many are shown, 0 for all ({limit} now)")


def _reader(session: Session, source: str, view: str | None, data: Path | None) -> tuple[Reader, str | None]:
    """And the view that answers to the name."""
    from headrace.cli.view.options import answering, checked_app, data_dir, views_of
    from headrace.model.store_place import where_is
    from headrace.views.opening import open_reader, sqlite_reader
    from headrace.views.sqlite_reading import SqliteReader

    if Path(source).is_file():
        return SqliteReader(Path(source)), view
    if "/" in source or source.endswith(".db"):
        raise UsageError(
            f"there is no file {source}", hint="name a SQLite file of views, or an app as MODULE:APP"
        )
    app = checked_app(source)
    if view is not None:
        view = answering(session, app, view)
        (found,) = views_of(app, [view])
        reader = open_reader(found, app.name, data_dir(session, data))
        where = where_is(found, app.name, data_dir(session, data))
    else:
        path = data_dir(session, data) / f"{app.name}.db"
        reader = sqlite_reader(path)
        where = str(path)
    if reader is None:
        raise ViewNotBuilt(
            f"nothing has been built yet: there is no {where}",
            hint=f"follow the views: headrace view follow {source}",
        )
    return reader, view


def _matching(
    reader: Reader, view: str, words: str, timeout_s: float
) -> AbstractContextManager[tuple[list[str], Iterator[Row]]]:
    from headrace.model.extras import needing

    with needing("search", "tantivy"):
        from headrace.views.search.reading import SearchReader

    if not isinstance(reader, SearchReader):
        raise UsageError(
            f"view {view!r} has no full-text index: its store is {reader.where}",
            hint="keep it in one beside: app.view(..., store=Search())",
        )
    return reader.matching(view, words, _MATCHES_MAX, timeout_s)


def _expect_built(reader: Reader, view: str) -> None:
    known = reader.known_of(view)
    if any(one.part == "serving" for one in known):
        return
    if known:
        raise ViewNotBuilt(
            f"view {view!r} is being built, and has not come as far as the log was when that began",
            hint="wait for it; see how far it is with: headrace view describe",
        )
    raise ViewUnknown(reader.where, view, sorted({one.view for one in reader.known()}))


def _show(
    session: Session, asked: AbstractContextManager[tuple[list[str], Iterator[Row]]], limit: int
) -> bool:
    """Whether there are more rows than were shown."""
    import itertools

    with asked as (names, rows):
        shown = itertools.islice(rows, limit) if limit else rows
        if session.out.as_json:
            for row in shown:
                session.out.json_line(dict(zip(names, map(_json, row), strict=True)))
        else:
            table = [dict(zip(names, map(_json, row), strict=True)) for row in shown]
            session.out.table(table, empty="no rows")
        return next(rows, None) is not None if limit else False


def _json(value: object) -> object:
    """As values are written in the log: what is no number in JSON is a text."""
    import base64
    import math

    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def command() -> Command:
    return build(query)
