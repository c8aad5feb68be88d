from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import PartitionFenced
from headrace.files import SystemFile
from headrace.log.partition import PartitionLog
from headrace.log.producers import OutOfOrderSequence, StaleProducerEpoch
from headrace.log.transactions import (
    AbortedTransaction,
    InvalidTransactionState,
    OpenTransaction,
    TooManyTransactions,
    Transactions,
)
from headrace.records import BatchHeader, build_batch, read_header
from tests.unit.log.conftest import NOW_MS, PartitionFixture, append, committed_from, end, values_from


def begin(log: PartitionLog, producer_id: int, *values: bytes, epoch: int = 0, sequence: int = 0) -> int:
    appended = append(log, *values, producer=(producer_id, epoch, sequence), transactional=True)
    return appended.base_offset


def test_a_reader_of_committed_records_stops_where_the_earliest_open_transaction_begins(
    desk: PartitionFixture,
) -> None:
    log = desk.open()
    append(log, b"before")
    begin(log, 1, b"first")
    begin(log, 2, b"second")
    log.sync_now()
    assert log.last_stable_offset == 1
    end(log, 2, 1, committed=True)
    log.sync_now()
    assert log.last_stable_offset == 1
    end(log, 1, 1, committed=True)
    log.sync_now()
    assert log.last_stable_offset == log.high_watermark == 5
    assert committed_from(log) == {0: b"before", 1: b"first", 2: b"second"}


def test_a_transaction_ends_for_readers_when_its_marker_is_durable(desk: PartitionFixture) -> None:
    log = desk.open()
    begin(log, 1, b"a")
    log.sync_now()
    end(log, 1, 1, committed=True)
    job = log.begin_sync()
    assert job is not None
    begin(log, 2, b"b")
    assert log.last_stable_offset == 0
    job.run()
    log.end_sync(job, None)
    assert log.last_stable_offset == 2
    log.sync_now()
    assert log.last_stable_offset == 2


def test_a_transaction_whose_marker_sync_failed_stays_open_for_readers(desk: PartitionFixture) -> None:
    log = desk.open()
    begin(log, 1, b"a")
    log.sync_now()
    end(log, 1, 1, committed=True)
    job = log.begin_sync()
    assert job is not None
    log.end_sync(job, OSError(5, "Input/output error"))
    assert log.last_stable_offset == 0


def test_with_durability_os_a_marker_ends_the_transaction_immediately_and_wakes_readers(
    desk: PartitionFixture,
) -> None:
    log = desk.open(waits_for_sync=False)
    begin(log, 1, b"a")
    seen: list[int] = []
    log.watchers.add(lambda: seen.append(log.last_stable_offset))
    end(log, 1, 1, committed=True)
    assert seen == [2]


def test_readers_get_the_aborted_transactions_in_their_range(desk: PartitionFixture) -> None:
    log = desk.open()
    begin(log, 1, b"kept")
    end(log, 1, 1, committed=True)
    first = begin(log, 1, b"dropped", epoch=1)
    append(log, b"between")
    marker = end(log, 1, 2, committed=False)
    begin(log, 1, b"kept too", epoch=2)
    end(log, 1, 3, committed=True)
    log.sync_now()
    assert marker is not None
    named = AbortedTransaction(1, first, marker.base_offset, marker.base_offset + 1)
    assert log.transactions.aborted_between(0, 3) == [named]
    assert log.transactions.aborted_between(marker.base_offset, 10) == [named]
    assert log.transactions.aborted_between(marker.base_offset + 1, 10) == []
    assert log.transactions.aborted_between(0, first) == []
    assert committed_from(log) == {0: b"kept", 3: b"between", 5: b"kept too"}
    assert values_from_data(log) == [b"kept", b"dropped", b"between", b"kept too"]


def values_from_data(log: PartitionLog) -> list[bytes]:
    # The value of a marker has six bytes.
    return [value for value in values_from(log).values() if len(value) != 6]


