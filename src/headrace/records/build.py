"""Builds record batches: for tests and tools, for control records, and for topics with their own compression codec."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.checksum import Buffer
from headrace.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    TRANSACTIONAL_BIT,
    intact_header,
    seal,
    unpack_batch,
    validate_batch,
)
from headrace.records.codecs import pack
from headrace.records.errors import RecordLimits
from headrace.records.record import append_varint

__all__ = ["Content", "build_batch", "recompress"]

Headers = Iterable[tuple[str, bytes | None]]
Content = tuple[bytes | None, bytes | None, Headers]


def build_batch(
    records: Sequence[Content],
    *,
    base_offset: int = 0,
    timestamp_ms: int,
    codec: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = 0,
    transactional: bool = False,
    control: bool = False,
) -> bytearray:
    """Build one batch from (key, value, headers) tuples. All records get the same timestamp."""
    out = bytearray()
    for index, (key, value, headers) in enumerate(records):
        _append_record(out, index, key, value, list(headers))
    packed = pack(codec, out)
    attributes = codec | (TRANSACTIONAL_BIT if transactional else 0) | (CONTROL_BIT if control else 0)
    batch = bytearray(
        HEADER.pack(
            base_offset,
            HEADER_SIZE - LENGTH_END + len(packed),
            leader_epoch,
            MAGIC,
            0,
            attributes,
            len(records) - 1,
            timestamp_ms,
            timestamp_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            len(records),
        )
    )
    batch += packed
    seal(batch, 0)
    return batch


def recompress(batch: Buffer, codec: int, limits: RecordLimits) -> bytes:
    """Validate a batch and compress its records with another codec. The records do not change."""
    header = intact_header(batch)
    plain = unpack_batch(batch, header, limits)
    validate_batch(plain, header.count, limits)
    packed = pack(codec, plain)
    changed = header._replace(
        length=HEADER_SIZE - LENGTH_END + len(packed),
        attributes=header.attributes & ~CODEC_MASK | codec,
    )
    out = bytearray(HEADER.pack(*changed))
    out += packed
    seal(out, 0)
    return bytes(out)


def _append_record(
    out: bytearray,
    index: int,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
) -> None:
    body = bytearray(1)
    append_varint(body, 0)
    append_varint(body, index)
    _append_bytes(body, key)
    _append_bytes(body, value)
    append_varint(body, len(headers))
    for name, header_value in headers:
        _append_bytes(body, name.encode())
        _append_bytes(body, header_value)
    append_varint(out, len(body))
    out += body


def _append_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        append_varint(out, -1)
    else:
        append_varint(out, len(data))
        out += data
