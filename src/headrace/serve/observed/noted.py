"""What the log has noted, kept at hand: how far each flow is, and which alerts fire.

Each topic is read once, as far back as is needed, and then followed. One that is not there is looked for again every
few seconds.
"""

from __future__ import annotations

from collections import deque

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.progress_log import Progress, current
from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.model.alert import alerts_topic
from headrace.model.flow import Flow
from headrace.model.progress import Batch, Generation, UnreadableProgress
from headrace.model.progress import decode as decode_progress
from headrace.ops.alerts.alert_log import history
from headrace.ops.alerts.record import AlertRecord
from headrace.ops.alerts.record import decode as decode_alert
from headrace.serve.observed.record_tails import RecordTails

__all__ = ["CHANGES_MAX", "Noted"]

CHANGES_MAX = 200
_RECALLED_MAX = 100_000
_AGAIN_S = 5.0


class Noted:
    """In one thread, but for ``firing`` and ``changes``."""

    def __init__(self, app: App, cluster: Cluster, clock: Clock) -> None:
        self._app = app
        self._cluster = cluster
        self._clock = clock
        self._tails = RecordTails(cluster)
        self._flows: dict[str, Progress] = {}
        self._faults: dict[str, HeadraceError] = {}
        self._alerts: dict[str, AlertRecord] = {}
        self._looked: dict[str, float] = {}
        self.changes: deque[AlertRecord] = deque(maxlen=CHANGES_MAX)
        """Of the alerts' topic, the newest last."""

    def look(self) -> None:
        """Raises where the log does not answer."""
        self._begin_alerts()
        for topic, offset, value in self._tails.take():
            if topic == alerts_topic(self._app.name):
                self._note_alert(decode_alert(value))
            else:
                self._note_progress(topic, offset, value)

    def progress_of(self, flow: Flow) -> Progress | None:
        """Asks the log the first time, for a flow that it was not asked for yet."""
        topic = flow.progress_topic
        if topic not in self._tails and self._is_due(topic):
            self._flows.pop(topic, None)
            self._faults.pop(topic, None)
            if self._cluster.topic(topic) is not None:
                # In this order: what is committed in between is told by both.
                end = self._cluster.ends(topic)[0]
                found = current(self._cluster, topic)
                if found is not None:
                    self._flows[topic] = found
                self._tails.follow(topic, end)
        if topic in self._faults:
            raise self._faults[topic]
        return self._flows.get(topic)

    @property
    def firing(self) -> list[AlertRecord]:
        known = dict(self._alerts)
        return [known[key] for key in sorted(known) if known[key].state == "firing"]

    def close(self) -> None:
        self._tails.close()

    def _begin_alerts(self) -> None:
        topic = alerts_topic(self._app.name)
        if topic in self._tails or not self._is_due(topic) or self._cluster.topic(topic) is None:
            return
        end = self._cluster.ends(topic)[0]
        self._alerts = {}
        self.changes.clear()
        for record in history(self._cluster, self._app.name, _RECALLED_MAX):
            self._note_alert(record)
        self._tails.follow(topic, end)

    def _note_alert(self, record: AlertRecord | None) -> None:
        """Once, whether it was read at the beginning or behind that."""
        if record is not None and self._alerts.get(record.key) != record:
            self._alerts[record.key] = record
            self.changes.append(record)

    def _note_progress(self, topic: str, offset: int, value: bytes) -> None:
        try:
            record = decode_progress(value, where=f"{topic} at offset {offset}")
        except UnreadableProgress as error:
            self._faults[topic] = error
            return
        if isinstance(record, Generation):
            self._flows[topic] = Progress(record, None, offset)
            return
        before = self._flows.get(topic)
        if (
            before is not None
            and isinstance(record, Batch)
            and record.generation == before.generation.generation
        ):
            self._flows[topic] = Progress(before.generation, record, before.generation_offset, offset)

    def _is_due(self, topic: str) -> bool:
        now = self._clock.steady()
        if now - self._looked.get(topic, float("-inf")) < _AGAIN_S:
            return False
        self._looked[topic] = now
        return True
