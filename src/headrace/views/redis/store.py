"""Views in Redis, each a hash with the view's name behind a prefix; what else there is: ``headrace.views.redis.keys``.

A batch is one transaction: its rows, the position behind them, and how many rows there are then. Whatever the server
loses (it crashes without its last writes, a replica takes over that lacks some, an old backup is put back), it loses
whole batches, last ones first; its follower finds an earlier position with the rows of that position, and applies again
what came after.

Owner, position and rows are watched from before they are judged until the transaction is done. A store that knows no
owner, or an older one, was wiped or put back: its follower takes it again. One that knows a newer owner has another
follower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from headrace.views.changes import Changes
from headrace.views.errors import PositionMoved, StoreBusy, StoreForeign, StoreReplaced
from headrace.views.names import expect_view_name
from headrace.views.position import Position, Shape, Standing
from headrace.views.redis.checking import expect_format, expect_to_keep
from headrace.views.redis.keys import FORMAT, Keys
from headrace.views.redis.notes import Notes, noted, position_text, reads
from headrace.views.redis.row_text import RowText
from headrace.views.redis.server import Command, Server
from headrace.views.rows import Row
from headrace.views.store import Fence, Owner, Part, Store, next_owner, refuse_stale

__all__ = ["RedisStore"]

_ROWS_AT_ONCE = 500
_TRIES = 20
# What ends a batch and a build. A server without memory refuses HSET, but never HDEL, and nothing behind a first write
# of a script: so what takes no memory to speak of (deletions, a swap, which frees much) happens all the same. What does
# take some is refused at EXEC, before anything has happened. (Redis 6 may judge a script within EXEC by what it knew
# earlier, which would leave rows without their position: HDEL is against that too.)
_SETTLE = """local rows = redis.call('HLEN', KEYS[1])
redis.call('HDEL', KEYS[2], ARGV[1] .. '.rows')
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2], ARGV[1] .. '.rows', rows)"""
_SWAP = """redis.call('HDEL', KEYS[1], 'building')
redis.call('HSET', KEYS[1], unpack(ARGV))"""


class RedisStore(Store):
    def __init__(self, address: str, prefix: str, view: str) -> None:
        expect_view_name(view)
        self.view = view
        self._keys = Keys(prefix, view)
        self._server = Server(address, f"headrace:{view}")
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
        return noted(self._server.at_once(reads(self._keys)))

    def _change(self, decide: Callable[[Notes], Iterable[Command]]) -> None:
        """What is decided on what is noted happens if nothing of that has changed meanwhile; else it is decided anew.

        ``decide`` raises if nothing must happen.
        """
        keys = self._keys
        for _ in range(_TRIES):
            notes = noted(self._server.watch((keys.known, keys.serving, keys.building), reads(keys)))
            try:
                commands = decide(notes)
            except BaseException:
                self._server.unwatch()
                raise
            if self._server.commit(commands):
                return
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
            return [("HSET", self._keys.known, *values), ("HSETNX", self._keys.known, "wish", 0)]

        self._change(decide)
        return taken[0]

    def _expect_owner(self, notes: Notes, fence: Fence, generation: int | None) -> None:
        current = notes.owner
        if current is None or current.epoch < fence.owner.epoch:
            raise StoreReplaced(
                f"{self.where}: the view belongs to {current or 'nobody'}, and it was taken by {fence.owner}",
                hint="was the store wiped, or put back from a backup? It goes on from what is there, or builds again",
            )
        refuse_stale(self.view, fence, current, generation)

    def _expect(self, notes: Notes, part: Part, before: Position | None, fence: Fence) -> Position:
        """The part is as its follower left it, and the follower is the one that may write."""
        position = notes.position(part)
        self._expect_owner(notes, fence, None if position is None else position.generation)
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
        *answers, found = self._server.at_once([*reads(self._keys), ("HVALS", self._keys.rows(part))])
        standing = noted(answers).standing(part)
        if standing is None:
            raise PositionMoved(f"view {self.view!r} has nothing that is {part} at {self.where}")
        text = RowText(standing.shape)
        yield from sorted(map(text.row, found), key=text.key_of)  # type: ignore[arg-type]

    # What changes it

    def begin(self, shape: Shape, position: Position, reason: str, fence: Fence) -> Standing:
        begun: list[Standing] = []

        def decide(notes: Notes) -> list[Command]:
            self._expect_owner(notes, fence, None)
            serving = notes.position(Part.SERVING)
            if serving is not None and _is_older(position, serving):
                self._expect_owner(notes, fence, serving.generation)
            self._expect_place_free(notes)
            begun[:] = [Standing(shape, position, notes.wish, reason)]
            values = {
                "building": position_text(position),
                "building.rows": 0,
                "building.shape": shape.tell(),
                "building.wish": notes.wish,
                "building.reason": reason,
            }
            told = [one for pair in values.items() for one in pair]
            return [("UNLINK", self._keys.building), ("HSET", self._keys.known, *told)]

        self._change(decide)
        return begun[0]

    def _expect_place_free(self, notes: Notes) -> None:
        if notes.position(Part.SERVING) is None and notes.found[Part.SERVING]:
            raise StoreForeign(
                f"{self.where} is a hash that no follower made, with {notes.found[Part.SERVING]} fields",
                hint="delete or rename it, or give the views another prefix; it was left as it is",
            )

    def apply(self, part: Part, changes: Changes, before: Position, after: Position, fence: Fence) -> None:
        def decide(notes: Notes) -> Iterator[Command]:
            self._expect(notes, part, before, fence)
            if after.generation != fence.generation:
                refuse_stale(self.view, fence, fence.owner, after.generation)
            return self._batch(part, self._text(notes, part), changes, after)

        self._change(decide)

    def _batch(self, part: Part, text: RowText, changes: Changes, after: Position) -> Iterator[Command]:
        """Made while it is sent: the server has the batch twice for a moment, and this process does not."""
        key, put, field = self._keys.rows(part), text.put, text.field
        rows = iter(changes.upserts)
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            words: list[str | bytes | int] = ["HSET", key]
            for row in some:
                words += put(row)
            yield words
        gone = iter(changes.deletes)
        while fields := [field(one) for one in islice(gone, _ROWS_AT_ONCE)]:
            yield "HDEL", key, *fields
        yield "EVAL", _SETTLE, 2, key, self._keys.known, part, position_text(after)

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
                ("EVAL", _SWAP, 1, keys.known, *notes.moved(Part.SERVING, of=Part.BUILDING)),
                *_forgotten(keys, notes),
            ]
            if notes.found[Part.BUILDING]:
                commands.append(("RENAME", keys.building, keys.serving))
            return commands

        self._change(decide)

    def drop_building(self, fence: Fence) -> None:
        def decide(notes: Notes) -> list[Command]:
            self._expect_owner(notes, fence, None)
            return [("UNLINK", self._keys.building), *_forgotten(self._keys, notes)]

        self._change(decide)


def _forgotten(keys: Keys, notes: Notes) -> list[Command]:
    names = notes.moved(Part.BUILDING, of=Part.BUILDING)[::2]
    return [("HDEL", keys.known, *names)] if names else []


def _is_older(new: Position, serving: Position) -> bool:
    """An older generation of the same flow; generations of another one, or of one begun anew, do not compare."""
    return new.progress_id == serving.progress_id and new.generation < serving.generation
