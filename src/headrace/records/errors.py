"""The limits and the errors of record batches. Each error class corresponds to one Kafka error code.

RecordError
├── CorruptRecords      the bytes changed since they were sent: wrong length or CRC   (Kafka error 2)
├── InvalidRecords      the CRC matches, but the content is inconsistent or too large (Kafka error 87)
├── RecordsTooLarge     the records would decompress to more than the limits allow    (Kafka error 87)
└── UnknownCodec        the compression codec is unknown                              (Kafka error 76)
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import HeadraceError

__all__ = [
    "CorruptRecords",
    "InvalidRecords",
    "RecordError",
    "RecordLimits",
    "RecordsTooLarge",
    "UnknownCodec",
]


class RecordError(HeadraceError):
    code = "HR-RECORD"


class CorruptRecords(RecordError):
    code = "HR-RECORD-CORRUPT"


class InvalidRecords(RecordError):
    code = "HR-RECORD-INVALID"


class RecordsTooLarge(RecordError):
    code = "HR-RECORD-TOO-LARGE"


class UnknownCodec(RecordError):
    code = "HR-RECORD-CODEC"


MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """The limits of one batch after decompression. ``headers_max`` applies to each record."""

    unpacked_bytes_max: int = 256 * MIB
    records_max: int = 10_000_000
    headers_max: int = 10_000
