"""A subscription to a view, without its socket: creates the requests, parses the messages, and handles lost streams.

A step has all changes between two positions of the view, in one or more messages. After a temporary error, the
subscription reconnects with the cursor of the last complete step and discards a partial step. It retries without a
limit. If the cursor has expired, or a step does not start where the previous step ended, it reads a new snapshot.
Permanent errors are raised.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from headrace.model.errors import ValueDoesNotFit
from headrace.remote.columns import Columns, RowReader
from headrace.remote.errors import (
    Busy,
    InvalidResponse,
    Outdated,
    Position,
    RemoteError,
    ServerFault,
    Unreachable,
    error_of,
)
from headrace.remote.exchange import Request
from headrace.remote.queries import RowQuery
from headrace.remote.results import Change
from headrace.remote.session import path_of, quoted

__all__ = ["Ended", "Event", "EventStream", "Subscription"]

R = TypeVar("R")

_SILENCE_S = 45.0
"""A stream counts as lost after this many seconds without data. By default, the server sends a heartbeat every 15 s."""
_PAUSE_S_FIRST = 0.1
_PAUSE_S_MAX = 10.0
_SERVER_S_MAX = 60.0
"""Upper limit for the server's retry time."""


class _Since(msgspec.Struct, frozen=True):
    offsets: dict[str, int]
    generation: int | None = None
    batch: int | None = None


class _Message(msgspec.Struct, frozen=True):
    type: str = ""
    key: list[str] = []
    columns: list[dict[str, Any]] = []
    resumed: bool = False
    rows: list[msgspec.Raw] = []
    gone: list[msgspec.Raw] = []
    last: bool = True
    since: _Since | None = None
    position: Position | None = None
    cursor: str | None = None
    close: int = 0
    code: str = ""
    detail: str = ""
    next: str = ""
    retry_ms: int | None = None


class Ended(Exception):
    """The server ended the subscription. The client reconnects after ``retry_s``."""

    def __init__(self, retry_s: float) -> None:
        super().__init__(retry_s)
        self.retry_s = retry_s


