"""Listing, describing and deleting groups, and the limits of groups."""

from __future__ import annotations

from headrace.broker.groups import GroupSettings
from headrace.wire.codes import ErrorCode

from .rig import Client, Rig, form_group, settle, subscription


async def test_groups_are_filtered_by_state_and_type_case_insensitively() -> None:
    async with Rig() as rig:
        await rig.commit(1, group_id="offsets")
        await form_group(Client(rig, group_id="members"))

        def listed(**filters: list[str]) -> set[str]:
            return {group.group_id for group in rig.groups.list_groups(**filters)}

        assert listed() == {"offsets", "members"}
        assert listed(states=["Stable"]) == {"members"}
        assert listed(states=[" sTABLE", "empty"]) == {"offsets", "members"}
        assert listed(states=["Dead"]) == set()
        assert listed(types=["Classic"]) == {"offsets", "members"}
        assert listed(types=["consumer"]) == set()
        assert listed(types=["consumer", "classic"], states=["empty"]) == {"offsets"}


async def test_a_stable_group_is_described_with_subscriptions_and_assignments() -> None:
    async with Rig() as rig:
        client = Client(rig, instance_id="one", client_id="shop")
        await form_group(client)
        group = rig.groups.describe("g")
        assert group is not None
        assert (group.state, group.protocol_type, group.protocol) == ("Stable", "consumer", "range")
        (member,) = group.members
        assert member.member_id == client.member_id
        assert member.instance_id == "one"
        assert member.client_id == "shop"
        assert member.client_host == "/127.0.0.1"
        assert member.subscription == subscription("orders")
        assert member.assignment == client.member_id.encode()


async def test_a_group_in_a_rebalance_is_described_without_a_protocol() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await client.join()
        group = rig.groups.describe("g")
        assert group is not None
        assert (group.state, group.protocol) == ("CompletingRebalance", "")
        assert [member.subscription for member in group.members] == [b""]


async def test_a_missing_group_is_not_described() -> None:
    async with Rig() as rig:
        assert rig.groups.describe("g") is None


