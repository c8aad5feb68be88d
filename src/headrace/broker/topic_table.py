"""The topics there are, found by name, by id, and by the name that would collide with theirs."""

from __future__ import annotations

from headrace.broker.names import collision_key
from headrace.broker.topic import Topic

__all__ = ["TopicTable"]


class TopicTable:
    """Invariant: the three indexes hold the same topics, and ``partitions`` is the sum of theirs."""

    def __init__(self) -> None:
        self.partitions = 0
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._collisions: dict[str, Topic] = {}
        self._sorted: list[Topic] | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    def named(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def of_id(self, topic_id: bytes) -> Topic | None:
        return self._by_id.get(topic_id)

    def partitions_of(self, topic_id: bytes) -> int:
        topic = self._by_id.get(topic_id)
        return topic.partitions if topic is not None else 0

    def twin_of(self, name: str) -> Topic | None:
        """The topic, if any, because of which there can be none named ``name``."""
        return self._collisions.get(collision_key(name))

    def by_name(self) -> list[Topic]:
        """All of them in the order of their names; not to be changed."""
        if self._sorted is None:
            self._sorted = sorted(self._by_id.values(), key=lambda topic: topic.name)
        return self._sorted

    def put(self, topic: Topic) -> None:
        """Add a topic, or put it in the place of the one with its id."""
        self.partitions += topic.partitions - self.partitions_of(topic.id)
        self._by_id[topic.id] = self._by_name[topic.name] = topic
        self._collisions[collision_key(topic.name)] = topic
        self._sorted = None

    def take_away(self, topic_id: bytes) -> Topic:
        topic = self._by_id.pop(topic_id)
        del self._by_name[topic.name], self._collisions[collision_key(topic.name)]
        self.partitions -= topic.partitions
        self._sorted = None
        return topic
