"""Views in Redis, each a hash with the view's name behind a prefix; what else there is: ``headrace.views.redis.keys``.

A batch is one transaction: its rows, the position behind them, and how many rows there are then. Whatever the server
loses (it crashes without its last writes, a replica takes over that lacks some, an old backup is put back), it loses
whole batches, last ones first; its follower finds an earlier position with the rows of that position, and applies again
what came after.

Owner, position and rows are watched from before they are judged until the transaction is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

from headrace.views.changes import Changes
from headrace.views.errors import PositionMoved, StoreBusy, StoreForeign
from headrace.views.names import expect_view_name
from headrace.views.position import Position, Shape, Standing
from headrace.views.redis.checking import expect_format, expect_to_keep
from headrace.views.redis.keys import FORMAT, Keys
from headrace.views.redis.notes import Notes, noted, position_text, reads
from headrace.views.redis.row_text import RowText
from headrace.views.redis.scripts import guarded, settled
from headrace.views.redis.server import Command, Server
from headrace.views.rows import Row
from headrace.views.store import Fence, Owner, Part, Store, next_owner, refuse_stale

__all__ = ["RedisStore"]

_ROWS_AT_ONCE = 500
_DELETES_MAX = 10_000
"""In a script."""
_TRIES = 20
_DECISIVE = ("epoch", "owner", "wish", "serving", "building")
"""What is noted that a decision may depend on."""


class RedisStore(Store):
    def __init__(self, address: str, prefix: str, view: str) -> None:
        expect_view_name(view)
        self.view = view
        self._keys = Keys(prefix, view)
        self._server = Server(address, f"headrace:{view}", lambda: self.is_stopping)
        self.where = f"{self._server.where}, key {self._keys.serving}"
        self._texts: dict[Part, tuple[str, RowText]] = {}
        try:
            expect_to_keep(self._server)
            expect_format(self._server, self._notes())
        except BaseException:
            self._server.close()
            raise

    def close(self) -> None:
        self._server.close()

    def _notes(self) -> Notes:
        return noted(self._server.ask(*reads(self._keys)))

    def _change(self, decide: Callable[[Notes], Iterable[Command]]) -> None:
        """What is decided on what is noted happens if nothing of that has changed meanwhile; else it is decided anew.

        ``decide`` raises if nothing must happen.
        """
        keys = self._keys

        def attempt() -> bool:
            notes = self._notes()
            expected = {name: notes.fields.get(name, "") for name in _DECISIVE}
            sizes = {keys.rows(part): many for part, many in notes.found.items()}
            return bool(self._server.ask(*guarded(keys.known, expected, sizes, decide(notes))))

        self._until_done(attempt)

    def _change_rows(self, decide: Callable[[Notes], Iterable[Command]]) -> None:
        """The same, for much."""
        keys = self._keys

        def attempt() -> bool:
            answers = self._server.watch((keys.known, keys.serving, keys.building), reads(keys))
            try:
                commands = decide(noted(answers))
            except BaseException:
                self._server.unwatch()
                raise
            return self._server.commit(commands)

        self._until_done(attempt)

    def _until_done(self, attempt: Callable[[], bool]) -> None:
        if not any(attempt() for _ in range(_TRIES)):
            raise StoreBusy(
                f"{self.where} is changed by somebody else all the time: {_TRIES} attempts came to nothing",
                hint="a view's keys are its follower's alone to change",
            )

    # Who may write

    def take(self, name: str, now_ms: int, before: Owner | None = None) -> Owner:
        taken: list[Owner] = []

        def decide(notes: Notes) -> list[Command]:
            taken[:] = [owner := next_owner(self.view, name, notes.owner, before)]
            values = ("format", FORMAT, "epoch", owner.epoch, "owner", owner.name, "taken_ms", now_ms)
            known = self._keys.known
            return [("HDEL", known, "taken_ms"), ("HSET", known, *values), ("HSETNX", known, "wish", 0)]

        self._change(decide)
        return taken[0]

    def _expect(self, notes: Notes, part: Part, before: Position | None, fence: Fence) -> Position:
        """The part is as its follower left it, and the follower is the one that may write."""
        position = notes.position(part)
        refuse_stale(self.view, fence, notes.owner, None if position is None else position.generation)
        if position is None or (before is not None and position != before):
            raise PositionMoved(
                f"view {self.view!r} at {self.where} is not where its follower left it",
                detail=f"left at {before}, found at {position}",
                hint="was the store restored from a backup? It goes on from where the store is",
            )
        if fault := notes.fault(part):
            raise PositionMoved(
                f"view {self.view!r} at {self.where} is not as its follower left it: {fault}",
                hint="it is built again; a view's keys are its follower's alone to change",
            )
        return position

    # What there is

    def standing(self, part: Part) -> Standing | None:
        return self._notes().standing(part)

    def wish(self) -> int:
        return int(self._server.ask("HGET", self._keys.known, "wish") or 0)

    def ask_rebuild(self) -> None:
        self._server.ask("HINCRBY", self._keys.known, "wish", 1)

    def rows(self, part: Part = Part.SERVING) -> Iterator[Row]:
        """Read at once, as of one moment."""
        answers = self._server.ask(*reads(self._keys, ("HVALS", self._keys.rows(part))))
        standing = noted(answers).standing(part)
        if standing is None:
            raise PositionMoved(f"view {self.view!r} has nothing that is {part} at {self.where}")
        text = RowText(standing.shape)
        yield from sorted(map(text.row, answers[-1]), key=text.key_of)

    # What changes it

    def begin(self, shape: Shape, position: Position, reason: str, fence: Fence) -> Standing:
        begun: list[Standing] = []
        # Asked again: that may be why it is begun.
        expect_to_keep(self._server)

        def decide(notes: Notes) -> list[Command]:
            refuse_stale(self.view, fence, notes.owner, None)
            serving = notes.position(Part.SERVING)
            if serving is not None and _is_older(position, serving):
                refuse_stale(self.view, fence, notes.owner, serving.generation)
            self._expect_place_free(notes)
            begun[:] = [Standing(shape, position, notes.wish, reason)]
            told = ("building", position_text(position), "building.rows", 0, "building.shape", shape.tell())
            why = ("building.wish", notes.wish, "building.reason", reason)
            return [("UNLINK", self._keys.building), ("HSET", self._keys.known, *told, *why)]

        self._change(decide)
        return begun[0]

    def _expect_place_free(self, notes: Notes) -> None:
        if notes.position(Part.SERVING) is None and notes.found[Part.SERVING]:
            raise StoreForeign(
                f"{self.where} is a hash that no follower made, with {notes.found[Part.SERVING]} fields",
                hint="delete or rename it, or give the views another prefix; it was left as it is",
            )

    def apply(self, part: Part, changes: Changes, before: Position, after: Position, fence: Fence) -> None:
        upserts, deletes = changes.upserts, changes.deletes
        end: Command

        def decide(notes: Notes) -> Iterable[Command]:
            self._expect(notes, part, before, fence)
            if after.generation != fence.generation:
                refuse_stale(self.view, fence, fence.owner, after.generation)
            return chain(self._batch(part, self._text(notes, part), upserts, deletes), [end])

        where = (self._keys.known, self._keys.rows(part), part, position_text(after))
        # A server without memory refuses the one and not the other.
        if upserts or len(deletes) > _DELETES_MAX:
            end = settled(*where)
            self._change_rows(decide)
        else:
            end = ("SETTLE", *where)
            self._change(decide)

    def _batch(self, part: Part, text: RowText, upserts: list[Row], deletes: list[Row]) -> Iterator[Command]:
        """Made while it is sent: the server has the batch twice for a moment, and this process does not."""
        key, put, field = self._keys.rows(part), text.put, text.field
        rows = iter(upserts)
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            words: list[str | bytes | int] = ["HSET", key]
            for row in some:
                words += put(row)
            yield words
        gone = iter(deletes)
        while fields := [field(one) for one in islice(gone, _ROWS_AT_ONCE)]:
            yield "HDEL", key, *fields

    def _text(self, notes: Notes, part: Part) -> RowText:
        """Kept for as long as the shape is the same."""
        shape = notes.fields[f"{part}.shape"]
        kept = self._texts.get(part)
        if kept is None or kept[0] != shape:
            kept = self._texts[part] = (shape, RowText(Shape.told(shape)))
        return kept[1]

    def swap(self, fence: Fence) -> None:
        keys = self._keys

        def decide(notes: Notes) -> list[Command]:
            self._expect(notes, Part.BUILDING, None, fence)
            self._expect_place_free(notes)
            commands: list[Command] = [
                # Freed by another thread of the server, in its own time; RENAME alone would free it at once.
                ("UNLINK", keys.serving),
                ("HSET", keys.known, *notes.moved(Part.SERVING, of=Part.BUILDING)),
                *_forgotten(keys, notes),
            ]
            if notes.found[Part.BUILDING]:
                commands.append(("RENAME", keys.building, keys.serving))
            return commands

        self._change(decide)

    def drop_building(self, fence: Fence) -> None:
        def decide(notes: Notes) -> list[Command]:
            refuse_stale(self.view, fence, notes.owner, None)
            return [("UNLINK", self._keys.building), *_forgotten(self._keys, notes)]

        self._change(decide)


def _forgotten(keys: Keys, notes: Notes) -> list[Command]:
    names = notes.moved(Part.BUILDING, of=Part.BUILDING)[::2]
    return [("HDEL", keys.known, *names)] if names else []


def _is_older(new: Position, serving: Position) -> bool:
    """An older generation of the same flow; generations of another one, or of one begun anew, do not compare."""
    return new.progress_id == serving.progress_id and new.generation < serving.generation