async def test_only_groups_without_members_are_deleted_and_their_offsets_with_them() -> None:
    async with Rig() as rig:
        await rig.commit(1, group_id="offsets")
        client = Client(rig, group_id="members")
        await form_group(client)
        await client.commit(2)
        errors = await rig.groups.delete_groups(["offsets", "members", "nothing"])
        assert errors == [ErrorCode.NONE, ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
        assert rig.committed(group_id="offsets") is None
        assert rig.committed(group_id="members") == 2
        await rig.crash()
        assert [group.group_id for group in rig.groups.list_groups()] == ["members"]
        assert rig.committed(group_id="offsets") is None


async def test_a_group_being_joined_is_not_deleted() -> None:
    async with Rig() as rig:
        await Client(rig).join()
        assert await rig.groups.delete_groups(["g"]) == [ErrorCode.NON_EMPTY_GROUP]


async def test_a_deletion_whose_journal_write_failed_deletes_nothing() -> None:
    async with Rig() as rig:
        await rig.commit(1)
        rig.journal.fails = True
        assert await rig.groups.delete_groups(["g"]) == [ErrorCode.NOT_COORDINATOR]
        assert rig.committed() == 1
        assert rig.state() == "Empty"


async def test_a_deleted_group_can_be_created_again() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        await client.leave()
        await rig.groups.delete_groups(["g"])
        assert (await client.join()).error is ErrorCode.UNKNOWN_MEMBER_ID
        again = Client(rig)
        await form_group(again)
        assert again.generation == 1


async def test_a_member_that_joins_while_its_group_is_deleted_is_not_lost() -> None:
    async with Rig() as rig:
        await rig.commit(1)
        rig.journal.hold()
        deleting = rig.start_request(rig.groups.delete_groups(["g"]))
        await settle()
        client = Client(rig)
        await client.join()
        rig.journal.release()
        assert await deleting == [ErrorCode.NONE]
        assert rig.committed() is None
        assert (await client.sync()).error is ErrorCode.NONE


async def test_the_number_of_groups_has_a_limit() -> None:
    async with Rig(GroupSettings(groups_max=2)) as rig:
        await rig.commit(1, group_id="a")
        await Client(rig, group_id="b").join_once()
        assert await rig.commit(1, group_id="c") is ErrorCode.POLICY_VIOLATION
        assert (await Client(rig, group_id="c").join_once()).error is ErrorCode.POLICY_VIOLATION
        assert await rig.commit(2, group_id="a") is ErrorCode.NONE
        await rig.groups.delete_groups(["a"])
        assert await rig.commit(1, group_id="c") is ErrorCode.NONE


async def test_a_group_id_may_have_any_characters_up_to_the_length_limit() -> None:
    async with Rig(GroupSettings(group_id_chars_max=100)) as rig:
        for group_id in ("../x", "a/b", "\0", ".", "x" * 100, "Ä 漢 😀"):
            assert (await Client(rig, group_id=group_id).join_once()).error is ErrorCode.MEMBER_ID_REQUIRED
            assert await rig.commit(1, group_id=group_id) is ErrorCode.NONE
        assert (await Client(rig, group_id="x" * 101).join_once()).error is ErrorCode.INVALID_GROUP_ID
        assert await rig.commit(1, group_id="x" * 101) is ErrorCode.INVALID_GROUP_ID
        await rig.crash()
        assert {group.group_id for group in rig.groups.list_groups()} == {
            "../x", "a/b", "\0", ".", "x" * 100, "Ä 漢 😀",
        }  # fmt: skip


async def test_pending_member_ids_of_a_group_have_a_limit() -> None:
    async with Rig(GroupSettings(members_per_group_max=3)) as rig:
        for _ in range(3):
            assert (await Client(rig).join_once()).error is ErrorCode.MEMBER_ID_REQUIRED
        assert (await Client(rig).join_once()).error is ErrorCode.GROUP_MAX_SIZE_REACHED
        await rig.advance(11)
        assert (await Client(rig).join_once()).error is ErrorCode.MEMBER_ID_REQUIRED


async def test_the_memory_of_one_member_is_limited() -> None:
    async with Rig(GroupSettings(subscription_bytes_max=3_000)) as rig:
        big = Client(rig, protocols=(("range", bytes(3_001)),))
        assert (await big.join_once()).error is ErrorCode.POLICY_VIOLATION
        many = Client(rig, protocols=tuple((f"p{index}", b"") for index in range(20)))
        assert (await many.join_once()).error is ErrorCode.POLICY_VIOLATION
        assert rig.groups.list_groups() == []


async def test_the_memory_of_a_group_and_of_all_groups_is_limited() -> None:
    settings = GroupSettings(group_bytes_max=15_000, all_groups_bytes_max=28_000)
    async with Rig(settings) as rig:
        protocols = (("range", bytes(8_000)),)
        await form_group(Client(rig, group_id="a", protocols=protocols))
        second = Client(rig, group_id="a", protocols=protocols)
        assert (await second.join()).error is ErrorCode.POLICY_VIOLATION
        await form_group(other := Client(rig, group_id="b", protocols=protocols))
        assert (
            await Client(rig, group_id="c", protocols=protocols).join()
        ).error is ErrorCode.POLICY_VIOLATION
        await other.leave()
        await form_group(Client(rig, group_id="c", protocols=protocols))


async def test_a_full_group_still_accepts_a_returning_static_member() -> None:
    settings = GroupSettings(members_per_group_max=1, group_bytes_max=10_000)
    async with Rig(settings) as rig:
        protocols = (("range", bytes(6_000)),)
        await form_group(Client(rig, instance_id="one", protocols=protocols))
        again = Client(rig, instance_id="one", protocols=protocols)
        assert (await again.join()).error is ErrorCode.NONE
