"""What clients can make groups keep: everything is counted by what it takes in memory, and has a limit."""

from __future__ import annotations

from headrace.broker.groups import GroupSettings
from headrace.wire.codes import ErrorCode

from .rig import Client, Rig, form, settle, subscription

#: 120 KB in memory, because of one wide character.
LONG = "x" * 29_999 + "😀"


async def test_ids_that_were_given_out_have_a_limit_in_bytes_over_all_groups() -> None:
    async with Rig() as rig:
        errors = [
            (await Client(rig, group_id=f"g{number}", client_id=LONG).join_once()).error
            for number in range(100)
        ]
        given = errors.count(ErrorCode.MEMBER_ID_REQUIRED)
        assert errors == [ErrorCode.MEMBER_ID_REQUIRED] * given + [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * (
            100 - given
        )
        assert given * 4 * len(LONG) < rig.settings.pending_members_bytes_max
        # A group that nobody holds an id of is not there.
        assert len(rig.groups.list_groups()) == given
        # They take nothing from members, and their room comes back.
        await form(Client(rig, group_id="other", version=3))
        await rig.advance(11)
        assert [group.group_id for group in rig.groups.list_groups()] == ["other"]
        assert (await Client(rig, client_id=LONG).join_once()).error is ErrorCode.MEMBER_ID_REQUIRED


async def test_short_ids_that_were_given_out_have_the_same_limit() -> None:
    settings = GroupSettings(pending_members_bytes_max=10_000)
    async with Rig(settings) as rig:
        errors = [(await Client(rig).join_once()).error for _ in range(20)]
        assert errors.count(ErrorCode.MEMBER_ID_REQUIRED) == 9


async def test_an_id_ends_with_the_connection_over_which_it_was_given() -> None:
    async with Rig() as rig:
        member, gone, other = Client(rig), Client(rig), Client(rig)
        await form(member)
        await gone.join_once(connection="gone")
        await other.join_once(connection="other")
        rejoined = member.joining()
        await settle()
        assert not rejoined.done()
        rig.groups.forget_connection("gone")
        rig.groups.forget_connection("never joined")
        assert (await gone.join_once(connection="new")).error is ErrorCode.UNKNOWN_MEMBER_ID
        # Nobody waits for it any more, but for the other one.
        assert not rejoined.done()
        joined = rig.park(other.join_once(connection="other"))
        assert (await rejoined).error is (await joined).error is ErrorCode.NONE
        rig.groups.forget_connection("other")
        assert other.member_id in {m.member_id for m in rig.groups.describe("g").members}  # type: ignore[union-attr]


async def test_the_last_id_that_ends_with_its_connection_lets_the_others_go_on() -> None:
    async with Rig() as rig:
        member, gone = Client(rig), Client(rig)
        await form(member)
        await gone.join_once(connection="gone")
        rejoined = member.joining()
        await settle()
        assert not rejoined.done()
        rig.groups.forget_connection("gone")
        assert (await rejoined).error is ErrorCode.NONE


async def test_a_group_that_nobody_joined_ends_with_its_last_id_and_one_with_offsets_stays() -> None:
    async with Rig() as rig:
        await Client(rig, group_id="named").join_once(connection="gone")
        await Client(rig, group_id="used").join_once(connection="gone")
        assert await rig.commit(1, group_id="used") is ErrorCode.NONE
        rig.groups.forget_connection("gone")
        assert [group.group_id for group in rig.groups.list_groups()] == ["used"]
        assert rig.committed(group_id="used") == 1
        joined = Client(rig, group_id="joined")
        await form(joined)
        await joined.leave()
        await Client(rig, group_id="joined").join_once(connection="gone")
        rig.groups.forget_connection("gone")
        assert rig.state("joined") == "Empty"


async def test_a_protocol_type_has_a_limit_and_counts() -> None:
    async with Rig(GroupSettings(all_group_names_bytes_max=700)) as rig:
        assert (await Client(rig, protocol_type="x" * 257).join_once()).error is ErrorCode.POLICY_VIOLATION
        assert rig.groups.list_groups() == []
        await form(Client(rig, group_id="a", protocol_type="x" * 256))
        await form(Client(rig, group_id="b", protocol_type="y" * 256))
        refused = await Client(rig, group_id="c", protocol_type="z" * 256).join_once()
        assert refused.error is ErrorCode.POLICY_VIOLATION
        assert (await Client(rig, group_id="c" * 200).join_once()).error is ErrorCode.POLICY_VIOLATION
        assert await rig.commit(1, group_id="c" * 200) is ErrorCode.POLICY_VIOLATION
        assert await rig.commit(1, group_id="c" * 100) is ErrorCode.NONE
        await rig.crash()
        assert await rig.commit(1, group_id="d" * 200) is ErrorCode.POLICY_VIOLATION
        await rig.groups.delete_groups(["c" * 100])
        assert await rig.commit(1, group_id="d" * 150) is ErrorCode.NONE


async def test_every_protocol_of_a_member_counts_however_short_its_name() -> None:
    async with Rig() as rig:
        protocols = tuple((chr(number), b"") for number in range(0x4E00, 0x4E00 + 6_000))
        assert (await Client(rig, protocols=protocols).join()).error is ErrorCode.POLICY_VIOLATION


async def test_members_without_subscriptions_count_as_well() -> None:
    async with Rig(GroupSettings(all_groups_bytes_max=20_000)) as rig:
        errors = [
            (await Client(rig, group_id=f"g{number}", protocols=(("p", b""),)).join()).error
            for number in range(20)
        ]
        assert ErrorCode.POLICY_VIOLATION in errors
        assert errors[:3] == [ErrorCode.NONE] * 3


async def test_assignments_count_over_all_groups() -> None:
    async with Rig(GroupSettings(all_groups_bytes_max=20_000)) as rig:
        client = Client(rig)
        await client.join()
        refused = await client.sync({client.member_id: bytes(20_000)})
        assert refused.error is ErrorCode.UNKNOWN_SERVER_ERROR


async def test_a_group_that_subscribes_to_too_many_topics_to_remember_may_read_any_of_them() -> None:
    many = subscription(*(f"{number:x}" for number in range(50)))
    for settings in (GroupSettings(subscribed_bytes_max=1_000), GroupSettings(subscribed_names_max=49)):
        async with Rig(settings) as rig:
            await form(Client(rig, protocols=(("range", many),)))
            assert await rig.groups.delete_offsets("g", [("orders", 0)]) == [
                ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            ]
    async with Rig() as rig:
        await form(Client(rig, protocols=(("range", many),)))
        assert await rig.groups.delete_offsets("g", [("orders", 0)]) == [ErrorCode.NONE]
