"""Reads, validates and builds Kafka record batches (format 2) as bytes. No files, no sockets, no clocks."""

from __future__ import annotations

from headrace.records.batch import (
    HEADER_SIZE,
    VALIDATES_IN_C,
    BatchHeader,
    BatchSummary,
    check_batch,
    codec_of,
    crc_ok,
    iter_headers,
    read_header,
    read_records,
    set_broker_fields,
    transactional_producer,
    with_max_timestamp,
)
from headrace.records.build import build_batch, recompress
from headrace.records.codecs import CODEC_NAMES
from headrace.records.control import Marker, build_marker, read_marker
from headrace.records.errors import (
    CorruptRecords,
    InvalidRecords,
    RecordError,
    RecordLimits,
    RecordsTooLarge,
    UnknownCodec,
)
from headrace.records.record import Record
from headrace.records.stored import (
    StoredBatch,
    empty_batch,
    empty_batch_for_offsets,
    extend_last_offset,
    open_batch,
    read_stored,
    remove_records,
)

__all__ = [
    "CODEC_NAMES",
    "HEADER_SIZE",
    "VALIDATES_IN_C",
    "BatchHeader",
    "BatchSummary",
    "CorruptRecords",
    "InvalidRecords",
    "Marker",
    "Record",
    "RecordError",
    "RecordLimits",
    "RecordsTooLarge",
    "StoredBatch",
    "UnknownCodec",
    "build_batch",
    "build_marker",
    "check_batch",
    "codec_of",
    "crc_ok",
    "empty_batch",
    "empty_batch_for_offsets",
    "extend_last_offset",
    "iter_headers",
    "open_batch",
    "read_header",
    "read_marker",
    "read_records",
    "read_stored",
    "recompress",
    "remove_records",
    "set_broker_fields",
    "transactional_producer",
    "with_max_timestamp",
]
