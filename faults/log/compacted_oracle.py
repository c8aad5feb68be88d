"""The oracle of a compacted partition: a table of the sent, acknowledged and delivered records.

Every record, also a deletion, has a unique number in a header, so that the oracle recognises it. Every read must
satisfy:

    an acknowledged or delivered offset has its record, or was compacted away; it never has another record
    no record exists twice, and offsets increase
    the newest record of each key exists, unless it is a deletion that was removed; then the broker must report that
        readers below it have missed a deletion, and the log must not have an older record of the key

A record whose write got no response might exist or not. A deletion without a response might have removed its key, and
might itself have been removed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import crc32c

from faults.protocol.codec import unzigzag, zigzag
from faults.simulation.partition_oracle import Findings

__all__ = ["Sent", "StoredRecord", "Table", "build_keyed", "parse_keyed"]

_BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_FROM = 21


@dataclass(frozen=True, slots=True)
class Sent:
    number: int
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class StoredRecord:
    offset: int
    number: int
    key: bytes
    value: bytes | None


@dataclass(slots=True)
class Table:
    name: str
    findings: Findings
    sent: dict[int, Sent] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    """The number of the record at each acknowledged or delivered offset."""

    def send(self, key: bytes, value: bytes | None) -> Sent:
        record = Sent(len(self.sent), key, value)
        self.sent[record.number] = record
        return record

    def ack(self, records: list[Sent], base_offset: int) -> None:
        for index, record in enumerate(records):
            self._record_number(base_offset + index, record.number)

    def _record_number(self, offset: int, number: int) -> None:
        if self.numbers.setdefault(offset, number) != number:
            self._report_problem(
                f"offset {offset} changed its record from {self.numbers[offset]} to {number}"
            )

    def judge(self, records: list[StoredRecord], end: int, removed_below: int) -> None:
        """``records`` are all readable records. ``removed_below`` comes from the broker, which may have removed
        deletions below this offset.
        """
        offsets: dict[int, int] = {}
        previous_offset = -1
        for record in records:
            sent = self.sent.get(record.number)
            if sent is None or (sent.key, sent.value) != (record.key, record.value):
                self._report_problem(f"offset {record.offset} has a record that no client sent: {record}")
                continue
            if record.offset <= previous_offset:
                self._report_problem(f"offset {record.offset} comes after {previous_offset}")
            previous_offset = record.offset
            if record.number in offsets:
                self.findings.duplicated += 1
                self._report_problem(
                    f"record {record.number} is at offset {offsets[record.number]} and {record.offset}"
                )
            offsets[record.number] = record.offset
            self._record_number(record.offset, record.number)
        if self.numbers and end <= max(self.numbers):
            self.findings.lost += 1
            self._report_problem(
                f"the log ends at {end}, but offset {max(self.numbers)} was acknowledged or delivered"
            )
        self._judge_keys({record.offset for record in records}, removed_below)

    def _judge_keys(self, present: set[int], removed_below: int) -> None:
        newest: dict[bytes, int] = {}
        for offset in sorted(self.numbers):
            newest[self.sent[self.numbers[offset]].key] = offset
        readable = {
            self.sent[self.numbers[offset]].key: offset for offset in sorted(present & self.numbers.keys())
        }
        for key, offset in newest.items():
            if offset in present:
                continue
            if self.sent[self.numbers[offset]].value is not None:
                if offset < removed_below and key not in readable and self._may_be_deleted(key, offset):
                    continue
                self.findings.lost += 1
                self._report_problem(f"the newest record of {key!r}, at {offset}, is missing")
            elif key in readable:
                self._report_problem(
                    f"{key!r} was deleted at {offset} but a reader sees its record at {readable[key]} again"
                )
            elif offset >= removed_below:
                self._report_problem(
                    f"the deletion of {key!r} at {offset} is missing, but the broker reports"
                    f" removed deletions only below {removed_below}"
                )

    def _may_be_deleted(self, key: bytes, offset: int) -> bool:
        """Whether a deletion was sent after the offset and got no response."""
        acknowledged = set(self.numbers.values())
        return any(
            record.key == key and record.value is None and record.number not in acknowledged
            for record in self.sent.values()
            if record.number > self.numbers[offset]
        )

    def _report_problem(self, problem: str) -> None:
        self.findings.report_problem(f"{self.name}: {problem}")


def build_keyed(
    records: list[Sent], timestamp_ms: int, *, producer_id: int = -1, sequence: int = -1
) -> bytes:
    body = bytearray()
    for index, record_sent in enumerate(records):
        number = str(record_sent.number).encode()
        value = b"\x01" if record_sent.value is None else zigzag(len(record_sent.value)) + record_sent.value
        record = (
            b"\x00\x00" + zigzag(index) + zigzag(len(record_sent.key)) + record_sent.key + value
            + b"\x02" + b"\x02n" + zigzag(len(number)) + number
        )  # fmt: skip
        body += zigzag(len(record)) + record
    epoch = -1 if producer_id < 0 else 0
    fields = (0, len(records) - 1, timestamp_ms, timestamp_ms, producer_id, epoch, sequence, len(records))
    checked = struct.pack(">hiqqqhii", *fields) + bytes(body)
    return struct.pack(">qiibI", 0, 9 + len(checked), -1, 2, crc32c.crc32c(checked)) + checked


def parse_keyed(data: bytes) -> Iterator[tuple[int, list[StoredRecord]]]:
    """Yield for each batch the offset after it, and its records. Raise ``ValueError`` unless every batch is whole."""
    at = 0
    while at < len(data):
        fields = _BATCH_HEADER.unpack_from(data, at)
        base, size, magic, crc, attributes, delta, count = fields[0], fields[1] + 12, *fields[3:7], fields[12]
        if magic != 2 or at + size > len(data):
            raise ValueError(f"no whole batch at byte {at}")
        if crc32c.crc32c(memoryview(data)[at + _CRC_FROM : at + size]) != crc:
            raise ValueError(f"the batch at offset {base} fails its CRC")
        is_control = attributes & 0x20
        yield (
            base + delta + 1,
            [] if is_control else list(_records(data, at + _BATCH_HEADER.size, base, count)),
        )
        at += size


def _records(data: bytes, at: int, base: int, count: int) -> Iterator[StoredRecord]:
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
        yield StoredRecord(base + offset_delta, int(number or b"-1"), key or b"", value)
        at = end


def _field(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = unzigzag(data, at)
    return (None, at) if size < 0 else (data[at : at + size], at + size)
