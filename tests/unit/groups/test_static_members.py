"""Members with a group.instance.id: a restart of such a member does not cause a rebalance."""

from __future__ import annotations

from headrace.broker.groups import LeavingMember
from headrace.wire.codes import ErrorCode

from .rig import Client, Rig, form_group, join_all, settle, subscription


async def test_a_static_member_joins_with_one_request_and_its_id_begins_with_its_instance_id() -> None:
    async with Rig() as rig:
        answer = await Client(rig, instance_id="one").join_once()
        assert answer.error is ErrorCode.NONE
        assert answer.member_id.startswith("one-")
        assert answer.members[0][1] == "one"


async def test_a_restarted_static_follower_gets_its_assignment_without_a_rebalance() -> None:
    async with Rig() as rig:
        clients = [Client(rig, instance_id="one"), Client(rig, instance_id="two")]
        await form_group(*clients)
        leader, follower = clients if clients[0].leads else reversed(clients)
        again = Client(rig, instance_id=follower.instance_id)
        answer = await again.join()
        assert answer.generation == follower.generation
        assert answer.member_id != follower.member_id
        assert answer.members == ()
        assert not answer.skip_assignment
        assert (await again.sync()).assignment == follower.assignment
        assert leader.heartbeat() is ErrorCode.NONE
        assert rig.state() == "Stable"


async def test_a_restarted_static_leader_skips_the_assignment() -> None:
    async with Rig() as rig:
        leader, follower = Client(rig, instance_id="one"), Client(rig, instance_id="two")
        await form_group(leader)
        await form_group(leader, follower)
        assert leader.leads
        again = Client(rig, instance_id="one")
        answer = await again.join()
        assert answer.skip_assignment
        assert answer.leader == again.member_id
        assert {instance for _, instance, _ in answer.members} == {"one", "two"}
        assert answer.generation == leader.generation
        assert (await again.sync()).assignment == leader.assignment


async def test_before_version_9_a_restarted_static_leader_does_not_learn_that_it_leads() -> None:
    async with Rig() as rig:
        leader = Client(rig, instance_id="one", version=8)
        await form_group(leader)
        again = Client(rig, instance_id="one", version=8)
        answer = await again.join()
        assert not answer.skip_assignment
        # The returning member must not become leader: a leader would send assignments, which a stable group ignores.
        assert answer.leader == leader.member_id
        assert answer.members == ()
        assert (await again.sync()).assignment == leader.assignment


async def test_a_replaced_member_id_is_fenced() -> None:
    async with Rig() as rig:
        old = Client(rig, instance_id="one")
        await form_group(old)
        new = Client(rig, instance_id="one")
        await new.join()
        assert old.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
        assert (await old.join()).error is ErrorCode.FENCED_INSTANCE_ID
        assert (await old.sync()).error is ErrorCode.FENCED_INSTANCE_ID
        assert await old.commit(5) is ErrorCode.FENCED_INSTANCE_ID
        assert await old.leave() == [ErrorCode.FENCED_INSTANCE_ID]
        assert new.heartbeat() is ErrorCode.NONE
        assert await new.commit(5) is ErrorCode.NONE


async def test_an_unknown_instance_id_is_not_a_member() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        client.instance_id = "one"
        assert client.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
        assert (await client.join()).error is ErrorCode.UNKNOWN_MEMBER_ID


async def test_waiting_requests_of_a_replaced_member_are_fenced() -> None:
    async with Rig() as rig:
        leader, old = Client(rig, instance_id="one"), Client(rig, instance_id="two")
        await join_all(leader, old)
        leader, old = (leader, old) if leader.leads else (old, leader)
        syncing = old.syncing()
        await settle()
        new = Client(rig, instance_id=old.instance_id)
        joining = new.joining()
        assert (await syncing).error is ErrorCode.FENCED_INSTANCE_ID
        joining_leader = leader.joining()
        assert (await joining).error is (await joining_leader).error is ErrorCode.NONE

        third = Client(rig)
        parked = third.joining()
        await settle()
        old_join = new.joining()
        await settle()
        newest = Client(rig, instance_id=new.instance_id)
        newest_joins = newest.joining()
        assert (await old_join).error is ErrorCode.FENCED_INSTANCE_ID
        await leader.join()
        assert (await newest_joins).error is (await parked).error is ErrorCode.NONE


async def test_a_static_member_that_restarts_during_the_assignment_starts_a_new_rebalance() -> None:
    async with Rig() as rig:
        leader, follower = Client(rig, instance_id="one"), Client(rig, instance_id="two")
        await join_all(leader, follower)
        again = Client(rig, instance_id="two")
        joining = again.joining()
        await settle()
        assert rig.state() == "PreparingRebalance"
        await leader.join()
        assert (await joining).generation == leader.generation


async def test_a_static_member_that_changes_the_protocol_starts_a_rebalance() -> None:
    async with Rig() as rig:
        both = (("range", b""), ("sticky", b""))
        leader = Client(rig, instance_id="one", protocols=both)
        follower = Client(rig, instance_id="two", protocols=both)
        await form_group(leader, follower)
        again = Client(rig, instance_id="two", protocols=(("sticky", b""),))
        joining = again.joining()
        await settle()
        assert rig.state() == "PreparingRebalance"
        await leader.join()
        assert (await joining).protocol == "sticky"


