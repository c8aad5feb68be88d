"""Batches in a row that knew the same tables: what one call of the function can derive again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.model.progress import Batch, Ends, Ranges

__all__ = ["Stretch", "stretches"]


@dataclass(frozen=True, slots=True)
class Stretch:
    inputs: Ranges
    tables: Ends
    first: Batch
    last: Batch


def stretches(known: Iterable[Batch]) -> Iterator[Stretch]:
    """In order; ``known`` are batches of one generation that follow each other."""
    made: Stretch | None = None
    for batch in known:
        if made is not None and made.tables == batch.tables:
            made = Stretch(_joined(made.inputs, batch.inputs), made.tables, made.first, batch)
            continue
        if made is not None:
            yield made
        made = Stretch(batch.inputs, batch.tables, batch, batch)
    if made is not None:
        yield made


def _joined(first: Ranges, second: Ranges) -> Ranges:
    """From where the first begins to where the second ends; a partition may have been added in between."""
    return {
        log: {
            number: (first.get(log, {}).get(number, (low, 0))[0], high)
            for number, (low, high) in parts.items()
        }
        for log, parts in second.items()
    }
