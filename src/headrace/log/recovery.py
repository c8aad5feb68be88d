"""Opens a partition's directory after a clean or unclean stop, and repairs it.

Recovery changes nothing below the synced mark: a reader that finds damage there gets an error. The bytes above the mark
were never acknowledged as durable. Recovery retains complete batches without gaps above the mark, and truncates the
rest. It writes the retained batches again and syncs them: after a failed sync, the page cache may contain bytes that
never reached the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import DamagedState
from headrace.files import Files
from headrace.log.archive import Archive
from headrace.log.archive_store import ArchiveLocation
from headrace.log.compacted import Compacted, load_compacted
from headrace.log.mark import Mark, MarkFile
from headrace.log.scan import scan_headers, scan_whole_batches
from headrace.log.segment import LOG_SUFFIX, ReadableSegment, Segment, log_name
from headrace.log.state import STATE_SUFFIX, PartitionState, StateFiles, load_state, new_state, state_name
from headrace.log.swap import finish_swaps
from headrace.records import BatchHeader, read_marker

__all__ = ["Recovered", "RecoveryReport", "check_synced", "recover", "segment_headers"]

_REWRITE_BYTES = 1 << 20


@dataclass(slots=True)
class RecoveryReport:
    """The result of recovery, for the broker's log."""

    truncated_bytes: int = 0
    retained_tail_bytes: int = 0
    indexes_rebuilt: int = 0
    files_removed: int = 0
    damage: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (self.truncated_bytes or self.retained_tail_bytes or self.damage or self.indexes_rebuilt)


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
    unfinished_swap: str | None
    report: RecoveryReport


def recover(
    files: Files,
    directory: Path,
    interval: int,
    now_ms: int,
    leader_epoch: int,
    archive_location: ArchiveLocation | None = None,
) -> Recovered:
    """``leader_epoch`` is the epoch of this start. No batch can have a later one."""
    swap_result = finish_swaps(files, directory, files.list(directory))
    names = swap_result.names
    for name in names:
        if name.endswith(".new"):
            # If the removal fails, the leftover is replaced when a file of this name is next written.
            with suppress(OSError):
                files.remove(directory / name)
    archive = Archive(files, directory, archive_location)
    bases = [int(name[: -len(LOG_SUFFIX)]) for name in names if _is_log(name)]
    segments = [Segment(files, directory, base) for base in bases] + swap_result.unrenamed
    segments.sort(key=lambda segment: segment.base_offset)
    if segments and segments[0].base_offset < archive.end_offset:
        # The archive contains this segment. A crash happened before the local files were removed, and perhaps before
        # the list of archived segments was durable.
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
        # With durability "os" the deleted range can extend beyond the synced mark. Continue at the first file that
        # remains.
        first = segments[0].base_offset
        synced = Mark(mark.start_offset, max(mark.synced_offset, first), first, 0)
    # Everything that the mark covers is durable, including the file names. A killed process may have left other file
    # names only in the page cache.
    names_are_durable = bool(synced.position and segments) and _ends_at(segments[-1], synced)
    end_offset = _repair_tail(files, directory, segments, synced, leader_epoch, report)
    _load_indexes(files, segments, interval, end_offset, report)
    first_offset = (deleted or segments)[0].base_offset
    state, state_offsets = _load_newest_state(files, directory, names, first_offset, end_offset, report)
    replays_deleted = bool(deleted) and state.offset < segments[0].base_offset
    if replays_deleted:
        _load_indexes(files, deleted, interval, segments[0].base_offset, report)
        _replay(deleted, state, segments[0].base_offset, now_ms)
    _replay(segments, state, end_offset, now_ms)
    if replays_deleted:
        # Save the state first: some producers may have batches only in the files that are about to be removed.
        try:
            StateFiles(files, directory, []).write(state, end_offset)
            state_offsets.append(end_offset)
            names_are_durable = False
        except OSError:
            deleted.clear()
    state.epochs.truncate(mark.start_offset, end_offset)
    state.transactions.forget_below(mark.start_offset)
    if report.files_removed or not names_are_durable:
        files.sync_dir(directory)
    last = segments[-1]
    final_mark = Mark(mark.start_offset, end_offset, last.base_offset, last.size)
    if deleted or report.files_removed:
        # Neither slot of the mark may point to a removed file.
        mark_file.settle(final_mark)
    elif final_mark != mark:
        mark_file.write(final_mark)
        mark_file.sync()
    # Remove the files only now: until the mark is written, the new start offset may exist only in the page cache.
    for segment in deleted:
        segment.remove()
    compacted, compacted_error = load_compacted(files, directory, end_offset)
    if compacted_error is not None:
        report.damage.append(compacted_error)
    return Recovered(
        segments,
        mark.start_offset,
        end_offset,
        mark_file,
        state,
        state_offsets,
        compacted,
        archive,
        swap_result.unfinished_swap,
        report,
    )


def _ends_at(last: Segment, mark: Mark) -> bool:
    return last.base_offset == mark.segment and last.file.size() == mark.position


