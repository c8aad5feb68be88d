"""The product with one protection taken out, for the simulation: the oracle must notice every one of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from bench.faults.sim_loop import patched
from bench.faults.sim_patches import Wrapped, taken_out
from headrace.broker.groups.entries import TransactionEntry
from headrace.broker.groups.ledger import Ledger
from headrace.broker.trusted_time import TrustedTime
from headrace.files import Files
from headrace.log import partition, reader, recovery
from headrace.log.committer import Committer
from headrace.log.mark import Mark, MarkFile
from headrace.log.partition import PartitionLog
from headrace.log.sync import SyncJob

__all__ = ["without_protection"]


def _mark_before_sync(stack: ExitStack) -> None:
    """The mark says that bytes are synced before they are."""

    def run(self: SyncJob) -> None:
        self.mark_file.write(self.mark)
        self.mark_file.sync()
        for segment in self.segments:
            segment.file.sync()
        if self.directory is not None:
            self.files.sync_dir(self.directory)

    stack.enter_context(patched(SyncJob, "run", run))


def _ack_before_sync(stack: ExitStack) -> None:
    durable = Committer.durable

    def at_once(self: Committer, log: PartitionLog, end_offset: int) -> None:
        future = durable(self, log, end_offset)
        if future is not None:
            future.add_done_callback(lambda done: done.exception())

    stack.enter_context(patched(Committer, "durable", at_once))


def _serve_before_sync(stack: ExitStack) -> None:
    """Recovery takes what it finds above the mark for safe."""
    recover = recovery.recover

    class Trusting(Wrapped):
        """Files whose segments are not synced."""

        def open(self, path: Path, *, create: bool = False) -> Any:
            file = self._inner.open(path, create=create)
            return Trusting(file) if path.suffix == ".log" else file

        def sync(self) -> None:
            return

    def trusting(files: Files, *arguments: Any) -> recovery.Recovered:
        found = recover(Trusting(files), *arguments)
        for segment in found.segments:
            segment.close()
            segment._files = files
        found.mark_file._files = files
        return found

    stack.enter_context(patched(partition, "recover", trusting))


def _no_directory_sync(stack: ExitStack) -> None:
    """A new segment's name is left to the file system."""
    run = SyncJob.run

    def without(self: SyncJob) -> None:
        self.directory = None
        run(self)

    stack.enter_context(patched(SyncJob, "run", without))


def _no_fence(stack: ExitStack) -> None:
    """A failed sync is tried again, as if the page cache still had to write what it has."""
    end_sync = PartitionLog.end_sync

    def trying_again(self: PartitionLog, job: SyncJob, error: OSError | None) -> None:
        end_sync(self, job, error)
        if error is not None:
            self._tail.fenced = None
            for segment in job.segments:
                segment.dirty = True

    stack.enter_context(patched(PartitionLog, "end_sync", trying_again))


def _no_second_write(stack: ExitStack) -> None:
    """Recovery syncs what it finds above the mark, but does not write it again."""
    stack.enter_context(patched(recovery, "_write_again", lambda segment, start, end: None))


def _no_check_on_read(stack: ExitStack) -> None:
    """Whatever lies in a file is given to readers."""

    class Any32:
        """Any sum is the right one, because only equality is asked for."""

        def __eq__(self, other: object) -> bool:
            return True

        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = None  # type: ignore[assignment]

    stack.enter_context(patched(reader, "crc32c", lambda data: Any32()))


def _one_slot(stack: ExitStack) -> None:
    """Files are removed when one slot of the mark says so."""

    def settle(self: MarkFile, mark: Mark) -> None:
        self.write(mark)
        self.sync()

    stack.enter_context(patched(MarkFile, "settle", settle))


def _no_trusted_time(stack: ExitStack) -> None:
    """Whatever the wall clock says is taken for the time."""
    stack.enter_context(patched(TrustedTime, "now_ms", lambda self: self._clock.now_ms()))


def _no_memory_of_aborted(stack: ExitStack) -> None:
    """A start does not know what was aborted before it."""
    load_state = recovery.load_state

    def forgetful(*arguments: Any) -> Any:
        state = load_state(*arguments)
        if state is not None:
            state.transactions.forget_below(2**62)
        return state

    stack.enter_context(patched(recovery, "load_state", forgetful))


def _no_memory_of_open(stack: ExitStack) -> None:
    """A start takes open transactions for ended."""
    recover = recovery.recover

    def forgetful(*arguments: Any) -> recovery.Recovered:
        found = recover(*arguments)
        found.state.transactions.open.clear()
        return found

    stack.enter_context(patched(partition, "recover", forgetful))


def _end_before_sync(stack: ExitStack) -> None:
    """The end of a transaction is answered, and marked, before the decision is on disk."""
    submit = Ledger.submit

    def at_once(self: Ledger, entry: Any, done: Callable[[Exception | None], None]) -> None:
        if isinstance(entry, TransactionEntry) and entry.ended is not None:
            done(None)
            submit(self, entry, lambda error: None)
        else:
            submit(self, entry, done)

    stack.enter_context(patched(Ledger, "submit", at_once))


_WITHOUT: dict[str, Callable[[ExitStack], None]] = {
    "syncs": lambda stack: None,
    "sync-before-mark": _mark_before_sync,
    "sync-before-ack": _ack_before_sync,
    "sync-before-serving": _serve_before_sync,
    "directory-sync": _no_directory_sync,
    "fence": _no_fence,
    "second-write": _no_second_write,
    "check-on-read": _no_check_on_read,
    "both-slots": _one_slot,
    "trusted-time": _no_trusted_time,
    "memory-of-aborted": _no_memory_of_aborted,
    "memory-of-open": _no_memory_of_open,
    "sync-before-end": _end_before_sync,
}


def without_protection(name: str | None) -> AbstractContextManager[None]:
    """``None`` leaves everything as it is. ``syncs`` is up to the simulated disk."""
    return taken_out(_WITHOUT, name)
