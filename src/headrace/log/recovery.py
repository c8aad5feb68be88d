"""Opening a partition's directory: what a stop, clean or not, has left is made whole, and only what may be
cut is cut.

Below the synced mark nothing is touched: damage there is left where it is and met by the reader who asks for
it. Above the mark lie bytes of which nobody was told that they are safe. They are kept as far as they are
whole batches in unbroken order, written once more and synced, because after a failed sync the page cache may
show bytes that the disk never got; the rest is cut off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import DamagedState
from headrace.files import Files
from headrace.log.archive import Archive
from headrace.log.archive_store import ArchivePlace
from headrace.log.compacted import Compacted, load_compacted
from headrace.log.mark import Mark, MarkFile
from headrace.log.scan import scan_headers, scan_whole_batches
from headrace.log.segment import LOG_SUFFIX, ReadableSegment, Segment, log_name
from headrace.log.state import STATE_SUFFIX, PartitionState, load_state, new_state, state_name
from headrace.log.state_files import StateFiles
from headrace.log.swap import finish_swaps
from headrace.records import BatchHeader, read_marker

__all__ = ["Recovered", "RecoveryReport", "check_synced", "recover", "segment_headers"]

_REWRITE_BYTES = 1 << 20


@dataclass(slots=True)
class RecoveryReport:
    """What was found and done, for the broker to say aloud."""

    cut_bytes: int = 0
    kept_tail_bytes: int = 0
    indexes_rebuilt: int = 0
    files_removed: int = 0
    damage: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (self.cut_bytes or self.kept_tail_bytes or self.damage or self.indexes_rebuilt)


@dataclass(slots=True)
class Recovered:
    segments: list[Segment]
    start_offset: int
    end_offset: int
    mark_file: MarkFile
    state: PartitionState
    state_offsets: list[int]
    compacted: Compacted
    archive: Archive
    unsettled: str | None
    report: RecoveryReport


def recover(
    files: Files, directory: Path, interval: int, now_ms: int, archive_place: ArchivePlace | None = None
) -> Recovered:
    swapped = finish_swaps(files, directory, files.list(directory))
    names = swapped.names
    for name in names:
        if name.endswith(".new"):
            # One that stays is replaced by whoever writes a file of this name.
            with suppress(OSError):
                files.remove(directory / name)
    archive = Archive(files, directory, archive_place)
    bases = [int(name[: -len(LOG_SUFFIX)]) for name in names if _is_log(name)]
    segments = [Segment(files, directory, base) for base in bases] + swapped.aside
    segments.sort(key=lambda segment: segment.base_offset)
    if segments and segments[0].base_offset < archive.end_offset:
        # The archive has it; a crash came before it was removed here, and perhaps before that was durably said.
        files.sync_dir(directory)
        while segments and segments[0].base_offset < archive.end_offset:
            segments.pop(0).remove()
    mark_file, mark = _load_mark(files, directory, segments)
    report = RecoveryReport()
    deleted: list[Segment] = []
    while len(segments) > 1 and segments[1].base_offset <= mark.start_offset:
        deleted.append(segments.pop(0))
    synced = mark
    if deleted and mark.segment < segments[0].base_offset:
        # Where nobody waits for syncs, deletion can overtake them. All below the first file that stays is given up.
        first = segments[0].base_offset
        synced = Mark(mark.start_offset, max(mark.synced_offset, first), first, 0)
    # What the mark tells of is durable, its name included. Of anything else, a process that was killed may have left
    # names that only the page cache has.
    names_are_safe = bool(synced.position and segments) and _ends_at(segments[-1], synced)
    end_offset = _settle_tail(files, directory, segments, synced, report)
    _settle_indexes(files, segments, interval, end_offset, report)
    first_offset = (deleted or segments)[0].base_offset
    state, state_offsets = _load_newest_state(files, directory, names, first_offset, end_offset, report)
    knows_more = bool(deleted) and state.offset < segments[0].base_offset
    if knows_more:
        _settle_indexes(files, deleted, interval, segments[0].base_offset, report)
        _replay(deleted, state, segments[0].base_offset, now_ms)
    _replay(segments, state, end_offset, now_ms)
    if knows_more:
        # The files that are about to go are the last that know of some producers.
        try:
            StateFiles(files, directory, []).write(state, end_offset)
            state_offsets.append(end_offset)
            names_are_safe = False
        except OSError:
            deleted.clear()
    state.epochs.cut(mark.start_offset, end_offset)
    state.transactions.forget_below(mark.start_offset)
    if report.files_removed or not names_are_safe:
        files.sync_dir(directory)
    last = segments[-1]
    settled = Mark(mark.start_offset, end_offset, last.base_offset, last.size)
    if deleted or report.files_removed:
        # Neither slot may lead to a file that is gone.
        mark_file.settle(settled)
    elif settled != mark:
        mark_file.write(settled)
        mark_file.sync()
    # Only now, because the start may have been read from the page cache, too.
    for segment in deleted:
        segment.remove()
    compacted, fault = load_compacted(files, directory, end_offset)
    if fault is not None:
        report.damage.append(fault)
    return Recovered(
        segments,
        mark.start_offset,
        end_offset,
        mark_file,
        state,
        state_offsets,
        compacted,
        archive,
        swapped.unsettled,
        report,
    )


def _ends_at(last: Segment, mark: Mark) -> bool:
    return last.base_offset == mark.segment and last.file.size() == mark.position


def check_synced(files: Files, directory: Path) -> bool:
    """Read everything below the mark and change nothing; raises ``DamagedState`` where it is not whole.

    ``False`` where there is no mark, because nothing was ever written.
    """
    names = files.list(directory)
    bases = sorted(int(name[: -len(LOG_SUFFIX)]) for name in names if _is_log(name))
    segments = [Segment(files, directory, base) for base in bases]
    try:
        mark = MarkFile(files, directory).load()
        if mark is None:
            _refuse_data_without_mark(directory, segments)
            return False
        while len(segments) > 1 and segments[1].base_offset <= mark.start_offset:
            segments.pop(0).close()
        _check_batches(directory, segments, mark)
    finally:
        for segment in segments:
            segment.close()
    return True


def _check_batches(directory: Path, segments: list[Segment], mark: Mark) -> None:
    offset = segments[0].base_offset if segments else mark.start_offset
    if offset > mark.start_offset:
        raise _not_whole(f"the file in {directory} that held offset {mark.start_offset} is missing")
    for segment in segments:
        if offset >= mark.synced_offset:
            return
        if segment.base_offset != offset:
            raise _not_whole(f"the file in {directory} that held offset {offset} is missing")
        end = mark.position if segment.base_offset == mark.segment else segment.file.size()
        position = 0
        for found, header, _ in scan_whole_batches(segment.file, 0, min(end, segment.file.size()), offset):
            position, offset = found + header.size, header.next_offset
        if position < end:
            raise _not_whole(f"{segment.path} is damaged at byte {position}")
    if offset < mark.synced_offset:
        raise _not_whole(f"the file in {directory} that held offset {offset} is missing")


def _not_whole(message: str) -> DamagedState:
    return DamagedState(message, hint="restore the directory from a backup")


def segment_headers(
    segment: ReadableSegment, offset: int, interval: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Headers of the batches that end behind ``offset``; damage is stepped over at the next entry of the
    index.
    """
    index = segment.loaded_index(interval)
    _, position = index.floor(offset)
    while position < segment.size:
        for found, header in scan_headers(segment.file, position, segment.size):
            position = found + header.size
            if header.next_offset > offset:
                yield found, header
        behind = index.after(position)
        if position >= segment.size or behind is None:
            return
        position = behind[1]


