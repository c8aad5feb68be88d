"""An encoded message decodes to the same message, for every message in every version."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.protocol.message_samples import NAMES, all_versions, pairs, sample, stable_pairs
from headrace.wire import (
    Api,
    decode,
    decode_header,
    decode_request,
    decode_response,
    encode,
    encode_request,
    encode_response,
    encode_response_parts,
    messages,
)


@pytest.mark.parametrize("name", NAMES)
def test_an_encoded_message_decodes_to_the_same_message_in_every_version(name: str) -> None:
    random = Random(name)
    cls = getattr(messages, name)
    for version in all_versions(name):
        for _ in range(10):
            message = sample(random, name, version)
            assert decode(cls, version, encode(message, version)) == message


@given(st.sampled_from(list(pairs())), st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_a_random_message_of_any_version_decodes_to_the_same_message(
    pair: tuple[str, int], random: Random
) -> None:
    name, version = pair
    message = sample(random, name, version)
    written = encode(message, version)
    assert decode(getattr(messages, name), version, written) == message
    view = memoryview(bytearray(b"..." + written))
    assert decode(getattr(messages, name), version, view, 3) == message


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_an_encoded_request_decodes_with_its_header(kind: type) -> None:
    random = Random(1)
    for api, version in stable_pairs():
        message = sample(random, f"{api.title}Request", version)
        frame = encode_request(api, version, version + 7, "a client", message)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        header, decoded = decode_request(kind(frame[4:]))
        assert decoded == message
        assert header == (api, int(api), version, version + 7, "a client", header.body_start)


def test_a_response_decodes_with_its_header_and_its_joined_parts_equal_the_frame() -> None:
    random = Random(2)
    for api, version in stable_pairs():
        message = sample(random, f"{api.title}Response", version)
        frame = encode_response(api, version, -5, message)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        assert decode_response(api, version, frame[4:]) == (-5, message)
        assert b"".join(encode_response_parts(api, version, -5, message)) == frame


def test_a_request_header_has_kafkas_header_version_1_or_2() -> None:
    for api, version in stable_pairs():
        frame = encode_request(api, version, 3, None, getattr(messages, f"{api.title}Request")())
        shape = messages.shape_of(f"{api.title}Request")
        form = 2 if version >= shape.flexible_from else 1
        header = messages.RequestHeader(
            request_api_key=api, request_api_version=version, correlation_id=3, client_id=None
        )
        assert frame[4:].startswith(encode(header, form))
        assert decode_header(frame[4:]).body_start == len(encode(header, form))


def test_the_header_of_an_api_versions_response_never_has_tagged_fields() -> None:
    answer = messages.ApiVersionsResponse()
    for version in range(5):
        frame = encode_response(Api.API_VERSIONS, version, 9, answer)
        assert frame[8:] == encode(answer, version)
    heartbeat = messages.HeartbeatResponse()
    assert encode_response(Api.HEARTBEAT, 4, 9, heartbeat)[8:] == b"\0" + encode(heartbeat, 4)
