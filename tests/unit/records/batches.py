"""Valid and invalid batches for the tests. Their varints come from kafka-python, not from the tested code."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from hypothesis import strategies as st

from .oracle import DefaultRecordBatchBuilder, calc_crc32c, encode_varint

HEADER = struct.Struct(">qiibIhiqqqhii")
CODECS = range(5)
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def varint(value: int, width: int = 0) -> bytes:
    """Encode a varint, padded to ``width`` bytes with zero digits."""
    out = bytearray()
    encode_varint(value, out.append)
    while len(out) < width:
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def blob(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


@dataclass
class ForgedRecord:
    """A record whose parts can be replaced by invalid bytes."""

    index: int = 0
    key: bytes | None = b"key"
    value: bytes | None = b"value"
    headers: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    delta: int = 0
    attributes: bytes = b"\x00"
    offset_delta: bytes | None = None
    key_part: bytes | None = None
    value_part: bytes | None = None
    header_part: bytes | None = None
    length: bytes | None = None
    tail: bytes = b""

    def encode(self) -> bytes:
        headers = varint(len(self.headers)) + b"".join(
            blob(name) + blob(value) for name, value in self.headers
        )
        body = b"".join(
            (
                self.attributes,
                varint(self.delta),
                varint(self.index) if self.offset_delta is None else self.offset_delta,
                blob(self.key) if self.key_part is None else self.key_part,
                blob(self.value) if self.value_part is None else self.value_part,
                headers if self.header_part is None else self.header_part,
                self.tail,
            )
        )
        return (varint(len(body)) if self.length is None else self.length) + body


def batch_of(
    payload: bytes,
    count: int,
    *,
    last_offset_delta: int | None = None,
    attributes: int = 0,
    base_offset: int = 0,
    base_timestamp: int = 0,
    max_timestamp: int = 0,
) -> bytes:
    """A batch with these bytes as its records, and a correct CRC."""
    out = bytearray(
        HEADER.pack(
            base_offset,
            HEADER.size - 12 + len(payload),
            0,
            2,
            0,
            attributes,
            count - 1 if last_offset_delta is None else last_offset_delta,
            base_timestamp,
            max_timestamp,
            -1,
            -1,
            -1,
            count,
        )
    )
    out += payload
    return sealed(out)


def sealed(batch: bytes | bytearray) -> bytes:
    out = bytearray(batch)
    out[17:21] = calc_crc32c(bytes(out[21:])).to_bytes(4, "big")
    return bytes(out)


def forged_batch(*records: ForgedRecord) -> bytes:
    return batch_of(b"".join(record.encode() for record in records), len(records))


names = st.text(st.characters(codec="utf-8"), max_size=8)
blobs = st.none() | st.binary(max_size=90)
contents = st.tuples(blobs, blobs, st.lists(st.tuples(names, blobs), max_size=3))
batches_of_contents = st.lists(contents, min_size=1, max_size=40)
deltas = st.integers(0, 50) | st.integers(-(2**40), 2**40)


@st.composite
def stamped(
    draw: st.DrawFn,
) -> list[tuple[int, tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]]]:
    """Records with arbitrary timestamps, as a client might send them."""
    base = draw(st.integers(2**41, 2**42))
    return [(base + draw(deltas), content) for content in draw(batches_of_contents)]


def built_by_kafka_python(records: list, codec: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 2**31)
    for index, (timestamp, (key, value, headers)) in enumerate(records):
        builder.append(index, timestamp, key, value, headers)
    return bytes(builder.build())
