"""Control batches: the marker that ends a transaction in a partition, one record that only the broker writes.

    key    version (2) = 0, type (2): 0 aborted, 1 committed
    value  version (2) = 0, epoch of the coordinator (4)

The batch carries the control and the transactional bit, the producer's id and epoch, and no sequence. Readers that
want only what is committed learn from it where the producer's transaction ends; none hand it to their users.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from headrace.records.build import build_batch
from headrace.records.check import read_records
from headrace.records.errors import RecordError
from headrace.records.header import Buffer
from headrace.records.limits import RecordLimits

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
    """What a control batch says; ``None`` if it is damaged or of a kind that ends no transaction."""
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