def check_synced(files: Files, directory: Path) -> bool:
    """Verify everything below the mark without changing it; raises ``DamagedState`` if it is not intact.

    Returns ``False`` if the mark does not exist: then the partition was never written.
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
        raise _damaged_directory(f"the segment in {directory} with offset {mark.start_offset} is missing")
    for segment in segments:
        if offset >= mark.synced_offset:
            return
        if segment.base_offset != offset:
            raise _damaged_directory(f"the segment in {directory} with offset {offset} is missing")
        end = mark.position if segment.base_offset == mark.segment else segment.file.size()
        position = 0
        for batch_position, header, _ in scan_whole_batches(
            segment.file, 0, min(end, segment.file.size()), offset
        ):
            position, offset = batch_position + header.size, header.next_offset
        if position < end:
            raise _damaged_directory(f"{segment.path} is damaged at byte {position}")
    if offset < mark.synced_offset:
        raise _damaged_directory(f"the segment in {directory} with offset {offset} is missing")


def _damaged_directory(message: str) -> DamagedState:
    return DamagedState(message, hint="restore the directory from a backup")


def segment_headers(
    segment: ReadableSegment, offset: int, interval: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the headers of the batches that end after ``offset``. After damage, continue at the next index entry."""
    index = segment.loaded_index(interval)
    _, position = index.floor(offset)
    while position < segment.size:
        for batch_position, header in scan_headers(segment.file, position, segment.size):
            position = batch_position + header.size
            if header.next_offset > offset:
                yield batch_position, header
        next_entry = index.first_after(position)
        if position >= segment.size or next_entry is None:
            return
        position = next_entry[1]


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
    # The caller syncs the directory. An empty segment without a mark is harmless.
    return MarkFile.create(files, directory, mark), mark


def _refuse_data_without_mark(directory: Path, segments: list[Segment]) -> None:
    if any(segment.file.size() for segment in segments):
        raise DamagedState(
            f"the mark of {directory} is missing, but its segments contain records",
            detail="without the mark the broker cannot distinguish a torn tail from damage",
            hint="restore the directory from a backup",
        )


def _repair_tail(
    files: Files,
    directory: Path,
    segments: list[Segment],
    mark: Mark,
    leader_epoch: int,
    report: RecoveryReport,
) -> int:
    """Retain the complete batches above the mark and truncate the rest; returns the end offset.

    The CRC does not cover the leader epoch. Readers refuse a future epoch, so such a batch is not complete.
    """
    offset = mark.synced_offset
    needs_new_segment = True
    if mark.position and all(segment.base_offset != mark.segment for segment in segments):
        report.damage.append(
            f"{directory / log_name(mark.segment)} is missing, but {mark.position} bytes were synced"
        )
    for segment in list(segments):
        if segment.base_offset < mark.segment:
            continue
        start = mark.position if segment.base_offset == mark.segment else 0
        if segment.base_offset != mark.segment and segment.base_offset != offset:
            report.truncated_bytes += segment.file.size()
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
        intact_end = start
        for position, header, _ in scan_whole_batches(segment.file, start, size, offset):
            if not 0 <= header.leader_epoch <= leader_epoch:
                break
            intact_end = position + header.size
            offset = header.next_offset
        if intact_end < size:
            report.truncated_bytes += size - intact_end
            segment.file.truncate(intact_end)
        _write_again(segment, start, intact_end)
        report.retained_tail_bytes += intact_end - start
        if intact_end < size or intact_end > start:
            segment.file.sync()
        segment.index.size = intact_end
        segment.index.end_offset = offset
        needs_new_segment = False
    if offset < mark.start_offset:
        # With durability "os" a power loss may leave a log that ends below its start offset. An offset is never used
        # twice, so the log continues at its start offset.
        for segment in segments:
            report.truncated_bytes += segment.file.size()
            segment.remove()
            report.files_removed += 1
        segments.clear()
        offset = mark.start_offset
        needs_new_segment = True
    if needs_new_segment:
        new_segment = Segment(files, directory, offset)
        new_segment.create()
        segments.append(new_segment)
    return offset


def _write_again(segment: Segment, start: int, end: int) -> None:
    position = start
    while position < end:
        chunk = segment.file.pread(min(_REWRITE_BYTES, end - position), position)
        written = segment.file.pwrite([chunk], position)
        if written != len(chunk):
            raise OSError(f"short write while recovering {segment.path}: {written} of {len(chunk)} bytes")
        position += written


def _load_indexes(
    files: Files, segments: list[Segment], interval: int, end_offset: int, report: RecoveryReport
) -> None:
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        end = following.base_offset if following is not None else end_offset
        size = segment.index.size if segment.index.end_offset == end and segment.index.size else None
        if segment.load_index() and segment.end_offset == end and (size is None or segment.size == size):
            # The last segment will grow, so load all entries of its index.
            if following is None:
                segment.ensure_columns(interval)
            continue
        if files.exists(segment.index_path):
            # The index covers batches that a power loss removed. It must not be used for batches written later.
            files.remove(segment.index_path)
            report.files_removed += 1
        on_disk = segment.file.size()
        segment.rebuild_index(interval, on_disk, end)
        if size is not None and size > on_disk:
            segment.index.size = size
        if following is not None:
            # Write the index of a sealed segment now. Otherwise every start would rebuild it.
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
    """Load the newest usable state snapshot; returns it with the offsets of all remaining snapshots."""
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
        # Remove a snapshot beyond the end of the log: it would be wrong once the log has grown past its offset.
        files.remove(path)
        report.files_removed += 1
    return new_state(first_offset), []


def _replay(segments: list[Segment], state: PartitionState, end_offset: int, now_ms: int) -> None:
    """Apply the batches after the state's offset to the state, up to the end of the log."""
    for segment in segments:
        if segment.end_offset <= state.offset:
            continue
        for position, header in segment_headers(segment, state.offset, interval=4096):
            if header.base_offset < state.offset:
                # Compaction extended this batch beyond the state's offset. The state already covers its records.
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
        # Only the coordinator knows how the transaction ended. The transaction remains open, and the coordinator ends
        # it again.
        return
    state.producers.note_marker(header, marker.coordinator_epoch, now_ms)
    state.transactions.end(header.producer_id, header.base_offset, committed=marker.committed)