def test_a_marker_with_a_newer_epoch_fences_late_batches(desk: PartitionFixture) -> None:
    log = desk.open()
    begin(log, 1, b"a")
    end(log, 1, 1, committed=False)
    with pytest.raises(StaleProducerEpoch):
        begin(log, 1, b"late", sequence=1)
    with pytest.raises(OutOfOrderSequence):
        begin(log, 1, b"not the first", epoch=1, sequence=1)
    assert begin(log, 1, b"next", epoch=1) == 2


def test_a_marker_fences_a_producer_without_batches_in_the_partition(desk: PartitionFixture) -> None:
    log = desk.open()
    assert end(log, 1, 4, committed=False) is not None
    assert log.transactions.is_empty
    with pytest.raises(StaleProducerEpoch):
        begin(log, 1, b"late", epoch=3)
    with pytest.raises(OutOfOrderSequence):
        begin(log, 1, b"not the first", epoch=4, sequence=2)
    begin(log, 1, b"next", epoch=4)


def test_sequences_continue_after_a_marker_of_the_same_epoch(desk: PartitionFixture) -> None:
    log = desk.open()
    begin(log, 1, b"a", b"b")
    assert end(log, 1, 0, committed=True) is not None
    with pytest.raises(OutOfOrderSequence):
        begin(log, 1, b"c", sequence=0)
    begin(log, 1, b"c", sequence=2)


def test_a_repeated_marker_changes_nothing(desk: PartitionFixture) -> None:
    log = desk.open()
    begin(log, 1, b"a")
    end(log, 1, 1, committed=True)
    assert end(log, 1, 1, committed=True) is None
    assert end(log, 1, 0, committed=True) is None
    begin(log, 1, b"next", epoch=1)
    assert end(log, 1, 0, committed=True) is None
    assert list(log.transactions.open) == [1]


def test_a_repeated_batch_of_a_transaction_is_detected(desk: PartitionFixture) -> None:
    log = desk.open()
    begin(log, 1, b"a")
    assert append(log, b"a", producer=(1, 0, 0), transactional=True).duplicate
    assert log.end_offset == 1


def test_a_non_transactional_batch_is_refused_while_the_producer_has_an_open_transaction(
    desk: PartitionFixture,
) -> None:
    log = desk.open()
    begin(log, 1, b"a")
    with pytest.raises(InvalidTransactionState):
        append(log, b"b", producer=(1, 0, 1))
    append(log, b"c", producer=(2, 0, 0))


def test_an_unknown_producer_that_must_start_at_zero_is_refused_with_a_later_sequence(
    desk: PartitionFixture,
) -> None:
    log = desk.open()
    with pytest.raises(OutOfOrderSequence):
        append(log, b"a", producer=(1, 0, 4), transactional=True, must_start_at_zero=True)
    append(log, b"a", producer=(1, 0, 0), transactional=True, must_start_at_zero=True)


def test_a_producer_with_an_open_transaction_is_never_forgotten(desk: PartitionFixture) -> None:
    log = desk.open()
    begin(log, 1, b"a")
    append(log, b"idle", producer=(2, 0, 0))
    assert log.producers.expire(NOW_MS + 10**9) == 1
    assert [producer.producer_id for producer in log.producers] == [1]
    log.producers._limit = 3
    for producer_id in range(10, 20):
        append(log, b"other", producer=(producer_id, 0, 0))
    assert sorted(producer.producer_id for producer in log.producers) == [1, 18, 19]
    end(log, 1, 1, committed=True)
    assert log.producers.expire(NOW_MS + 10**9) == 3


def test_open_and_aborted_transactions_are_known_after_a_clean_stop(desk: PartitionFixture) -> None:
    log = desk.open()
    begin(log, 1, b"dropped")
    end(log, 1, 1, committed=False)
    begin(log, 2, b"open", epoch=6)
    end(log, 3, 2, committed=True)
    log.close()
    reopened = desk.open()
    assert reopened.report.is_clean
    assert reopened.transactions.open == {2: OpenTransaction(2, 6, 2, NOW_MS)}
    assert list(reopened.transactions.aborted()) == [AbortedTransaction(1, 0, 1, 2)]
    assert reopened.last_stable_offset == 2
    assert {
        p.producer_id: (p.epoch, p.awaited_sequence, p.coordinator_epoch) for p in reopened.producers
    } == {
        1: (1, 0, 3),
        2: (6, None, -1),
        3: (2, 0, 3),
    }


