"""Offsets in responses of the log."""

from __future__ import annotations

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka.admin import ListOffsetsResultInfo  # type: ignore[attr-defined]

from headrace.client.cluster import listed_offset
from headrace.client.errors import from_kafka


@pytest.mark.parametrize("offset", [0, 7, 2**62, -1])
def test_a_listed_offset_is_returned_even_if_it_is_minus_one(offset: int) -> None:
    assert listed_offset(ListOffsetsResultInfo(offset, 0, 0)) == offset


def test_an_invalid_offset_is_a_retriable_error() -> None:
    with pytest.raises(KafkaException, match="lost during the response") as caught:
        listed_offset(ListOffsetsResultInfo(OFFSET_INVALID, 0, 0))
    assert caught.value.args[0].code() == KafkaError.LEADER_NOT_AVAILABLE
    assert from_kafka(caught.value, "describing a topic").retriable
