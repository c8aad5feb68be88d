"""The oracle of a compacted partition: a table, kept by hand from what was sent, acknowledged and given.

Every record carries a number of its own in a header, so that it is known wherever it turns up, deletions included. What
must hold of what can be read, whenever it is read:

    an offset that was acknowledged or given keeps its record, or is compacted away; it never holds another one
    no record is there twice, and offsets rise
    the newest record of each key is there, or, if it is a deletion, it may be gone: then the broker says that readers
    below it have missed one, and the key is gone as well

A record that was sent and not answered may be there or not. If it is a deletion, it may have been there, have taken its
key along, and be gone itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import crc32c

from bench.faults.sim_book import Objections
from bench.faults.varints import unzigzag, zigzag

__all__ = ["Found", "Sent", "Table", "build_keyed", "parse_keyed"]

_HEAD = struct.Struct(">qiibIhiqqqhii")
_CRC_FROM = 21


@dataclass(frozen=True, slots=True)
class Sent:
    number: int
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Found:
    offset: int
    number: int
    key: bytes
    value: bytes | None


@dataclass(slots=True)
class Table:
    name: str
    objections: Objections
    sent: dict[int, Sent] = field(default_factory=dict)
    known: dict[int, int] = field(default_factory=dict)
    """Which record is at an offset, of those that were acknowledged or given."""

    def send(self, key: bytes, value: bytes | None) -> Sent:
        one = Sent(len(self.sent), key, value)
        self.sent[one.number] = one
        return one

    def ack(self, records: list[Sent], base_offset: int) -> None:
        for index, one in enumerate(records):
            self._know(base_offset + index, one.number)

    def _know(self, offset: int, number: int) -> None:
        if self.known.setdefault(offset, number) != number:
            self._object(f"offset {offset} has changed its record from {self.known[offset]} to {number}")

    def judge(self, found: list[Found], end: int, removed_below: int) -> None:
        """``found`` is all that can be read, ``removed_below`` what the broker says of deletions that are gone."""
        places: dict[int, int] = {}
        last = -1
        for one in found:
            sent = self.sent.get(one.number)
            if sent is None or (sent.key, sent.value) != (one.key, one.value):
                self._object(f"offset {one.offset} holds what nobody sent: {one}")
                continue
            if one.offset <= last:
                self._object(f"offset {one.offset} comes behind {last}")
            last = one.offset
            if one.number in places:
                self.objections.duplicated += 1
                self._object(f"record {one.number} is at {places[one.number]} and at {one.offset}")
            places[one.number] = one.offset
            self._know(one.offset, one.number)
        if self.known and end <= max(self.known):
            self.objections.lost += 1
            self._object(f"the log ends at {end}, and offset {max(self.known)} was known")
        self._judge_keys({one.offset for one in found}, removed_below)

    def _judge_keys(self, present: set[int], removed_below: int) -> None:
        newest: dict[bytes, int] = {}
        for offset in sorted(self.known):
            newest[self.sent[self.known[offset]].key] = offset
        shown = {self.sent[self.known[offset]].key: offset for offset in sorted(present & self.known.keys())}
        for key, offset in newest.items():
            if offset in present:
                continue
            if self.sent[self.known[offset]].value is not None:
                if offset < removed_below and key not in shown and self._may_be_deleted(key, offset):
                    continue
                self.objections.lost += 1
                self._object(f"the newest record of {key!r}, at {offset}, is gone")
            elif key in shown:
                self._object(f"{key!r} was deleted at {offset} and is back from {shown[key]}")
            elif offset >= removed_below:
                self._object(
                    f"the deletion of {key!r} at {offset} is gone, and readers are told {removed_below}"
                )

    def _may_be_deleted(self, key: bytes, offset: int) -> bool:
        """Whether a deletion was sent behind the offset, and never answered."""
        answered = set(self.known.values())
        return any(
            one.key == key and one.value is None and one.number not in answered
            for one in self.sent.values()
            if one.number > self.known[offset]
        )

    def _object(self, problem: str) -> None:
        self.objections.object(f"{self.name}: {problem}")


def build_keyed(
    records: list[Sent], timestamp_ms: int, *, producer_id: int = -1, sequence: int = -1
) -> bytes:
    body = bytearray()
    for index, one in enumerate(records):
        number = str(one.number).encode()
        value = b"\x01" if one.value is None else zigzag(len(one.value)) + one.value
        record = (
            b"\x00\x00" + zigzag(index) + zigzag(len(one.key)) + one.key + value
            + b"\x02" + b"\x02n" + zigzag(len(number)) + number
        )  # fmt: skip
        body += zigzag(len(record)) + record
    epoch = -1 if producer_id < 0 else 0
    fields = (0, len(records) - 1, timestamp_ms, timestamp_ms, producer_id, epoch, sequence, len(records))
    checked = struct.pack(">hiqqqhii", *fields) + bytes(body)
    return struct.pack(">qiibI", 0, 9 + len(checked), -1, 2, crc32c.crc32c(checked)) + checked


def parse_keyed(data: bytes) -> Iterator[tuple[int, list[Found]]]:
    """Of every batch the offset behind it, and its records; raises ``ValueError`` unless all is whole."""
    at = 0
    while at < len(data):
        head = _HEAD.unpack_from(data, at)
        base, size, magic, crc, attributes, delta, count = head[0], head[1] + 12, *head[3:7], head[12]
        if magic != 2 or at + size > len(data):
            raise ValueError(f"no whole batch at byte {at}")
        if crc32c.crc32c(memoryview(data)[at + _CRC_FROM : at + size]) != crc:
            raise ValueError(f"the batch at offset {base} fails its CRC")
        is_control = attributes & 0x20
        yield base + delta + 1, [] if is_control else list(_records(data, at + _HEAD.size, base, count))
        at += size


def _records(data: bytes, at: int, base: int, count: int) -> Iterator[Found]:
    for _ in range(count):
        length, at = unzigzag(data, at)
        end = at + length
        _, at = unzigzag(data, at + 1)
        offset_delta, at = unzigzag(data, at)
        key, at = _field(data, at)
        value, at = _field(data, at)
        _, at = unzigzag(data, at)
        _, at = _field(data, at)
        number, at = _field(data, at)
        yield Found(base + offset_delta, int(number or b"-1"), key or b"", value)
        at = end


def _field(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = unzigzag(data, at)
    return (None, at) if size < 0 else (data[at : at + size], at + size)
