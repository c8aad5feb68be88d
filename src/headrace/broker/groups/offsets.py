"""Committed offsets by group, topic and partition. Memory only: what is in here is durable already."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from headrace.broker.groups.entries import OffsetRow
from headrace.broker.sizes import text_bytes

__all__ = ["Offsets"]

_NONE: Mapping[str, Mapping[int, OffsetRow]] = {}


class Offsets:
    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, OffsetRow]]] = {}
        self.count = 0
        self.metadata_bytes = 0

    def get(self, group: str, topic: str, partition: int) -> OffsetRow | None:
        return self._groups.get(group, _NONE).get(topic, {}).get(partition)

    def of_group(self, group: str) -> Mapping[str, Mapping[int, OffsetRow]]:
        return self._groups.get(group, _NONE)

    def rows(self, group: str) -> Iterator[OffsetRow]:
        for partitions in self._groups.get(group, _NONE).values():
            yield from partitions.values()

    def groups(self) -> Iterable[str]:
        return self._groups.keys()

    def topics(self) -> set[str]:
        return {topic for topics in self._groups.values() for topic in topics}

    def put(self, group: str, row: OffsetRow) -> None:
        partitions = self._groups.setdefault(group, {}).setdefault(row.topic, {})
        old = partitions.get(row.partition)
        if old is None:
            self.count += 1
        else:
            self.metadata_bytes -= text_bytes(old.metadata)
        self.metadata_bytes += text_bytes(row.metadata)
        partitions[row.partition] = row

    def remove(self, group: str, topic: str, partition: int) -> None:
        by_topic = self._groups.get(group, {})
        row = by_topic.get(topic, {}).pop(partition, None)
        if row is not None:
            self._forget([row])
            self._drop_empty(group, by_topic, topic)

    def remove_group(self, group: str) -> None:
        for partitions in self._groups.pop(group, {}).values():
            self._forget(partitions.values())

    def remove_topic(self, topic: str) -> None:
        for group in [group for group, topics in self._groups.items() if topic in topics]:
            by_topic = self._groups[group]
            self._forget(by_topic[topic].values())
            by_topic[topic].clear()
            self._drop_empty(group, by_topic, topic)

    def _forget(self, rows: Collection[OffsetRow]) -> None:
        self.count -= len(rows)
        self.metadata_bytes -= sum(text_bytes(row.metadata) for row in rows)

    def _drop_empty(self, group: str, by_topic: dict[str, dict[int, OffsetRow]], topic: str) -> None:
        if not by_topic[topic]:
            del by_topic[topic]
        if not by_topic:
            del self._groups[group]
