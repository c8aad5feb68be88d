"""Writing without a request id: each record once, as an idempotent producer does it; not all or nothing.

Who does not get an answer does not know what was written, and must not send it again if it may not be there twice.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from headrace.client.cluster import Cluster
from headrace.client.errors import from_kafka
from headrace.clock import Clock
from headrace.serve.errors import OutcomeUnknown
from headrace.serve.writes.delivery import Delivery
from headrace.serve.writes.incoming import Incoming
from headrace.serve.writes.written import Written

__all__ = ["PlainWriter"]

_POLL_S = 0.1
_QUEUED_MAX = 100_000


class PlainWriter:
    """For any thread; one of its own hears what became of the records."""

    def __init__(self, cluster: Cluster, clock: Clock, write_s: float) -> None:
        self._clock = clock
        self._write_s = write_s
        self._producer = cluster.producer(
            {
                "enable.idempotence": True,
                "linger.ms": 1,
                "message.timeout.ms": int(write_s * 1_000),
                "queue.buffering.max.messages": _QUEUED_MAX,
            }
        )
        self._heard = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="serve writes", daemon=True)
        self._thread.start()

    def write(self, topic: str, topic_id: str, records: Sequence[Incoming]) -> Written:
        delivery = Delivery(topic, records)
        deadline = self._clock.steady() + self._write_s
        delivery.send(self._producer)
        with self._heard:
            while not delivery.done and self._clock.steady() < deadline:
                self._heard.wait(_POLL_S)
        if delivery.error is not None:
            raise from_kafka(delivery.error, f"writing to topic {topic!r}", topic=topic)
        if not delivery.done:
            raise OutcomeUnknown(
                f"the log has not said within {self._write_s:g} s whether it took the records",
                hint="look whether they are there; with an Idempotency-Key they can be sent again",
            )
        return Written(topic, topic_id, delivery.places)

    def _listen(self) -> None:
        while not self._stop.is_set():
            if self._producer.poll(_POLL_S):
                with self._heard:
                    self._heard.notify_all()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5 * _POLL_S + 1)
        self._producer.flush(1)
