"""A page of a view's rows: builds the query from the request's parameters, and the response from the result.

A cursor is an opaque text that requests the next page. It contains the query, the sort values of the last row, and a
digest of the first page's position. The server parses a cursor as strictly as a query, so a forged cursor can do no
more than a query.

Each page reflects the position of the view at the time of its request, and names that position. If the view changes
between two pages, a row can appear in its old or new state, or twice, or not at all. If all pages reflect the same
position, every row appears exactly once. With ``same=true``, a page fails if the first page had another position.

A key in a request has the same format as in the log: the text of a single field, or a JSON object of several fields.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from headrace.model.codec.codec import new_codec
from headrace.model.codec.json_text import parse
from headrace.model.codec.strict_decode import expected
from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Enum, Field, Scalar
from headrace.model.schema import Schema
from headrace.serve.errors import InvalidCursor, InvalidRequest, ViewChanged
from headrace.serve.query.filter import column_value, parse_filter, parse_sort
from headrace.serve.query.position_token import (
    PositionDocument,
    from_opaque,
    position_digest,
    position_document,
    to_opaque,
)
from headrace.serve.query.views import key_fields, key_hint, row_format, to_utf8
from headrace.stores.position import ViewSchema
from headrace.stores.query import (
    EVERY_ROW,
    All,
    Compare,
    Condition,
    OrderBy,
    Query,
    QueryResult,
    rows_after,
    rows_before,
    starts_with,
    total_order,
)
from headrace.stores.row_json import RowJson
from headrace.stores.rows import Row, Value, to_store_value

__all__ = [
    "Cursor",
    "RowJsonText",
    "RowPage",
    "RowsDocument",
    "decode_sort_values",
    "encode_sort_values",
    "prefix_condition",
    "range_condition",
]

_CURSOR_CHARS_MAX = 16_000
_SKIP_MAX = 1_000_000


RowJsonText = Annotated[
    msgspec.Raw,
    msgspec.Meta(
        description="Values by column, in the format of the log.", extra_json_schema={"type": "object"}
    ),
]


class RowsDocument(msgspec.Struct, frozen=True):
    view: str
    position: PositionDocument
    moved: Annotated[
        bool, msgspec.Meta(description="True if the view's position changed after the first page.")
    ]
    rows: list[RowJsonText]
    next: (
        Annotated[str, msgspec.Meta(description="The path of the next page; absent on the last page.")]
        | UnsetType
    ) = UNSET


@dataclass(frozen=True, slots=True)
class RowPage:
    """One request for a page. ``cursor`` contains the query; the cursor of the first page has no ``after``."""

    cursor: Cursor
    limit: int
    same: bool

    @classmethod
    def first(cls, view: str, parameters: dict[str, Any], limit: int, *, same: bool) -> RowPage:
        words = parameters.get("match")
        if words is not None and (not words.strip() or parameters.get("sort") is not None):
            raise InvalidRequest(
                "match needs at least one word, and cannot be used with sort: its rows are sorted by relevance"
            )
        cursor = Cursor(
            view,
            "",
            filter=parameters.get("filter"),
            sort=parameters.get("sort"),
            prefix=parameters.get("prefix"),
            begin=parameters.get("from"),
            end=parameters.get("to"),
            words=words,
        )
        return cls(cursor, limit, same)

    def query(self, schema: ViewSchema) -> Query:
        cursor = self.cursor
        conditions: list[Condition] = []
        if cursor.filter is not None:
            conditions.append(parse_filter(cursor.filter, schema))
        if cursor.prefix is not None:
            conditions.append(prefix_condition(schema, cursor.prefix))
        if cursor.begin is not None or cursor.end is not None:
            conditions.append(range_condition(schema, cursor.begin, cursor.end))
        if cursor.words is not None:
            return Query(self.limit, _all(conditions), words=cursor.words, skip=cursor.skip)
        order = total_order(schema, parse_sort(cursor.sort, schema) if cursor.sort is not None else ())
        if cursor.after:
            conditions.append(rows_after(order, decode_sort_values(schema, order, cursor.after)))
        return Query(self.limit, _all(conditions), order)

    def document(self, path: str, result: QueryResult, bytes_max: int) -> RowsDocument:
        """Build the response. It has fewer rows if they would exceed ``bytes_max``."""
        schema, position = result.state.schema, result.state.position
        digest = position_digest(position, schema)
        first = self.cursor.at or digest
        if self.same and first != digest:
            raise ViewChanged(
                f"the position of view {self.cursor.view!r} changed after the first page",
                hint="start again with the first page, or omit same=true",
                members={"position": position_document(position)},
            )
        rows = _take_bytes(map(row_format(schema).to_json, result.rows), bytes_max)
        if len(rows) < len(result.rows):
            result = replace(result, rows=result.rows[: len(rows)], more=True)
        next_url: str | UnsetType = UNSET
        if result.more and result.rows:
            next_url = f"{path}?{urllib.parse.urlencode(self._next(result, first))}"
        return RowsDocument(self.cursor.view, position_document(position), first != digest, rows, next_url)

    def _next(self, result: QueryResult, first: str) -> dict[str, str]:
        if self.cursor.words is not None:
            skip = self.cursor.skip + len(result.rows)
            cursor = msgspec.structs.replace(self.cursor, at=first, skip=skip)
        else:
            after = encode_sort_values(result.state.schema, result.query.order, result.rows[-1])
            cursor = msgspec.structs.replace(self.cursor, at=first, after=after)
        same = {"same": "true"} if self.same else {}
        return {"cursor": cursor.encode(), "limit": str(self.limit), **same}


def _take_bytes(rows: Iterator[bytes], bytes_max: int) -> list[msgspec.Raw]:
    """Return the first rows that fit, but at least one."""
    page_rows: list[msgspec.Raw] = []
    size = 0
    for row in rows:
        size += len(row)
        if size > bytes_max and page_rows:
            break
        page_rows.append(msgspec.Raw(row))
    return page_rows


def _all(conditions: list[Condition]) -> Condition:
    return All(tuple(conditions)) if conditions else EVERY_ROW


class Cursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    view: str
    at: str
    """Digest of the first page's position."""
    after: str = ""
    """The sort values of the last row, as JSON."""
    skip: int = 0
    filter: str | None = None
    sort: str | None = None
    prefix: str | None = None
    begin: str | None = None
    end: str | None = None
    words: str | None = None

    @classmethod
    def parse(cls, text: str, view: str) -> Cursor:
        if len(text) <= _CURSOR_CHARS_MAX:
            try:
                cursor = _decoder.decode(from_opaque(text))
            except (msgspec.DecodeError, ValueError, RecursionError):
                pass
            else:
                if cursor.view == view and 0 <= cursor.skip < _SKIP_MAX and cursor._is_consistent():
                    return cursor
        raise InvalidCursor(
            "the cursor is not a cursor of this view",
            hint="use the URL in the field next of the previous response, unchanged",
        )

    def _is_consistent(self) -> bool:
        """Return whether the fields are consistent. A word search sorts by relevance and uses ``skip``; all other
        queries use ``after``.
        """
        if self.words is None:
            return not self.skip
        return bool(self.words.strip()) and self.sort is None and not self.after

    def encode(self) -> str:
        return to_opaque(_encoder.encode(self))


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Cursor)


