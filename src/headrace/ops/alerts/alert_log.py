"""The topic of an app's alerts. One watcher at a time writes to it; any process can read it.

The watcher that opened the topic last owns it, and the log rejects writes of earlier watchers. So no change is written
twice, and every watcher knows the last record before it evaluates a rule.

``<app>.alerts`` has one partition and is compacted. The key is ``<alert>/<what>/<name>``. The value is an
``AlertRecord`` as JSON, written when the alert starts to fire and when it is resolved. The last record of a key is the
current state. Earlier records are retained for at least a week.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.records import read
from headrace.client.transactional_writer import OutgoingRecord, TransactionalWriter, WriterRefused
from headrace.model.declarations import alerts_topic

__all__ = [
    "AlertLog",
    "AlertRecord",
    "WatcherReplaced",
    "decode",
    "encode",
    "history",
    "key_of",
    "last_records",
]


_HISTORY_MS = 7 * 86_400_000


class WatcherReplaced(LogError):
    def __init__(self, app: str) -> None:
        super().__init__(
            f"another watcher of app {app!r} was started and owns its alerts now",
            name="ALERTS-FENCED",
            hint="run one watcher per app; the watcher that was started last owns the alerts",
        )


class AlertLog:
    """Writes alerts. Opening it fences earlier watchers of the app."""

    def __init__(self, cluster: Cluster, app: str) -> None:
        self._cluster = cluster
        self._app = app
        self._topic = alerts_topic(app)
        timeout_ms = int(cluster.timeout_s * 1_000)
        try:
            self._writer = TransactionalWriter(
                cluster,
                f"headrace.alerts.{app}",
                f"alerts of app {app!r}",
                timeout_ms=timeout_ms + 1_000,
                wait_s=cluster.timeout_s,
                properties={"message.timeout.ms": timeout_ms, "retry.backoff.ms": 10},
            )
        except LogError as error:
            raise self._translate(error) from error

    def write(self, changes: Sequence[AlertRecord]) -> None:
        """Write the changes in one transaction."""
        configs = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(_HISTORY_MS)}
        self._cluster.ensure_topic(self._topic, 1, configs)
        try:
            self._writer.begin()
            self._writer.send(OutgoingRecord(self._topic, *encode(change)) for change in changes)
            self._writer.commit()
        except LogError as error:
            translated = self._translate(error)
            if not isinstance(translated, WatcherReplaced):
                # A new writer can succeed: brokers expire a producer that has not written for a week.
                translated.retriable = True
            raise translated from error

    def close(self) -> None:
        """Close the writer. A transaction that is not committed is aborted."""
        self._writer.close()

    def _translate(self, error: LogError) -> LogError:
        if isinstance(error, WriterRefused) and error.has_new_owner:
            return WatcherReplaced(self._app)
        return error


def last_records(cluster: Cluster, app: str) -> dict[str, AlertRecord]:
    """Return the current record of each key."""
    return {record.key: record for record in _records(cluster, app)}


def history(cluster: Cluster, app: str, count_max: int) -> list[AlertRecord]:
    """Return the newest records, oldest first."""
    return list(deque(_records(cluster, app), count_max))


def _records(cluster: Cluster, app: str) -> Iterator[AlertRecord]:
    topic = alerts_topic(app)
    if cluster.topic(topic) is None:
        return
    starts, ends = cluster.starts(topic), cluster.ends(topic)
    for message in read(cluster, topic, {number: (starts[number], end) for number, end in ends.items()}):
        decoded = decode(message.value() or b"")
        if decoded is not None:
            yield decoded


class AlertRecord(msgspec.Struct, frozen=True):
    app: str
    alert: str
    what: str
    """``flow``, ``view`` or ``group``."""
    name: str
    state: Literal["firing", "resolved"]
    at_ms: int
    """When the state changed."""
    since_ms: int
    """When the rule became true."""
    when: str
    """The text of the rule."""
    text: str
    """A sentence that describes the alert."""
    measures: dict[str, float | None] = {}
    """The measured values at ``at_ms``. A value is null if it is unknown, or if no loss is expected."""

    @property
    def key(self) -> str:
        return key_of(self.alert, self.what, self.name)

    def row(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__struct_fields__}


_decoder = msgspec.json.Decoder(AlertRecord)


def key_of(alert: str, what: str, name: str) -> str:
    return f"{alert}/{what}/{name}"


def encode(record: AlertRecord) -> tuple[bytes, bytes]:
    """Return the key and the value."""
    return record.key.encode(), msgspec.json.encode(record)


def decode(value: bytes) -> AlertRecord | None:
    """Return None if the value is not an ``AlertRecord``."""
    try:
        return _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
