"""A group's rebalances, request by request: which request waits for which other request, and the responses."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from faults.clients.java_driver import JavaDriver
from faults.servers.server import Server
from tests.support.raw import Raw
from tests.wire.scripts.groups import coordinator, join_fields
from tests.wire.scripts.talk import Conversation

Fresh = Callable[[str], str]
NONE, REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER, ILLEGAL_GENERATION = 0, 27, 25, 22


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Member:
    """A member on its own connection, so that its join may wait while another member sends requests."""

    def __init__(self, raw: Raw, group: str, instance: str | None = None) -> None:
        self.raw, self.group, self.instance = raw, group, instance
        self.id, self.generation, self.members = "", -1, {}  # type: str, int, dict[str, str]

    def fields(self, **more: Any) -> dict[str, Any]:
        return join_fields(self.group, self.id, groupInstanceId=self.instance, **more)

    def send_join(self, **more: Any) -> None:
        """Send the join only; a member without an id gets one first."""
        if not self.id and self.instance is None:
            self.id = self.raw.call("JoinGroup", 7, **self.fields(**more))["memberId"]
        self.raw.send("JoinGroup", 7, **self.fields(**more))

    def joined(self) -> int:
        """Wait for the response to the join, and store its member id and generation."""
        _, answer = self.raw.receive("JoinGroup", 7)
        if answer["errorCode"] == NONE:
            self.id, self.generation = answer["memberId"], answer["generationId"]
            self.members = {member["memberId"]: member["metadata"] for member in answer["members"]}
        code: int = answer["errorCode"]
        return code

    @property
    def identity(self) -> dict[str, Any]:
        return {"groupId": self.group, "memberId": self.id, "generationId": self.generation}

    def send_sync(self, **assignments: bytes) -> None:
        assigned = [{"memberId": who, "assignment": encode(what)} for who, what in assignments.items()]
        self.raw.send("SyncGroup", 3, assignments=assigned, groupInstanceId=self.instance, **self.identity)

    def synced(self) -> tuple[int, bytes]:
        _, answer = self.raw.receive("SyncGroup", 3)
        return answer["errorCode"], base64.b64decode(answer["assignment"])

    def beat(self) -> int:
        code: int = self.raw.call("Heartbeat", 3, groupInstanceId=self.instance, **self.identity)["errorCode"]
        return code

    def leave(self) -> int:
        answer = self.raw.call("LeaveGroup", 3, groupId=self.group, members=[{"memberId": self.id}])
        code: int = answer["members"][0]["errorCode"]
        return code


@pytest.fixture
def members(raw: Raw, driver: JavaDriver, cluster: Server, fresh: Fresh) -> Iterator[Callable[..., Member]]:
    group = fresh("g")
    coordinator(Conversation(raw, lambda: raw, fresh("talk"), is_kafka=cluster.name == "kafka"))
    opened: list[Raw] = []

    def member(instance: str | None = None) -> Member:
        opened.append(Raw(driver, cluster.port))
        return Member(opened[-1], group, instance)

    yield member
    for connection in opened:
        connection.close()


def form_group_of_one(member: Member) -> None:
    """Make the member the only one of a stable group."""
    member.send_join()
    assert member.joined() == NONE
    member.send_sync(**{member.id: b"all"})
    assert member.synced() == (NONE, b"all")


def form_group_of_two(leader: Member, other: Member) -> None:
    """Let a second member join, and the first send the assignments."""
    other.send_join()
    assert until_rebalancing(leader) == REBALANCE_IN_PROGRESS
    leader.send_join()
    assert (leader.joined(), other.joined()) == (NONE, NONE)
    other.send_sync()
    leader.send_sync(**{leader.id: b"mine", other.id: b"yours"})
    assert (leader.synced(), other.synced()) == ((NONE, b"mine"), (NONE, b"yours"))


def until_rebalancing(member: Member) -> int:
    """Send heartbeats until one returns an error: the join of the other member may still be on its way."""
    for _ in range(200):
        code = member.beat()
        if code != NONE:
            return code
    return NONE


def test_a_second_member_waits_until_the_leader_rejoins_and_sends_assignments(
    members: Callable[..., Member],
) -> None:
    leader, other = members(), members()
    form_group_of_one(leader)
    generation = leader.generation
    form_group_of_two(leader, other)
    assert (leader.generation, other.generation) == (generation + 1, generation + 1)
    # Only the leader gets the list of members.
    assert leader.members.keys() == {leader.id, other.id}
    assert other.members == {}
    assert (leader.beat(), other.beat()) == (NONE, NONE)


def test_a_member_that_leaves_starts_a_rebalance(members: Callable[..., Member]) -> None:
    leader, other = members(), members()
    form_group_of_one(leader)
    form_group_of_two(leader, other)
    assert other.leave() == NONE
    assert leader.beat() == REBALANCE_IN_PROGRESS
    assert other.beat() == UNKNOWN_MEMBER
    leader.send_join()
    assert leader.joined() == NONE
    assert leader.members.keys() == {leader.id}


def test_another_member_becomes_the_leader_when_the_leader_leaves(members: Callable[..., Member]) -> None:
    leader, other = members(), members()
    form_group_of_one(leader)
    form_group_of_two(leader, other)
    leader.leave()
    other.send_join()
    assert other.joined() == NONE
    assert other.members.keys() == {other.id}
    other.send_sync(**{other.id: b"all of it"})
    assert other.synced() == (NONE, b"all of it")


def test_a_member_of_an_earlier_generation_gets_illegal_generation(members: Callable[..., Member]) -> None:
    leader, other = members(), members()
    form_group_of_one(leader)
    before = leader.generation
    form_group_of_two(leader, other)
    leader.generation = before
    assert leader.beat() == ILLEGAL_GENERATION
    leader.send_sync()
    assert leader.synced() == (ILLEGAL_GENERATION, b"")


def test_a_sync_of_a_follower_waits_for_the_sync_of_the_leader(
    members: Callable[..., Member],
) -> None:
    leader, other = members(), members()
    form_group_of_one(leader)
    other.send_join()
    until_rebalancing(leader)
    leader.send_join()
    assert (leader.joined(), other.joined()) == (NONE, NONE)
    other.send_sync()
    # While the group waits for assignments, heartbeats succeed, and the join of a new member starts a rebalance.
    third = members()
    third.send_join()
    assert until_rebalancing(leader) == REBALANCE_IN_PROGRESS
    assert other.synced() == (REBALANCE_IN_PROGRESS, b"")
    for member in (leader, other):
        member.send_join()
    assert [member.joined() for member in (leader, other, third)] == [NONE] * 3


def test_a_group_selects_the_common_protocol_that_most_members_prefer(members: Callable[..., Member]) -> None:
    leader, other = members(), members()

    def protocols(*names: str) -> dict[str, Any]:
        return {"protocols": [{"name": name, "metadata": encode(b"")} for name in names]}

    leader.send_join(**protocols("range", "sticky"))
    assert leader.joined() == NONE
    leader.send_sync(**{leader.id: b""})
    leader.synced()
    other.send_join(**protocols("sticky", "roundrobin"))
    until_rebalancing(leader)
    leader.raw.send("JoinGroup", 7, **leader.fields(**protocols("range", "sticky")))
    _, leader_response = leader.raw.receive("JoinGroup", 7)
    _, other_response = other.raw.receive("JoinGroup", 7)
    assert (leader_response["protocolName"], other_response["protocolName"]) == ("sticky", "sticky")


def test_a_static_member_that_is_replaced_is_fenced(members: Callable[..., Member]) -> None:
    old = members("one")
    form_group_of_one(old)
    new = members("one")
    new.send_join()
    assert new.joined() == NONE
    # Nothing else has changed, so no rebalance follows: the generation and the assignment stay the same.
    assert (new.generation, new.members) == (old.generation, {})
    new.send_sync()
    assert new.synced() == (NONE, b"all")
    assert (old.beat(), new.beat()) == (82, NONE)
    old.send_sync()
    assert old.synced() == (82, b"")


def test_a_pending_join_is_fenced_when_its_static_instance_joins_again(
    members: Callable[..., Member],
) -> None:
    leader, waiting = members(), members("one")
    form_group_of_one(leader)
    waiting.send_join()
    until_rebalancing(leader)
    successor = members("one")
    successor.send_join()
    assert waiting.joined() == 82
    leader.send_join()
    assert (leader.joined(), successor.joined()) == (NONE, NONE)
    assert leader.members.keys() == {leader.id, successor.id}