class Subscription(Generic[R]):
    """``cursor`` is the cursor of the last step that the caller has processed."""

    def __init__(self, row_query: RowQuery, read: RowReader[R], cursor: str | None) -> None:
        self._row_query = row_query
        self._read = read
        self.cursor = cursor
        self.snapshots = 0
        """Number of snapshots received."""
        self._position: Position | None = None
        self._pause_s = _PAUSE_S_FIRST
        self._reset()

    def _reset(self) -> None:
        self._events = EventStream()
        self._columns: Columns | None = None
        self._key_columns: Columns | None = None
        self._is_snapshot = False
        self._pending: dict[tuple[Any, ...], dict[str, Any] | None] = {}
        """The rows of the partial step by key. The value is None for a deleted row."""

    def request(self) -> Request:
        """Return the request for the next stream."""
        self._reset()
        query = {**self._row_query.query(), "limit": self._row_query.limit}
        path = f"/v1/views/{quoted(self._row_query.view)}/changes"
        return Request(
            "GET",
            path_of(path, {**query, "cursor": self.cursor}),
            headers={"Accept": "text/event-stream"},
            timeout_s=_SILENCE_S,
        )

    def parse(self, part: bytes) -> Iterable[Change[R]]:
        """Parse received bytes, and yield complete steps. Raise the errors that ``pause_before_retry`` accepts."""
        for event in self._events.parse(part):
            change = self._message(event)
            if change is not None:
                self._pause_s = _PAUSE_S_FIRST
                yield change
                # Move the cursor only now, because a caller that stops iterating has not processed the step.
                self.cursor, self._position = change.cursor, change.position

    def pause_before_retry(self, error: Exception | None) -> float:
        """Return the seconds to wait before the next stream. Raise a permanent error.

        ``error`` is None if the stream ended normally.
        """
        server_s = 0.0
        if isinstance(error, Outdated) and self.cursor is not None:
            self._restart()
            return 0.0
        if isinstance(error, Ended):
            server_s = error.retry_s
        elif isinstance(error, (Unreachable, Busy, ServerFault)):
            server_s = error.retry_after_s
        elif error is not None:
            raise error
        pause_s = self._pause_s * random.uniform(0.5, 1.0)  # noqa: S311
        self._pause_s = min(self._pause_s * 2, _PAUSE_S_MAX)
        return max(pause_s, min(server_s, _SERVER_S_MAX))

    def _restart(self) -> None:
        self.cursor = self._position = None

    def _message(self, event: Event) -> Change[R] | None:
        try:
            message = msgspec.json.decode(event.data, type=_Message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidResponse(f"a message is not from a Headrace server: {error}") from None
        match message.type or event.name:
            case "hello":
                self._columns = Columns.from_json(message.columns, message.key)
                keys = tuple(column for column in self._columns.fields if column.name in message.key)
                self._key_columns = Columns(keys)
                self._is_snapshot, self._pending = not message.resumed, {}
            case "snapshot" | "changes":
                return self._step(message)
            case "reset":
                self._restart()
                self._is_snapshot, self._pending = True, {}
            case "bye":
                raise self._closing_error(message)
        return None

    def _step(self, message: _Message) -> Change[R] | None:
        columns, key_columns = self._columns, self._key_columns
        if columns is None or key_columns is None:
            raise InvalidResponse("the server sent rows before their columns")
        try:
            for row in columns.rows(message.rows):
                self._pending[tuple(row[name] for name in columns.key)] = row
            for gone in key_columns.rows(message.gone):
                self._pending[tuple(gone[name] for name in columns.key)] = None
        except ValueDoesNotFit as error:
            raise InvalidResponse(f"a row does not match the view's columns: {error.message}") from None
        if not message.last:
            return None
        if message.position is None or message.cursor is None:
            raise InvalidResponse("the server sent changes without a position")
        pending, self._pending = self._pending, {}
        whole, self._is_snapshot = self._is_snapshot, False
        self.snapshots += whole
        if not whole and not self._follows(message.since):
            self._restart()
            raise Busy("a step does not start where the previous step ended: reading a new snapshot")
        rows = {key: row for key, row in pending.items() if row is not None}
        gone_keys = [key for key, row in pending.items() if row is None]
        return Change(
            whole,
            [self._read.row(row) for row in rows.values()],
            [] if whole else [dict(zip(columns.key, key, strict=True)) for key in gone_keys],
            message.position,
            message.cursor,
            list(rows),
            columns.key,
        )

    def _follows(self, since: _Since | None) -> bool:
        """Return whether the step starts where the previous one ended. Return
        True if the previous position is unknown.
        """
        previous = self._position
        if previous is None or since is None:
            return True
        return since.offsets == previous.offsets and since.batch == previous.batch

    def _closing_error(self, message: _Message) -> Exception:
        if message.retry_ms is not None:
            return Ended(message.retry_ms / 1_000)
        status = message.close - 4_000 if 4_400 <= message.close < 4_600 else 400
        problem = {"code": message.code, "detail": message.detail, "next": message.next}
        error: RemoteError = error_of(status, problem, "")
        # Without ``retry_ms`` a retry is useless, so raise an error that is not retried.
        return (
            error
            if not isinstance(error, (Busy, ServerFault))
            else InvalidResponse(error.message, hint=error.hint, code=error.code)
        )


_EVENT_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    data: bytes


class EventStream:
    """Parses server-sent events. An event is complete when its empty line arrives. A partial event is dropped."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0

    def parse(self, part: bytes) -> list[Event]:
        self._rest += part
        if b"\n" not in part:
            self._expect_bounded(len(self._rest))
            return []
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        events: list[Event] = []
        for raw in lines:
            line = raw.removesuffix(b"\r")
            self._size += len(line)
            self._expect_bounded(0)
            if line:
                self._line(line)
                continue
            if self._data:
                events.append(Event(self._name or "message", b"\n".join(self._data)))
            self._name, self._data, self._size = "", [], 0
        self._expect_bounded(len(rest))
        return events

    def _expect_bounded(self, rest: int) -> None:
        if self._size + rest > _EVENT_BYTES_MAX:
            raise InvalidResponse(f"an event has more than {_EVENT_BYTES_MAX} bytes")

    def _line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._name = value.decode(errors="replace")
        elif name == b"data":
            self._data.append(value)
