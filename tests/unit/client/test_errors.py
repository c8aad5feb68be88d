"""Which answers of the client library are worth waiting for."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from headrace.client.errors import from_kafka


@pytest.mark.parametrize(
    "code",
    [KafkaError._TRANSPORT, KafkaError._NOENT, KafkaError._DESTROY_BROKER, KafkaError.NOT_COORDINATOR],
)
def test_a_broker_that_was_lost_in_the_middle_of_a_question_is_waited_for(code: int) -> None:
    assert from_kafka(KafkaError(code), "asking").retriable


@pytest.mark.parametrize("code", [KafkaError._INVALID_ARG, KafkaError.GROUP_AUTHORIZATION_FAILED])
def test_what_no_waiting_mends_is_not(code: int) -> None:
    assert not from_kafka(KafkaError(code), "asking").retriable
