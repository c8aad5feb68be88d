"""A topic of the catalog (id, name, number of partitions, configuration), and the rules for topic names.

The rules are Kafka's. A name has 1 to 249 ASCII letters, digits, dots, underscores and hyphens, and is neither ``.``
nor ``..``. Two names collide if they are equal after every dot is replaced by an underscore, as in Kafka's metrics.
Names that differ in case do not collide. Paths contain the topic id, never the name.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.truth import is_volatile

__all__ = [
    "NAME_CHARS_MAX",
    "NO_TOPIC_ID",
    "RESERVED",
    "RESERVED_IDS",
    "Topic",
    "TopicTable",
    "collision_key",
    "is_internal",
    "name_fault",
    "new_topic_id",
]

NO_TOPIC_ID = bytes(16)

# In the protocol, an id of all zeros means "no topic". Id 1 belongs to Kafka's metadata log.
RESERVED_IDS = frozenset({NO_TOPIC_ID, bytes(15) + b"\x01"})


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. It is immutable: a change creates a new object, so a reader sees either the old state or the new state.

    ``id`` is random and never reused. If a topic is deleted and created again, it has another id, so a client that
    still fetches the old topic gets an error.
    """

    name: str
    id: bytes
    partitions: int
    created_ms: int
    configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_volatile(self) -> bool:
        """Whether the topic is in memory only. Such a topic cannot be a source of truth (see ``headrace.truth``)."""
        return is_volatile(self.configs)

    def __post_init__(self) -> None:
        assert len(self.id) == 16
        assert self.id not in RESERVED_IDS
        assert self.partitions >= 1


def new_topic_id() -> bytes:
    """Return a random UUID (version 4). Its version bits are not zero, so it never equals a reserved id."""
    return uuid.uuid4().bytes


NAME_CHARS_MAX = 249
RESERVED = "__cluster_metadata"

_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_ALLOWED = re.compile(r"[a-zA-Z0-9._-]+")


def name_fault(name: str) -> str | None:
    """Return the reason why ``name`` is not a valid topic name, or ``None`` if it is valid."""
    if not name:
        return "a topic name must not be empty"
    if name in (".", ".."):
        return f"'{name}' is not a valid topic name"
    if len(name) > NAME_CHARS_MAX:
        return f"the topic name has {len(name)} characters (limit {NAME_CHARS_MAX})"
    if _ALLOWED.fullmatch(name) is None:
        return f"topic name {name!r} has invalid characters: use ASCII letters, digits, '.', '_' and '-'"
    return None


def collision_key(name: str) -> str:
    """Return a key that is equal for names that collide."""
    return name.replace(".", "_")


def is_internal(name: str) -> bool:
    """Return whether Kafka uses this name for its own state. Clients hide such topics and cannot write to them."""
    return name in _INTERNAL


class TopicTable:
    """All topics, by name, by id, and by collision key.

    Invariant: the three indexes have the same topics, and ``partitions`` is the number of their partitions.
    """

    def __init__(self) -> None:
        self.partitions = 0
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._collisions: dict[str, Topic] = {}
        self._sorted: list[Topic] | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def find_id(self, topic_id: bytes) -> Topic | None:
        return self._by_id.get(topic_id)

    def partitions_of(self, topic_id: bytes) -> int:
        topic = self._by_id.get(topic_id)
        return topic.partitions if topic is not None else 0

    def colliding(self, name: str) -> Topic | None:
        """Return the topic whose name collides with ``name``, if any."""
        return self._collisions.get(collision_key(name))

    def by_name(self) -> list[Topic]:
        """Return all topics, sorted by name. The caller must not change the list."""
        if self._sorted is None:
            self._sorted = sorted(self._by_id.values(), key=lambda topic: topic.name)
        return self._sorted

    def put(self, topic: Topic) -> None:
        """Add a topic, or replace the one with the same id."""
        self.partitions += topic.partitions - self.partitions_of(topic.id)
        self._by_id[topic.id] = self._by_name[topic.name] = topic
        self._collisions[collision_key(topic.name)] = topic
        self._sorted = None

    def remove(self, topic_id: bytes) -> Topic:
        topic = self._by_id.pop(topic_id)
        del self._by_name[topic.name], self._collisions[collision_key(topic.name)]
        self.partitions -= topic.partitions
        self._sorted = None
        return topic