def _is_log(name: str) -> bool:
    stem = name[: -len(LOG_SUFFIX)]
    return name.endswith(LOG_SUFFIX) and stem.isdigit() and name == log_name(int(stem))


def _load_mark(files: Files, directory: Path, segments: list[Segment]) -> tuple[MarkFile, Mark]:
    mark_file = MarkFile(files, directory)
    mark = mark_file.load()
    if mark is not None:
        return mark_file, mark
    _refuse_data_without_mark(directory, segments)
    base = segments[0].base_offset if segments else 0
    mark = Mark(base, base, base, 0)
    # The caller syncs the directory: a segment without its mark is no harm while it is empty.
    return MarkFile.create(files, directory, mark), mark


def _refuse_data_without_mark(directory: Path, segments: list[Segment]) -> None:
    if any(segment.file.size() for segment in segments):
        raise DamagedState(
            f"the mark of {directory} is missing, though its segments hold data",
            detail="without the mark nobody can tell a torn tail from damaged data",
            hint="restore the directory from a backup",
        )


def _settle_tail(
    files: Files, directory: Path, segments: list[Segment], mark: Mark, report: RecoveryReport
) -> int:
    """Keep what is whole above the mark, cut the rest; returns the end offset."""
    offset = mark.synced_offset
    needs_fresh_segment = True
    if mark.position and all(segment.base_offset != mark.segment for segment in segments):
        report.damage.append(
            f"{directory / log_name(mark.segment)} is missing, but {mark.position} bytes were synced"
        )
    for segment in list(segments):
        if segment.base_offset < mark.segment:
            continue
        start = mark.position if segment.base_offset == mark.segment else 0
        if segment.base_offset != mark.segment and segment.base_offset != offset:
            report.cut_bytes += segment.file.size()
            segments.remove(segment)
            segment.remove()
            report.files_removed += 1
            continue
        size = segment.file.size()
        if size < start:
            report.damage.append(f"{segment.path} has {size} bytes, but {start} were synced")
            segment.index.size = start
            segment.index.end_offset = offset
            continue
        good = start
        for position, header, _ in scan_whole_batches(segment.file, start, size, offset):
            good = position + header.size
            offset = header.next_offset
        if good < size:
            report.cut_bytes += size - good
            segment.file.truncate(good)
        _write_again(segment, start, good)
        report.kept_tail_bytes += good - start
        if good < size or good > start:
            segment.file.sync()
        segment.index.size = good
        segment.index.end_offset = offset
        needs_fresh_segment = False
    if offset < mark.start_offset:
        # Where nobody waits for syncs, a power loss can leave less than had been deleted before it. No offset is used
        # twice, so the log goes on where it starts.
        for segment in segments:
            report.cut_bytes += segment.file.size()
            segment.remove()
            report.files_removed += 1
        segments.clear()
        offset = mark.start_offset
        needs_fresh_segment = True
    if needs_fresh_segment:
        fresh = Segment(files, directory, offset)
        fresh.create()
        segments.append(fresh)
    return offset


