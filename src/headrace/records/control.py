"""Control batches: a marker that ends a transaction in a partition. It is one record that only the broker writes.

    key    version (2) = 0, type (2): 0 aborted, 1 committed
    value  version (2) = 0, epoch of the coordinator (4)

The batch has the control bit, the transactional bit, the producer's id and epoch, and no sequence. It marks the end of
the producer's transaction for readers of committed records. Consumers do not return the marker to applications.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from headrace.checksum import Buffer
from headrace.records.batch import read_records
from headrace.records.build import build_batch
from headrace.records.errors import RecordError, RecordLimits

__all__ = ["Marker", "build_marker", "read_marker"]

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_VERSION = 0
_ABORTED, _COMMITTED = 0, 1
_LIMITS = RecordLimits()


class Marker(NamedTuple):
    committed: bool
    coordinator_epoch: int


def build_marker(producer_id: int, producer_epoch: int, marker: Marker, timestamp_ms: int) -> bytearray:
    kind = _COMMITTED if marker.committed else _ABORTED
    content = (_KEY.pack(_VERSION, kind), _VALUE.pack(_VERSION, marker.coordinator_epoch), ())
    return build_batch(
        [content],
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_marker(batch: Buffer) -> Marker | None:
    """Decode the marker of a control batch; ``None`` if the batch is damaged or is not a transaction marker."""
    try:
        records = read_records(batch, _LIMITS)
    except RecordError:
        return None
    key, value = records[0].key, records[0].value
    if key is None or value is None or len(key) < _KEY.size or len(value) < _VALUE.size:
        return None
    _, kind = _KEY.unpack_from(key)
    _, coordinator_epoch = _VALUE.unpack_from(value)
    return Marker(kind == _COMMITTED, coordinator_epoch) if kind in (_ABORTED, _COMMITTED) else None
