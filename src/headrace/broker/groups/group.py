"""A live consumer group: its members, its generation and its state.

    Empty ──join──▶ PreparingRebalance ──all joined──▶ CompletingRebalance ──assignment durable──▶ Stable
      ▲                 │    ▲  ▲                            │                                       │
      └──all left───────┘    │  └───────member changes───────┘                                       │
                             └───────────────member joins, changes, leaves or times out──────────────┘

A group is Dead when it is deleted or the coordinator has stopped. This module has no I/O and no clock.
``rebalancer.py`` decides when a group changes its state. Invariants: if the group has members, ``leader`` is one of
them. ``static`` maps every instance id to the id of its member. The shared budget counts every member's size once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from headrace.broker.groups.entries import GroupEntry, MemberEntry
from headrace.broker.groups.member import (
    CONSUMER_PROTOCOL_TYPE,
    Member,
    PendingMember,
    Protocols,
    subscribed_topics,
)
from headrace.broker.groups.results import DescribedGroup, JoinResult, ListedGroup
from headrace.broker.groups.settings import GROUP_BYTES, Budget, GroupSettings, TopicNames
from headrace.broker.groups.timers import Timer, Timers
from headrace.broker.limits import text_bytes
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.groups.ledger import Ledger

__all__ = ["Group", "GroupContext", "State"]


_TOPIC_BYTES = 96


class State(Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_TRANSITIONS = {
    State.EMPTY: {State.PREPARING, State.DEAD},
    State.PREPARING: {State.COMPLETING, State.EMPTY, State.DEAD},
    State.COMPLETING: {State.STABLE, State.PREPARING, State.DEAD},
    State.STABLE: {State.PREPARING, State.DEAD},
    State.DEAD: {State.DEAD},
}


class Group:
    def __init__(self, group_id: str, settings: GroupSettings, budget: Budget, since_ms: int) -> None:
        self.id = group_id
        self._settings = settings
        self.state = State.EMPTY
        self.previous = State.EMPTY
        self.since_ms = since_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        #: Member ids that were assigned to clients that have not joined yet.
        self.pending: dict[str, PendingMember] = {}
        #: Members of this generation that have not sent SyncGroup yet.
        self.unsynced: set[str] = set()
        #: The topics to which any member is subscribed. None if they are unknown.
        self.topics: frozenset[str] | None = None
        #: The estimated memory of its members.
        self.size_bytes = 0
        self.join_timer = Timer(_unset)
        self.sync_timer = Timer(_unset)
        #: True if a member joined during the current delay of the first rebalance.
        self.has_new_member = False
        #: The generation whose assignments are being written. If the leader retries, they are not written again.
        self.storing_generation: int | None = None
        #: Done when the journal has recorded that the last member left.
        self.empty_state_written: asyncio.Future[Exception | None] | None = None
        self._budget = budget
        self._topics_bytes = 0
        names_bytes = text_bytes(group_id)
        budget.count(GROUP_BYTES + names_bytes, names_bytes)

    def release(self) -> None:
        """Return the memory of a removed group to the budget."""
        names_bytes = text_bytes(self.id) + text_bytes(self.protocol_type)
        self._budget.count(-(GROUP_BYTES + names_bytes + self.size_bytes + self._topics_bytes), -names_bytes)

    # -- state

    def enter(self, state: State, now_ms: int) -> None:
        assert state in _TRANSITIONS[self.state], (
            f"group {self.id!r} cannot change from {self.state} to {state}"
        )
        self.previous, self.state, self.since_ms = self.state, state, now_ms

    def next_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.unsynced.clear()
        self.storing_generation = None
        if self.members:
            self.protocol = self.elect_protocol()
            self.enter(State.COMPLETING, now_ms)
        else:
            self.protocol = None
            self.enter(State.EMPTY, now_ms)
        self.update_topics()

    @property
    def all_joined(self) -> bool:
        return not self.pending and all(member.awaits_join for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # -- members

    def add(self, member: Member, protocol_type: str) -> None:
        assert member.id not in self.members
        if not self.members:
            self._set_protocol_type(protocol_type)
        if member.instance_id is not None:
            assert member.instance_id not in self.static
            self.static[member.instance_id] = member.id
        self.members[member.id] = member
        self.leader = self.leader or member.id
        self._count(member.size_bytes)

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        self._count(-member.size_bytes)
        if member.instance_id is not None:
            del self.static[member.instance_id]
        self.unsynced.discard(member_id)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def replace(self, old_id: str, member: Member) -> None:
        """Replace a static member that rejoined with a new id. If the old member was the leader, so is the new one."""
        old = self.members[old_id]
        assert member.instance_id is not None
        assert member.instance_id == old.instance_id
        self._count(member.size_bytes - old.size_bytes)
        self.members = {member.id if id_ == old_id else id_: m for id_, m in self.members.items()}
        self.members[member.id] = member
        self.static[member.instance_id] = member.id
        self.unsynced.discard(old_id)
        if self.leader == old_id:
            self.leader = member.id

    def update(
        self, member: Member, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        before = member.size_bytes
        member.protocols = protocols
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self._count(member.size_bytes - before)

    def assign(self, member: Member, assignment: bytes) -> None:
        self._count(len(assignment) - len(member.assignment))
        member.assignment = assignment

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return an error if the id is not a member's, or if another member now has its instance id."""
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def elect_joined_leader(self) -> bool:
        """Ensure that the leader is a member that rejoined. Returns false if no member rejoined."""
        if self.leader is not None and self.members[self.leader].awaits_join:
            return True
        joined = next((member.id for member in self.members.values() if member.awaits_join), None)
        if joined is None:
            return False
        self.leader = joined
        return True

    def _count(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        self._budget.count(size_bytes)

    def _set_protocol_type(self, protocol_type: str | None) -> None:
        added_bytes = text_bytes(protocol_type) - text_bytes(self.protocol_type)
        self._budget.count(added_bytes, added_bytes)
        self.protocol_type = protocol_type

    # -- protocols

    def accepts(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return whether a member with these protocols can join: all members must share at least one protocol."""
        if self.state is State.EMPTY:
            return bool(protocol_type and protocols)
        if protocol_type != self.protocol_type:
            return False
        common = self._common_protocols()
        return any(name in common for name, _ in protocols) if self.members else bool(protocols)

    def elect_protocol(self) -> str:
        """Return the protocol with the most votes.

        Each member votes for the first protocol in its list that all members support.
        """
        common = self._common_protocols()
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def _common_protocols(self) -> set[str]:
        """Return the protocols that every member supports."""
        supported = ({name for name, _ in member.protocols} for member in self.members.values())
        return set.intersection(*supported) if self.members else set()

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member subscribes to the topic. If a consumer group's topics are unknown, return true."""
        if self.topics is not None:
            return topic in self.topics
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def update_topics(self) -> None:
        """Update ``topics`` from the members' subscriptions, if the budget has room."""
        self._budget.count(-self._topics_bytes)
        self.topics, self._topics_bytes = self._subscribed()
        self._budget.count(self._topics_bytes)

    def _subscribed(self) -> tuple[frozenset[str] | None, int]:
        """Return the subscribed topics (``None`` if they are unknown) and their estimated memory."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None, 0
        topics: set[str] = set()
        names_left = self._settings.subscribed_names_max
        for member in self.members.values():
            member_topics = subscribed_topics(member.subscription(self.protocol), names_left)
            if member_topics is None:
                return None, 0
            names_left -= len(member_topics)
            topics.update(member_topics)
        size = sum(_TOPIC_BYTES + text_bytes(topic) for topic in topics)
        if size > self._settings.subscribed_bytes_max or not self._budget.has_room(size):
            return None, 0
        return frozenset(topics), size

    # -- results

    def join_result(self, member: Member, *, skip_assignment: bool = False) -> JoinResult:
        leads = member.id == self.leader
        return JoinResult(
            ErrorCode.NONE,
            member.id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            skip_assignment and leads,
            tuple((m.id, m.instance_id, m.subscription(self.protocol)) for m in self.members.values())
            if leads
            else (),
        )

    def to_listed(self) -> ListedGroup:
        return ListedGroup(self.id, self.protocol_type or "", self.state.value)

    def describe(self) -> DescribedGroup:
        stable = self.state is State.STABLE
        protocol = self.protocol if stable else None
        return DescribedGroup(
            self.id,
            self.state.value,
            self.protocol_type or "",
            protocol or "",
            tuple(member.describe(protocol) for member in self.members.values()),
        )

    # -- journal entries

    def entry(self, assignments: dict[str, bytes] | None = None) -> GroupEntry:
        """Return the journal entry of the group, with these assignments or the current ones."""
        return GroupEntry(
            self.id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            self.since_ms,
            tuple(
                MemberEntry(
                    member.id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.session_timeout_ms,
                    member.protocols,
                    member.assignment if assignments is None else assignments.get(member.id, b""),
                )
                for member in self.members.values()
            ),
        )

    @classmethod
    def from_entry(cls, entry: GroupEntry, settings: GroupSettings, budget: Budget) -> Group:
        group = cls(entry.group, settings, budget, entry.since_ms)
        for stored in entry.members:
            member = Member(
                stored.id,
                instance_id=stored.instance,
                client_id=stored.client,
                client_host=stored.host,
                rebalance_timeout_ms=stored.rebalance_timeout_ms,
                session_timeout_ms=stored.session_timeout_ms,
                protocols=stored.protocols,
                assignment=stored.assignment,
            )
            group.add(member, entry.protocol_type or "")
        group.generation = entry.generation
        group._set_protocol_type(entry.protocol_type)
        group.protocol = entry.protocol
        group.leader = entry.leader
        group.state = State.STABLE if entry.members else State.EMPTY
        group.update_topics()
        return group


def _unset() -> None:
    raise AssertionError("a group's timer has no action")


@dataclass(frozen=True, slots=True)
class GroupContext:
    """The groups of a coordinator, and the shared objects that change them."""

    groups: dict[str, Group]
    settings: GroupSettings
    budget: Budget
    ledger: Ledger
    timers: Timers
    topics: TopicNames
    trusted_ms: Callable[[], int]
    """Returns the time for timestamps that are stored for days (see ``headrace.clock.TrustedTime``)."""
