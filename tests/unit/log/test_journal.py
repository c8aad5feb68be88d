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


async def opened(directory: Path, committer: Committer, **keywords: int) -> Journal:
    directory.mkdir(exist_ok=True)
    return Journal(SystemFiles(), directory, SystemClock(), committer, **keywords)


async def test_entries_come_back_in_order(tmp_path: Path) -> None:
    committer = Committer()
    journal = await opened(tmp_path / "j", committer)
    for number in range(10):
        await journal.write([b"entry-%d" % number, b"twin-%d" % number])
    again = await opened(tmp_path / "j", committer)
    assert again.entries == [entry for n in range(10) for entry in (b"entry-%d" % n, b"twin-%d" % n)]
    await committer.close()


async def test_a_snapshot_replaces_the_past_and_loses_no_entry_of_concurrent_writers(tmp_path: Path) -> None:
    committer = Committer()
    journal = await opened(tmp_path / "j", committer, snapshot_after_bytes=3000)
    state: list[bytes] = []
    journal.on_snapshot(lambda: list(state))

    async def writer(name: int) -> None:
        for number in range(40):
            entry = b"%d-%d" % (name, number)
            await journal.write([entry])
            state.append(entry)

    await asyncio.gather(*(writer(name) for name in range(8)))
    assert journal.log.start_offset > 0, "no snapshot was taken"
    assert journal.log.size_bytes < 60_000
    again = await opened(tmp_path / "j", committer)
    assert sorted(again.entries) == sorted(b"%d-%d" % (n, i) for n in range(8) for i in range(40))
    await committer.close()


async def test_a_large_snapshot_is_taken_in_turns_and_misses_nothing(tmp_path: Path) -> None:
    committer = Committer()
    journal = await opened(tmp_path / "j", committer, snapshot_after_bytes=0)
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
    again = await opened(tmp_path / "j", committer)
    assert again.entries == [*state, b"last"]
    await committer.close()


async def test_a_snapshot_without_its_end_is_ignored(tmp_path: Path) -> None:
    committer = Committer()
    journal = await opened(tmp_path / "j", committer)
    await journal.write([b"kept"])
    journal._append([(b"b", b""), (b"s", b"half")])
    await committer.wait(journal.log, journal.log.end_offset)
    again = await opened(tmp_path / "j", committer)
    assert again.entries == [b"kept"]
    await committer.close()


@pytest.mark.parametrize("harm", ["flip", "truncate", "unlink"])
async def test_a_damaged_journal_refuses_the_start(tmp_path: Path, harm: str) -> None:
    committer = Committer()
    journal = await opened(tmp_path / "j", committer)
    for number in range(10):
        await journal.write([b"entry-%d" % number])
    await journal.close()
    (path,) = (tmp_path / "j").glob("*.log")
    raw = bytearray(path.read_bytes())
    if harm == "flip":
        raw[200] ^= 1
        path.write_bytes(raw)
    elif harm == "truncate":
        path.write_bytes(raw[:-20])
    else:
        path.unlink()
    with pytest.raises(DamagedState) as raised:
        await opened(tmp_path / "j", committer)
    assert "restore" in str(raised.value)
    await committer.close()


async def test_one_sync_serves_all_that_wait(tmp_path: Path) -> None:
    committer = Committer()
    journal = await opened(tmp_path / "j", committer)
    await asyncio.gather(*(journal.write([b"entry"]) for _ in range(200)))
    assert committer.syncs < 20
    await committer.close()
