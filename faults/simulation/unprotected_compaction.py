"""Compaction with one protection removed. The oracle must detect each removal."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress

from faults.patch import patched
from faults.simulation.unprotected import Wrapped, removed_protection
from faults.unprotected.registry import NarrowHash
from headrace.files import Files
from headrace.log import key_map
from headrace.log.compacted import Compacted, CompactedFile
from headrace.log.compaction import Compaction
from headrace.log.partition import PartitionLog
from headrace.log.swap import Swap

__all__ = ["without_protection"]


def _no_durable_swap_record(stack: ExitStack) -> None:
    """The new file replaces the old one, and the other files are removed, but no swap file records this on disk."""

    def remove_replaced(self: Swap, files: Files, others: list[int]) -> None:
        files.make_dir(self.directory)
        for base in others:
            path = self.directory / f"{base:020d}.log"
            if files.exists(path):
                files.remove(path)

    stack.enter_context(patched(Swap, "commit", lambda self, files: None))
    stack.enter_context(patched(Swap, "remove_replaced", remove_replaced))


def _no_sync(stack: ExitStack) -> None:
    """The new file stays in the page cache."""
    finish = CompactedFile.finish

    class Unsynced(Wrapped):
        def sync(self) -> None:
            return

    def finish_unsynced(self: CompactedFile, end_offset: int, newest_ms: int) -> Swap:
        self._file = Unsynced(self._file)
        return finish(self, end_offset, newest_ms)

    stack.enter_context(patched(CompactedFile, "finish", finish_unsynced))


def _failed_sync_counts(stack: ExitStack) -> None:
    """The new file is used although its sync failed."""
    finish = CompactedFile.finish

    class IgnoresSyncErrors(Wrapped):
        def sync(self) -> None:
            with suppress(OSError):
                self._inner.sync()

    def finish_ignoring_errors(self: CompactedFile, end_offset: int, newest_ms: int) -> Swap:
        self._file = IgnoresSyncErrors(self._file)
        return finish(self, end_offset, newest_ms)

    stack.enter_context(patched(CompactedFile, "finish", finish_ignoring_errors))


def _narrow_hash(stack: ExitStack) -> None:
    """Long keys are compared by a hash of two bits."""
    stack.enter_context(patched(key_map, "blake2b", NarrowHash))


def _no_announcement(stack: ExitStack) -> None:
    """Compaction removes tombstones, but readers cannot detect that they missed them."""
    save = Compaction._save_progress

    def save_without_deletions(self: Compaction, compacted: Compacted) -> None:
        save(self, Compacted(compacted.clean_offset, 0, compacted.next_horizon_ms))

    stack.enter_context(patched(Compaction, "_save_progress", save_without_deletions))


def _old_mark(stack: ExitStack) -> None:
    """The synced mark on disk (``headrace.log.mark``) may still point into a deleted file."""
    stack.enter_context(patched(PartitionLog, "write_mark_to_both_slots", lambda self, mark: None))


_WITHOUT: dict[str, Callable[[ExitStack], None]] = {
    "durable-swap-record": _no_durable_swap_record,
    "sync-of-the-new-file": _no_sync,
    "failed-sync-counts": _failed_sync_counts,
    "wide-hash": _narrow_hash,
    "announced-deletions": _no_announcement,
    "both-mark-slots": _old_mark,
}


def without_protection(name: str | None) -> AbstractContextManager[None]:
    return removed_protection(_WITHOUT, name)
