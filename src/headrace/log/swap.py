"""Putting a compacted file in the place of the segments that it was made from, in one step that no crash can halve.

    <base>.log.compacted      the new file, whole and synced before the swap begins
    <base>.index.compacted    its index
    <base>.swap               the decision; big-endian:

    0   8  magic "HRSWAP01"
    8   8  base offset: of the new file, and of the first segment that it stands for
    16  8  end offset: of the new file, and of the last segment that it stands for
    24  8  bytes of the new file
    32  4  CRC-32C of the new file
    36  4  CRC-32C of bytes 0 to 35

The step is that ``<base>.swap`` takes its name durably. Before it, a crash leaves the old segments and some leftovers,
which are removed. After it, the old segments count no more: whatever a crash leaves, the next start gives the new file
its name, removes every other segment in the range, and removes the decision last. Each of these can be repeated.

A decision that is there without its ``.log.compacted`` is one whose file has taken its name already.

A start that cannot finish, because a file is not renamed or removed, goes on all the same: the decision says what
counts. The new file is then read under the name that it has, and the old ones are passed over. The decision stays, so
the partition is neither compacted nor archived before a start that finishes it. Only where the decision itself cannot
be read or made durable, or the new file is not what was written, nobody knows what counts, and the start is refused.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headrace.checksum import crc32c
from headrace.errors import DamagedState
from headrace.files import Files
from headrace.log.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment, log_name, write_whole

__all__ = ["COMPACTED_SUFFIX", "Swap", "Swapped", "finish_swaps"]

COMPACTED_SUFFIX = ".compacted"
SWAP_SUFFIX = ".swap"
_MAGIC = b"HRSWAP01"
_BODY = struct.Struct(">8sqqqI")
_CRC = struct.Struct(">I")
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Swap:
    directory: Path
    base_offset: int
    end_offset: int
    size: int
    crc: int

    @property
    def path(self) -> Path:
        return self.log_path.with_suffix(SWAP_SUFFIX)

    @property
    def log_path(self) -> Path:
        return self.directory / log_name(self.base_offset)

    @property
    def index_path(self) -> Path:
        return self.log_path.with_suffix(INDEX_SUFFIX)

    @property
    def new_log_path(self) -> Path:
        return _aside(self.log_path)

    @property
    def new_index_path(self) -> Path:
        return _aside(self.index_path)

    def decide(self, files: Files) -> None:
        """After this the new file counts, whatever happens."""
        # The new names first: a decision must not be there without what it is about.
        files.sync_dir(self.directory)
        body = _BODY.pack(_MAGIC, self.base_offset, self.end_offset, self.size, self.crc)
        write_whole(files, self.path, body + _CRC.pack(crc32c(body)))
        files.sync_dir(self.directory)

    def rename(self, files: Files) -> None:
        """Give the new file its name. The old index goes first: it must never pass for the new file's."""
        if files.exists(self.index_path):
            files.remove(self.index_path)
        files.rename(self.new_log_path, self.log_path)
        # Without its index the file is as good, and slower to open.
        with suppress(OSError):
            files.rename(self.new_index_path, self.index_path)

    def settle(self, files: Files, others: list[int]) -> None:
        """Remove the other segments of the range, then the decision."""
        for base in others:
            path = self.directory / log_name(base)
            for gone in (path.with_suffix(INDEX_SUFFIX), path):
                if files.exists(gone):
                    files.remove(gone)
        files.sync_dir(self.directory)
        files.remove(self.path)
        # Before the next compaction of this partition, or this decision could be taken for that one's.
        files.sync_dir(self.directory)

    def segment_aside(self, files: Files) -> Segment:
        """The new file under the name that it has, with an index that is not the old one's."""
        segment = Segment(files, self.directory, self.base_offset)
        if files.exists(self.new_log_path):
            segment.path = self.new_log_path
        segment.index_path = self.new_index_path
        return segment

    def discard(self, files: Files) -> None:
        """The swap was not decided and will not be: remove what was written for it."""
        if files.exists(self.path):
            raise OSError(f"{self.path} decides for what was about to be removed")
        for path in (self.new_log_path, self.new_index_path):
            if files.exists(path):
                files.remove(path)


