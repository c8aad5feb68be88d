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
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import crc32c

from headrace.errors import DamagedState
from headrace.files import Files
from headrace.log.segment import INDEX_SUFFIX, LOG_SUFFIX, log_name, write_whole

__all__ = ["COMPACTED_SUFFIX", "Swap", "finish_swaps"]

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
        write_whole(files, self.path, body + _CRC.pack(crc32c.crc32c(body)))
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

    def discard(self, files: Files) -> None:
        """The swap was not decided and will not be: remove what was written for it."""
        if files.exists(self.path):
            raise OSError(f"{self.path} decides for what was about to be removed")
        for path in (self.new_log_path, self.new_index_path):
            if files.exists(path):
                files.remove(path)


def _aside(path: Path) -> Path:
    return path.with_name(path.name + COMPACTED_SUFFIX)


def finish_swaps(files: Files, directory: Path, names: list[str]) -> list[str]:
    """Finish what was decided and remove what was not; returns the names that are there then."""
    if not any(name.endswith((SWAP_SUFFIX, COMPACTED_SUFFIX)) for name in names):
        return names
    # A process that was killed may have left the decision to the page cache. Nothing may go before it is durable.
    files.sync_dir(directory)
    for name in names:
        if name.endswith(SWAP_SUFFIX):
            _finish(files, _load(files, directory / name), names)
    for name in files.list(directory):
        if name.endswith(COMPACTED_SUFFIX):
            files.remove(directory / name)
    files.sync_dir(directory)
    return files.list(directory)


def _load(files: Files, path: Path) -> Swap:
    file = files.open(path)
    try:
        raw = file.pread(_BODY.size + _CRC.size + 1, 0)
    finally:
        file.close()
    if len(raw) == _BODY.size + _CRC.size:
        magic, base, end, size, crc = _BODY.unpack_from(raw)
        whole = _CRC.unpack_from(raw, _BODY.size)[0] == crc32c.crc32c(raw[: _BODY.size])
        if whole and magic == _MAGIC and path.name == log_name(base).removesuffix(LOG_SUFFIX) + SWAP_SUFFIX:
            return Swap(path.parent, base, end, size, crc)
    raise DamagedState(
        f"{path} does not read back",
        detail="it decides which of two sets of segments counts, so nothing can be done without it",
        hint="restore the directory from a backup",
    )


def _finish(files: Files, swap: Swap, names: list[str]) -> None:
    if files.exists(swap.index_path):
        files.remove(swap.index_path)
    if files.exists(swap.new_log_path):
        _check(files, swap)
        files.rename(swap.new_log_path, swap.log_path)
    stems = [name.removesuffix(LOG_SUFFIX) for name in names if name.endswith(LOG_SUFFIX)]
    bases = [int(stem) for stem in stems if stem.isdigit()]
    swap.settle(files, [base for base in bases if swap.base_offset < base < swap.end_offset])


def _check(files: Files, swap: Swap) -> None:
    """The old segments are about to go: what replaces them must be what was written."""
    file = files.open(swap.new_log_path)
    crc = position = 0
    try:
        while chunk := file.pread(_CHUNK, position):
            crc = crc32c.crc32c(chunk, crc)
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
