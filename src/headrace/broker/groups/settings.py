"""What the group coordinator allows and how long it waits; units are in the names.

Where Apache Kafka has the same setting its name is given, and the default is Kafka's unless the comment says
why not. Kafka leaves most of what a client can make grow without a limit; here everything has one.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GroupSettings"]


@dataclass(frozen=True, slots=True)
class GroupSettings:
    #: ``group.initial.rebalance.delay.ms``. Kafka's quick start uses 0 as well: on one machine nobody wants
    #: to wait.
    initial_rebalance_delay_ms: int = 0
    #: ``group.min.session.timeout.ms``
    session_timeout_ms_min: int = 6_000
    #: ``group.max.session.timeout.ms``
    session_timeout_ms_max: int = 1_800_000
    #: How long a member that has just been added may wait for its first answer. Fixed in Kafka.
    new_member_join_timeout_ms: int = 300_000
    #: ``offsets.retention.minutes``: seven days.
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000
    #: How long a group stays known that has neither members nor offsets. In Kafka, until the next clean-up
    #: (``offsets.retention.check.interval.ms``).
    empty_group_kept_ms: int = 600_000

    #: How often time-outs are looked at while there are any; also how finely a stall of the process is
    #: noticed.
    tick_interval_ms: int = 1_000
    #: A tick that comes later than this is a stall: every running time-out is put off by as much.
    stall_ms_min: int = 1_000

    #: Kafka has no limit but the protocol's 32,767.
    group_id_chars_max: int = 1_024
    groups_max: int = 10_000
    #: ``group.max.size``, and as many again that hold a member id but have not joined with it yet.
    members_per_group_max: int = 1_000
    #: Kafka has no limit but the protocol's 32,767. Types in use are ``consumer``, ``connect`` and ``sr``.
    protocol_type_chars_max: int = 256
    #: Ids and protocol types of all groups, which one answer to ListGroups holds.
    all_group_names_bytes_max: int = 8 << 20
    #: Ids of all groups that were given out and not joined with yet.
    pending_members_bytes_max: int = 8 << 20
    #: Names and subscriptions of one member.
    subscription_bytes_max: int = 1 << 20
    #: What the leader assigns to one member.
    assignment_bytes_max: int = 1 << 20
    #: Members of one group with their subscriptions and assignments: what one journal entry must hold.
    group_bytes_max: int = 8 << 20
    #: Memory of all groups with their members, and of the topics that they are known to subscribe to.
    all_groups_bytes_max: int = 48 << 20
    #: The most topics of a group that are remembered, in bytes, and the most names that are read to find them. Of a
    #: group with more, any topic counts as subscribed.
    subscribed_bytes_max: int = 1 << 20
    subscribed_names_max: int = 100_000
    #: Committed offsets over all groups. One that waits for the end of a transaction counts twice.
    offsets_max: int = 250_000
    #: ``offset.metadata.max.bytes``; like Kafka's it counts characters.
    offset_metadata_chars_max: int = 4_096
    #: The metadata of all committed offsets together.
    all_offset_metadata_bytes_max: int = 16 << 20
