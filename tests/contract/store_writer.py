"""Batches whose content follows from their number, and a process that applies them until it is killed.

    python -m tests.contract.store_writer OPENER

It says the number of each batch that is in.
"""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path

from headrace.model.kinds import Field, Plain
from headrace.views.changes import Changes
from headrace.views.position import NO_BATCH, Position, Shape
from headrace.views.store import Fence, Part

__all__ = ["SHAPE", "changes_of", "position_of", "rows_after"]

SHAPE = Shape((Field("key", Plain("text"), False), Field("number", Plain("int"), True)), ("key",))
_KEYS = 60


def position_of(batch: int, generation: int = 1) -> Position:
    at = {0: 10 * (batch + 1)}
    sources = {"0/0": 7 * batch, "0/12": 2**40 + batch} if batch >= 0 else {}
    return Position("sales", "some id", at, generation, batch, "progress", sources=sources)


def changed_by(batch: int) -> dict[str, int | None]:
    rng = random.Random(batch)
    keys = rng.sample(range(_KEYS), 25)
    return {f"k{key:02}": None if rng.random() < 0.2 else batch for key in keys}


def changes_of(batch: int) -> Changes:
    made = Changes(SHAPE)
    for key, number in changed_by(batch).items():
        if number is None:
            made.remove((key,))
        else:
            made.put((key, number))
    return made


def rows_after(batch: int) -> list[tuple[str, int]]:
    rows: dict[str, int | None] = {}
    for number in range(batch + 1):
        rows.update(changed_by(number))
    return sorted((key, number) for key, number in rows.items() if number is not None)


def main(opener: str) -> None:
    module, _, expression = opener.partition(":")
    store = eval(expression, {**vars(importlib.import_module(module)), "Path": Path})
    fence = Fence(store.take("writer", 1), 1)
    standing = store.standing(Part.SERVING)
    if standing is None:
        store.begin(SHAPE, position_of(NO_BATCH), "a test", fence)
        store.swap(fence)
    at = standing.position if standing else position_of(NO_BATCH)
    while True:
        after = position_of(at.batch + 1)
        if after.batch % 10 == 9:
            # As after a rebuild: the same rows, in a new table.
            rows = list(store.rows())
            store.begin(SHAPE, position_of(NO_BATCH), "a test", fence)
            made = Changes(SHAPE)
            for row in rows:
                made.put(row)
            store.apply(Part.BUILDING, made, position_of(NO_BATCH), at, fence)
            store.swap(fence)
        store.apply(Part.SERVING, changes_of(after.batch), at, after, fence)
        print(after.batch, flush=True)
        at = after


if __name__ == "__main__":
    main(sys.argv[1])