async def test_an_absent_static_member_is_removed_when_its_session_expires() -> None:
    async with Rig() as rig:
        leader, follower = Client(rig, instance_id="one"), Client(rig, instance_id="two")
        await form_group(leader, follower)
        for _ in range(9):
            await rig.advance(1)
            assert leader.heartbeat() is ErrorCode.NONE
        await rig.advance(1.5)
        assert leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


async def test_a_rebalance_does_not_remove_absent_static_members() -> None:
    async with Rig() as rig:
        here = Client(rig, instance_id="here", rebalance_timeout_ms=8_000)
        away = Client(rig, instance_id="away", rebalance_timeout_ms=8_000, session_timeout_ms=30_000)
        await form_group(here, away)
        here.protocols = (("range", subscription("payments")),)
        joining = here.joining()
        await rig.advance(9)
        answer = await joining
        assert answer.leader == here.member_id
        assert {instance for _, instance, _ in answer.members} == {"here", "away"}


async def test_absent_static_members_without_others_stay_until_their_sessions_expire() -> None:
    async with Rig() as rig:
        leaver = Client(rig, instance_id="leaver", rebalance_timeout_ms=8_000)
        away = Client(rig, instance_id="away", rebalance_timeout_ms=8_000, session_timeout_ms=30_000)
        await form_group(leaver, away)
        await leaver.leave()
        await rig.advance(20)
        assert rig.state() == "PreparingRebalance"
        await rig.advance(12)
        assert rig.state() == "Empty"


async def test_an_administrator_removes_a_static_member_by_its_instance() -> None:
    async with Rig() as rig:
        client = Client(rig, instance_id="one")
        await form_group(client)
        errors = await rig.groups.leave("g", [LeavingMember("", "one"), LeavingMember("", "two")])
        assert errors == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
        assert rig.state() == "Empty"
        assert client.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_replacement_that_cannot_be_written_is_reverted() -> None:
    async with Rig() as rig:
        old = Client(rig, instance_id="one")
        await form_group(old)
        rig.journal.fails = True
        new = Client(rig, instance_id="one")
        assert (await new.join()).error is ErrorCode.NOT_COORDINATOR
        assert old.heartbeat() is ErrorCode.NONE
        assert rig.state() == "Stable"


async def test_a_replacement_is_durable_before_its_response() -> None:
    async with Rig() as rig:
        old = Client(rig, instance_id="one")
        await form_group(old)
        rig.journal.hold()
        new = Client(rig, instance_id="one")
        joining = new.joining()
        await settle()
        assert not joining.done()
        rig.journal.release()
        await joining
        await rig.crash()
        assert new.heartbeat() is ErrorCode.NONE
        assert old.heartbeat() is ErrorCode.FENCED_INSTANCE_ID


async def test_a_rebalance_that_begins_while_a_replacement_is_written_counts_it_as_joined() -> None:
    async with Rig() as rig:
        old, other = Client(rig, instance_id="one"), Client(rig)
        await form_group(old)
        rig.journal.hold()
        new = Client(rig, instance_id="one")
        joining = new.joining()
        await settle()
        other_joins = other.joining()
        await settle()
        assert (await joining).generation == (await other_joins).generation == old.generation + 1
        rig.journal.release()


async def test_a_rebalance_completes_the_join_of_a_replacement_that_is_being_written() -> None:
    async with Rig() as rig:
        old, other, third = Client(rig, instance_id="one"), Client(rig), Client(rig)
        await form_group(old, other)
        rig.journal.hold()
        new = Client(rig, instance_id="one")
        joining = new.joining()
        await settle()
        third_joins = third.joining()
        await settle()
        rig.journal.release()
        await settle()
        assert not joining.done()
        await other.join()
        assert (await joining).generation == (await third_joins).generation == other.generation


async def test_a_replacement_that_waited_for_a_slow_disk_has_a_session_timeout() -> None:
    async with Rig() as rig:
        await form_group(Client(rig, instance_id="one"))
        rig.journal.hold()
        joining = Client(rig, instance_id="one").joining()
        await rig.advance(15)
        rig.journal.release()
        assert (await joining).error is ErrorCode.NONE
        await rig.advance(11)
        assert rig.state() == "Empty"


async def test_of_two_concurrent_replacements_the_last_becomes_the_member() -> None:
    async with Rig() as rig:
        await form_group(Client(rig, instance_id="one"))
        rig.journal.hold()
        second, third = Client(rig, instance_id="one"), Client(rig, instance_id="one")
        second_joins = second.joining()
        await settle()
        third_joins = third.joining()
        assert (await second_joins).error is ErrorCode.FENCED_INSTANCE_ID
        rig.journal.fails = True
        rig.journal.release()
        assert (await third_joins).error is ErrorCode.NOT_COORDINATOR
        rig.journal.fails = False
        fourth = Client(rig, instance_id="one")
        assert (await fourth.join()).error is ErrorCode.NONE
        assert fourth.heartbeat() is ErrorCode.NONE
        described = rig.groups.describe("g")
        assert described is not None
        assert [member.member_id for member in described.members] == [fourth.member_id]
