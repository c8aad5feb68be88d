"""Many records, written in little time, and one that is unlike them."""

from __future__ import annotations

from headrace.client.cluster import Cluster

__all__ = ["NEEDLE", "haystack"]

NEEDLE = {"id": "n-1", "amount": 41.5, "note": "Grüße"}
_AT_ONCE = 10_000


def haystack(cluster: Cluster, topic: str, count: int, needle: bytes, partitions: int = 3) -> None:
    """A third of the way in, in the last partition, the needle; around it, hay."""
    cluster.ensure_topic(topic, partitions)
    producer = cluster.producer(
        {"linger.ms": 5, "batch.num.messages": _AT_ONCE, "queue.buffering.max.messages": 2 * count}
    )
    hay = [
        {"key": b"h%d" % one, "value": b'{"id":"h%d","amount":%d}' % (one, one % 40)}
        for one in range(_AT_ONCE)
    ]
    sent = 0
    while sent < count:
        if sent == count // 3 // _AT_ONCE * _AT_ONCE:
            producer.produce(topic, needle, b"needle", partition=partitions - 1, headers=[("found", b"yes")])
        sent += producer.produce_batch(topic, hay[: count - sent], partition=sent // _AT_ONCE % partitions)
    assert producer.flush(60) == 0
