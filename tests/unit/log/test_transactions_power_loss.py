"""The power goes at any operation while transactions run: whoever read committed records must find them again, a
transaction that ended durably stays as it ended, and nothing that was aborted shows.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field

import pytest

from headrace.log.config import LogConfig
from headrace.log.partition import PartitionLog
from headrace.testing.faulty_files import Crash, FaultyFiles
from tests.unit.log.conftest import append, committed_from, end
from tests.unit.log.test_power_loss import CONFIG, new_disk, opened

PRODUCERS = (1, 2, 3)


@dataclass
class Book:
    """What was sent, how each transaction was to end, and what a reader was given."""

    values: dict[tuple[int, int], list[bytes]] = field(default_factory=dict)
    ends: dict[tuple[int, int], bool] = field(default_factory=dict)
    durable_ends: set[tuple[int, int]] = field(default_factory=set)
    given: dict[int, bytes] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PRODUCERS, 0))
    sequences: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PRODUCERS, 0))


def work(log: PartitionLog, book: Book, chance: random.Random, steps: int) -> None:
    for _ in range(steps):
        producer_id = chance.choice(PRODUCERS)
        epoch = book.epochs[producer_id]
        transaction = (producer_id, epoch)
        step = chance.choice(["send", "send", "send", "end", "sync", "sync and read"])
        if step == "send":
            value = b"%d/%d/%d" % (*transaction, book.sequences[producer_id])
            book.values.setdefault(transaction, []).append(value)
            append(log, value, producer=(*transaction, book.sequences[producer_id]), transactional=True)
            book.sequences[producer_id] += 1
        elif step == "end" and transaction in book.values:
            book.ends[transaction] = chance.random() < 0.5
            book.epochs[producer_id], book.sequences[producer_id] = epoch + 1, 0
            end(log, producer_id, epoch + 1, committed=book.ends[transaction])
        else:
            ended = set(book.ends)
            log.sync_now()
            book.durable_ends |= ended
            if step == "sync and read":
                book.given |= committed_from(log)


def check(files: FaultyFiles, book: Book) -> None:
    log = opened(files, leader_epoch=1)
    assert log.report.damage == []
    # What the coordinator does: transactions that it decided are ended, the others aborted.
    for producer_id, one in list(log.transactions.open.items()):
        decided = book.ends.get((producer_id, one.producer_epoch), False)
        end(log, producer_id, one.producer_epoch + 1, committed=decided)
    log.sync_now()
    found = committed_from(log)
    assert {offset: found.get(offset) for offset in book.given} == book.given
    seen = list(found.values())
    assert len(seen) == len(set(seen))
    for transaction, values in book.values.items():
        of_it = [value for value in seen if value.startswith(b"%d/%d/" % transaction)]
        if not book.ends.get(transaction, False):
            assert of_it == []
        elif transaction in book.durable_ends:
            assert of_it == values
        else:
            # Its records may have gone with the power, but those behind a lost one, too.
            assert of_it == values[: len(of_it)]


@pytest.mark.parametrize("seed", range(60))
def test_what_committed_readers_were_given_outlasts_a_power_loss_at_any_operation(seed: int) -> None:
    chance = random.Random(seed)
    files = new_disk(seed)
    log = opened(files)
    book = Book()
    work(log, book, chance, 10)
    files.crash_at(chance.randrange(1, 60), when=chance.choice(["before", "after"]))
    with contextlib.suppress(Crash):
        work(log, book, chance, 60)
    for _ in range(6):
        check(files.crash(), book)


def test_aborted_records_stay_hidden_though_a_deletion_came_before_the_power_loss() -> None:
    files = new_disk(5)
    log = opened(files, config=LogConfig(segment_bytes=300, index_interval_bytes=100))
    for epoch in range(8):
        append(log, b"%d" % epoch, producer=(1, epoch, 0), transactional=True)
        append(log, b"plain-%d" % epoch)
        end(log, 1, epoch + 1, committed=epoch % 2 == 0)
    log.sync_now()
    expected = committed_from(log)
    log.delete_before(10)
    for _ in range(12):
        after = opened(files.crash(), leader_epoch=1, config=CONFIG)
        assert committed_from(after) == {o: v for o, v in expected.items() if o >= after.start_offset}
