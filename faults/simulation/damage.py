"""Damages files, and reads files with the oracle's own code."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import crc32c

from faults.disk.faulty_files import FaultyFiles
from faults.simulation.partition_oracle import Stored, split_batches

__all__ = ["DAMAGES", "Damage", "batches_in", "changed_ranges", "contents", "has_slot"]

_BLOCK = 4096
_SLOT, _SLOT_DISTANCE = 56, 4096
_SMALLEST_BATCH = 61


@dataclass(frozen=True, slots=True)
class Damage:
    name: str
    _do: Callable[[FaultyFiles, Path, random.Random, int, bytes], None]

    def apply(self, files: FaultyFiles, path: Path, rng: random.Random, first: int) -> bytes | None:
        """Damage the file at or after byte ``first``. Return its new content, or None if the file is deleted."""
        self._do(files, path, rng, first, files.content(path))
        return files.content(path) if files.exists(path) else None


def _flip(files: FaultyFiles, path: Path, rng: random.Random, first: int, content: bytes) -> None:
    if first < len(content):
        at = rng.randrange(first, len(content))
        files.damage(path, at, bytes([content[at] ^ 1 << rng.randrange(8)]))


def _zero(files: FaultyFiles, path: Path, rng: random.Random, first: int, content: bytes) -> None:
    """Zero a disk block, or all of a smaller file."""
    blocks = range(first // _BLOCK, max(len(content) - 1, 0) // _BLOCK + 1)
    start = max(rng.choice(blocks) * _BLOCK, first)
    files.damage(path, start, bytes(min(_BLOCK, len(content) - start)))


def _truncate(files: FaultyFiles, path: Path, rng: random.Random, first: int, content: bytes) -> None:
    if first < len(content):
        files.cut(path, rng.randrange(first, len(content)))


def _delete(files: FaultyFiles, path: Path, rng: random.Random, first: int, content: bytes) -> None:
    if first:
        # The bytes before ``first`` are synced, so only the bytes after them may be lost.
        files.cut(path, first)
        return
    files.remove(path)
    files.sync_dir(path.parent)


DAMAGES = (
    Damage("flip", _flip),
    Damage("zero", _zero),
    Damage("truncate", _truncate),
    Damage("delete", _delete),
)


def batches_in(content: bytes) -> Iterator[tuple[int, Stored]]:
    """Yield the batches of an undamaged segment, each with its position. Stop at the first incomplete batch."""
    at = 0
    while at + _SMALLEST_BATCH <= len(content):
        size = int.from_bytes(content[at + 8 : at + 12], "big") + 12
        try:
            (batch,) = split_batches(content[at : at + size])
        except ValueError:
            return
        yield at, batch
        at += size


def changed_ranges(before: bytes, after: bytes | None, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the byte ranges between ``start`` and ``stop`` that changed. Missing bytes count as changed."""
    now = after if after is not None else b""
    return [
        (at, at + 1) for at in range(start, min(stop, len(before))) if at >= len(now) or now[at] != before[at]
    ]


def has_slot(mark: bytes, number: int) -> bool:
    """Whether a slot of a mark file is whole."""
    slot = mark[number * _SLOT_DISTANCE : number * _SLOT_DISTANCE + _SLOT]
    return len(slot) == _SLOT and int.from_bytes(slot[-4:], "big") == crc32c.crc32c(slot[:-4])


def contents(files: FaultyFiles, directory: Path) -> dict[Path, bytes]:
    """Return the content of every file below a directory."""
    found: dict[Path, bytes] = {}
    for name in files.list(directory):
        path = directory / name
        try:
            found[path] = files.content(path)
        except IsADirectoryError:
            found |= contents(files, path)
    return found