def encode_sort_values(schema: ViewSchema, order: tuple[OrderBy, ...], row: Row) -> str:
    fields = _sort_fields(schema, order)
    values = tuple(row[schema.names.index(field.name)] for field in fields)
    return RowJson(ViewSchema(fields, (fields[0].name,))).value(values).decode()


def decode_sort_values(schema: ViewSchema, order: tuple[OrderBy, ...], text: str) -> list[Value]:
    fields = _sort_fields(schema, order)
    try:
        values = new_codec(Schema("cursor", fields)).decode(text.encode())
    except (ValueDoesNotFit, UnicodeEncodeError):
        raise InvalidCursor(
            "the cursor does not match the view's current columns", hint="start again with the first page"
        ) from None
    return [
        None if value is None else to_store_value(field.kind)(value)
        for field, value in zip(fields, values.values(), strict=True)
    ]


def _sort_fields(schema: ViewSchema, order: tuple[OrderBy, ...]) -> tuple[Field, ...]:
    fields = {field.name: field for field in schema.fields}
    return tuple(replace(fields[by.column], optional=True, default=None) for by in order)


# Keys


def prefix_condition(schema: ViewSchema, text: str) -> Condition:
    """``text`` is the start of a text key, or a JSON object with values for the first fields of a composite key."""
    fields = key_fields(schema)
    if len(fields) == 1:
        (field,) = fields
        if field.kind != Scalar("text") and not isinstance(field.kind, Enum):
            raise InvalidRequest(
                f"prefix: the key is {expected(field.kind)}, but prefix needs a text key",
                hint="query a range with from and to",
            )
        to_utf8(text)
        return starts_with(field.name, text)
    values = _leading_values(schema, text, "prefix")
    return All(tuple(Compare(field.name, "=", value) for field, value in zip(fields, values, strict=False)))


def range_condition(schema: ViewSchema, begin: str | None, end: str | None) -> Condition:
    """Match keys from ``begin`` (inclusive) to ``end`` (exclusive). For a composite key, its first fields are
    enough.
    """
    parts: list[Condition] = []
    for text, parameter in ((begin, "from"), (end, "to")):
        if text is not None:
            values = _leading_values(schema, text, parameter)
            names = schema.key[: len(values)]
            parts.append(
                rows_after([*map(OrderBy, names)], values, inclusive=True)
                if parameter == "from"
                else rows_before(names, values)
            )
    return All(tuple(parts))


def _leading_values(schema: ViewSchema, text: str, parameter: str) -> list[Value]:
    """Parse values for the first one or more fields of the key."""
    fields = key_fields(schema)
    if len(fields) == 1:
        return list(row_format(schema).parse_key(text, parameter))
    try:
        values = parse(to_utf8(text))
    except ValueDoesNotFit as error:
        raise InvalidRequest(f"{parameter}: {error.message}", hint=key_hint(schema)) from None
    names = [field.name for field in fields]
    if not isinstance(values, dict) or not values or set(values) != set(names[: len(values)]):
        raise InvalidRequest(
            f"{parameter} must be a JSON object of the key's first fields", hint=key_hint(schema)
        )
    return [column_value(field, values[field.name]) for field in fields[: len(values)]]
