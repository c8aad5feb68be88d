from __future__ import annotations

import pytest

from headrace.records import Marker, build_batch, build_marker, read_header, read_marker, read_records
from headrace.records.errors import RecordLimits


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_contains_whether_its_transaction_committed(committed: bool) -> None:
    batch = build_marker(77, 5, Marker(committed, 9), 1_000)
    assert read_marker(batch) == Marker(committed, 9)
    header = read_header(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 5, -1)
    assert (header.count, header.max_timestamp) == (1, 1_000)


def test_a_marker_has_the_bytes_that_every_client_expects() -> None:
    (record,) = read_records(build_marker(1, 0, Marker(True, 2), 0), RecordLimits())
    assert record.key == bytes([0, 0, 0, 1])
    assert record.value == bytes([0, 0, 0, 0, 0, 2])
    (record,) = read_records(build_marker(1, 0, Marker(False, 2), 0), RecordLimits())
    assert record.key == bytes([0, 0, 0, 0])


def test_a_damaged_marker_is_refused() -> None:
    batch = build_marker(1, 0, Marker(True, 2), 0)
    batch[-2] ^= 1
    assert read_marker(batch) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\0" * 6),
        (b"\0\0", b"\0" * 6),
        (b"\0\0\0\1", None),
        (b"\0\0\0\1", b"\0"),
        (b"\0\0\0\2", b"\0" * 6),
    ],
)
def test_a_control_batch_of_another_kind_is_not_a_transaction_marker(
    key: bytes | None, value: bytes | None
) -> None:
    assert read_marker(build_batch([(key, value, ())], timestamp_ms=0, control=True)) is None
