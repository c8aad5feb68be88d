"""One file on a disk: the content that reads return, the durable content, and the changes that are not synced yet.

After a power loss, each sector of 512 bytes has its content from any moment since the last sync. A torn sector has two
parts from two such moments. The size of the file is also from any such moment. So unsynced writes are retained, lost,
torn and reordered. Truncations are retained up to some moment, and later ones are lost. If a truncation is lost, all
later writes are lost too. Durable bytes never change, unless a later write overwrites them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["FileNode", "resize"]

SECTOR_BYTES = 512


class Write(NamedTuple):
    number: int
    position: int
    data: bytes


class Truncation(NamedTuple):
    number: int
    size: int


class FileNode:
    def __init__(self, content: bytes | bytearray = b"") -> None:
        self.content = bytearray(content)
        self.durable = bytearray(content)
        self.changes: list[Write | Truncation] = []
        self.last_change = 0
        self.handles = 0
        self.named = True
        self.lock_holder: object | None = None

    def write(self, data: bytes, position: int) -> None:
        self.last_change += 1
        change = Write(self.last_change, position, data)
        self.changes.append(change)
        apply(self.content, change)

    def truncate(self, size: int) -> None:
        self.last_change += 1
        change = Truncation(self.last_change, size)
        self.changes.append(change)
        apply(self.content, change)

    def settle(self, up_to: int) -> None:
        """Make all changes up to this number durable."""
        for change in self._split(up_to):
            apply(self.durable, change)

    def forget(self, up_to: int) -> None:
        """Treat all changes as synced although they are not on the disk. A later sync does not write them."""
        self._split(up_to)

    def _split(self, up_to: int) -> list[Write | Truncation]:
        covered = [change for change in self.changes if change.number <= up_to]
        del self.changes[: len(covered)]
        return covered

    def after_power_loss(self, rng: random.Random) -> bytearray:
        """Return one of the possible contents after a power loss."""
        image = bytearray(self.durable)
        changes = self._up_to_a_truncation(rng)
        if not changes:
            return image
        manner = rng.randrange(4)
        if manner == 0:
            return image if rng.random() < 0.5 else self._all(image, changes)
        if manner == 1:
            return self._prefix(image, changes, rng)
        return self._by_sector(image, changes, rng)

    def _up_to_a_truncation(self, rng: random.Random) -> list[Write | Truncation]:
        truncations = [at for at, change in enumerate(self.changes) if isinstance(change, Truncation)]
        end = rng.choice([*truncations, len(self.changes)])
        return self.changes[:end]

    @staticmethod
    def _all(image: bytearray, changes: list[Write | Truncation]) -> bytearray:
        for change in changes:
            apply(image, change)
        return image

    @staticmethod
    def _prefix(image: bytearray, changes: list[Write | Truncation], rng: random.Random) -> bytearray:
        """Apply writes in order up to some moment, the last one torn. This is usual for an append-only file."""
        end = rng.randrange(len(changes) + 1)
        for change in changes[:end]:
            apply(image, change)
        if end < len(changes):
            torn = changes[end]
            if isinstance(torn, Write):
                size = rng.randrange(len(torn.data) + 1)
                if rng.random() < 0.5:
                    size -= (torn.position + size) % SECTOR_BYTES
                if size > 0:
                    apply(image, torn._replace(data=torn.data[:size]))
        return image

    @staticmethod
    def _by_sector(image: bytearray, changes: list[Write | Truncation], rng: random.Random) -> bytearray:
        """Set every sector to its content at a random moment, and the size to that of another moment."""
        kept_share = rng.choice([0.1, 0.5, 0.9])
        tear_share = rng.choice([0.0, 0.05])

        def moment() -> int:
            return len(changes) if rng.random() < kept_share else rng.randrange(len(changes) + 1)

        moments: dict[int, tuple[int, int, int]] = {}
        sizes = [len(image)]
        for at, change in enumerate(changes):
            if isinstance(change, Truncation):
                apply(image, change)
                sizes = [change.size]
                continue
            sizes.append(max(sizes[-1], change.position + len(change.data)))
            for sector, start, end in _sectors(change):
                if sector not in moments:
                    first = moment()
                    torn = rng.random() < tear_share
                    moments[sector] = (
                        (first, rng.randrange(SECTOR_BYTES), moment()) if torn else (first, 0, first)
                    )
                before, cut, after = moments[sector]
                middle = min(max(start, sector * SECTOR_BYTES + cut), end)
                if at < before:
                    _copy(image, change, start, middle)
                if at < after:
                    _copy(image, change, middle, end)
        resize(image, rng.choice(sizes) if rng.random() < 0.5 else sizes[-1])
        return image


def _sectors(change: Write) -> Iterator[tuple[int, int, int]]:
    """Yield each sector that a write changes: its number, and the start and end of the changed bytes in the file."""
    start, end = change.position, change.position + len(change.data)
    while start < end:
        sector = start // SECTOR_BYTES
        stop = min(end, (sector + 1) * SECTOR_BYTES)
        yield sector, start, stop
        start = stop


def _copy(image: bytearray, change: Write, start: int, end: int) -> None:
    if start < end:
        apply(image, Write(0, start, change.data[start - change.position : end - change.position]))


def apply(content: bytearray, change: Write | Truncation) -> None:
    if isinstance(change, Truncation):
        resize(content, change.size)
    elif change.data:
        if change.position > len(content):
            resize(content, change.position)
        content[change.position : change.position + len(change.data)] = change.data


def resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))
