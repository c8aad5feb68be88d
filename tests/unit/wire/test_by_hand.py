"""The hand-written code for Produce and Fetch agrees with the general code, and does not copy records."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from faults.protocol.message_samples import all_versions, sample
from headrace.wire import (
    Api,
    WireError,
    decode,
    encode,
    encode_response,
    encode_response_parts,
    readers,
    writers,
)
from headrace.wire import messages as m

TOPIC_ID = bytes(range(16))
RECORDS = b"a record batch " * 1000


def encode_generically(message: Any, version: int) -> bytes:
    out = bytearray()
    writers.write(out, message, version)
    return bytes(out)


@pytest.mark.parametrize("tags", [False, True])
@pytest.mark.parametrize("name", ["ProduceRequest", "FetchRequest"])
def test_the_hand_written_decoder_agrees_with_the_general_decoder(name: str, tags: bool) -> None:
    cls = getattr(m, name)
    for version in all_versions(name):
        random = Random(version)
        for _ in range(50):
            message = sample(random, name, version, tags=tags)
            written = encode_generically(message, version)
            assert decode(cls, version, written) == message == readers.decode(cls, version, written)
            assert decode(cls, version, memoryview(b"!" + written), 1) == message


@pytest.mark.parametrize("tags", [False, True])
def test_the_hand_written_produce_encoder_agrees_with_the_general_encoder(tags: bool) -> None:
    for version in all_versions("ProduceResponse"):
        random = Random(version)
        for _ in range(50):
            message = sample(random, "ProduceResponse", version, tags=tags)
            if not tags:
                for topic in message.responses:
                    for partition in topic.partition_responses:
                        partition.record_errors, partition.error_message = [], None
            assert encode(message, version) == encode_generically(message, version)


@pytest.mark.parametrize("tags", [False, True])
def test_the_hand_written_fetch_encoder_agrees_with_the_general_encoder(tags: bool) -> None:
    for version in all_versions("FetchResponse"):
        random = Random(version)
        for _ in range(50):
            message = sample(random, "FetchResponse", version, tags=tags)
            for topic in message.responses:
                for partition in topic.partitions:
                    partition.records = random.choice((None, b"", b"few", RECORDS, [b"few", RECORDS]))
            frame = encode_response(Api.FETCH, version, 3, message)
            assert frame.endswith(encode_generically(message, version))
            assert b"".join(encode_response_parts(Api.FETCH, version, 3, message)) == frame


@pytest.mark.parametrize("version", all_versions("ProduceRequest"))
def test_the_records_of_a_produce_request_are_views_into_the_frame(version: int) -> None:
    partition = m.ProduceRequest.PartitionProduceData(index=1, records=RECORDS)
    topic = m.ProduceRequest.TopicProduceData(name="topic", topic_id=TOPIC_ID, partition_data=[partition])
    frame = bytearray(encode(m.ProduceRequest(topic_data=[topic]), version))
    records = decode(m.ProduceRequest, version, frame).topic_data[0].partition_data[0].records
    assert records == RECORDS
    frame[frame.index(b"batch")] = ord("B")
    assert bytes(records[:15]) == b"a record Batch "


@pytest.mark.parametrize("version", range(9, 14))
def test_unknown_tags_do_not_make_a_produce_request_copy_its_records(version: int) -> None:
    partition = m.ProduceRequest.PartitionProduceData(index=1, records=RECORDS)
    topic = m.ProduceRequest.TopicProduceData(name="topic", topic_id=TOPIC_ID, partition_data=[partition])
    frame = encode(m.ProduceRequest(topic_data=[topic]), version)
    assert frame.endswith(b"\0\0\0")
    tagged = frame[:-3] + b"\1\5\2hi" + b"\0" + b"\2\7\0\x08\1!"
    message = decode(m.ProduceRequest, version, tagged)
    assert message == decode(m.ProduceRequest, version, frame)
    assert isinstance(message.topic_data[0].partition_data[0].records, memoryview)


@pytest.mark.parametrize("version", all_versions("FetchResponse"))
def test_the_records_of_a_fetch_response_are_not_copied(version: int) -> None:
    data = m.FetchResponse.PartitionData
    copied, viewed = bytearray(RECORDS), memoryview(RECORDS)
    partitions = [
        data(records=copied),
        data(records=b"few"),
        data(records=None),
        data(records=[viewed, viewed]),
    ]
    topic = m.FetchResponse.FetchableTopicResponse(topic="topic", topic_id=TOPIC_ID, partitions=partitions)
    message = m.FetchResponse(responses=[topic])
    parts = encode_response_parts(Api.FETCH, version, 1, message)
    sources = [part.obj for part in parts if isinstance(part, memoryview)]
    assert sources[0] is copied
    assert sources[1] is sources[2] is RECORDS
    assert len(sources) == 3
    assert b"".join(parts) == encode_response(Api.FETCH, version, 1, message)
    assert b"few" in parts[2]


@pytest.mark.parametrize(
    ("message", "version", "field"),
    [
        (m.ProduceResponse(throttle_time_ms=2**31), 9, "throttle_time_ms"),
        (
            m.ProduceResponse(responses=[m.ProduceResponse.TopicProduceResponse(topic_id=b"short")]),
            13,
            "topic_id",
        ),
        (m.ProduceResponse(responses=[m.ProduceResponse.TopicProduceResponse(name=None)]), 9, "name"),
        (m.FetchResponse(session_id=1), 6, "session_id"),
        (m.FetchResponse(throttle_time_ms="soon"), 6, "throttle_time_ms"),
        (m.FetchResponse(responses=[m.FetchResponse.FetchableTopicResponse(topic=3)]), 12, "topic"),
        (m.FetchResponse(responses=[m.FetchResponse.FetchableTopicResponse(topic_id=b"")]), 18, "topic_id"),
    ],
)
def test_the_error_for_an_invalid_value_names_its_field(message: Any, version: int, field: str) -> None:
    api = Api.PRODUCE if isinstance(message, m.ProduceResponse) else Api.FETCH
    with pytest.raises(WireError, match=rf"at .*\b{field}\b"):
        encode_response(api, version, 1, message)


def test_a_produce_request_of_a_removed_version_is_refused() -> None:
    for version in (0, 2, 14, -1):
        with pytest.raises(WireError, match=f"unknown version {version}"):
            decode(m.ProduceRequest, version, b"")
    for version in (3, 19):
        with pytest.raises(WireError, match=f"unknown version {version}"):
            decode(m.FetchRequest, version, b"")
        with pytest.raises(WireError, match=f"unknown version {version}"):
            encode_response(Api.FETCH, version, 1, m.FetchResponse())


PRODUCED = m.ProduceResponse.PartitionProduceResponse
FETCHED = m.FetchResponse.PartitionData


@pytest.mark.parametrize("version", [3, 8, 9, 10, 13, 18])
@pytest.mark.parametrize(
    "partition",
    [
        PRODUCED(record_errors=[m.ProduceResponse.BatchIndexAndErrorMessage(batch_index=1)]),
        PRODUCED(error_message="why"),
        PRODUCED(current_leader=m.ProduceResponse.LeaderIdAndEpoch(leader_id=1)),
        PRODUCED(current_leader=m.ProduceResponse.LeaderIdAndEpoch(leader_epoch=1)),
        FETCHED(diverging_epoch=m.FetchResponse.EpochEndOffset(epoch=1)),
        FETCHED(current_leader=m.FetchResponse.LeaderIdAndEpoch(leader_epoch=1)),
        FETCHED(snapshot_id=m.FetchResponse.SnapshotId(end_offset=1)),
        FETCHED(preferred_read_replica=1),
        FETCHED(aborted_transactions=None),
        FETCHED(aborted_transactions=[m.FetchResponse.AbortedTransaction(producer_id=1, first_offset=2)]),
    ],
    ids=repr,
)
def test_the_hand_written_encoder_treats_unusual_fields_like_the_general_encoder(
    partition: Any, version: int
) -> None:
    if isinstance(partition, PRODUCED):
        api, version = Api.PRODUCE, min(version, 13)
        produced = m.ProduceResponse.TopicProduceResponse(topic_id=TOPIC_ID, partition_responses=[partition])
        message = m.ProduceResponse(responses=[produced])
    else:
        api, version = Api.FETCH, max(version, 4)
        fetched = m.FetchResponse.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[partition])
        message = m.FetchResponse(responses=[fetched])
    try:
        expected = encode_generically(message, version)
    except WireError as refused:
        with pytest.raises(WireError, match=refused.message):
            encode_response(api, version, 1, message)
    else:
        assert encode_response(api, version, 1, message).endswith(expected)
