"""The limits on remembered producers, of one partition and of all partitions together."""

from __future__ import annotations

from headrace.log.producers import REMEMBERED_BATCHES, ProducerQuota, Producers
from headrace.records import build_batch, read_header

NOW_MS = 1_700_000_000_000


def write(producers: Producers, producer_id: int, sequence: int = 0) -> None:
    batch = build_batch(
        [(b"k", b"v", ())],
        timestamp_ms=NOW_MS,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
    )
    producers.note(read_header(batch), sequence, NOW_MS)


def known(producers: Producers) -> list[int]:
    return [producer.producer_id for producer in producers]


def test_the_last_batches_of_a_producer_are_remembered() -> None:
    producers = Producers()
    for sequence in range(7):
        write(producers, 1, sequence)
    producer = producers.find(1)
    assert producer is not None
    assert [batch.first_sequence for batch in producer.batches] == [2, 3, 4, 5, 6]
    assert len(producer.batches) == REMEMBERED_BATCHES


def test_at_the_limit_of_a_partition_the_producer_not_seen_for_longest_is_forgotten() -> None:
    producers = Producers(3, kept={0})
    for producer_id in (0, 1, 2, 1, 3):
        write(producers, producer_id)
    assert sorted(known(producers)) == [0, 1, 3]


def test_at_the_limit_of_all_partitions_a_new_producer_replaces_another_of_its_partition() -> None:
    quota = ProducerQuota(20)
    crowded, quiet = Producers(), Producers()
    crowded.share(quota)
    quiet.share(quota)
    for producer_id in range(3):
        write(quiet, producer_id)
    for producer_id in range(100):
        write(crowded, producer_id)
    # A partition keeps its earlier producers, and room for five, whatever other partitions do.
    assert known(quiet) == [0, 1, 2]
    for producer_id in range(3, 9):
        write(quiet, producer_id)
    assert known(quiet) == [4, 5, 6, 7, 8]
    assert quota.used == len(crowded) + len(quiet) < 20 + 5
    assert 99 in known(crowded)
    # A write of a known producer replaces no other producer.
    write(crowded, 99, 1)
    assert quota.used == len(crowded) + len(quiet)


def test_dropped_producers_and_deleted_partitions_no_longer_count() -> None:
    quota = ProducerQuota(20)
    first, second = Producers(), Producers()
    write(first, 1)
    first.share(quota)
    second.share(quota)
    write(second, 2)
    write(second, 3)
    assert quota.used == 3
    assert second.expire(NOW_MS + 1) == 2
    assert quota.used == 1
    first.release()
    assert quota.used == 0
