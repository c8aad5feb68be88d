from __future__ import annotations

import headrace.records


def test_the_public_names_are_these():
    assert headrace.records.__all__ == [
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
    assert all(hasattr(headrace.records, name) for name in headrace.records.__all__)
