"""A topic folded by a view's key, record by record: what a view of it should hold through some offsets.

For topics that no flow writes, where the records themselves are the truth; and for a flow's topic under another key
than its own, where the last row of a key is a matter of order, which only the topic has.

Of compacted and of trimmed topics some records are gone. The last one of a key stays until it is replaced, so a view
that is at the topic's end can be proven whole; one that is behind may have a row whose record was replaced meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from confluent_kafka import Message

from headrace.client.cluster import Cluster
from headrace.client.reading import read
from headrace.model.errors import ValueDoesNotFit
from headrace.ops.plain_rows import PlainRows, Value
from headrace.ops.report import Unprovable
from headrace.ops.scratch import Scratch

__all__ = ["TopicFold"]

_COUNT_EVERY = 5_000
_REMOVED_BELOW = "headrace.tombstones.removed.below"


@dataclass(slots=True)
class TopicFold:
    cluster: Cluster
    scratch: Scratch
    plain: PlainRows
    topic: str
    begin: Mapping[int, int]
    """Where the topic began, per partition; 0 where nothing is known."""
    offsets: Mapping[int, int]
    """Up to where it counts."""
    refused: Collection[tuple[int, int]]
    batch_ends: Mapping[int, list[int]] | None = None
    """Where the batches of the flow that wrote it end, per partition and in their order; None if no flow did."""
    same_key: bool = True
    """Whether the view goes by the topic's own key."""
    count: Callable[[int, int], None] | None = None
    """Takes how many offsets were passed, and of how many."""
    records: int = 0
    dead: int = 0
    unnoted: list[str] = field(default_factory=list)
    """Records that do not fit, and that are no dead letters of the view."""
    unprovable: list[Unprovable] = field(default_factory=list)
    _holes: set[int] = field(default_factory=set)

    def run(self) -> None:
        """Fill the scratch's expected rows."""
        self.scratch.begin_fold()
        starts = self.cluster.starts(self.topic)
        ranges = {
            one: (max(starts.get(one, 0), self.begin.get(one, 0)), at) for one, at in self.offsets.items()
        }
        self.scratch.fold(self._changes(ranges))
        self.scratch.end_fold(ordered=self.batch_ends is not None)
        for one, at in sorted(self.offsets.items()):
            if self.begin.get(one, 0) < min(at, starts.get(one, 0)):
                self._lacks(one, starts[one], "the records before it were deleted")
        policy = self.cluster.configs(self.topic).get("cleanup.policy") or ""
        if "compact" in policy:
            self._look_behind()

    def _changes(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[Value, ...]]:
        """Partition, batch, offset, whether it deletes, and the columns, of which a deletion has those of the key."""
        following = {one: low for one, (low, _) in ranges.items()}
        batches = dict.fromkeys(ranges, 0)
        for message in read(self.cluster, self.topic, dict(ranges)):
            number, offset = message.partition() or 0, message.offset() or 0
            if self.count is not None and self.records % _COUNT_EVERY == 0:
                passed = sum(at - ranges[one][0] for one, at in following.items())
                self.count(passed, sum(high - low for low, high in ranges.values()))
            self.records += 1
            if offset > following[number]:
                self._holes.add(number)
            following[number] = offset + 1
            batches[number] = self._batch(number, offset, batches[number])
            row = self._row(message, number, offset)
            if row is not None:
                yield (number, batches[number], offset, *row)
        self._holes |= {one for one, (low, high) in ranges.items() if low < high and following[one] < high}

    def _batch(self, number: int, offset: int, at_least: int) -> int:
        ends = self.batch_ends.get(number, []) if self.batch_ends is not None else []
        while at_least < len(ends) and offset >= ends[at_least]:
            at_least += 1
        return at_least

    def _row(self, message: Message, number: int, offset: int) -> tuple[Value, ...] | None:
        value = message.value()
        if (number, offset) in self.refused:
            self.dead += 1
            return None
        try:
            if value is None:
                return (1, *self.scratch.widened(self.plain.key(message.key())))
            return (0, *self.plain.row(value))
        except ValueDoesNotFit as error:
            self.dead += 1
            self.unnoted.append(f"offset {offset} of {self.topic}/{number}: {error.message}")
            return None

    # What is no longer there

    def _lacks(self, number: int, before: int, why: str) -> None:
        self.unprovable.append(Unprovable(self.topic, number, before, why))

    def _look_behind(self) -> None:
        """Of a compacted topic: whether something that came after the offsets may have replaced what came before."""
        if not self.same_key:
            for one in sorted(self._holes):
                self._lacks(one, self.offsets[one], "the topic is compacted, by another key than the view's")
            return
        ends = self.cluster.ends(self.topic)
        told = self.cluster.configs(self.topic).get(_REMOVED_BELOW)
        removed = (
            {}
            if told is None
            else {int(p): int(at) for p, at in (one.split(":") for one in told.split(",") if one)}
        )
        for one in sorted(self._holes):
            at, end = self.offsets[one], ends.get(one, 0)
            if at >= end:
                continue
            replaced, seen = self._look_on(one, at, end)
            if replaced:
                self._lacks(one, at, "the topic is compacted, and what came later may have replaced it")
            elif seen < end - at and (told is None or removed.get(one, 0) > at):
                # Deletions that were removed themselves would be the ones that are not seen.
                self._lacks(one, at, "the topic is compacted, and deletions that came later may be gone")

    def _look_on(self, number: int, at: int, end: int) -> tuple[bool, int]:
        """Whether a key comes of which nothing is left from before, and how many records there were."""
        seen = 0
        for message in read(self.cluster, self.topic, {number: (at, end)}):
            if self._is_new(message):
                return True, seen
            seen += 1
        return False, seen

    def _is_new(self, message: Message) -> bool:
        """Whether nothing of its key is left from before."""
        value = message.value()
        try:
            key = self.plain.key(message.key()) if value is None else self.plain.key_of(self.plain.row(value))
        except ValueDoesNotFit:
            return False
        return not self.scratch.knows(key)