def _aside(path: Path) -> Path:
    return path.with_name(path.name + COMPACTED_SUFFIX)


@dataclass(slots=True)
class Swapped:
    """What a start goes on with."""

    names: list[str]
    """Of files that count, but for those in ``aside``."""
    aside: list[Segment] = field(default_factory=list)
    """Segments whose files could not take their names, or not without an index that is not theirs."""
    unsettled: str | None = None
    """Why a swap is not finished."""


def finish_swaps(files: Files, directory: Path, names: list[str]) -> Swapped:
    """Finish what was decided and remove what was not."""
    found = Swapped(names)
    if not any(name.endswith((SWAP_SUFFIX, COMPACTED_SUFFIX)) for name in names):
        return found
    # A process that was killed may have left the decision to the page cache. Nothing may go before it is durable.
    files.sync_dir(directory)
    outdated: set[str] = set()
    for name in names:
        if name.endswith(SWAP_SUFFIX):
            outdated |= _finish(files, _load(files, directory / name), found)
    kept = {path.name for segment in found.aside for path in (segment.path, segment.index_path)}
    try:
        for name in files.list(directory):
            if name.endswith(COMPACTED_SUFFIX) and name not in kept:
                files.remove(directory / name)
        files.sync_dir(directory)
    except OSError as error:
        found.unsettled = str(error)
    found.names = [name for name in files.list(directory) if name not in outdated]
    return found


def _load(files: Files, path: Path) -> Swap:
    file = files.open(path)
    try:
        raw = file.pread(_BODY.size + _CRC.size + 1, 0)
    finally:
        file.close()
    if len(raw) == _BODY.size + _CRC.size:
        magic, base, end, size, crc = _BODY.unpack_from(raw)
        whole = _CRC.unpack_from(raw, _BODY.size)[0] == crc32c(raw[: _BODY.size])
        if whole and magic == _MAGIC and path.name == log_name(base).removesuffix(LOG_SUFFIX) + SWAP_SUFFIX:
            return Swap(path.parent, base, end, size, crc)
    raise DamagedState(
        f"{path} does not read back",
        detail="it decides which of two sets of segments counts, so nothing can be done without it",
        hint="restore the directory from a backup",
    )


def _finish(files: Files, swap: Swap, found: Swapped) -> set[str]:
    """Names of files that count no more, though they may still be there."""
    stems = [name.removesuffix(LOG_SUFFIX) for name in found.names if name.endswith(LOG_SUFFIX)]
    bases = [int(stem) for stem in stems if stem.isdigit()]
    others = [base for base in bases if swap.base_offset < base < swap.end_offset]
    outdated = {log_name(base) for base in others}
    is_aside = files.exists(swap.new_log_path)
    if is_aside:
        _check(files, swap)
    try:
        if files.exists(swap.index_path):
            files.remove(swap.index_path)
        if is_aside:
            files.rename(swap.new_log_path, swap.log_path)
    except OSError as error:
        found.aside.append(swap.segment_aside(files))
        found.unsettled = str(error)
        return {*outdated, swap.log_path.name}
    try:
        swap.settle(files, others)
    except OSError as error:
        found.unsettled = str(error)
    return outdated


def _check(files: Files, swap: Swap) -> None:
    """The old segments are about to go: what replaces them must be what was written."""
    file = files.open(swap.new_log_path)
    crc = position = 0
    try:
        while chunk := file.pread(_CHUNK, position):
            crc = crc32c(chunk, crc)
            position += len(chunk)
    finally:
        file.close()
    if (position, crc) != (swap.size, swap.crc):
        raise DamagedState(
            f"{swap.new_log_path} is not what was written: {position} bytes with CRC {crc:08x}, "
            f"not {swap.size} with {swap.crc:08x}",
            detail=f"it stands for offsets {swap.base_offset} to {swap.end_offset - 1}",
            hint="restore the directory from a backup; the segments that it was made from may still be there",
        )
