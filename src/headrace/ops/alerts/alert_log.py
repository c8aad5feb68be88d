"""The topic of an app's alerts: written by one watcher at a time, read by anybody.

Whoever opens it last for writing has it; the log refuses what the one before writes from then on. So no change is
written twice, and none is judged by somebody who does not know the last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError, from_kafka
from headrace.client.reading import read
from headrace.model.alert import alerts_topic
from headrace.ops.alerts.record import AlertRecord, decode, encode

__all__ = ["AlertLog", "WatcherReplaced", "history", "last_records"]

_HISTORY_MS = 7 * 86_400_000
_FENCED = {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}


class WatcherReplaced(LogError):
    def __init__(self, app: str) -> None:
        super().__init__(
            f"somebody else watches app {app!r} now, and alerts are theirs to write",
            name="ALERTS-FENCED",
            hint="only one may: the one that was started last has it",
        )


class AlertLog:
    """Open, it is the only one that can write."""

    def __init__(self, cluster: Cluster, app: str) -> None:
        self._cluster = cluster
        self._app = app
        self._topic = alerts_topic(app)
        self._producer: Producer = cluster.producer(
            {
                "transactional.id": f"headrace.alerts.{app}",
                "linger.ms": 0,
                "retry.backoff.ms": 10,
                "transaction.timeout.ms": int(cluster.timeout_s * 1_000) + 1_000,
                "message.timeout.ms": int(cluster.timeout_s * 1_000),
            }
        )
        try:
            self._producer.init_transactions(cluster.timeout_s)
        except KafkaException as error:
            raise self._told(error, "opening") from error

    def write(self, changes: Sequence[AlertRecord]) -> None:
        """All of them are in the log when this returns, or none is."""
        configs = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(_HISTORY_MS)}
        self._cluster.ensure_topic(self._topic, 1, configs)
        try:
            self._producer.begin_transaction()
            for one in changes:
                key, value = encode(one)
                self._producer.produce(self._topic, key=key, value=value)
            self._producer.commit_transaction(self._cluster.timeout_s)
        except KafkaException as error:
            told = self._told(error, "writing to")
            if not isinstance(told, WatcherReplaced):
                # Opened anew, it may write: brokers forget the id of a writer that had nothing to say for a week.
                told.retriable = True
            raise told from error

    def close(self) -> None:
        """What is under way is given up: it is written again, or was not meant any more."""
        self._producer.purge()
        self._producer.flush(1.0)

    def _told(self, error: KafkaException, doing: str) -> LogError:
        if error.args[0].code() in _FENCED:
            return WatcherReplaced(self._app)
        return from_kafka(error, f"{doing} {self._topic!r}")


def last_records(cluster: Cluster, app: str) -> dict[str, AlertRecord]:
    """By key: what holds."""
    return {one.key: one for one in _records(cluster, app)}


def history(cluster: Cluster, app: str, at_most: int) -> list[AlertRecord]:
    """The newest come last."""
    return list(deque(_records(cluster, app), at_most))


def _records(cluster: Cluster, app: str) -> Iterator[AlertRecord]:
    topic = alerts_topic(app)
    if cluster.topic(topic) is None:
        return
    starts, ends = cluster.starts(topic), cluster.ends(topic)
    for message in read(cluster, topic, {one: (starts[one], end) for one, end in ends.items()}):
        found = decode(message.value() or b"")
        if found is not None:
            yield found
