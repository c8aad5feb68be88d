"""Batches whose content depends only on their number, and a process that applies them until it is killed.

    python -m tests.contract.store_writer OPENER

It prints the number of each applied batch.
"""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path

from headrace.model.kinds import Field, Scalar
from headrace.stores.position import NO_BATCH, Position, ViewSchema
from headrace.stores.writer import Changes, Fence, Part, StoreWriter

__all__ = ["SCHEMA", "changes_of", "position_of", "rows_after"]

SCHEMA = ViewSchema((Field("key", Scalar("text"), False), Field("number", Scalar("int"), True)), ("key",))
_KEYS = 60


def position_of(batch: int, generation: int = 1) -> Position:
    offsets = {0: 10 * (batch + 1)}
    sources = {"0/0": 7 * batch, "0/12": 2**40 + batch} if batch >= 0 else {}
    return Position("sales", "some id", offsets, generation, batch, "progress", sources=sources)


def changed_by(batch: int) -> dict[str, int | None]:
    rng = random.Random(batch)
    keys = rng.sample(range(_KEYS), 25)
    return {f"k{key:02}": None if rng.random() < 0.2 else batch for key in keys}


def changes_of(batch: int) -> Changes:
    created = Changes(SCHEMA)
    for key, number in changed_by(batch).items():
        if number is None:
            created.remove((key,))
        else:
            created.put((key, number))
    return created


def rows_after(batch: int) -> list[tuple[str, int]]:
    rows: dict[str, int | None] = {}
    for number in range(batch + 1):
        rows.update(changed_by(number))
    return sorted((key, number) for key, number in rows.items() if number is not None)


class Writer:
    """Applies each batch to the serving part and to the kept part. Every tenth batch replaces the serving part by a
    rebuilt one, and keeps it; five batches later the kept part serves again.
    """

    def __init__(self, store: StoreWriter) -> None:
        self._store = store
        self._fence = Fence(store.claim("writer", 1), 1)
        states = {part: store.state(part) for part in (Part.SERVING, Part.KEPT)}
        self._positions = {part: state.position for part, state in states.items() if state is not None}
        if Part.SERVING not in self._positions:
            self._positions[Part.SERVING] = position_of(NO_BATCH)
            store.begin(SCHEMA, position_of(NO_BATCH), "a test", self._fence)
            store.swap(self._fence)

    def run(self) -> None:
        while True:
            batch = self._positions[Part.SERVING].batch + 1
            if batch % 10 == 9:
                self._rebuild()
            if batch % 10 == 4 and Part.KEPT in self._positions:
                self._store.swap_back(self._fence)
                serving, kept = self._positions[Part.SERVING], self._positions[Part.KEPT]
                self._positions = {Part.SERVING: kept, Part.KEPT: serving}
            # In this order, switching back never leads to an earlier batch.
            for part in (Part.KEPT, Part.SERVING):
                self._apply(part, batch)
            print(batch, flush=True)

    def _apply(self, part: Part, batch: int) -> None:
        while part in self._positions and self._positions[part].batch < batch:
            before = self._positions[part]
            after = position_of(before.batch + 1)
            self._store.apply(part, changes_of(after.batch), before, after, self._fence)
            self._positions[part] = after

    def _rebuild(self) -> None:
        """Write the same rows to a new part."""
        position = self._positions[Part.SERVING]
        rows = list(self._store.rows())
        self._store.begin(SCHEMA, position_of(NO_BATCH), "a test", self._fence)
        created = Changes(SCHEMA)
        created.put_all(rows)
        self._store.apply(Part.BUILDING, created, position_of(NO_BATCH), position, self._fence)
        self._store.swap(self._fence, keep=True)
        self._positions[Part.KEPT] = position


def main(opener: str) -> None:
    module, _, expression = opener.partition(":")
    Writer(eval(expression, {**vars(importlib.import_module(module)), "Path": Path})).run()


if __name__ == "__main__":
    main(sys.argv[1])
