"""Applied entries are durable, and in order, even if their callers are cancelled."""

from __future__ import annotations

import asyncio

from headrace.broker.groups.entries import Entry, GroupDeleted, OffsetRow, OffsetsEntry, decode_entry
from headrace.broker.groups.ledger import Ledger

from .journal import MemoryJournal
from .rig import settle


def offsets(offset: int, metadata: str = "") -> OffsetsEntry:
    return OffsetsEntry("g", [OffsetRow("t", 0, offset, -1, metadata, 0, -1)])


def ignore(_: Entry) -> None:
    return None


async def test_an_entry_is_applied_after_it_is_written_and_reported_after_it_is_applied() -> None:
    journal = MemoryJournal()
    applied: list[Entry] = []
    ledger = Ledger(journal, applied.append)
    journal.hold()
    written = ledger.put(offsets(1))
    await settle()
    assert not written.done()
    assert ledger.state.offsets.count == 0
    assert not ledger.is_settled("g")
    journal.release()
    assert await written is None
    assert ledger.state.offsets.count == 1
    assert applied == [offsets(1)]
    assert ledger.is_settled("g")
    assert [decode_entry(raw) for raw in journal.durable] == [offsets(1)]


async def test_entries_submitted_during_a_write_share_the_next_write() -> None:
    journal = MemoryJournal()
    ledger = Ledger(journal, ignore)
    journal.hold()
    first = ledger.put(offsets(0))
    await settle()
    others = [ledger.put(offsets(offset)) for offset in range(1, 100)]
    journal.release()
    assert [await written for written in (first, *others)] == [None] * 100
    assert journal.writes == 2
    assert [decode_entry(raw) for raw in journal.durable] == [offsets(offset) for offset in range(100)]


async def test_the_size_of_one_journal_write_is_limited() -> None:
    journal = MemoryJournal()
    ledger = Ledger(journal, ignore)
    writes = [ledger.put(offsets(offset, "x" * (1 << 20))) for offset in range(16)]
    assert [await written for written in writes] == [None] * 16
    assert journal.writes >= 4


async def test_a_failed_write_applies_no_entry_and_the_next_write_is_attempted() -> None:
    journal = MemoryJournal()
    ledger = Ledger(journal, ignore)
    journal.fails = True
    assert isinstance(await ledger.put(offsets(1)), Exception)
    assert ledger.state.offsets.count == 0
    assert ledger.is_settled("g")
    journal.fails = False
    assert await ledger.put(offsets(2)) is None


async def test_a_fault_in_one_caller_does_not_affect_the_results_of_others() -> None:
    loop = asyncio.get_running_loop()
    faults: list[object] = []
    loop.set_exception_handler(lambda _, context: faults.append(context["exception"]))
    ledger = Ledger(MemoryJournal(), ignore)
    fault = RuntimeError("a bug")

    def done(_: Exception | None) -> None:
        raise fault

    ledger.submit(offsets(1), done)
    assert await ledger.put(offsets(2)) is None
    assert faults == [fault]


async def test_draining_waits_for_every_submitted_entry() -> None:
    journal = MemoryJournal()
    ledger = Ledger(journal, ignore)
    journal.hold()
    writes = [ledger.put(offsets(1)), ledger.put(GroupDeleted("g"))]
    draining = asyncio.ensure_future(ledger.drain())
    await settle()
    assert not draining.done()
    journal.release()
    await draining
    assert all(written.done() for written in writes)
    await ledger.drain()


async def test_existing_entries_are_applied_to_the_state_and_freed_from_memory() -> None:
    journal = MemoryJournal([b'{"kind":"offsets","group":"g","rows":[["t",0,7,-1,"",0,-1]]}'])
    ledger = Ledger(journal, ignore)
    row = ledger.state.offsets.get("g", "t", 0)
    assert row is not None
    assert row.offset == 7
    assert journal.entries == []
