from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.clock import SystemClock
from headrace.errors import DamagedState
from headrace.files import SystemFiles
from headrace.log.committer import Committer
from headrace.log.journal import Journal


async def open_log(directory: Path, committer: Committer, **keywords: int) -> Journal:
    directory.mkdir(exist_ok=True)
    return Journal(SystemFiles(), directory, SystemClock(), committer, **keywords)


async def test_entries_are_read_in_order(tmp_path: Path) -> None:
    committer = Committer()
    journal = await open_log(tmp_path / "j", committer)
    for number in range(10):
        await journal.write([b"entry-%d" % number, b"twin-%d" % number])
    reopened = await open_log(tmp_path / "j", committer)
    assert reopened.entries == [entry for n in range(10) for entry in (b"entry-%d" % n, b"twin-%d" % n)]
    await committer.close()


async def test_a_snapshot_replaces_old_entries_and_loses_no_concurrent_write(tmp_path: Path) -> None:
    committer = Committer()
    journal = await open_log(tmp_path / "j", committer, snapshot_after_bytes=3000)
    state: list[bytes] = []
    journal.on_snapshot(lambda: list(state))

    async def writer(name: int) -> None:
        for number in range(40):
            entry = b"%d-%d" % (name, number)
            await journal.write([entry])
            state.append(entry)

    await asyncio.gather(*(writer(name) for name in range(8)))
    assert journal.log.start_offset > 0, "no snapshot was written"
    assert journal.log.size_bytes < 60_000
    reopened = await open_log(tmp_path / "j", committer)
    assert sorted(reopened.entries) == sorted(b"%d-%d" % (n, i) for n in range(8) for i in range(40))
    await committer.close()


async def test_other_tasks_run_while_a_large_snapshot_is_written(tmp_path: Path) -> None:
    committer = Committer()
    journal = await open_log(tmp_path / "j", committer, snapshot_after_bytes=0)
    state = [b"%d" % number for number in range(3_000)]
    turn, taken_in = 0, set()

    def source() -> Iterator[bytes]:
        for entry in state:
            taken_in.add(turn)
            yield entry

    await journal.write([b"first"])
    journal.on_snapshot(source)
    running = asyncio.ensure_future(journal.write([b"last"]))
    while not running.done():
        turn += 1
        await asyncio.sleep(0)
    assert len(taken_in) >= 6
    reopened = await open_log(tmp_path / "j", committer)
    assert reopened.entries == [*state, b"last"]
    await committer.close()


async def test_an_incomplete_snapshot_is_ignored(tmp_path: Path) -> None:
    committer = Committer()
    journal = await open_log(tmp_path / "j", committer)
    await journal.write([b"kept"])
    journal._append([(b"b", b""), (b"s", b"half")])
    await committer.wait(journal.log, journal.log.end_offset)
    reopened = await open_log(tmp_path / "j", committer)
    assert reopened.entries == [b"kept"]
    await committer.close()


@pytest.mark.parametrize("damage", ["flip", "truncate", "unlink"])
async def test_a_damaged_journal_does_not_open(tmp_path: Path, damage: str) -> None:
    committer = Committer()
    journal = await open_log(tmp_path / "j", committer)
    for number in range(10):
        await journal.write([b"entry-%d" % number])
    await journal.close()
    (path,) = (tmp_path / "j").glob("*.log")
    raw = bytearray(path.read_bytes())
    if damage == "flip":
        raw[200] ^= 1
        path.write_bytes(raw)
    elif damage == "truncate":
        path.write_bytes(raw[:-20])
    else:
        path.unlink()
    with pytest.raises(DamagedState) as raised:
        await open_log(tmp_path / "j", committer)
    assert "restore" in str(raised.value)
    await committer.close()


async def test_one_sync_completes_all_waiting_writes(tmp_path: Path) -> None:
    committer = Committer()
    journal = await open_log(tmp_path / "j", committer)
    await asyncio.gather(*(journal.write([b"entry"]) for _ in range(200)))
    assert committer.syncs < 20
    await committer.close()
