"""kafka-python's records, pure Python: an independent implementation of the format."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # Its import reads resources in a way that the standard library has since deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
    from kafka.record.util import calc_crc32c, encode_varint

__all__ = ["DefaultRecordBatch", "DefaultRecordBatchBuilder", "calc_crc32c", "encode_varint"]
