"""Power loss at any operation of a transaction. Committed records that were read survive, a durable end of a
transaction remains, and aborted records stay hidden.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field

import pytest

from faults.disk.faulty_files import Crash, FaultyFiles
from headrace.log.config import LogConfig
from headrace.log.partition import PartitionLog
from tests.unit.log.conftest import append, committed_from, end
from tests.unit.log.test_power_loss import CONFIG, new_disk, open_log

PRODUCERS = (1, 2, 3)


@dataclass
class Expected:
    """The values that were sent, the requested end of each transaction, and the records that a reader got."""

    values: dict[tuple[int, int], list[bytes]] = field(default_factory=dict)
    ends: dict[tuple[int, int], bool] = field(default_factory=dict)
    durable_ends: set[tuple[int, int]] = field(default_factory=set)
    delivered: dict[int, bytes] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PRODUCERS, 0))
    sequences: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PRODUCERS, 0))


def run_random_steps(log: PartitionLog, expected_state: Expected, chance: random.Random, steps: int) -> None:
    for _ in range(steps):
        producer_id = chance.choice(PRODUCERS)
        epoch = expected_state.epochs[producer_id]
        transaction = (producer_id, epoch)
        step = chance.choice(["send", "send", "send", "end", "sync", "sync and read"])
        if step == "send":
            value = b"%d/%d/%d" % (*transaction, expected_state.sequences[producer_id])
            expected_state.values.setdefault(transaction, []).append(value)
            append(
                log, value, producer=(*transaction, expected_state.sequences[producer_id]), transactional=True
            )
            expected_state.sequences[producer_id] += 1
        elif step == "end" and transaction in expected_state.values:
            expected_state.ends[transaction] = chance.random() < 0.5
            expected_state.epochs[producer_id], expected_state.sequences[producer_id] = epoch + 1, 0
            end(log, producer_id, epoch + 1, committed=expected_state.ends[transaction])
        else:
            ended = set(expected_state.ends)
            log.sync_now()
            expected_state.durable_ends |= ended
            if step == "sync and read":
                expected_state.delivered |= committed_from(log)


def check(files: FaultyFiles, expected_state: Expected) -> None:
    log = open_log(files, leader_epoch=1)
    assert log.report.damage == []
    # As the coordinator does at start: end the decided transactions, and abort the others.
    for producer_id, open_transaction in list(log.transactions.open.items()):
        decided = expected_state.ends.get((producer_id, open_transaction.producer_epoch), False)
        end(log, producer_id, open_transaction.producer_epoch + 1, committed=decided)
    log.sync_now()
    found = committed_from(log)
    assert {offset: found.get(offset) for offset in expected_state.delivered} == expected_state.delivered
    seen = list(found.values())
    assert len(seen) == len(set(seen))
    for transaction, values in expected_state.values.items():
        in_transaction = [value for value in seen if value.startswith(b"%d/%d/" % transaction)]
        if not expected_state.ends.get(transaction, False):
            assert in_transaction == []
        elif transaction in expected_state.durable_ends:
            assert in_transaction == values
        else:
            # If the power loss removed a record, it also removed all later records of that transaction.
            assert in_transaction == values[: len(in_transaction)]


@pytest.mark.parametrize("seed", range(60))
def test_records_that_committed_readers_got_survive_a_power_loss_at_any_operation(seed: int) -> None:
    chance = random.Random(seed)
    files = new_disk(seed)
    log = open_log(files)
    expected_state = Expected()
    run_random_steps(log, expected_state, chance, 10)
    files.crash_at(chance.randrange(1, 60), when=chance.choice(["before", "after"]))
    with contextlib.suppress(Crash):
        run_random_steps(log, expected_state, chance, 60)
    for _ in range(6):
        check(files.crash(), expected_state)


def test_aborted_records_stay_hidden_after_a_deletion_and_a_power_loss() -> None:
    files = new_disk(5)
    log = open_log(files, config=LogConfig(segment_bytes=300, index_interval_bytes=100))
    for epoch in range(8):
        append(log, b"%d" % epoch, producer=(1, epoch, 0), transactional=True)
        append(log, b"plain-%d" % epoch)
        end(log, 1, epoch + 1, committed=epoch % 2 == 0)
    log.sync_now()
    expected = committed_from(log)
    log.delete_before(10)
    for _ in range(12):
        after = open_log(files.crash(), leader_epoch=1, config=CONFIG)
        assert committed_from(after) == {o: v for o, v in expected.items() if o >= after.start_offset}
