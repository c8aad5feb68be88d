"""One group as its members see it: who belongs to it, in which generation, in which state.

    Empty ──join──▶ PreparingRebalance ──all joined──▶ CompletingRebalance ──assignment durable──▶ Stable
      ▲                 │    ▲  ▲                            │                                       │
      └──nobody left────┘    │  └───────member changes───────┘                                       │
                             └───────────────member joins, changes, leaves or falls silent───────────┘

A group is Dead once it is deleted or the coordinator has stopped. No I/O and no clock in here; the rules of
when to move are in ``rebalancer.py``. Invariants: ``leader`` is a member whenever there are members; every
static instance points to a member that carries it; every member's size is counted once in the shared budget.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from enum import Enum

from headrace.broker.groups.answers import DescribedGroup, JoinAnswer, ListedGroup
from headrace.broker.groups.budget import GROUP_BYTES, Budget
from headrace.broker.groups.entries import GroupEntry, MemberEntry
from headrace.broker.groups.member import Member, Protocols
from headrace.broker.groups.pending_members import PendingMember
from headrace.broker.groups.settings import GroupSettings
from headrace.broker.groups.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from headrace.broker.groups.timers import Timer
from headrace.broker.sizes import text_bytes
from headrace.wire.codes import ErrorCode

__all__ = ["Group", "State"]


_TOPIC_BYTES = 96


class State(Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_MOVES = {
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
        #: Ids given out whose owners have not come back with them yet.
        self.pending: dict[str, PendingMember] = {}
        #: Members of this generation that have not asked for their assignment yet.
        self.unsynced: set[str] = set()
        #: The topics of all members; None when they cannot be known.
        self.topics: frozenset[str] | None = None
        #: Of its members.
        self.size_bytes = 0
        self.join_timer = Timer(_unset)
        self.sync_timer = Timer(_unset)
        #: True if somebody joined since the first rebalance was last put off.
        self.grew_in_delay = False
        #: The generation whose assignment is being written, so that a leader's second try does not write
        #: another.
        self.storing: int | None = None
        #: When the last member left: settles once the journal has it.
        self.emptied: asyncio.Future[Exception | None] | None = None
        self._budget = budget
        self._topics_bytes = 0
        names = text_bytes(group_id)
        budget.count(GROUP_BYTES + names, names)

    def release(self) -> None:
        """The group is forgotten: give back what it counts for."""
        names = text_bytes(self.id) + text_bytes(self.protocol_type)
        self._budget.count(-(GROUP_BYTES + names + self.size_bytes + self._topics_bytes), -names)

    # -- state

    def enter(self, state: State, now_ms: int) -> None:
        assert state in _MOVES[self.state], f"group {self.id!r}: no way from {self.state} to {state}"
        self.previous, self.state, self.since_ms = self.state, state, now_ms

    def next_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.unsynced.clear()
        self.storing = None
        if self.members:
            self.protocol = self.elect_protocol()
            self.enter(State.COMPLETING, now_ms)
        else:
            self.protocol = None
            self.enter(State.EMPTY, now_ms)
        self.note_topics()

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
            self._take_protocol_type(protocol_type)
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
        """A static member came back under a new id and takes the old one's place, as leader too."""
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
        """Whether this is a member, and not one that was replaced under the same instance id."""
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def elect_joined_leader(self) -> bool:
        """See to it that the leader is one who has rejoined; False if nobody has."""
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

    def _take_protocol_type(self, protocol_type: str | None) -> None:
        more = text_bytes(protocol_type) - text_bytes(self.protocol_type)
        self._budget.count(more, more)
        self.protocol_type = protocol_type

    # -- protocols

    def accepts(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these could work with those who are here."""
        if self.state is State.EMPTY:
            return bool(protocol_type and protocols)
        if protocol_type != self.protocol_type:
            return False
        common = self._common_protocols()
        return any(name in common for name, _ in protocols) if self.members else bool(protocols)

    def elect_protocol(self) -> str:
        """Every member votes for the first of its protocols that all have; the most votes win."""
        common = self._common_protocols()
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def _common_protocols(self) -> set[str]:
        """The protocols that every member has."""
        names = ({name for name, _ in member.protocols} for member in self.members.values())
        return set.intersection(*names) if self.members else set()

    def is_subscribed(self, topic: str) -> bool:
        """When a consumer group's topics are not known, any may be one of them."""
        if self.topics is not None:
            return topic in self.topics
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def note_topics(self) -> None:
        """Find the topics of all members again, as far as there is room for them."""
        self._budget.count(-self._topics_bytes)
        self.topics, self._topics_bytes = self._subscribed()
        self._budget.count(self._topics_bytes)

    def _subscribed(self) -> tuple[frozenset[str] | None, int]:
        """The topics, None if they cannot be known, and what they take."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None, 0
        topics: set[str] = set()
        names_left = self._settings.subscribed_names_max
        for member in self.members.values():
            of_member = subscribed_topics(member.subscription(self.protocol), names_left)
            if of_member is None:
                return None, 0
            names_left -= len(of_member)
            topics.update(of_member)
        size = sum(_TOPIC_BYTES + text_bytes(topic) for topic in topics)
        if size > self._settings.subscribed_bytes_max or not self._budget.has_room(size):
            return None, 0
        return frozenset(topics), size

    # -- answers

    def join_answer(self, member: Member, *, skip_assignment: bool = False) -> JoinAnswer:
        leads = member.id == self.leader
        return JoinAnswer(
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

    def listed(self) -> ListedGroup:
        return ListedGroup(self.id, self.protocol_type or "", self.state.value)

    def described(self) -> DescribedGroup:
        stable = self.state is State.STABLE
        protocol = self.protocol if stable else None
        return DescribedGroup(
            self.id,
            self.state.value,
            self.protocol_type or "",
            protocol or "",
            tuple(member.describe(protocol) for member in self.members.values()),
        )

    # -- the journal's form

    def entry(self, assignments: dict[str, bytes] | None = None) -> GroupEntry:
        """The group as it is, or as it will be with the leader's assignments."""
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
        for kept in entry.members:
            member = Member(
                kept.id,
                instance_id=kept.instance,
                client_id=kept.client,
                client_host=kept.host,
                rebalance_timeout_ms=kept.rebalance_timeout_ms,
                session_timeout_ms=kept.session_timeout_ms,
                protocols=kept.protocols,
                assignment=kept.assignment,
            )
            group.add(member, entry.protocol_type or "")
        group.generation = entry.generation
        group._take_protocol_type(entry.protocol_type)
        group.protocol = entry.protocol
        group.leader = entry.leader
        group.state = State.STABLE if entry.members else State.EMPTY
        group.note_topics()
        return group


def _unset() -> None:
    raise AssertionError("a group's timer was started without anything to do")
