"""A group's rounds, request by request: who waits for whom, and who is told what."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.java_driver import JavaDriver
from tests.support.raw import Raw
from tests.support.server import Server
from tests.wire.scripts.groups import coordinator, join_fields
from tests.wire.scripts.talk import Talk

Fresh = Callable[[str], str]
NONE, REBALANCE, UNKNOWN, STALE = 0, 27, 25, 22


def packed(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Member:
    """One member on a connection of its own, so that a join may wait while another member talks."""

    def __init__(self, raw: Raw, group: str, instance: str | None = None) -> None:
        self.raw, self.group, self.instance = raw, group, instance
        self.id, self.generation, self.members = "", -1, {}  # type: str, int, dict[str, str]

    def fields(self, **more: Any) -> dict[str, Any]:
        return join_fields(self.group, self.id, groupInstanceId=self.instance, **more)

    def ask_to_join(self, **more: Any) -> None:
        """Send the join only; a member without an id gets one first."""
        if not self.id and self.instance is None:
            self.id = self.raw.ask("JoinGroup", 7, **self.fields(**more))["memberId"]
        self.raw.send("JoinGroup", 7, **self.fields(**more))

    def joined(self) -> int:
        """Wait for the join's answer and take over what it says."""
        _, answer = self.raw.receive("JoinGroup", 7)
        if answer["errorCode"] == NONE:
            self.id, self.generation = answer["memberId"], answer["generationId"]
            self.members = {one["memberId"]: one["metadata"] for one in answer["members"]}
        code: int = answer["errorCode"]
        return code

    @property
    def place(self) -> dict[str, Any]:
        return {"groupId": self.group, "memberId": self.id, "generationId": self.generation}

    def ask_to_sync(self, **assignments: bytes) -> None:
        given = [{"memberId": who, "assignment": packed(what)} for who, what in assignments.items()]
        self.raw.send("SyncGroup", 3, assignments=given, groupInstanceId=self.instance, **self.place)

    def synced(self) -> tuple[int, bytes]:
        _, answer = self.raw.receive("SyncGroup", 3)
        return answer["errorCode"], base64.b64decode(answer["assignment"])

    def beat(self) -> int:
        code: int = self.raw.ask("Heartbeat", 3, groupInstanceId=self.instance, **self.place)["errorCode"]
        return code

    def leave(self) -> int:
        answer = self.raw.ask("LeaveGroup", 3, groupId=self.group, members=[{"memberId": self.id}])
        code: int = answer["members"][0]["errorCode"]
        return code


@pytest.fixture
def members(raw: Raw, driver: JavaDriver, cluster: Server, fresh: Fresh) -> Iterator[Callable[..., Member]]:
    group = fresh("g")
    coordinator(Talk(raw, lambda: raw, fresh("talk"), is_kafka=cluster.name == "kafka"))
    opened: list[Raw] = []

    def member(instance: str | None = None) -> Member:
        opened.append(Raw(driver, cluster.port))
        return Member(opened[-1], group, instance)

    yield member
    for connection in opened:
        connection.close()


def alone(member: Member) -> None:
    """The member is in a stable group by itself."""
    member.ask_to_join()
    assert member.joined() == NONE
    member.ask_to_sync(**{member.id: b"all"})
    assert member.synced() == (NONE, b"all")


def both(leader: Member, other: Member) -> None:
    """A second member has joined, and the first has shared out."""
    other.ask_to_join()
    assert until_rebalancing(leader) == REBALANCE
    leader.ask_to_join()
    assert (leader.joined(), other.joined()) == (NONE, NONE)
    other.ask_to_sync()
    leader.ask_to_sync(**{leader.id: b"mine", other.id: b"yours"})
    assert (leader.synced(), other.synced()) == ((NONE, b"mine"), (NONE, b"yours"))


def until_rebalancing(member: Member) -> int:
    """The join of another member may still be on its way; the first heartbeat that is not plain says so."""
    for _ in range(200):
        code = member.beat()
        if code != NONE:
            return code
    return NONE