def test_open_and_aborted_transactions_are_found_in_the_log_after_a_kill(desk: PartitionFixture) -> None:
    log = desk.open()
    begin(log, 1, b"dropped")
    begin(log, 2, b"open", epoch=6)
    for number in range(40):
        append(log, b"plain-%d" % number)
    end(log, 1, 1, committed=False)
    log.sync_now()
    for state in desk.directory.glob("*.state"):
        state.unlink()
    reopened = desk.open()
    assert list(reopened.transactions.open) == [2]
    assert list(reopened.transactions.aborted()) == [AbortedTransaction(1, 0, 42, 1)]
    assert reopened.last_stable_offset == 1


def test_a_state_file_of_the_first_version_is_still_read(desk: PartitionFixture) -> None:
    log = desk.open()
    append(log, b"a", producer=(7, 1, 0))
    append(log, b"b", producer=(7, 1, 1))
    log.close()
    state = desk.file("*.state")
    state.write_bytes(STATE_OF_THE_FIRST_VERSION)
    reopened = desk.open()
    assert reopened.report.files_removed == 0
    (producer,) = reopened.producers
    assert (producer.producer_id, producer.epoch, producer.seen_ms) == (7, 1, 123_456)
    assert append(reopened, b"b", producer=(7, 1, 1)).duplicate
    assert reopened.end_of_epoch(0) == (0, 2)
    assert reopened.transactions.is_empty


def test_a_transaction_with_a_damaged_marker_stays_open_until_the_coordinator_ends_it(
    desk: PartitionFixture,
) -> None:
    log = desk.open()
    begin(log, 1, b"a")
    end(log, 1, 1, committed=True)
    log.sync_now()
    log.sync_mark()
    path = desk.file("*.log")
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 0xFF
    path.write_bytes(raw)
    reopened = desk.open()
    assert list(reopened.transactions.open) == [1]
    assert end(reopened, 1, 1, committed=True) is not None
    assert reopened.transactions.is_empty


def test_aborted_transactions_are_forgotten_with_their_records(desk: PartitionFixture) -> None:
    log = desk.open()
    begin(log, 1, b"a")
    end(log, 1, 1, committed=False)
    begin(log, 1, b"b", epoch=1)
    end(log, 1, 2, committed=False)
    log.sync_now()
    log.delete_before(1)
    assert [a.first_offset for a in log.transactions.aborted()] == [0, 2]
    log.delete_before(2)
    assert [a.first_offset for a in log.transactions.aborted()] == [2]
    reopened = desk.open()
    assert [a.first_offset for a in reopened.transactions.aborted()] == [2]


def test_deletion_does_not_wait_for_a_transaction_to_end(desk: PartitionFixture) -> None:
    log = desk.open()
    begin(log, 1, b"a")
    append(log, b"b")
    log.sync_now()
    log.delete_before(1)
    assert log.last_stable_offset == 1
    end(log, 1, 1, committed=False)
    log.sync_now()
    assert log.last_stable_offset == 3


def test_an_open_transaction_whose_records_were_deleted_survives_a_kill(desk: PartitionFixture) -> None:
    log = desk.open()
    begin(log, 1, b"a")
    for number in range(40):
        append(log, b"plain-%d" % number)
    log.sync_now()
    log.delete_before(41)
    reopened = desk.open()
    assert list(reopened.transactions.open) == [1]


