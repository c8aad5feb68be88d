"""The batch of a record, and the comparison of progress records with the input records."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.flow.history.progress_check import BatchIndex, BatchNote, ProgressCheck, Tally
from headrace.model.progress import Batch, Ranges


def batch(number: int, inputs: Ranges, **more: Any) -> Batch:
    marks = {"watermark_us": None, "next_watermark_us": None, "seen_us": {}, "late": 0, "dead": 0}
    rest = {"tables": {}, "outputs": {}, "rows_in": 0, "rows_out": 0, "fingerprint": "x"}
    return Batch(flow="f", generation=1, batch=number, inputs=inputs, **(marks | rest | more))


def test_a_record_belongs_to_the_batch_whose_range_has_its_offset() -> None:
    choose = random.Random(4)
    at, batches, truth = {0: 5, 1: 0, 2: 0}, [], dict[tuple[int, int], int]()
    for number in range(0, 90, 3):
        # A partition is added meanwhile, batch numbers have gaps, and some batches read nothing from a partition.
        ends = {
            partition: low + choose.randrange(4)
            for partition, low in at.items()
            if partition < 2 or number > 40
        }
        truth |= {
            (partition, offset): number
            for partition, end in ends.items()
            for offset in range(at[partition], end)
        }
        batches.append(
            batch(number, {"log": {str(partition): (at[partition], end) for partition, end in ends.items()}})
        )
        at |= ends
    sampled = choose.sample(sorted(truth), len(truth))
    lookup = BatchIndex.of(batches).lookup("log")
    found = lookup.batches_of([partition for partition, _ in sampled], [offset for _, offset in sampled])
    assert found == [truth[coordinates] for coordinates in sampled]
    with pytest.raises(IndexError):
        lookup.batches_of([0], [at[0]])


def test_the_notes_of_some_batches_are_found_by_their_numbers() -> None:
    index = BatchIndex.of(batch(number, {}) for number in (0, 1, 4, 5, 9))
    assert [note.number for note in index.between(1, 5)] == [1, 4, 5]
    assert index.between(6, 8) == []


def test_each_difference_of_counts_and_watermarks_is_reported_with_its_first_batch() -> None:
    check = ProgressCheck()
    notes = [BatchNote(n, None if n == 0 else 5_000_000, rows_in=10, late=n, dead=1) for n in range(4)]
    tallies = {n: Tally(10, 1, n) for n in range(3)} | {3: Tally(11, 2, 0)}
    check.count(tallies.values())
    check.compare(notes, tallies, {0: None, 1: 5_000_000, 2: 6_000_000, 3: None})
    assert check.mistakes == (
        "batch 2 recorded the watermark 1970-01-01T00:00:05+00:00, but the events result in 1970-01-01T00:00:06+00:00"
        "; 1 more batches differ as well",
        "batch 3 recorded 10 input records, but the log has 11",
        "batch 3 recorded 1 dead letters, but 2 records do not fit; was flow.future_ms changed?",
        "batch 3 recorded 3 late events, but 0 events are too far behind the newest event of their partition",
    )
    assert (check.records, check.late, check.dead, check.last_incomplete_batch) == (41, 3, 5, None)


def test_the_last_batch_that_lacks_a_record_is_found_by_counting() -> None:
    check = ProgressCheck()
    notes = [BatchNote(n, None, rows_in=4, late=0, dead=0) for n in range(6)]
    tallies = {0: Tally(4), 1: Tally(2), 3: Tally(3), 4: Tally(4), 5: Tally(4)}
    check.compare(notes, tallies, dict.fromkeys(range(6)))
    assert check.last_incomplete_batch == 3


def test_a_missing_record_of_an_uncompacted_topic_is_a_mistake() -> None:
    notes, tallies = [BatchNote(0, None, rows_in=10, late=0, dead=0)], {0: Tally(9, 0, 0)}
    compacted, whole = ProgressCheck(), ProgressCheck(is_compacted=False)
    for check in (compacted, whole):
        check.compare(notes, tallies, {0: None})
    assert (compacted.last_incomplete_batch, compacted.mistakes) == (0, ())
    assert whole.last_incomplete_batch is None
    assert whole.mistakes == ("batch 0 recorded 10 input records, but the log has 9",)
