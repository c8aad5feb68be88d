"""Reads from the server: one row, a page or all rows of a view, and the records of a topic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from headrace.model.codec.scalar_text import bytes_from, time_from
from headrace.model.errors import ValueDoesNotFit
from headrace.remote.columns import Columns, RowReader
from headrace.remote.errors import InvalidResponse, Moved, NotFound, Position
from headrace.remote.exchange import Reply, Request, Steps, json_of
from headrace.remote.results import Page, Table
from headrace.remote.session import After, Session, check_link, check_positive, path_of, quoted
from headrace.remote.values import key_text

__all__ = ["Record", "RecordPage", "RowQuery", "check_next_link", "page", "records_page", "row", "table"]

_PAGE_ROWS = 1_000
_TABLE_PAGE_ROWS = 10_000
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class RowQuery:
    """Selects rows of a view. ``begin`` and ``end`` are keys."""

    view: str
    filter: str | None = None
    sort: str | None = None
    prefix: Any = None
    begin: Any = None
    end: Any = None
    match: str | None = None
    limit: int | None = None
    """Maximum rows of all pages together."""
    page_rows: int | None = None
    after: After = ""
    wait_s: float | None = None

    def __post_init__(self) -> None:
        check_positive("limit", self.limit)
        check_positive("page_rows", self.page_rows)

    @property
    def path(self) -> str:
        return f"/v1/views/{quoted(self.view)}/rows"

    def query(self) -> dict[str, Any]:
        keys = {"prefix": self.prefix, "from": self.begin, "to": self.end}
        return {
            "filter": self.filter,
            "sort": self.sort,
            "match": self.match,
            **{name: None if key is None else key_text(key) for name, key in keys.items()},
        }


class _Page(msgspec.Struct, frozen=True):
    position: Position
    rows: list[msgspec.Raw]
    moved: bool = False
    next: str | None = None


class _Row(msgspec.Struct, frozen=True):
    position: Position
    row: msgspec.Raw


def row(session: Session, view: str, key: Any, after: After, wait_s: float | None) -> Steps:
    """Return the row or None, and the position of the read."""
    text = key_text(key)
    if text in ("", ".", ".."):
        # Proxies can resolve these keys as path segments, so read the row with a filter.
        columns: Columns = yield from session.columns(view)
        name = columns.key[0].replace("`", "``")
        query = RowQuery(view, f"`{name}` = {json.dumps(text)}", after=after, wait_s=wait_s, limit=1)
        result: Page[dict[str, Any]] = yield from page(session, query, None, 1)
        return (result.rows[0] if result.rows else None), result.position
    path = f"/v1/views/{quoted(view)}/rows/{quoted(text)}"
    try:
        reply: Reply = yield from session.read(view, path, {}, after, wait_s)
    except NotFound as error:
        if error.position is None:
            # Without a position, the view itself does not exist.
            raise
        return None, error.position
    document: _Row = json_of(reply, _Row)
    _, rows = yield from session.rows(view, document.position.generation, [document.row])
    return rows[0], document.position


def page(
    session: Session,
    row_query: RowQuery,
    next_link: str | None,
    rows: int | None = None,
    *,
    same: bool = False,
) -> Steps:
    """Return the first page, or the page that ``next_link`` links to."""
    result, _ = yield from _page(session, row_query, next_link, rows, same)
    return result


def _page(
    session: Session, row_query: RowQuery, next_link: str | None, rows: int | None, same: bool
) -> Steps:
    query: Mapping[str, Any] = {}
    if next_link is None:
        size = rows or row_query.page_rows or _PAGE_ROWS
        query = {
            **row_query.query(),
            "limit": min(size, row_query.limit or size),
            **({"same": True} if same else {}),
        }
    path = row_query.path if next_link is None else check_link(next_link)
    reply: Reply = yield from session.read(row_query.view, path, query, row_query.after, row_query.wait_s)
    document: _Page = json_of(reply, _Page)
    columns, decoded = yield from session.rows(row_query.view, document.position.generation, document.rows)
    return Page(decoded, document.position, document.moved, document.next), columns


def check_next_link(current_link: str | None, next_link: str | None) -> str | None:
    """Return the link to the next page. Raise for a link to the same page, because reading would never end."""
    if next_link is not None and next_link == current_link:
        raise InvalidResponse(
            f"the server's link to the next page leads to the same page: {next_link[:100]!r}"
        )
    return next_link


def table(session: Session, row_query: RowQuery) -> Steps:
    """Return all rows from one position. Start again if the view's position changes between two pages."""
    for number in range(_ATTEMPTS):
        rows: list[dict[str, Any]] = []
        next_link: str | None = None
        try:
            while True:
                result, columns = yield from _page(
                    session, row_query, next_link, row_query.page_rows or _TABLE_PAGE_ROWS, True
                )
                rows += result.rows
                next_link = check_next_link(next_link, result.next)
                if next_link is None or (row_query.limit is not None and len(rows) >= row_query.limit):
                    rows_in_limit = rows if row_query.limit is None else rows[: row_query.limit]
                    return Table(columns, rows_in_limit, {row_query.view: result.position})
        except Moved as moved:
            if number == _ATTEMPTS - 1:
                moved.hint = (
                    "the view changes faster than all its rows can be read: select fewer rows, iterate over pages, or"
                    " subscribe with changes()"
                )
                raise
    raise AssertionError("unreachable")


