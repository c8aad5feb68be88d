"""A topic of many similar records and one record, the needle, that a search must find."""

from __future__ import annotations

from headrace.client.cluster import Cluster

__all__ = ["NEEDLE", "write_haystack"]

NEEDLE = {"id": "n-1", "amount": 41.5, "note": "Grüße"}
_BATCH_RECORDS = 10_000


def write_haystack(cluster: Cluster, topic: str, count: int, needle: bytes, partitions: int = 3) -> None:
    """Write ``count`` records; write the needle after a third of them, to the last partition."""
    cluster.ensure_topic(topic, partitions)
    producer = cluster.producer(
        {"linger.ms": 5, "batch.num.messages": _BATCH_RECORDS, "queue.buffering.max.messages": 2 * count}
    )
    hay = [
        {"key": b"h%d" % number, "value": b'{"id":"h%d","amount":%d}' % (number, number % 40)}
        for number in range(_BATCH_RECORDS)
    ]
    sent = 0
    while sent < count:
        if sent == count // 3 // _BATCH_RECORDS * _BATCH_RECORDS:
            producer.produce(topic, needle, b"needle", partition=partitions - 1, headers=[("found", b"yes")])
        sent += producer.produce_batch(
            topic, hay[: count - sent], partition=sent // _BATCH_RECORDS % partitions
        )
    assert producer.flush(60) == 0
