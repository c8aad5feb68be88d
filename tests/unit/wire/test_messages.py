"""Message classes: built on first use, with the protocol's names and defaults."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headrace.wire
from headrace.wire import Api, advertised, notation, versions
from headrace.wire import messages as m


def test_the_public_names_of_the_package_are_these() -> None:
    assert headrace.wire.__all__ == [
        "Api",
        "ErrorCode",
        "Header",
        "WireError",
        "advertised",
        "decode",
        "decode_header",
        "decode_request",
        "decode_response",
        "encode",
        "encode_request",
        "encode_response",
        "encode_response_parts",
        "versions",
    ]


def test_importing_the_package_reads_no_shapes_and_no_slow_modules() -> None:
    code = """
import sys
before = set(sys.modules)
import headrace.wire, headrace.wire.messages
assert headrace.wire.notation.load.cache_info().currsize == 0
slow = {"msgspec", "inspect", "dataclasses", "asyncio", "json"}
found = slow & (set(sys.modules) - before)
assert not found, found
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_message_has_the_defaults_of_its_definition() -> None:
    request = m.FetchRequest()
    assert request.max_bytes == 0x7FFFFFFF
    assert request.session_epoch == -1
    assert request.cluster_id is None
    assert request.rack_id == ""
    assert request.topics == []
    assert request.replica_state == m.FetchRequest.ReplicaState(replica_id=-1, replica_epoch=-1)
    assert m.FetchRequest.FetchTopic().topic_id == bytes(16)
    assert m.FetchRequest.FetchPartition().high_watermark == 2**63 - 1
    assert m.MetadataRequest().allow_auto_topic_creation is True
    assert m.FetchResponse.PartitionData().records is None
    assert m.ConsumerProtocolSubscription().user_data is None


def test_mutable_defaults_are_not_shared_between_messages() -> None:
    first, second = m.FetchRequest(), m.FetchRequest()
    first.topics.append(m.FetchRequest.FetchTopic())
    first.replica_state.replica_id = 7
    assert second == m.FetchRequest()
    read = [headrace.wire.decode(m.OffsetFetchRequest, 7, b"\2g\1\0\0") for _ in range(2)]
    read[0].groups.append(m.OffsetFetchRequest.OffsetFetchRequestGroup())
    assert read[1].groups == []


def test_messages_are_equal_by_value_and_have_a_readable_repr() -> None:
    assert m.HeartbeatRequest(group_id="g") == m.HeartbeatRequest(group_id="g")
    assert m.HeartbeatRequest(group_id="g") != m.HeartbeatRequest(group_id="h")
    assert m.HeartbeatResponse() != m.HeartbeatRequest()
    assert repr(m.HeartbeatResponse(error_code=3)) == "HeartbeatResponse(throttle_time_ms=0, error_code=3)"
    assert (
        m.JoinGroupResponse.JoinGroupResponseMember.__qualname__
        == "JoinGroupResponse.JoinGroupResponseMember"
    )


def test_an_unknown_field_or_message_is_an_error() -> None:
    with pytest.raises(TypeError, match="group"):
        m.HeartbeatRequest(group="g")
    with pytest.raises(AttributeError):
        m.HeartbeatRequest().group = "g"
    for name in ("HeartbeatReply", "LeaderAndIsrRequest", "heartbeatRequest", "Request", "../api"):
        with pytest.raises(AttributeError, match="unknown message"):
            getattr(m, name)


def test_a_struct_that_two_fields_share_is_one_class() -> None:
    request = m.AddPartitionsToTxnRequest
    topic = request.AddPartitionsToTxnTopic(name="t", partitions=[1])
    old = request(v3_and_below_topics=[topic])
    new = request(transactions=[request.AddPartitionsToTxnTransaction(topics=[topic])])
    assert headrace.wire.decode(request, 3, headrace.wire.encode(old, 3)) == old
    assert headrace.wire.decode(request, 4, headrace.wire.encode(new, 4)) == new


def test_unstable_versions_are_not_supported() -> None:
    assert versions(Api.INIT_PRODUCER_ID) == (0, 5)
    assert m.shape_of("InitProducerIdRequest").versions == range(7)


def test_produce_is_advertised_from_version_0_for_old_clients() -> None:
    assert versions(Api.PRODUCE) == (3, 13)
    assert advertised(Api.PRODUCE) == (0, 13)
    for api in set(Api) - {Api.PRODUCE}:
        assert advertised(api) == versions(api)


def test_the_notation_parses_as_documented() -> None:
    shapes = notation.parse(
        """
api 9 Sample unstable 3

request 1-3 flexible 2+
  name      string?2+          = null ignorable
  things    [Thing]?    1-2
    size    int32              = 0x10
    share   float64     3      = 1.5
    more    [Thing2]    2+     tag 4
      flag  bool               = true
  again     Thing       2

response 1-3
  client    string?     inflexible
"""
    )
    assert (shapes.api_key, shapes.stable) == (9, range(1, 3))
    request, response = shapes.messages["SampleRequest"], shapes.messages["SampleResponse"]
    assert (request.versions, request.flexible_from) == (range(1, 4), 2)
    assert (response.versions, response.flexible_from) == (range(1, 4), 4)
    name, array, again = request.struct.fields
    assert (name.versions, name.nullable, name.default, name.ignorable) == (
        range(1, 4),
        range(2, 4),
        None,
        True,
    )
    assert (array.is_array, array.versions, array.nullable, array.default) == (
        True,
        range(1, 3),
        range(1, 3),
        [],
    )
    assert again.struct is array.struct
    assert (again.versions, again.default, again.is_array) == (range(2, 3), (), False)
    assert array.struct is not None
    size, share, more = array.struct.fields
    assert (size.default, share.default, share.versions) == (16, 1.5, range(3, 4))
    assert (more.tag, more.versions) == (4, range(2, 4))
    assert more.struct == notation.Struct("Thing2", more.struct.fields if more.struct else ())
    assert response.struct.fields[0].inflexible
