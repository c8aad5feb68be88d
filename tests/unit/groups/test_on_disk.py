"""Guarantees of the group coordinator with the real journal on a real disk. Other modules use a journal in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.broker.groups import GroupCoordinator
from headrace.broker.groups.entries import GroupDeleted, encode_entry
from headrace.clock import SystemClock
from headrace.errors import DamagedState
from headrace.files import SystemFiles
from headrace.log.committer import Committer
from headrace.log.journal import Journal
from headrace.wire.codes import ErrorCode

from .rig import Client, Rig, Topics, form_group


class DiskRig(Rig):
    """Stores its groups in a directory; ``reopen`` does what a new process does."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory = directory
        self.options = options
        self.committer = Committer()
        super().__init__(topics=Topics(orders=4, payments=2))

    def _new(self) -> GroupCoordinator:
        self.journal: Any = Journal(
            SystemFiles(), self.directory, SystemClock(), self.committer, **self.options
        )
        return super()._new()

    async def reopen(self) -> None:
        await self.groups.stop()
        await self.journal.close()
        self.groups = self._new()
        await self.groups.start()

    async def __aenter__(self) -> DiskRig:
        await super().__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._time_limit.__aexit__(*raised)
        await self.groups.stop()
        await self.journal.close()
        await self.committer.close()


async def test_groups_and_offsets_survive_a_restart(tmp_path: Path) -> None:
    async with DiskRig(tmp_path) as rig:
        clients = [Client(rig), Client(rig, instance_id="one")]
        await form_group(*clients)
        assert await clients[0].commit(17) is ErrorCode.NONE
        assert await rig.commit(5, group_id="\0/../Ä") is ErrorCode.NONE
        before = rig.groups.describe("g")
        await rig.reopen()
        assert rig.groups.describe("g") == before
        assert rig.committed() == 17
        assert rig.committed(group_id="\0/../Ä") == 5
        assert {client.heartbeat() for client in clients} == {ErrorCode.NONE}


async def test_snapshots_keep_the_whole_state_and_limit_the_size_of_the_journal(tmp_path: Path) -> None:
    async with DiskRig(tmp_path, snapshot_after_bytes=10_000) as rig:
        client = Client(rig)
        await form_group(client)
        await rig.commit(1, group_id="gone")
        await rig.groups.delete_groups(["gone"])
        for offset in range(1_000):
            assert await client.commit(offset, partition=offset % 4) is ErrorCode.NONE
        assert rig.journal.log.size_bytes < 100_000
        await rig.reopen()
        assert [rig.committed(partition=index) for index in range(4)] == [996, 997, 998, 999]
        assert client.heartbeat() is ErrorCode.NONE
        assert [group.group_id for group in rig.groups.list_groups()] == ["g"]


async def test_the_broker_does_not_start_with_an_entry_of_an_unknown_kind(tmp_path: Path) -> None:
    committer = Committer()
    journal = Journal(SystemFiles(), tmp_path, SystemClock(), committer)
    await journal.write([encode_entry(GroupDeleted("g")), b'{"kind":"from a newer release"}'])
    await journal.close()
    await committer.close()
    with pytest.raises(DamagedState):
        DiskRig(tmp_path)
