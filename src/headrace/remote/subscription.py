"""A subscription, without its socket: what to ask for, what a message means, and what to do when the stream breaks.

It never gives up on what may heal: it comes again with the cursor of the last whole step, and what had come of the
next one is thrown away. A cursor that is too old, and a step that does not begin where the one before ended, cost a
fresh snapshot. What does not heal is raised.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec

from headrace.model.errors import ValueDoesNotFit
from headrace.remote.change import Change
from headrace.remote.columns import Columns
from headrace.remote.errors import (
    AnswerUnfit,
    Busy,
    Outdated,
    RemoteError,
    ServerFault,
    Unreachable,
    error_of,
)
from headrace.remote.event_stream import Event, EventStream
from headrace.remote.exchange import Request
from headrace.remote.position import Position
from headrace.remote.reading import Question
from headrace.remote.reading_as import Read
from headrace.remote.session import path_of, quoted

__all__ = ["Ended", "Subscription"]

R = TypeVar("R")

_SILENCE_S = 45.0
"""Three heartbeats."""
_PAUSE_S_FIRST = 0.1
_PAUSE_S_MAX = 10.0
_TOLD_S_MAX = 60.0
"""Who asks to be left alone for longer is asked again all the same."""


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
    """The server said good-bye, and when to come again."""

    def __init__(self, retry_s: float) -> None:
        super().__init__(retry_s)
        self.retry_s = retry_s


class Subscription(Generic[R]):
    """``cursor`` is that of the last step that the caller has, and counts up to there."""

    def __init__(self, question: Question, read: Read[R], cursor: str | None) -> None:
        self._question = question
        self._read = read
        self.cursor = cursor
        self.snapshots = 0
        """How often all rows came."""
        self._position: Position | None = None
        self._pause_s = _PAUSE_S_FIRST
        self._begin()

    def _begin(self) -> None:
        self._events = EventStream()
        self._columns: Columns | None = None
        self._key_columns: Columns | None = None
        self._whole = False
        self._pending: dict[tuple[Any, ...], dict[str, Any] | None] = {}
        """By key, the row or None where it is gone; of a step that is not all there."""

    def request(self) -> Request:
        """For the next stream."""
        self._begin()
        asked = {**self._question.query(), "limit": self._question.limit}
        path = f"/v1/views/{quoted(self._question.view)}/changes"
        return Request(
            "GET",
            path_of(path, {**asked, "cursor": self.cursor}),
            headers={"Accept": "text/event-stream"},
            within_s=_SILENCE_S,
        )

    def take(self, part: bytes) -> Iterable[Change[R]]:
        """Whole steps. Raises what ``broken`` takes."""
        for event in self._events.take(part):
            change = self._message(event)
            if change is not None:
                self._pause_s = _PAUSE_S_FIRST
                yield change
                # Only now: who does not come back for more has not taken it.
                self.cursor, self._position = change.cursor, change.position

    def broken(self, error: Exception | None) -> float:
        """How long to wait before the next stream; raises what does not heal. None: the stream just ended."""
        told_s = 0.0
        if isinstance(error, Outdated) and self.cursor is not None:
            self._restart()
            return 0.0
        if isinstance(error, Ended):
            told_s = error.retry_s
        elif isinstance(error, (Unreachable, Busy, ServerFault)):
            told_s = error.retry_after_s
        elif error is not None:
            raise error
        pause_s = self._pause_s * random.uniform(0.5, 1.0)  # noqa: S311
        self._pause_s = min(self._pause_s * 2, _PAUSE_S_MAX)
        return max(pause_s, min(told_s, _TOLD_S_MAX))

    def _restart(self) -> None:
        self.cursor = self._position = None

    def _message(self, event: Event) -> Change[R] | None:
        try:
            message = msgspec.json.decode(event.data, type=_Message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise AnswerUnfit(f"a message that is none of a Headrace server: {error}") from None
        match message.type or event.name:
            case "hello":
                self._columns = Columns.told(message.columns, message.key)
                keys = tuple(one for one in self._columns.fields if one.name in message.key)
                self._key_columns = Columns(keys)
                self._whole, self._pending = not message.resumed, {}
            case "snapshot" | "changes":
                return self._step(message)
            case "reset":
                self._restart()
                self._whole, self._pending = True, {}
            case "bye":
                raise self._bye(message)
        return None

    def _step(self, message: _Message) -> Change[R] | None:
        columns, key_columns = self._columns, self._key_columns
        if columns is None or key_columns is None:
            raise AnswerUnfit("rows came before it was said of which columns they are")
        try:
            for row in columns.rows(message.rows):
                self._pending[tuple(row[name] for name in columns.key)] = row
            for gone in key_columns.rows(message.gone):
                self._pending[tuple(gone[name] for name in columns.key)] = None
        except ValueDoesNotFit as error:
            raise AnswerUnfit(f"a row is not of its view's columns: {error.message}") from None
        if not message.last:
            return None
        if message.position is None or message.cursor is None:
            raise AnswerUnfit("a step without the position that it leads to")
        pending, self._pending = self._pending, {}
        whole, self._whole = self._whole, False
        self.snapshots += whole
        if not whole and not self._follows(message.since):
            self._restart()
            raise Busy("a step does not begin where the one before ended: all rows are asked for again")
        kept = {key: row for key, row in pending.items() if row is not None}
        gone_keys = [key for key, row in pending.items() if row is None]
        return Change(
            whole,
            [self._read.row(row) for row in kept.values()],
            [] if whole else [dict(zip(columns.key, key, strict=True)) for key in gone_keys],
            message.position,
            message.cursor,
            list(kept),
            columns.key,
        )

    def _follows(self, since: _Since | None) -> bool:
        """Where the position before is not known, the server's word is taken for it."""
        before = self._position
        if before is None or since is None:
            return True
        return since.offsets == before.offsets and since.batch == before.batch

    def _bye(self, message: _Message) -> Exception:
        if message.retry_ms is not None:
            return Ended(message.retry_ms / 1_000)
        status = message.close - 4_000 if 4_400 <= message.close < 4_600 else 400
        told = {"code": message.code, "detail": message.detail, "next": message.next}
        error: RemoteError = error_of(status, told, "")
        # What the server says does not heal is not tried again.
        return (
            error
            if not isinstance(error, (Busy, ServerFault))
            else AnswerUnfit(error.message, hint=error.hint, code=error.code)
        )
