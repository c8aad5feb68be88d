"""Caches the newest progress of each flow, and the alerts that fire, from the log.

Each topic is read once, from the oldest record that is needed, and then tailed. A missing topic is checked
every five seconds.
"""

from __future__ import annotations

from collections import deque

from confluent_kafka import Consumer, KafkaError, TopicPartition

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.generations import GenerationsCache
from headrace.client.progress import Progress, current
from headrace.client.records import take
from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.model.declarations import Flow, alerts_topic
from headrace.model.progress import Batch, Generation, UnreadableProgress
from headrace.model.progress import decode as decode_progress
from headrace.ops.alerts.alert_log import AlertRecord, history
from headrace.ops.alerts.alert_log import decode as decode_alert

__all__ = ["CHANGES_MAX", "ProgressCache"]

CHANGES_MAX = 200
_ALERTS_READ_MAX = 100_000
_RETRY_S = 5.0
_POLL_RECORDS_MAX = 10_000
_TRANSIENT_ERRORS = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._PARTITION_EOF}


class ProgressCache:
    """Only one thread may use it, but any thread may read ``firing`` and ``changes``."""

    def __init__(self, app: App, cluster: Cluster, clock: Clock) -> None:
        self._app = app
        self._cluster = cluster
        self._clock = clock
        self._tails = _TopicTails(cluster)
        self._generations = GenerationsCache(cluster, clock)
        self._progress: dict[str, Progress] = {}
        self._errors: dict[str, HeadraceError] = {}
        self._alerts: dict[str, AlertRecord] = {}
        self._checked_s: dict[str, float] = {}
        self.follows_alerts = False
        """Whether to read the alerts topic."""
        self.changes: deque[AlertRecord] = deque(maxlen=CHANGES_MAX)
        """The last records of the alerts topic, newest last."""

    def update(self) -> None:
        """Apply the records that were written since the last call. Raise an error if the log does not respond."""
        self._open_alerts()
        for topic, offset, value in self._tails.poll():
            if topic == alerts_topic(self._app.name):
                self._apply_alert(decode_alert(value))
            else:
                self._apply_progress(topic, offset, value)

    def progress_of(self, flow: Flow) -> Progress | None:
        """Return the progress of the flow's serving generation. The first call for it reads its progress topic."""
        topic = self._generations.progress_topics(flow)[0]
        if topic not in self._tails and self._is_due(topic):
            self._progress.pop(topic, None)
            self._errors.pop(topic, None)
            if self._cluster.topic(topic) is not None:
                # Read the end first. A batch that commits in between is then read twice instead of missed.
                end = self._cluster.ends(topic)[0]
                progress = current(self._cluster, topic)
                if progress is not None:
                    self._progress[topic] = progress
                self._tails.add(topic, end)
        if topic in self._errors:
            raise self._errors[topic]
        return self._progress.get(topic)

    @property
    def firing(self) -> list[AlertRecord]:
        alerts = dict(self._alerts)
        return [alerts[key] for key in sorted(alerts) if alerts[key].state == "firing"]

    def close(self) -> None:
        self._tails.close()

    def _open_alerts(self) -> None:
        topic = alerts_topic(self._app.name)
        if not self.follows_alerts or topic in self._tails or not self._is_due(topic):
            return
        if self._cluster.topic(topic) is None:
            return
        end = self._cluster.ends(topic)[0]
        self._alerts = {}
        self.changes.clear()
        for record in history(self._cluster, self._app.name, _ALERTS_READ_MAX):
            self._apply_alert(record)
        self._tails.add(topic, end)

    def _apply_alert(self, record: AlertRecord | None) -> None:
        """Apply an alert record. The same record can arrive twice: from the history and from the tail."""
        if record is not None and self._alerts.get(record.key) != record:
            self._alerts[record.key] = record
            self.changes.append(record)

    def _apply_progress(self, topic: str, offset: int, value: bytes) -> None:
        try:
            record = decode_progress(value, where=f"{topic} at offset {offset}")
        except UnreadableProgress as error:
            self._errors[topic] = error
            return
        previous = self._progress.get(topic)
        if isinstance(record, Generation):
            continues = previous is not None and record.continues >= 0
            last = previous.last if previous is not None and continues else None
            self._progress[topic] = Progress(record, last, offset, record.batch_offset)
            return
        if (
            previous is not None
            and isinstance(record, Batch)
            and record.generation == previous.generation.generation
        ):
            self._progress[topic] = Progress(previous.generation, record, previous.generation_offset, offset)

    def _is_due(self, topic: str) -> bool:
        now_s = self._clock.steady()
        if now_s - self._checked_s.get(topic, float("-inf")) < _RETRY_S:
            return False
        self._checked_s[topic] = now_s
        return True


class _TopicTails:
    """Tails several topics of one partition each with one consumer. It is used by one thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._consumer: Consumer | None = None
        self._next: dict[str, int] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._next

    def add(self, topic: str, offset: int) -> None:
        self._next[topic] = offset
        self._assign()

    def poll(self) -> list[tuple[str, int, bytes]]:
        """Return new records as topic, offset and value. After a permanent error of a topic, stop tailing the topic:
        it can have been deleted and recreated.
        """
        if self._consumer is None or not self._next:
            return []
        records = []
        failed = set()
        for message in take(self._consumer, _POLL_RECORDS_MAX, 0):
            error, topic = message.error(), message.topic() or ""
            if error is None:
                offset = message.offset() or 0
                self._next[topic] = offset + 1
                records.append((topic, offset, message.value() or b""))
            elif error.code() not in _TRANSIENT_ERRORS and not error.retriable():
                failed.add(topic)
        if failed:
            self._next = {topic: offset for topic, offset in self._next.items() if topic not in failed}
            self._assign()
        return records

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _assign(self) -> None:
        if self._consumer is None:
            self._consumer = self._cluster.consumer(
                {"group.id": "headrace-observed", "queued.max.messages.kbytes": 4_096}
            )
        self._consumer.assign([TopicPartition(topic, 0, offset) for topic, offset in self._next.items()])
