"""Compaction with one protection taken out: the oracle must notice every one of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress

from bench.faults.sim_loop import patched
from bench.faults.sim_patches import Wrapped, taken_out
from bench.faults.unprotected import NarrowHash
from headrace.files import Files
from headrace.log import key_map
from headrace.log.compacted import Compacted
from headrace.log.compacted_file import CompactedFile
from headrace.log.compaction import Compaction
from headrace.log.partition import PartitionLog
from headrace.log.swap import Swap

__all__ = ["without_protection"]


def _no_decision(stack: ExitStack) -> None:
    """The new file takes the old one's name, and the others are removed, without a word on disk."""

    def settle(self: Swap, files: Files, others: list[int]) -> None:
        files.make_dir(self.directory)
        for base in others:
            path = self.directory / f"{base:020d}.log"
            if files.exists(path):
                files.remove(path)

    stack.enter_context(patched(Swap, "decide", lambda self, files: None))
    stack.enter_context(patched(Swap, "settle", settle))


def _no_sync(stack: ExitStack) -> None:
    """The new file is left to the page cache."""
    finish = CompactedFile.finish

    class Unsynced(Wrapped):
        def sync(self) -> None:
            return

    def unsynced(self: CompactedFile, end_offset: int, newest_ms: int) -> Swap:
        self._file = Unsynced(self._file)  # type: ignore[assignment]
        return finish(self, end_offset, newest_ms)

    stack.enter_context(patched(CompactedFile, "finish", unsynced))


def _failed_sync_counts(stack: ExitStack) -> None:
    """That the new file could not be synced is no reason not to use it."""
    finish = CompactedFile.finish

    class Deaf(Wrapped):
        def sync(self) -> None:
            with suppress(OSError):
                self._inner.sync()

    def deaf(self: CompactedFile, end_offset: int, newest_ms: int) -> Swap:
        self._file = Deaf(self._file)  # type: ignore[assignment]
        return finish(self, end_offset, newest_ms)

    stack.enter_context(patched(CompactedFile, "finish", deaf))


def _narrow_hash(stack: ExitStack) -> None:
    """Long keys are told apart by two bits."""
    stack.enter_context(patched(key_map, "blake2b", NarrowHash))


def _untold(stack: ExitStack) -> None:
    """Deletions go, and readers are not told."""
    note = Compaction._note

    def silent(self: Compaction, compacted: Compacted) -> None:
        note(self, Compacted(compacted.clean_offset, 0, compacted.next_horizon_ms))

    stack.enter_context(patched(Compaction, "_note", silent))


def _old_mark(stack: ExitStack) -> None:
    """The mark on disk may still lead into a file that is gone."""
    stack.enter_context(patched(PartitionLog, "settle_mark", lambda self, mark: None))


_WITHOUT: dict[str, Callable[[ExitStack], None]] = {
    "decision": _no_decision,
    "sync-of-the-new-file": _no_sync,
    "failed-sync-counts": _failed_sync_counts,
    "wide-hash": _narrow_hash,
    "told-deletions": _untold,
    "both-marks": _old_mark,
}


def without_protection(name: str | None) -> AbstractContextManager[None]:
    return taken_out(_WITHOUT, name)
