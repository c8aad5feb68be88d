"""Looking at one view in Redis, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from headrace.clock import Clock, SystemClock
from headrace.views.errors import QueryFailed
from headrace.views.reader import Known, Reader
from headrace.views.redis.keys import Keys
from headrace.views.redis.notes import Notes, noted, reads
from headrace.views.redis.row_text import RowText
from headrace.views.redis.server import Server
from headrace.views.rows import Row
from headrace.views.store import Part

__all__ = ["RedisReader"]

_AT_ONCE = 1_000
_WHOLE_MAX = 10_000
"""So many rows hold up the other users of a server for a few milliseconds."""


class RedisReader(Reader):
    """Rows are of one moment, except in a view of very many, of which each is whole."""

    def __init__(self, address: str, prefix: str, view: str, clock: Clock | None = None) -> None:
        self._keys = Keys(prefix, view)
        self._clock = clock or SystemClock()
        self._server = Server(address, "headrace:reader")
        self.where = f"{self._server.where}, key {self._keys.serving}"

    def close(self) -> None:
        self._server.close()

    def _notes(self) -> Notes:
        return noted(self._server.ask(*reads(self._keys)))

    def known(self) -> list[Known]:
        notes = self._notes()
        found = ((part, notes.standing(part)) for part in Part)
        return [
            Known(
                self._keys.view,
                part,
                one.position.topic,
                one.position.generation,
                one.position.batch,
                one.position.offsets,
                one.position.dead,
                one.position.stored_ms,
                one.reason,
                one.shape,
                one.position.sources,
            )
            for part, one in found
            if one is not None
        ]

    def count(self, view: str) -> int:
        return self._notes().found[Part.SERVING]

    @contextlib.contextmanager
    def reading(self, view: str, timeout_s: float) -> Iterator[tuple[list[str], Iterator[Row]]]:
        is_small = self.count(view) <= _WHOLE_MAX
        more = [("HVALS", self._keys.serving)] if is_small else []
        answers = self._server.ask(*reads(self._keys, *more))
        standing = noted(answers).standing(Part.SERVING)
        if standing is None:
            raise QueryFailed(f"{self.where} serves no view {view!r}")
        text = RowText(standing.shape)
        yield (
            list(standing.shape.names),
            map(text.row, answers[-1]) if is_small else self._rows(text, self._clock.steady() + timeout_s),
        )

    def _rows(self, text: RowText, deadline: float) -> Iterator[Row]:
        seen = set[bytes]()
        cursor = b"0"
        while True:
            cursor, found = self._server.ask("HSCAN", self._keys.serving, cursor, "COUNT", _AT_ONCE)
            for field, value in zip(found[::2], found[1::2], strict=True):
                # While the server enlarges a hash, a field may come twice.
                if field not in seen:
                    seen.add(field)
                    yield text.row(value)
            if cursor == b"0":
                return
            if self._clock.steady() > deadline:
                raise QueryFailed(
                    f"the query was stopped after {len(seen)} rows, for it took too long",
                    hint="give it more with --timeout, or use redis-cli",
                )
