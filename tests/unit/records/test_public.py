from __future__ import annotations

import headrace.records


def test_the_public_names_are_these():
    assert headrace.records.__all__ == [
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
    assert all(hasattr(headrace.records, name) for name in headrace.records.__all__)
