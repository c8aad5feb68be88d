"""What can be wrong with a record batch, sorted by what the client is told.

RecordError
├── CorruptRecords      the bytes are not what was sent: framing or CRC       (Kafka error 2)
├── InvalidRecords      intact, but they contradict themselves or our limits  (Kafka error 87)
├── RecordsTooLarge     would unpack to more than the limits allow            (Kafka error 87)
└── UnknownCodec        compressed in a way that nobody defined               (Kafka error 76)
"""

from __future__ import annotations

from headrace.errors import HeadraceError

__all__ = ["CorruptRecords", "InvalidRecords", "RecordError", "RecordsTooLarge", "UnknownCodec"]


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
