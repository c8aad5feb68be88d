"""A topic that no flow writes, as a changelog: whatever has arrived, in pieces of a bounded size.

Of a compacted topic a record may be gone because a newer one of its key came further on. Then offsets are missing, and
what was taken comes to a state that was once everything is taken that the log had by then. Ends of transactions leave
gaps too, of one offset each. In what was appended within the last second, which is not compacted yet, such a gap counts
as the end of a transaction; otherwise a topic that transactions are written to all the time would never be exact.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Message, TopicPartition

from headrace.client.cluster import Cluster
from headrace.client.reading import take
from headrace.client.tombstones import Tombstones
from headrace.views.piece import CONSUMER, Piece, expect_readable, high_watermark

__all__ = ["TopicChangelog"]

_ASK_S = 1.0
_FRESH_S = 1.0


class TopicChangelog:
    def __init__(
        self, cluster: Cluster, topic: str, offsets: Mapping[int, int], *, max_rows: int = 10_000
    ) -> None:
        self._max_rows = max_rows
        self._cluster = cluster
        self._topic = topic
        self._taken = dict(offsets)
        self._passed = dict(offsets)
        self._ended: set[int] = set()
        self._exact_at: dict[int, int | None] = {}
        """Of partitions with gaps: behind which offset they are exact; None until the log was asked."""
        self._exact_asked = 0.0
        self._is_compacted = False
        self._policy_asked = -_ASK_S
        self._consumer = cluster.consumer(CONSUMER)
        self._consumer.assign([TopicPartition(topic, number, at) for number, at in offsets.items()])

    def take(self, timeout_s: float) -> Piece | None:
        messages: list[Message] = []
        noted = 0
        for message in take(self._consumer, self._max_rows, timeout_s):
            if message.error() is None:
                messages.append(message)
            elif not expect_readable(message):
                # The news of an end come behind the records before it, and before those that came later.
                self._note(messages[noted:])
                noted = len(messages)
                number, offset = message.partition() or 0, message.offset() or 0
                self._passed[number] = max(offset, self._passed[number])
                self._ended.add(number)
                self._exact_at.pop(number, None)
        self._note(messages[noted:])
        return Piece(messages, dict(self._taken)) if messages else None

    def _note(self, messages: Sequence[Message]) -> None:
        """What comes behind the last of each partition, which is soon found from the end."""
        before, missing = dict(self._passed), -len(messages)
        noted: set[int] = set()
        for message in reversed(messages):
            number = message.partition() or 0
            if number not in noted:
                noted.add(number)
                at = (message.offset() or 0) + 1
                if at > self._taken[number]:
                    missing += at - before[number]
                    self._taken[number] = self._passed[number] = at
                    self._ended.discard(number)
                if len(noted) == len(self._taken):
                    break
        if missing > 0 and self._may_be_compacted():
            self._note_gaps(messages, before)

    def _note_gaps(self, messages: Sequence[Message], before: dict[int, int]) -> None:
        widest: dict[int, int] = {}
        for message in messages:
            number, offset = message.partition() or 0, message.offset() or 0
            if offset > before[number]:
                widest[number] = max(offset - before[number], widest.get(number, 0))
            before[number] = offset + 1
        is_fresh = time.monotonic() - self._exact_asked < _FRESH_S
        for number, gap in widest.items():
            if gap > 1 or not is_fresh or number not in self._exact_at:
                self._exact_at[number] = None

    def _may_be_compacted(self) -> bool:
        """A topic that was compacted once stays suspect; whether one became compacted is asked now and then."""
        if not self._is_compacted and time.monotonic() - self._policy_asked >= _ASK_S:
            self._policy_asked = time.monotonic()
            self._is_compacted = Tombstones.of(self._cluster.configs(self._topic)).compacted
        return self._is_compacted

    def is_exact(self) -> bool:
        if not self._exact_at:
            return True
        if None in self._exact_at.values():
            self._exact_asked = time.monotonic()
            ends = self._cluster.ends(self._topic)
            self._exact_at = {number: ends.get(number, 0) for number in self._exact_at}
        self._exact_at = {
            number: at for number, at in self._exact_at.items() if at is None or self._passed[number] < at
        }
        return not self._exact_at

    def at_end(self) -> bool:
        return len(self._ended) == len(self._taken)

    def passed(self) -> dict[int, int]:
        return self._passed

    def lag(self) -> int:
        behind = [number for number in self._passed if number not in self._ended]
        return sum(
            max(0, high_watermark(self._consumer, self._topic, one) - self._passed[one]) for one in behind
        )

    def close(self) -> None:
        self._consumer.close()
