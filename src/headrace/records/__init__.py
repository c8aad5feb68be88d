"""Kafka's record batch, format 2, as bytes: read, check, place, build. No files, no sockets, no clocks."""

from __future__ import annotations

from headrace.records.build import build_batch, recompress
from headrace.records.check import Checked, check_batch, read_records
from headrace.records.codecs import CODEC_NAMES
from headrace.records.control import Marker, build_marker, read_marker
from headrace.records.errors import CorruptRecords, InvalidRecords, RecordError, RecordsTooLarge, UnknownCodec
from headrace.records.header import HEADER_SIZE, BatchHeader, crc_ok, iter_headers, read_header
from headrace.records.limits import RecordLimits
from headrace.records.place import place_batch
from headrace.records.quick_walk import WALKS_IN_C
from headrace.records.record import Record
from headrace.records.stored import (
    StoredBatch,
    cover_batch,
    empty_batch,
    open_batch,
    read_stored,
    stretch_batch,
    thin_batch,
)

__all__ = [
    "CODEC_NAMES",
    "HEADER_SIZE",
    "WALKS_IN_C",
    "BatchHeader",
    "Checked",
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
    "cover_batch",
    "crc_ok",
    "empty_batch",
    "iter_headers",
    "open_batch",
    "place_batch",
    "read_header",
    "read_marker",
    "read_records",
    "read_stored",
    "recompress",
    "stretch_batch",
    "thin_batch",
]
