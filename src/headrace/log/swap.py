"""Replaces segments with the compacted file that was written from them, in one atomic step.

    <base>.log.compacted      the new file, complete and synced before the swap begins
    <base>.index.compacted    its index
    <base>.swap               the swap file, which makes the swap durable; big-endian:

    0   8  magic "HRSWAP01"
    8   8  base offset of the new file and of the first replaced segment
    16  8  end offset of the new file and of the last replaced segment
    24  8  size of the new file in bytes
    32  4  CRC-32C of the new file
    36  4  CRC-32C of bytes 0 to 35

The atomic step is the durable rename to ``<base>.swap``. If a crash happens before this step, the next start uses the
old segments and removes the new files. If a crash happens after this step, the next start uses the new file. It renames
the new file, removes every other segment in the range, and finally removes the swap file. Each of these actions can be
repeated. If ``.log.compacted`` does not exist, the new file was already renamed.

If a start cannot rename or remove a file, it continues without finishing the swap. It reads the new file under its
temporary name and ignores the old segments. The swap file remains, and the partition is neither compacted nor archived
until a later start finishes the swap. A start fails if the swap file cannot be read or synced, or if the new file is
damaged.
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

__all__ = ["COMPACTED_SUFFIX", "Swap", "SwapResult", "finish_swaps"]

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
        return _compacted_path(self.log_path)

    @property
    def new_index_path(self) -> Path:
        return _compacted_path(self.index_path)

    def commit(self, files: Files) -> None:
        """Write the swap file durably. After this, every start uses the new file."""
        # Sync the names of the new files first: the swap file must not exist without them.
        files.sync_dir(self.directory)
        body = _BODY.pack(_MAGIC, self.base_offset, self.end_offset, self.size, self.crc)
        write_whole(files, self.path, body + _CRC.pack(crc32c(body)))
        files.sync_dir(self.directory)

    def rename(self, files: Files) -> None:
        """Rename the new file to its final name. Remove the old index first, because it does not match the new file."""
        if files.exists(self.index_path):
            files.remove(self.index_path)
        files.rename(self.new_log_path, self.log_path)
        # Without an index, the file only takes longer to open.
        with suppress(OSError):
            files.rename(self.new_index_path, self.index_path)

    def remove_replaced(self, files: Files, others: list[int]) -> None:
        """Remove the other segments of the range, then the swap file."""
        for base in others:
            path = self.directory / log_name(base)
            for outdated_path in (path.with_suffix(INDEX_SUFFIX), path):
                if files.exists(outdated_path):
                    files.remove(outdated_path)
        files.sync_dir(self.directory)
        files.remove(self.path)
        # Make the removal durable before the next compaction of this partition: a crash must not restore this file.
        files.sync_dir(self.directory)

    def unrenamed_segment(self, files: Files) -> Segment:
        """Return the new file as a segment under its current name, without the old index."""
        segment = Segment(files, self.directory, self.base_offset)
        if files.exists(self.new_log_path):
            segment.path = self.new_log_path
        segment.index_path = self.new_index_path
        return segment

    def discard(self, files: Files) -> None:
        """Remove the new files of a swap that has no swap file."""
        if files.exists(self.path):
            raise OSError(f"cannot discard the compacted files: {self.path} exists, so every start uses them")
        for path in (self.new_log_path, self.new_index_path):
            if files.exists(path):
                files.remove(path)


def _compacted_path(path: Path) -> Path:
    return path.with_name(path.name + COMPACTED_SUFFIX)


@dataclass(slots=True)
class SwapResult:
    """The files that a start uses."""

    names: list[str]
    """The files in the directory, without the replaced segments and without the segments in ``unrenamed``."""
    unrenamed: list[Segment] = field(default_factory=list)
    """New files that could not be renamed, or whose old index could not be removed."""
    unfinished_swap: str | None = None
    """The reason why a swap is unfinished, or ``None``."""


def finish_swaps(files: Files, directory: Path, names: list[str]) -> SwapResult:
    """Complete the swaps that have a swap file, and remove the new files of other swaps."""
    result = SwapResult(names)
    if not any(name.endswith((SWAP_SUFFIX, COMPACTED_SUFFIX)) for name in names):
        return result
    # A killed process may have left a swap file only in the page cache. It must be durable before files are removed.
    files.sync_dir(directory)
    outdated: set[str] = set()
    for name in names:
        if name.endswith(SWAP_SUFFIX):
            outdated |= _finish(files, _load(files, directory / name), result)
    unrenamed_names = {
        path.name for segment in result.unrenamed for path in (segment.path, segment.index_path)
    }
    try:
        for name in files.list(directory):
            if name.endswith(COMPACTED_SUFFIX) and name not in unrenamed_names:
                files.remove(directory / name)
        files.sync_dir(directory)
    except OSError as error:
        result.unfinished_swap = str(error)
    result.names = [name for name in files.list(directory) if name not in outdated]
    return result


def _load(files: Files, path: Path) -> Swap:
    file = files.open(path)
    try:
        raw = file.pread(_BODY.size + _CRC.size + 1, 0)
    finally:
        file.close()
    if len(raw) == _BODY.size + _CRC.size:
        magic, base, end, size, crc = _BODY.unpack_from(raw)
        is_intact = _CRC.unpack_from(raw, _BODY.size)[0] == crc32c(raw[: _BODY.size])
        if (
            is_intact
            and magic == _MAGIC
            and path.name == log_name(base).removesuffix(LOG_SUFFIX) + SWAP_SUFFIX
        ):
            return Swap(path.parent, base, end, size, crc)
    raise DamagedState(
        f"{path} is damaged",
        detail="the file determines whether the original or the compacted segments are valid",
        hint="restore the directory from a backup",
    )


def _finish(files: Files, swap: Swap, result: SwapResult) -> set[str]:
    """Finish a swap as far as possible; returns the names of outdated files that may still exist."""
    stems = [name.removesuffix(LOG_SUFFIX) for name in result.names if name.endswith(LOG_SUFFIX)]
    bases = [int(stem) for stem in stems if stem.isdigit()]
    others = [base for base in bases if swap.base_offset < base < swap.end_offset]
    outdated = {log_name(base) for base in others}
    is_unrenamed = files.exists(swap.new_log_path)
    if is_unrenamed:
        _check(files, swap)
    try:
        if files.exists(swap.index_path):
            files.remove(swap.index_path)
        if is_unrenamed:
            files.rename(swap.new_log_path, swap.log_path)
    except OSError as error:
        result.unrenamed.append(swap.unrenamed_segment(files))
        result.unfinished_swap = str(error)
        return {*outdated, swap.log_path.name}
    try:
        swap.remove_replaced(files, others)
    except OSError as error:
        result.unfinished_swap = str(error)
    return outdated


def _check(files: Files, swap: Swap) -> None:
    """Verify the new file before the old segments are removed."""
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
            f"{swap.new_log_path} is damaged: it has {position} bytes with CRC {crc:08x}, "
            f"expected {swap.size} bytes with CRC {swap.crc:08x}",
            detail=f"the file contains offsets {swap.base_offset} to {swap.end_offset - 1}",
            hint="restore the directory from a backup; the old segments, which the file was to replace, may remain",
        )
