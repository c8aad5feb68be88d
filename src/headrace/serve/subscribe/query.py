"""The query of a subscription, and the cursor from which a subscriber resumes.

A query selects all rows of a view, or the rows that match a filter, or only the first rows. A cursor is an opaque text.
It identifies the view, the query, the epoch and the position, and contains the time when the server sent it. A caller
can forge a cursor, but a cursor grants no rights, and ``backfill.py`` checks it against the log before using it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Annotated, Literal

import msgspec

from headrace.serve.errors import CursorExpired, InvalidCursor, InvalidRequest
from headrace.serve.query.position_token import from_opaque, to_opaque
from headrace.serve.query.row_page import Cursor, RowPage
from headrace.serve.subscribe.log_position import Epoch, LogPosition
from headrace.stores.position import ViewSchema
from headrace.stores.query import EVERY_ROW, Condition, OrderBy, Query
from headrace.stores.reader import QueryBuilder

__all__ = ["CHARS_MAX", "LIMIT_MAX", "ResumeCursor", "Subscribe", "SubscriptionQuery"]

LIMIT_MAX = 1_000
_KEY_PARAMETERS = ("prefix", "begin", "end")
_ALWAYS_IN_DIGEST = ("view", "filter", *_KEY_PARAMETERS)
_IN_DIGEST_IF_SET = ("words", "sort", "limit")


class SubscriptionQuery(msgspec.Struct, frozen=True):
    view: str
    """The name of the view in the request."""
    filter: str | None = None
    prefix: str | None = None
    begin: str | None = None
    end: str | None = None
    words: str | None = None
    sort: str | None = None
    limit: int | None = None
    """Selects only the first rows, ordered by ``sort`` or by key."""

    def check(self) -> None:
        """Raise if the query is invalid, whatever the view."""
        if self.words is not None and not self.words.strip():
            raise InvalidRequest("match needs at least one word")
        if self.limit is not None and not 1 <= self.limit <= LIMIT_MAX:
            raise InvalidRequest(f"limit must be a whole number from 1 to {LIMIT_MAX}")
        if self.words is not None and self.limit is not None and self.sort is None:
            raise InvalidRequest(
                "a subscription with match and limit also needs sort, because one changed row can change the relevance"
                " of all others",
                hint="name the columns to sort by, for example sort=-price, or omit limit",
            )

    @property
    def digest(self) -> bytes:
        identity = {name: getattr(self, name) for name in _ALWAYS_IN_DIGEST}
        identity |= {name: value for name in _IN_DIGEST_IF_SET if (value := getattr(self, name)) is not None}
        return hashlib.sha256(msgspec.msgpack.encode(identity)).digest()[:8]

    def condition(self, schema: ViewSchema) -> Condition:
        """Return the condition of filter and keys, without the full-text search (``words``). Raise the same errors as a
        query over HTTP.
        """
        has_condition = any(getattr(self, name) is not None for name in ("filter", *_KEY_PARAMETERS))
        return self.page_query("", 1)(schema).where if has_condition else EVERY_ROW

    def key_condition(self, key_schema: ViewSchema) -> Condition:
        """Return the part of the condition that tests only the key. This part also applies to deleted rows."""
        return SubscriptionQuery(self.view, None, self.prefix, self.begin, self.end).condition(key_schema)

    def order(self, schema: ViewSchema) -> tuple[OrderBy, ...]:
        return self.page_query("", 1)(schema).order

    def page_query(self, after: str, limit: int) -> QueryBuilder:
        """Return the query for the page after the row with these sort values."""
        cursor = Cursor(
            self.view,
            "",
            after=after,
            filter=self.filter,
            sort=self.sort,
            prefix=self.prefix,
            begin=self.begin,
            end=self.end,
        )
        page = RowPage(cursor, limit, same=False)

        def build_query(schema: ViewSchema) -> Query:
            return dataclasses.replace(page.query(schema), words=self.words or "")

        return build_query


CHARS_MAX = 16_000
_OFFSET_MAX = 2**63 - 1


class Subscribe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first message of a WebSocket, and the only one that a client sends."""

    type: Literal["subscribe"]
    token: str | None = None
    filter: str | None = None
    prefix: str | None = None
    begin: str | None = msgspec.field(default=None, name="from")
    end: str | None = msgspec.field(default=None, name="to")
    match: str | None = None
    sort: str | None = None
    limit: Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 1, "maximum": LIMIT_MAX})] | None = None
    cursor: str | None = None


class ResumeCursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    query: bytes
    epoch: bytes
    batch: int
    progress_offset: int
    offsets: dict[int, int]
    sent_ms: int

    @classmethod
    def at(
        cls, query: SubscriptionQuery, epoch: Epoch, log_position: LogPosition, now_ms: int
    ) -> ResumeCursor:
        offsets = dict(log_position.offsets)
        return cls(
            1, query.digest, epoch.digest, log_position.batch, log_position.progress_offset, offsets, now_ms
        )

    @classmethod
    def parse(cls, text: str, query: SubscriptionQuery) -> ResumeCursor:
        if len(text) <= CHARS_MAX:
            try:
                cursor = _decoder.decode(from_opaque(text))
            except (msgspec.DecodeError, ValueError, RecursionError):
                pass
            else:
                if cursor.version == 1 and cursor.query == query.digest:
                    return cursor
        raise InvalidCursor(
            "the cursor does not belong to a subscription to this view with this query",
            hint="send the last cursor that you received, with the same query",
        )

    def encode(self) -> str:
        return to_opaque(_encoder.encode(self))

    def log_position(self, epoch: Epoch) -> LogPosition:
        """Return the cursor's position. Raise ``CursorExpired`` if the cursor belongs to another epoch."""
        if self.epoch != epoch.digest:
            raise CursorExpired(
                "the view was rebuilt, its flow has a new generation, or its topic was created again"
            )
        is_valid = set(self.offsets) == set(range(epoch.partitions)) and self.batch >= -1
        is_valid = is_valid and all(
            0 <= at <= _OFFSET_MAX for at in (*self.offsets.values(), self.progress_offset)
        )
        if not is_valid:
            raise InvalidCursor("the cursor contains invalid offsets", hint="send the cursor unchanged")
        return LogPosition(self.offsets, self.batch, self.progress_offset, epoch.by_batch)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ResumeCursor)