def test_a_marker_that_cannot_be_written_leaves_the_transaction_open(
    desk: PartitionFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = desk.open()
    begin(log, 1, b"a")
    log.sync_now()
    with monkeypatch.context() as patched:
        patched.setattr(SystemFile, "pwrite", full_disk)
        with pytest.raises(PartitionFenced):
            end(log, 1, 1, committed=True)
    assert list(log.transactions.open) == [1]
    assert end(log, 1, 1, committed=True) is not None
    log.sync_now()
    assert committed_from(log) == {0: b"a"}


def full_disk(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_open_and_aborted_transactions_are_limited() -> None:
    def header(producer_id: int) -> BatchHeader:
        batch = build_batch(
            [(b"k", b"v", ())],
            timestamp_ms=0,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        return read_header(batch)

    limited = Transactions(open_max=2, aborted_max=3)
    for producer_id in (1, 2):
        limited.check(header(producer_id))
        limited.note(header(producer_id), producer_id, 0)
    with pytest.raises(TooManyTransactions, match=r"open .*limit 2"):
        limited.check(header(3))
    limited.check(header(2))
    limited.end(1, 10, committed=False)
    limited.end(2, 11, committed=False)
    limited.check(header(3))
    limited.note(header(3), 12, 0)
    with pytest.raises(TooManyTransactions, match=r"aborted .*limit 3"):
        limited.check(header(4))
    limited.forget_below(11)
    limited.check(header(4))


@dataclass
class Model:
    """The expected contents, independent of the log: for each producer the values of its open transaction."""

    committed: dict[int, bytes] = field(default_factory=dict)
    open: dict[int, dict[int, bytes]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)

    def stable(self, end_offset: int) -> int:
        return min((min(values) for values in self.open.values()), default=end_offset)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(1, 4)),
            st.tuples(st.just("send"), st.integers(1, 4)),
            st.tuples(st.just("commit"), st.integers(1, 4)),
            st.tuples(st.just("abort"), st.integers(1, 4)),
            st.tuples(st.just("plain"), st.integers(1, 3)),
            st.tuples(st.sampled_from(["sync", "kill", "close", "forget states"]), st.just(0)),
            st.tuples(st.just("delete"), st.integers(0, 40)),
        ),
        max_size=60,
    )
)
def test_readers_of_committed_records_agree_with_a_model_after_random_operations(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    directory: Path = tmp_path_factory.mktemp("history")
    desk = PartitionFixture(directory / "p")
    log = desk.open()
    model = Model()
    for step, number in steps:
        value = b"value-%d" % log.end_offset
        epoch = model.epochs.get(number, 0)
        if step == "send":
            sequence = model.sequences.get(number, 0)
            begin(log, number, value, epoch=epoch, sequence=sequence)
            model.sequences[number] = sequence + 1
            model.open.setdefault(number, {})[log.end_offset - 1] = value
        elif step in ("commit", "abort"):
            end(log, number, epoch + 1, committed=step == "commit")
            model.epochs[number], model.sequences[number] = epoch + 1, 0
            ended = model.open.pop(number, {})
            model.committed.update(ended if step == "commit" else {})
        elif step == "plain":
            append(log, value)
            model.committed[log.end_offset - 1] = value
        elif step == "sync":
            log.sync_now()
        elif step == "delete":
            stable = min(model.stable(log.end_offset), number)
            log.delete_before(stable)
        else:
            if step == "close":
                log.close()
            if step == "forget states":
                for state in desk.directory.glob("*.state"):
                    state.unlink()
            log = desk.open()
            assert set(log.transactions.open) == set(model.open)
        check(log, model)
    log.sync_now()
    check(log, model)
    assert log.last_stable_offset == max(model.stable(log.end_offset), log.start_offset)
    shutil.rmtree(directory)


def check(log: PartitionLog, model: Model) -> None:
    for first in (log.start_offset, log.start_offset + 3):
        if first <= log.last_stable_offset:
            expected = {o: v for o, v in model.committed.items() if first <= o < log.last_stable_offset}
            assert committed_from(log, first, max_bytes=300) == expected


# A file in the first version of the format: offset 2, epoch 0 from offset 0, producer 7 in epoch 1 with two batches.
STATE_OF_THE_FIRST_VERSION = bytes.fromhex(
    "485253544154453100000000000000020000000100000001000000000000000000000000000000000000000700010000"
    "00000001e240020000000000000000000000000000000000000000000000000000018bcfe56800000000010000000100"
    "0000000000000100000000000000010000018bcfe5680025996518"
)
