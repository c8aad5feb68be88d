"""Which errors of the Kafka client are retriable."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from headrace.client.errors import from_kafka


@pytest.mark.parametrize("code", [KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH])
def test_an_outdated_leader_epoch_is_a_retriable_error(code: int) -> None:
    assert from_kafka(KafkaError(code), "listing the offsets of a topic").retriable


@pytest.mark.parametrize(
    "code",
    [KafkaError._TRANSPORT, KafkaError._NOENT, KafkaError._DESTROY_BROKER, KafkaError.NOT_COORDINATOR],
)
def test_a_broker_lost_during_a_request_is_a_retriable_error(code: int) -> None:
    assert from_kafka(KafkaError(code), "describing a topic").retriable


@pytest.mark.parametrize("code", [KafkaError._INVALID_ARG, KafkaError.GROUP_AUTHORIZATION_FAILED])
def test_a_permanent_error_is_not_retriable(code: int) -> None:
    assert not from_kafka(KafkaError(code), "describing a topic").retriable
