"""The last value of each key of a topic with one partition, kept up to date by reading only the new records."""

from __future__ import annotations

import threading

from headrace.client.cluster import Cluster
from headrace.client.records import read

__all__ = ["LastValues", "last_values"]


class LastValues:
    """Thread-safe. Use ``last_values``, which has one per connection and topic."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._lock = threading.Lock()
        self._topic_id = ""
        self._end = 0
        self._values: dict[bytes, bytes] = {}

    def read(self) -> dict[bytes, bytes]:
        """Return the committed values as of this call; keys whose last value is null are missing."""
        with self._lock:
            info = self._cluster.topic(self._topic)
            if info is None:
                self._topic_id = ""
                return {}
            end = self._cluster.ends(self._topic)[0]
            if info.id != self._topic_id or end < self._end:
                # The topic was created again, or the log was reset.
                self._topic_id, self._end, self._values = info.id, self._cluster.starts(self._topic)[0], {}
            if end > self._end:
                values = dict(self._values)
                for message in read(self._cluster, self._topic, {0: (self._end, end)}):
                    key, value = message.key() or b"", message.value()
                    if value is None:
                        values.pop(key, None)
                    else:
                        values[key] = value
                self._values, self._end = values, end
            return self._values


def last_values(cluster: Cluster, topic: str) -> dict[bytes, bytes]:
    return cluster.shared((LastValues, topic), lambda: LastValues(cluster, topic)).read()
