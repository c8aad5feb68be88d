"""Which batch a record belongs to, and whether a flow's notes about its batches agree with their records."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.flow.batch_index import BatchIndex, BatchNote
from headrace.flow.books import Books, Tally
from headrace.model.progress import Batch, Ranges


def batch(number: int, inputs: Ranges, **more: Any) -> Batch:
    marks = {"watermark_us": None, "next_watermark_us": None, "seen_us": {}, "late": 0, "dead": 0}
    rest = {"tables": {}, "outputs": {}, "rows_in": 0, "rows_out": 0, "fingerprint": "x"}
    return Batch(flow="f", generation=1, batch=number, inputs=inputs, **(marks | rest | more))


def test_a_record_belongs_to_the_batch_whose_range_has_its_offset() -> None:
    choose = random.Random(4)
    at, made, truth = {0: 5, 1: 0, 2: 0}, [], dict[tuple[int, int], int]()
    for number in range(0, 90, 3):
        # A partition is added on the way, numbers have gaps, and some batches read nothing of a partition.
        ends = {one: low + choose.randrange(4) for one, low in at.items() if one < 2 or number > 40}
        truth |= {(one, offset): number for one, end in ends.items() for offset in range(at[one], end)}
        made.append(batch(number, {"log": {str(one): (at[one], end) for one, end in ends.items()}}))
        at |= ends
    places = choose.sample(sorted(truth), len(truth))
    lookup = BatchIndex.of(made).lookup("log")
    found = lookup.batches_of([one for one, _ in places], [offset for _, offset in places])
    assert found == [truth[place] for place in places]
    with pytest.raises(IndexError):
        lookup.batches_of([0], [at[0]])


def test_the_notes_of_some_batches_are_found_by_their_numbers() -> None:
    index = BatchIndex.of(batch(number, {}) for number in (0, 1, 4, 5, 9))
    assert [note.number for note in index.between(1, 5)] == [1, 4, 5]
    assert index.between(6, 8) == []


def test_each_count_and_watermark_that_differs_is_named_with_its_first_batch() -> None:
    books = Books()
    notes = [BatchNote(n, None if n == 0 else 5_000_000, rows_in=10, late=n, dead=1) for n in range(4)]
    tallies = {n: Tally(10, 1, n) for n in range(3)} | {3: Tally(11, 2, 0)}
    books.count(tallies.values())
    books.compare(notes, tallies, {0: None, 1: 5_000_000, 2: 6_000_000, 3: None})
    assert books.mistakes == (
        "batch 2 began with the watermark 1970-01-01T00:00:05+00:00, and 1970-01-01T00:00:06+00:00 follows from the"
        " events; so it is with 1 more batches",
        "batch 3 has read 10 records, and there are 11",
        "batch 3 had 1 dead letters, and 2 records do not fit; was flow.future_ms changed?",
        "batch 3 had 3 late events, and by the watermark that follows from the events it is 0",
    )
    assert (books.records, books.late, books.dead, books.short) == (41, 3, 5, None)


def test_the_last_batch_that_lacks_a_record_is_found_by_counting() -> None:
    books = Books()
    notes = [BatchNote(n, None, rows_in=4, late=0, dead=0) for n in range(6)]
    tallies = {0: Tally(4), 1: Tally(2), 3: Tally(3), 4: Tally(4), 5: Tally(4)}
    books.compare(notes, tallies, dict.fromkeys(range(6)))
    assert books.short == 3


def test_a_record_that_cannot_be_gone_and_was_counted_is_a_mistake() -> None:
    notes, tallies = [BatchNote(0, None, rows_in=10, late=0, dead=0)], {0: Tally(9, 0, 0)}
    compacted, whole = Books(), Books(is_compacted=False)
    for books in (compacted, whole):
        books.compare(notes, tallies, {0: None})
    assert (compacted.short, compacted.mistakes) == (0, ())
    assert (whole.short, whole.mistakes) == (None, ("batch 0 has read 10 records, and there are 9",))
