"""A topic as the catalog knows it: what was decided about it, not what is in it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.truth import is_volatile

__all__ = ["NO_TOPIC_ID", "RESERVED_IDS", "Topic", "new_topic_id"]

NO_TOPIC_ID = bytes(16)

# All zeros means "no topic" on the wire, and Kafka's own metadata log has the id one.
RESERVED_IDS = frozenset({NO_TOPIC_ID, bytes(15) + b"\x01"})


@dataclass(frozen=True, slots=True)
class Topic:
    """Immutable: a change makes a new one, so a reader holds either the old state or the new, never half of
    each.

    ``id`` is random and never used again. A topic that is deleted and created anew has another one, which
    is how a client that still fetches the old topic notices.
    """

    name: str
    id: bytes
    partitions: int
    created_ms: int
    configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_volatile(self) -> bool:
        """In memory only: never a source of truth (see ``headrace.truth``)."""
        return is_volatile(self.configs)

    def __post_init__(self) -> None:
        assert len(self.id) == 16
        assert self.id not in RESERVED_IDS
        assert self.partitions >= 1


def new_topic_id() -> bytes:
    """A version 4 UUID: its fixed version bits keep it clear of the reserved ids."""
    return uuid.uuid4().bytes
