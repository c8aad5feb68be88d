"""The product with one protection removed, for the simulation. The oracle must detect each removal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from faults.patch import patched
from headrace.broker.groups.entries import TransactionEntry
from headrace.broker.groups.ledger import Ledger
from headrace.clock import TrustedTime
from headrace.files import Files
from headrace.log import partition, reader, recovery
from headrace.log.committer import Committer
from headrace.log.mark import Mark, MarkFile, SyncJob
from headrace.log.partition import PartitionLog
from headrace.log.state import load_state

__all__ = ["Wrapped", "removed_protection", "without_protection"]


class Wrapped:
    """A replacement that forwards everything that it does not implement."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def removed_protection(
    protections: Mapping[str, Callable[[ExitStack], None]], name: str | None
) -> Iterator[None]:
    """Remove the named protection while the block runs. ``None`` removes nothing."""
    with ExitStack() as stack:
        if name is not None:
            protections[name](stack)
        yield


def _mark_before_sync(stack: ExitStack) -> None:
    """The synced mark (``headrace.log.mark``) counts bytes as synced before they are synced."""

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

    def acknowledge_early(self: Committer, log: PartitionLog, end_offset: int) -> None:
        future = durable(self, log, end_offset)
        if future is not None:
            future.add_done_callback(lambda done: done.exception())

    stack.enter_context(patched(Committer, "durable", acknowledge_early))


def _serve_before_sync(stack: ExitStack) -> None:
    """Recovery treats everything above the synced mark as safe."""
    recover = recovery.recover

    class UnsyncedFiles(Wrapped):
        """Files whose segments are not synced."""

        def open(self, path: Path, *, create: bool = False) -> Any:
            file = self._inner.open(path, create=create)
            return UnsyncedFiles(file) if path.suffix == ".log" else file

        def sync(self) -> None:
            return

    def recover_without_sync(files: Files, *arguments: Any) -> recovery.Recovered:
        recovered = recover(UnsyncedFiles(files), *arguments)
        for segment in recovered.segments:
            segment.close()
            segment._files = files
        recovered.mark_file._files = files
        return recovered

    stack.enter_context(patched(partition, "recover", recover_without_sync))


def _no_directory_sync(stack: ExitStack) -> None:
    """A new segment's name is not synced."""
    run = SyncJob.run

    def run_without_directory(self: SyncJob) -> None:
        self.directory = None
        run(self)

    stack.enter_context(patched(SyncJob, "run", run_without_directory))


def _no_fence(stack: ExitStack) -> None:
    """A failed sync is retried, as if the page cache still had the data."""
    end_sync = PartitionLog.end_sync

    def end_sync_without_fence(self: PartitionLog, job: SyncJob, error: OSError | None) -> None:
        end_sync(self, job, error)
        if error is not None:
            self._tail.fenced = None
            for segment in job.segments:
                segment.dirty = True

    stack.enter_context(patched(PartitionLog, "end_sync", end_sync_without_fence))


def _no_second_write(stack: ExitStack) -> None:
    """Recovery syncs the data above the mark, but does not rewrite it."""
    stack.enter_context(patched(recovery, "_write_again", lambda segment, start, end: None))


def _no_check_on_read(stack: ExitStack) -> None:
    """Reads do not check the checksum of a batch."""

    class AnyChecksum:
        """Equal to any checksum."""

        def __eq__(self, other: object) -> bool:
            return True

        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = None  # type: ignore[assignment]

    stack.enter_context(patched(reader, "crc32c", lambda data: AnyChecksum()))


def _one_slot(stack: ExitStack) -> None:
    """Files are removed when only one slot of the synced mark has the new start."""

    def settle(self: MarkFile, mark: Mark) -> None:
        self.write(mark)
        self.sync()

    stack.enter_context(patched(MarkFile, "settle", settle))


def _no_trusted_time(stack: ExitStack) -> None:
    """The wall clock is always trusted."""
    stack.enter_context(patched(TrustedTime, "now_ms", lambda self: self._clock.now_ms()))


def _no_memory_of_aborted(stack: ExitStack) -> None:
    """A start forgets which earlier transactions were aborted."""

    def load_without_aborted(*arguments: Any) -> Any:
        state = load_state(*arguments)
        if state is not None:
            state.transactions.forget_below(2**62)
        return state

    stack.enter_context(patched(recovery, "load_state", load_without_aborted))


def _no_memory_of_open(stack: ExitStack) -> None:
    """A start treats open transactions as ended."""
    recover = recovery.recover

    def recover_without_open(*arguments: Any) -> recovery.Recovered:
        recovered = recover(*arguments)
        recovered.state.transactions.open.clear()
        return recovered

    stack.enter_context(patched(partition, "recover", recover_without_open))


def _end_before_sync(stack: ExitStack) -> None:
    """The broker responds to the end of a transaction, and writes markers, before the decision is on disk."""
    submit = Ledger.submit

    def submit_early(self: Ledger, entry: Any, done: Callable[[Exception | None], None]) -> None:
        if isinstance(entry, TransactionEntry) and entry.ended is not None:
            done(None)
            submit(self, entry, lambda error: None)
        else:
            submit(self, entry, done)

    stack.enter_context(patched(Ledger, "submit", submit_early))


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
    """``None`` removes nothing. The simulated disk implements ``syncs``."""
    return removed_protection(_WITHOUT, name)