def _write_again(segment: Segment, start: int, end: int) -> None:
    position = start
    while position < end:
        chunk = segment.file.pread(min(_REWRITE_BYTES, end - position), position)
        taken = segment.file.pwrite([chunk], position)
        if taken != len(chunk):
            raise OSError(f"short write while recovering {segment.path}: {taken} of {len(chunk)} bytes")
        position += taken


def _settle_indexes(
    files: Files, segments: list[Segment], interval: int, end_offset: int, report: RecoveryReport
) -> None:
    for segment, behind in zip(segments, [*segments[1:], None], strict=True):
        end = behind.base_offset if behind is not None else end_offset
        size = segment.index.size if segment.index.end_offset == end and segment.index.size else None
        if segment.load_index() and segment.end_offset == end and (size is None or segment.size == size):
            # Of the last segment the whole index is wanted, because it is about to grow.
            if behind is None:
                segment.ensure_columns(interval)
            continue
        if files.exists(segment.index_path):
            # It tells of batches that a power loss has taken. Left there, it could pass for the index of others.
            files.remove(segment.index_path)
            report.files_removed += 1
        on_disk = segment.file.size()
        segment.rebuild_index(interval, on_disk, end)
        if size is not None and size > on_disk:
            segment.index.size = size
        if behind is not None:
            # A sealed one is not written again later, and the next start should not have to read it all.
            with suppress(OSError):
                segment.write_index()
        if on_disk:
            report.indexes_rebuilt += 1


def _load_newest_state(
    files: Files,
    directory: Path,
    names: list[str],
    first_offset: int,
    end_offset: int,
    report: RecoveryReport,
) -> tuple[PartitionState, list[int]]:
    """The newest state that can be used, and the offsets of all that are left."""
    offsets = [
        int(name[: -len(STATE_SUFFIX)])
        for name in names
        if name.endswith(STATE_SUFFIX) and name[: -len(STATE_SUFFIX)].isdigit()
    ]
    for offset in sorted(offsets, reverse=True):
        path = directory / state_name(offset)
        if not files.exists(path):
            continue
        state = load_state(files, path, offset) if offset <= end_offset else None
        if state is not None:
            return state, [other for other in offsets if other <= offset]
        # One that covers more than there is must not come back when the log has grown over it.
        files.remove(path)
        report.files_removed += 1
    return new_state(first_offset), []


def _replay(segments: list[Segment], state: PartitionState, end_offset: int, now_ms: int) -> None:
    """Bring the state from its offset to the end of the log."""
    for segment in segments:
        if segment.end_offset <= state.offset:
            continue
        for position, header in segment_headers(segment, state.offset, interval=4096):
            if header.base_offset < state.offset:
                # Compaction has stretched it to here; its records are among those that the state covers.
                continue
            state.epochs.note(header.leader_epoch, header.base_offset)
            if header.producer_id < 0:
                continue
            if header.is_control:
                _replay_marker(segment, position, header, state, now_ms)
                continue
            state.producers.note(header, header.base_offset, now_ms)
            if header.is_transactional:
                state.transactions.note(header, header.base_offset, now_ms)
    state.offset = end_offset


def _replay_marker(
    segment: Segment, position: int, header: BatchHeader, state: PartitionState, now_ms: int
) -> None:
    marker = read_marker(segment.file.pread(header.size, position))
    if marker is None:
        # Nobody can tell any more how the transaction ended, but for the one who decided it: left open, it is
        # asked for again.
        return
    state.producers.note_marker(header, marker.coordinator_epoch, now_ms)
    state.transactions.end(header.producer_id, header.base_offset, committed=marker.committed)
