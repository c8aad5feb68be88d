"""A message that a version cannot encode is refused, and the error names the field."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.wire import Api, ErrorCode, WireError, decode, encode, encode_request, encode_response
from headrace.wire import messages as m

HEARTBEAT = m.HeartbeatRequest


@pytest.mark.parametrize(
    ("message", "version", "reason"),
    [
        (HEARTBEAT(group_id=None), 4, "cannot encode HeartbeatRequest in version 4 at group_id: null"),
        (HEARTBEAT(group_id=3), 4, "at group_id"),
        (HEARTBEAT(group_id="\ud800"), 4, "at group_id"),
        (HEARTBEAT(group_id="x" * 32768), 4, "at group_id: text is too long: 32768 bytes"),
        (HEARTBEAT(group_id="x" * 32768), 0, "at group_id: text is too long: 32768 bytes"),
        (HEARTBEAT(generation_id=2**31), 4, "at generation_id"),
        (HEARTBEAT(generation_id=None), 4, "at generation_id"),
        (HEARTBEAT(generation_id=1.5), 4, "at generation_id"),
        (m.SaslAuthenticateRequest(auth_bytes="text"), 2, "at auth_bytes"),
        (m.SaslAuthenticateRequest(auth_bytes=5), 0, "at auth_bytes"),
        (m.SaslAuthenticateRequest(auth_bytes=[1, 2]), 0, "at auth_bytes"),
        (m.MetadataRequest(topics=None), 0, "at topics: null"),
        (m.MetadataRequest(topics=7), 1, "at topics"),
        (m.MetadataRequest(topics=["name"]), 1, "cannot encode MetadataRequestTopic in version 1 at name"),
        (
            m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.DeleteTopicState(topic_id=b"1")]),
            6,
            "at topic_id",
        ),
        (m.HeartbeatResponse(throttle_time_ms=2**31, error_code=1), 1, "at throttle_time_ms, error_code"),
    ],
)
def test_an_error_about_an_invalid_value_names_the_field(message: Any, version: int, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        encode(message, version)


def test_a_value_of_an_ignorable_field_is_omitted_in_versions_without_the_field() -> None:
    answer = m.HeartbeatResponse(throttle_time_ms=100, error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    assert encode(answer, 0) == b"\0\x1b"
    assert encode(answer, 1) == b"\0\0\0\x64\0\x1b"


def test_a_value_of_a_required_field_is_refused_in_versions_without_the_field() -> None:
    static = HEARTBEAT(group_instance_id="static")
    with pytest.raises(WireError, match="at group_instance_id: this version does not have the field"):
        encode(static, 2)
    assert decode(HEARTBEAT, 3, encode(static, 3)) == static
    many = m.FindCoordinatorRequest(coordinator_keys=["a"])
    with pytest.raises(WireError, match="at coordinator_keys"):
        encode(many, 3)
    assert encode(m.FindCoordinatorRequest(coordinator_keys=()), 3) == b"\1\0\0"


def test_an_array_can_be_any_sequence() -> None:
    request = m.DeleteGroupsRequest(groups_names=("a", "b"))
    assert decode(m.DeleteGroupsRequest, 2, encode(request, 2)).groups_names == ["a", "b"]
    fetch = m.FetchResponse(node_endpoints=())
    assert encode(fetch, 18) == encode(m.FetchResponse(), 18)


def test_tagged_fields_are_written_in_order_unless_they_are_the_default() -> None:
    assert encode(m.FetchRequest(), 15).endswith(b"\1\1\1\0")
    state = m.FetchRequest.ReplicaState(replica_id=1)
    both = encode(m.FetchRequest(cluster_id="c", replica_state=state), 15)
    assert both.endswith(b"\2" + b"\0\2\2c" + b"\1\x0d\0\0\0\1" + b"\xff" * 8 + b"\0")


def test_an_unknown_version_of_a_message_is_refused() -> None:
    for version in (-1, 5):
        with pytest.raises(WireError, match=f"unknown version {version} of HeartbeatRequest") as caught:
            encode(HEARTBEAT(), version)
        assert caught.value.hint == "use a version from 0 to 4"
        with pytest.raises(WireError, match=f"unknown version {version}"):
            decode(HEARTBEAT, version, b"")


def test_an_error_has_a_code_and_a_cause() -> None:
    with pytest.raises(WireError) as caught:
        encode_response(Api.HEARTBEAT, 4, 1, m.HeartbeatResponse(error_code=99999))
    assert caught.value.code == "HR-WIRE-MALFORMED"
    assert caught.value.__cause__ is not None
    with pytest.raises(WireError, match="correlation id"):
        encode_response(Api.HEARTBEAT, 4, 2**40, m.HeartbeatResponse())


def test_a_message_of_another_api_is_refused() -> None:
    with pytest.raises(WireError, match="expected a HeartbeatResponse, got a MetadataResponse"):
        encode_response(Api.HEARTBEAT, 4, 1, m.MetadataResponse())
    with pytest.raises(WireError, match="expected a HeartbeatRequest, got a HeartbeatResponse"):
        encode_request(Api.HEARTBEAT, 4, 1, None, m.HeartbeatResponse())


def test_every_error_code_fits_into_an_int16() -> None:
    for code in ErrorCode:
        answer = m.HeartbeatResponse(error_code=code)
        assert decode(m.HeartbeatResponse, 4, encode(answer, 4)).error_code == code
