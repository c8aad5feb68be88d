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
from headrace.stores.writer import Changes, Fence, Part

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


def main(opener: str) -> None:
    module, _, expression = opener.partition(":")
    store = eval(expression, {**vars(importlib.import_module(module)), "Path": Path})
    fence = Fence(store.claim("writer", 1), 1)
    state = store.state(Part.SERVING)
    if state is None:
        store.begin(SCHEMA, position_of(NO_BATCH), "a test", fence)
        store.swap(fence)
    position = state.position if state else position_of(NO_BATCH)
    while True:
        after = position_of(position.batch + 1)
        if after.batch % 10 == 9:
            # Rebuild: write the same rows to a new table.
            rows = list(store.rows())
            store.begin(SCHEMA, position_of(NO_BATCH), "a test", fence)
            created = Changes(SCHEMA)
            for row in rows:
                created.put(row)
            store.apply(Part.BUILDING, created, position_of(NO_BATCH), position, fence)
            store.swap(fence)
        store.apply(Part.SERVING, changes_of(after.batch), position, after, fence)
        print(after.batch, flush=True)
        position = after


if __name__ == "__main__":
    main(sys.argv[1])
