"""The memory of groups: everything is counted, and limited."""

from __future__ import annotations

from headrace.broker.groups import GroupSettings
from headrace.wire.codes import ErrorCode

from .rig import Client, Rig, form_group, settle, subscription

#: 120 KB in memory, because one character outside ASCII makes all of them four bytes wide.
LONG = "x" * 29_999 + "😀"


async def test_the_bytes_of_pending_member_ids_of_all_groups_are_limited() -> None:
    async with Rig() as rig:
        errors = [
            (await Client(rig, group_id=f"g{number}", client_id=LONG).join_once()).error
            for number in range(100)
        ]
        accepted = errors.count(ErrorCode.MEMBER_ID_REQUIRED)
        assert errors == [ErrorCode.MEMBER_ID_REQUIRED] * accepted + [
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        ] * (100 - accepted)
        assert accepted * 4 * len(LONG) < rig.settings.pending_members_bytes_max
        # A group without a member or a pending member id does not exist.
        assert len(rig.groups.list_groups()) == accepted
        # Pending ids do not count against members, and their memory is freed.
        await form_group(Client(rig, group_id="other", version=3))
        await rig.advance(11)
        assert [group.group_id for group in rig.groups.list_groups()] == ["other"]
        assert (await Client(rig, client_id=LONG).join_once()).error is ErrorCode.MEMBER_ID_REQUIRED


async def test_short_pending_member_ids_have_the_same_limit() -> None:
    settings = GroupSettings(pending_members_bytes_max=10_000)
    async with Rig(settings) as rig:
        errors = [(await Client(rig).join_once()).error for _ in range(20)]
        assert errors.count(ErrorCode.MEMBER_ID_REQUIRED) == 9


async def test_a_pending_member_id_is_removed_when_its_connection_closes() -> None:
    async with Rig() as rig:
        member, disconnected, other = Client(rig), Client(rig), Client(rig)
        await form_group(member)
        await disconnected.join_once(connection="gone")
        await other.join_once(connection="other")
        rejoined = member.joining()
        await settle()
        assert not rejoined.done()
        rig.groups.forget_connection("gone")
        rig.groups.forget_connection("never joined")
        assert (await disconnected.join_once(connection="new")).error is ErrorCode.UNKNOWN_MEMBER_ID
        # The group no longer waits for the lost client, but still for the other one.
        assert not rejoined.done()
        joined = rig.start_request(other.join_once(connection="other"))
        assert (await rejoined).error is (await joined).error is ErrorCode.NONE
        rig.groups.forget_connection("other")
        assert other.member_id in {m.member_id for m in rig.groups.describe("g").members}  # type: ignore[union-attr]


async def test_a_rebalance_completes_when_the_last_pending_member_id_is_removed() -> None:
    async with Rig() as rig:
        member, disconnected = Client(rig), Client(rig)
        await form_group(member)
        await disconnected.join_once(connection="gone")
        rejoined = member.joining()
        await settle()
        assert not rejoined.done()
        rig.groups.forget_connection("gone")
        assert (await rejoined).error is ErrorCode.NONE


async def test_a_group_without_members_and_offsets_is_removed_with_its_last_pending_id() -> None:
    async with Rig() as rig:
        await Client(rig, group_id="named").join_once(connection="gone")
        await Client(rig, group_id="used").join_once(connection="gone")
        assert await rig.commit(1, group_id="used") is ErrorCode.NONE
        rig.groups.forget_connection("gone")
        assert [group.group_id for group in rig.groups.list_groups()] == ["used"]
        assert rig.committed(group_id="used") == 1
        joined = Client(rig, group_id="joined")
        await form_group(joined)
        await joined.leave()
        await Client(rig, group_id="joined").join_once(connection="gone")
        rig.groups.forget_connection("gone")
        assert rig.state("joined") == "Empty"


async def test_a_protocol_type_is_limited_and_counted_as_memory() -> None:
    async with Rig(GroupSettings(all_group_names_bytes_max=700)) as rig:
        assert (await Client(rig, protocol_type="x" * 257).join_once()).error is ErrorCode.POLICY_VIOLATION
        assert rig.groups.list_groups() == []
        await form_group(Client(rig, group_id="a", protocol_type="x" * 256))
        await form_group(Client(rig, group_id="b", protocol_type="y" * 256))
        refused = await Client(rig, group_id="c", protocol_type="z" * 256).join_once()
        assert refused.error is ErrorCode.POLICY_VIOLATION
        assert (await Client(rig, group_id="c" * 200).join_once()).error is ErrorCode.POLICY_VIOLATION
        assert await rig.commit(1, group_id="c" * 200) is ErrorCode.POLICY_VIOLATION
        assert await rig.commit(1, group_id="c" * 100) is ErrorCode.NONE
        await rig.crash()
        assert await rig.commit(1, group_id="d" * 200) is ErrorCode.POLICY_VIOLATION
        await rig.groups.delete_groups(["c" * 100])
        assert await rig.commit(1, group_id="d" * 150) is ErrorCode.NONE


async def test_each_protocol_of_a_member_is_counted_as_memory() -> None:
    async with Rig() as rig:
        protocols = tuple((chr(number), b"") for number in range(0x4E00, 0x4E00 + 6_000))
        assert (await Client(rig, protocols=protocols).join()).error is ErrorCode.POLICY_VIOLATION


async def test_members_without_subscriptions_are_counted_as_memory() -> None:
    async with Rig(GroupSettings(all_groups_bytes_max=20_000)) as rig:
        errors = [
            (await Client(rig, group_id=f"g{number}", protocols=(("p", b""),)).join()).error
            for number in range(20)
        ]
        assert ErrorCode.POLICY_VIOLATION in errors
        assert errors[:3] == [ErrorCode.NONE] * 3


async def test_the_assignments_of_all_groups_are_counted_as_memory() -> None:
    async with Rig(GroupSettings(all_groups_bytes_max=20_000)) as rig:
        client = Client(rig)
        await client.join()
        refused = await client.sync({client.member_id: bytes(20_000)})
        assert refused.error is ErrorCode.UNKNOWN_SERVER_ERROR


async def test_a_group_with_too_many_subscribed_topics_counts_as_subscribed_to_all_topics() -> None:
    many = subscription(*(f"{number:x}" for number in range(50)))
    for settings in (GroupSettings(subscribed_bytes_max=1_000), GroupSettings(subscribed_names_max=49)):
        async with Rig(settings) as rig:
            await form_group(Client(rig, protocols=(("range", many),)))
            assert await rig.groups.delete_offsets("g", [("orders", 0)]) == [
                ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            ]
    async with Rig() as rig:
        await form_group(Client(rig, protocols=(("range", many),)))
        assert await rig.groups.delete_offsets("g", [("orders", 0)]) == [ErrorCode.NONE]