def test_a_second_member_waits_for_the_first_to_rejoin_and_for_its_plan(
    members: Callable[..., Member],
) -> None:
    leader, other = members(), members()
    alone(leader)
    generation = leader.generation
    both(leader, other)
    assert (leader.generation, other.generation) == (generation + 1, generation + 1)
    # Only the leader is told who else there is.
    assert leader.members.keys() == {leader.id, other.id}
    assert other.members == {}
    assert (leader.beat(), other.beat()) == (NONE, NONE)


def test_a_member_that_leaves_sets_the_others_moving(members: Callable[..., Member]) -> None:
    leader, other = members(), members()
    alone(leader)
    both(leader, other)
    assert other.leave() == NONE
    assert leader.beat() == REBALANCE
    assert other.beat() == UNKNOWN
    leader.ask_to_join()
    assert leader.joined() == NONE
    assert leader.members.keys() == {leader.id}


def test_the_leader_s_leaving_makes_another_the_leader(members: Callable[..., Member]) -> None:
    leader, other = members(), members()
    alone(leader)
    both(leader, other)
    leader.leave()
    other.ask_to_join()
    assert other.joined() == NONE
    assert other.members.keys() == {other.id}
    other.ask_to_sync(**{other.id: b"all of it"})
    assert other.synced() == (NONE, b"all of it")


def test_a_member_of_the_last_generation_is_stale(members: Callable[..., Member]) -> None:
    leader, other = members(), members()
    alone(leader)
    before = leader.generation
    both(leader, other)
    leader.generation = before
    assert leader.beat() == STALE
    leader.ask_to_sync()
    assert leader.synced() == (STALE, b"")


def test_a_sync_before_the_leader_s_is_answered_when_the_leader_s_comes(
    members: Callable[..., Member],
) -> None:
    leader, other = members(), members()
    alone(leader)
    other.ask_to_join()
    until_rebalancing(leader)
    leader.ask_to_join()
    assert (leader.joined(), other.joined()) == (NONE, NONE)
    other.ask_to_sync()
    # While the plan is awaited, heartbeats are fine and a new member's join sets all moving again.
    third = members()
    third.ask_to_join()
    assert until_rebalancing(leader) == REBALANCE
    assert other.synced() == (REBALANCE, b"")
    for member in (leader, other):
        member.ask_to_join()
    assert [member.joined() for member in (leader, other, third)] == [NONE] * 3


def test_the_protocol_is_the_one_that_all_have_and_most_prefer(members: Callable[..., Member]) -> None:
    leader, other = members(), members()

    def protocols(*names: str) -> dict[str, Any]:
        return {"protocols": [{"name": name, "metadata": packed(b"")} for name in names]}

    leader.ask_to_join(**protocols("range", "sticky"))
    assert leader.joined() == NONE
    leader.ask_to_sync(**{leader.id: b""})
    leader.synced()
    other.ask_to_join(**protocols("sticky", "roundrobin"))
    until_rebalancing(leader)
    leader.raw.send("JoinGroup", 7, **leader.fields(**protocols("range", "sticky")))
    _, told_leader = leader.raw.receive("JoinGroup", 7)
    _, told_other = other.raw.receive("JoinGroup", 7)
    assert (told_leader["protocolName"], told_other["protocolName"]) == ("sticky", "sticky")


def test_a_static_member_that_is_replaced_is_fenced(members: Callable[..., Member]) -> None:
    old = members("one")
    alone(old)
    new = members("one")
    new.ask_to_join()
    assert new.joined() == NONE
    # Nothing else has changed, so nobody has to move: the same generation, and the same assignment.
    assert (new.generation, new.members) == (old.generation, {})
    new.ask_to_sync()
    assert new.synced() == (NONE, b"all")
    assert (old.beat(), new.beat()) == (82, NONE)
    old.ask_to_sync()
    assert old.synced() == (82, b"")


def test_a_join_that_is_under_way_is_called_off_when_its_instance_joins_anew(
    members: Callable[..., Member],
) -> None:
    leader, waiting = members(), members("one")
    alone(leader)
    waiting.ask_to_join()
    until_rebalancing(leader)
    successor = members("one")
    successor.ask_to_join()
    assert waiting.joined() == 82
    leader.ask_to_join()
    assert (leader.joined(), successor.joined()) == (NONE, NONE)
    assert leader.members.keys() == {leader.id, successor.id}
