"""The limits and timeouts of the group coordinator, and the memory budget of all groups.

If Apache Kafka has the same setting, the comment gives Kafka's name, and the default is Kafka's unless the comment
explains the difference. Kafka does not limit most of the state that a client can create. This broker limits all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headrace.broker.limits import text_bytes

__all__ = ["GROUP_BYTES", "Budget", "GroupSettings", "TopicNames"]


@dataclass(frozen=True, slots=True)
class GroupSettings:
    #: ``group.initial.rebalance.delay.ms``. The default is 0, as in Kafka's quick start.
    initial_rebalance_delay_ms: int = 0
    #: ``group.min.session.timeout.ms``
    session_timeout_ms_min: int = 6_000
    #: ``group.max.session.timeout.ms``
    session_timeout_ms_max: int = 1_800_000
    #: How long a new member can wait for the response to its first join. Not configurable in Kafka.
    new_member_join_timeout_ms: int = 300_000
    #: ``offsets.retention.minutes``: seven days.
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000
    #: How long the coordinator retains a group that has neither members nor offsets. Kafka retains it until the next
    #: cleanup (``offsets.retention.check.interval.ms``).
    empty_group_retention_ms: int = 600_000

    #: The longest interval between two checks of the running timeouts. A check that runs late reveals that the process
    #: was stalled.
    tick_interval_ms: int = 1_000
    #: If a check is late by more than this, the coordinator extends every running timeout, because heartbeats could not
    #: arrive.
    stall_ms_min: int = 1_000

    #: In Kafka, only the protocol limits this, to 32,767.
    group_id_chars_max: int = 1_024
    groups_max: int = 10_000
    #: ``group.max.size``. It is also the limit of pending member ids per group (see ``member.py``).
    members_per_group_max: int = 1_000
    #: In Kafka, only the protocol limits this, to 32,767. The usual types are ``consumer``, ``connect`` and ``sr``.
    protocol_type_chars_max: int = 256
    #: Ids and protocol types of all groups. One ListGroups response contains all of them.
    all_group_names_bytes_max: int = 8 << 20
    #: Pending member ids of all groups.
    pending_members_bytes_max: int = 8 << 20
    #: Names and subscriptions of one member.
    subscription_bytes_max: int = 1 << 20
    #: The assignment of one member.
    assignment_bytes_max: int = 1 << 20
    #: Members of one group with their subscriptions and assignments. One journal entry contains all of them.
    group_bytes_max: int = 8 << 20
    #: Memory of all groups with their members and subscribed topics.
    all_groups_bytes_max: int = 48 << 20
    #: Bytes of a group's subscribed topics, and topic names that its members' subscriptions can contain. Above either
    #: limit, the group counts as subscribed to every topic.
    subscribed_bytes_max: int = 1 << 20
    subscribed_names_max: int = 100_000
    #: Committed offsets of all groups. A pending offset of a transaction counts twice.
    offsets_max: int = 250_000
    #: ``offset.metadata.max.bytes``. As in Kafka, the limit is in characters.
    offset_metadata_chars_max: int = 4_096
    #: Metadata of all committed offsets.
    all_offset_metadata_bytes_max: int = 16 << 20


#: Estimated memory of a group without members: its state, its timers and its journal entry.
GROUP_BYTES = 2_048


class Budget:
    """The memory budget of all groups.

    Invariant: ``used_bytes`` is the estimated memory of all groups, and ``names_bytes`` is the part of it that their
    ids and protocol types use.
    """

    __slots__ = ("_bytes_max", "_names_bytes_max", "names_bytes", "used_bytes")

    def __init__(self, settings: GroupSettings) -> None:
        self.used_bytes = 0
        self.names_bytes = 0
        self._bytes_max = settings.all_groups_bytes_max
        self._names_bytes_max = settings.all_group_names_bytes_max

    def has_room(self, size: int, names: int = 0) -> bool:
        """Return whether the budget has room for ``size`` more bytes, of which ``names`` bytes are names."""
        return (size <= 0 or self.used_bytes + size <= self._bytes_max) and (
            names <= 0 or self.names_bytes + names <= self._names_bytes_max
        )

    def has_room_for(self, group_id: str, protocol_type: str = "", members_bytes: int = 0) -> bool:
        """Return whether the budget has room for a new group."""
        names = text_bytes(group_id) + text_bytes(protocol_type)
        return self.has_room(GROUP_BYTES + names + members_bytes, names)

    def count(self, size: int, names: int = 0) -> None:
        self.used_bytes += size
        self.names_bytes += names


class TopicNames(Protocol):
    def has_partition(self, name: str, index: int) -> bool: ...
    def name_of(self, topic_id: bytes) -> str | None: ...
    def id_of(self, name: str) -> bytes | None: ...