V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Record(Generic[V]):
    partition: int
    offset: int
    time: datetime
    """When the log received the record."""
    key: str | bytes | None
    """Bytes if the key is not UTF-8."""
    value: V | None
    """None for a deletion."""
    headers: list[tuple[str, str | bytes | None]]


@dataclass(frozen=True, slots=True)
class RecordPage(Generic[V]):
    records: list[Record[V]]
    position: Position
    at_end: bool
    """Whether the page ends at the end of the topic."""
    next: str


class _Header(msgspec.Struct, frozen=True):
    name: str
    value: str | None = None
    value_base64: str | None = None


class _Record(msgspec.Struct, frozen=True):
    partition: int
    offset: int
    time: str
    key: str | None = None
    key_base64: str | None = None
    value: msgspec.Raw = msgspec.Raw(b"null")
    value_base64: str | None = None
    headers: list[_Header] = []


class _Records(msgspec.Struct, frozen=True):
    position: Position
    records: list[_Record]
    at_end: bool
    next: str


def records_page(
    session: Session,
    topic: str,
    read: RowReader[V],
    next_link: str | None,
    *,
    partition: int | None = None,
    offset: int | None = None,
    time: datetime | None = None,
    limit: int = 1_000,
) -> Steps:
    path = f"/v1/topics/{quoted(topic)}/records"
    query = {
        "partition": partition,
        "offset": offset,
        "time": None if time is None else key_text(time),
        "limit": limit,
    }
    target = path_of(path, query) if next_link is None else check_link(next_link)
    reply: Reply = yield from session.send(Request("GET", target))
    document: _Records = json_of(reply, _Records)
    if not document.records and not document.at_end and document.next == next_link:
        raise InvalidResponse(
            f"the server's link to the next page leads to the same page: {document.next[:100]!r}"
        )
    records = [_record(record, topic, read) for record in document.records]
    return RecordPage(records, document.position, document.at_end, document.next)


def _record(record: _Record, topic: str, read: RowReader[V]) -> Record[V]:
    where = f"offset {record.offset} of partition {record.partition} of topic {topic!r}"
    if record.value_base64 is not None:
        raise InvalidResponse(
            f"the value at {where} is not JSON",
            hint=f"use a Kafka client, or skip it: partition={record.partition}, offset={record.offset + 1}",
        )
    try:
        return Record(
            record.partition,
            record.offset,
            time_from(record.time),
            record.key if record.key_base64 is None else bytes_from(record.key_base64),
            None if bytes(record.value) == b"null" else read.json(bytes(record.value)),
            [
                (
                    header.name,
                    header.value if header.value_base64 is None else bytes_from(header.value_base64),
                )
                for header in record.headers
            ],
        )
    except ValueDoesNotFit as error:
        raise InvalidResponse(f"the record at {where} is invalid: {error.message}") from None
