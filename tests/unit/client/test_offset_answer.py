"""What an answer about offsets says, and what it does not."""

from __future__ import annotations

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka.admin import ListOffsetsResultInfo  # type: ignore[attr-defined]

from headrace.client.errors import from_kafka
from headrace.client.offset_answer import offset_told


@pytest.mark.parametrize("offset", [0, 7, 2**62, -1])
def test_an_offset_is_taken_also_that_there_is_no_record_so_late(offset: int) -> None:
    assert offset_told(ListOffsetsResultInfo(offset, 0, 0)) == offset


def test_an_offset_that_is_none_is_an_error_that_passes() -> None:
    with pytest.raises(KafkaException, match="the broker was lost in the middle of the answer") as caught:
        offset_told(ListOffsetsResultInfo(OFFSET_INVALID, 0, 0))
    assert caught.value.args[0].code() == KafkaError.LEADER_NOT_AVAILABLE
    assert from_kafka(caught.value, "asking").retriable
