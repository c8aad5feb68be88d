"""The prepared statements, portals and cursors of one connection, by name.

A portal is a prepared statement with its parameters. It also records how much of its result was sent.
"""

from __future__ import annotations

import re
import struct
import sys
from dataclasses import dataclass, field

import msgspec

from headrace.serve.sql.messages import QueryResponse
from headrace.serve.sql.wire.context import MemoryQuota
from headrace.serve.sql.wire.frames import ColumnDescription, PgError, StatementFailed
from headrace.serve.sql.wire.parameters import Value
from headrace.serve.sql.wire.rows import SIZES

__all__ = ["NAME_BYTES_MAX", "Portal", "Prepared", "PreparedStatements"]

NAME_BYTES_MAX = 63
"""PostgreSQL's limit for names."""


class PreparedStatements:
    def __init__(self, quota: MemoryQuota) -> None:
        self._quota = quota
        self._prepared: dict[str, Prepared] = {}
        self._portals: dict[str, Portal] = {}

    def put_statement(self, name: str, prepared: Prepared) -> None:
        _check_name(name)
        try:
            self._quota.put("statement", name, prepared.size_bytes)
        except Exception:
            self._prepared.pop(name, None)
            raise
        self._prepared[name] = prepared

    def put_portal(self, name: str, portal: Portal) -> None:
        """Store a portal; call it again when the portal's size changes. Drop the portal if it exceeds the quota."""
        _check_name(name)
        try:
            self._quota.put("portal", name, portal.size_bytes)
        except Exception:
            self._portals.pop(name, None)
            raise
        self._portals[name] = portal

    def statement(self, name: str) -> Prepared:
        if name not in self._prepared:
            raise StatementFailed(PgError("26000", f"prepared statement {name[:63]!r} does not exist"))
        return self._prepared[name]

    def portal(self, name: str) -> Portal:
        if name not in self._portals:
            raise StatementFailed(PgError("34000", f"portal {name[:63]!r} does not exist"))
        return self._portals[name]

    def cursor(self, name: str) -> Portal:
        portal = self._portals.get(name)
        if portal is None or not portal.cursor:
            raise StatementFailed(PgError("34000", f"cursor {name[:63]!r} does not exist"))
        return portal

    def drop(self, kind: str, name: str) -> None:
        """Drop a cursor, which must exist, or a statement, which need not exist. An empty name drops all."""
        if kind == "cursor":
            cursors = [portal_name for portal_name, portal in self._portals.items() if portal.cursor]
            for cursor in [name] if name else cursors:
                self.cursor(cursor)
                self.drop_portal(cursor)
        elif not name:
            for statement in [*self._prepared]:
                self.drop_statement(statement)
        else:
            self.drop_statement(name)

    def drop_statement(self, name: str) -> None:
        self._prepared.pop(name, None)
        self._quota.drop("statement", name)

    def drop_portal(self, name: str) -> None:
        self._portals.pop(name, None)
        self._quota.drop("portal", name)

    def end_transaction(self) -> None:
        """Drop all portals except cursors WITH HOLD."""
        for name in [*self._portals]:
            if not self._portals[name].hold:
                self.drop_portal(name)

    def clear(self) -> None:
        self._prepared.clear()
        self._portals.clear()
        self._quota.clear()


def _check_name(name: str) -> None:
    size = len(name.encode("utf-8", "replace"))
    if size > NAME_BYTES_MAX:
        raise StatementFailed(
            PgError(
                *("42622", f"the name {name[:20]!r}... has {size} bytes (limit {NAME_BYTES_MAX})"),
                hint="use a shorter name for the statement, portal or cursor",
            )
        )


_ENTRY_BYTES = 1_000
"""Estimated memory of a statement or portal, without the client's texts and values."""
_INT_BYTES = 40
_COLUMN_BYTES = 300


@dataclass(slots=True)
class Prepared:
    sql: str
    oids: list[int]

    @property
    def size_bytes(self) -> int:
        return _ENTRY_BYTES + _text_bytes(self.sql) + _INT_BYTES * len(self.oids)

    def describe(self) -> Portal:
        """Return a portal that returns the columns but no rows. It does not need parameter values."""
        count = max([len(self.oids), *map(int, re.findall(r"\$([0-9]{1,4})", self.sql))])
        oids = [*self.oids, *[0] * (count - len(self.oids))]
        return Portal(Prepared(self.sql, oids), [None] * count, [], describe_only=True)


@dataclass(slots=True)
class Portal:
    prepared: Prepared
    values: list[Value]
    formats: list[int]
    name: str | None = None
    """None if the portal is not stored."""
    describe_only: bool = False
    """Whether to return the columns but no rows."""
    cursor: bool = False
    hold: bool = False
    skipped: int = 0
    """Rows that MOVE skipped before the statement ran."""
    response: QueryResponse | None = None
    sent_bytes: int = 0
    """Bytes of rows sent so far, if the client fetches the rows in portions."""
    done: bool = False

    columns: list[ColumnDescription] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Include the statement's size, because the portal can be the only reference to the statement."""
        values = sum(map(_value_bytes, self.values)) + _INT_BYTES * len(self.formats)
        columns = sum(_COLUMN_BYTES + _text_bytes(column.name) for column in self.columns)
        rows = len(self.response.body) if self.response is not None else 0
        return _ENTRY_BYTES + self.prepared.size_bytes + values + columns + rows

    def set_response(self, response: QueryResponse) -> None:
        self.response = response
        formats = self.formats * len(response.columns) if len(self.formats) == 1 else self.formats
        self.columns = [
            ColumnDescription(
                column.name, column.oid, SIZES.get(column.oid, -1), bool(formats) and formats[at] == 1
            )
            for at, column in enumerate(response.columns)
        ]

    def take_rows(self, rows_max: int) -> tuple[bytes, int]:
        """Return the next rows and their number. Set ``done`` after the last row."""
        assert self.response is not None
        if self.done:
            return b"", 0
        body, begin = self.response.body, self.sent_bytes
        if rows_max == 0 and begin == 0:
            end, count = len(body), self.response.rows
        else:
            end, count = begin, 0
            while end < len(body) and (rows_max == 0 or count < rows_max):
                (length,) = struct.unpack_from(">i", body, end + 1)
                end, count = end + 1 + length, count + 1
        self.sent_bytes = end
        if end == len(body):
            self.done = True
            self.response = msgspec.structs.replace(self.response, body=b"")
        return body[begin:end], count


def _text_bytes(text: str) -> int:
    """Return the memory of a text. Python also caches the UTF-8 form of a text that is not ASCII."""
    return sys.getsizeof(text) + (0 if text.isascii() else len(text.encode("utf-8", "replace")))


def _value_bytes(value: Value) -> int:
    if isinstance(value, list):
        return sum(8 + _value_bytes(element) for element in value)
    return 0 if value is None else _text_bytes(value)
