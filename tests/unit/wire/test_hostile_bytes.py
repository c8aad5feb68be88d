"""Any bytes decode to a message or raise a WireError, in little time and memory."""

from __future__ import annotations

import struct
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from faults.protocol.message_samples import NAMES, all_versions, pairs, sample, stable_pairs
from headrace.wire import (
    Api,
    WireError,
    decode,
    decode_header,
    decode_request,
    decode_response,
    encode,
    encode_request,
    messages,
)
from headrace.wire import messages as m
from tests.support.peak import peak_bytes


def decodes_or_raises_wire_error(name: str, version: int, data: bytes | memoryview) -> bool:
    try:
        decode(getattr(messages, name), version, data)
    except WireError:
        return False
    return True


@pytest.mark.parametrize("name", NAMES)
def test_a_truncated_message_is_refused(name: str) -> None:
    random = Random(name)
    for version in all_versions(name):
        written = encode(sample(random, name, version), version)
        for size in range(max(0, len(written) - 200), len(written)):
            assert not decodes_or_raises_wire_error(name, version, written[:size]), (
                f"version {version}, {size} bytes"
            )


@pytest.mark.parametrize("name", NAMES)
def test_extra_bytes_are_refused_after_a_response_and_ignored_after_a_request(name: str) -> None:
    random = Random(name)
    cls = getattr(messages, name)
    for version in all_versions(name):
        written = encode(sample(random, name, version), version)
        if name.endswith("Request"):
            assert decode(cls, version, written + b"\0\1\2") == decode(cls, version, written)
        else:
            assert not decodes_or_raises_wire_error(name, version, written + b"\0")


@pytest.mark.parametrize("name", NAMES)
def test_changed_bytes_are_refused_or_decode_to_a_message_that_can_be_encoded(name: str) -> None:
    random = Random(name)
    cls = getattr(messages, name)
    for version in all_versions(name):
        for _ in range(30):
            data = bytearray(encode(sample(random, name, version), version))
            for _ in range(random.choice((1, 1, 2, 5))):
                mutate(random, data)
            try:
                message = decode(cls, version, bytes(data))
            except WireError:
                continue
            assert decode(cls, version, encode(message, version)) == message


def mutate(random: Random, data: bytearray) -> None:
    """Make one change that is likely to damage a length, a count or a tag."""
    at = random.randrange(len(data) + 1)
    match random.randrange(5):
        case 0:
            data[at:at] = random.randbytes(random.randrange(1, 5))
        case 1:
            del data[at : at + random.randrange(1, 5)]
        case 2:
            data[at : at + 1] = random.choice((b"\0", b"\1", b"\x7f", b"\x80", b"\xff"))
        case 3:
            data[at : at + 4] = random.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0"))
        case _:
            data[at : at + 5] = b"\xff\xff\xff\xff\x0f"


@given(st.sampled_from(list(pairs())), st.binary(max_size=200))
@settings(max_examples=250, deadline=None)
def test_random_bytes_decode_or_raise_a_wire_error(pair: tuple[str, int], data: bytes) -> None:
    decodes_or_raises_wire_error(*pair, data)


@given(st.binary(max_size=60))
@settings(max_examples=250, deadline=None)
@example(b"")
@example(b"\0\x12\0\4\0\0\0\1\xff\xff\xff\xff\xff\xff\x0f")
def test_random_frames_decode_or_raise_a_wire_error(frame: bytes) -> None:
    for read in (decode_header, decode_request):
        with suppress(WireError):
            read(frame)
    for api in (Api.API_VERSIONS, Api.METADATA):
        with suppress(WireError):
            decode_response(api, 4, frame)


def test_mutated_frames_of_every_api_decode_or_raise_a_wire_error() -> None:
    random = Random(20)
    read = refused = 0
    for api, version in stable_pairs():
        message = sample(random, f"{api.title}Request", version)
        for _ in range(20):
            data = bytearray(encode_request(api, version, 1, "client", message)[4:])
            mutate(random, data)
            try:
                decode_request(memoryview(data))
                read += 1
            except WireError:
                refused += 1
    assert read > 100
    assert refused > 100


IMPOSSIBLE_COUNTS = [2**31 - 1, 2**30, 2**24]


@pytest.mark.parametrize("count", IMPOSSIBLE_COUNTS)
def test_an_impossible_count_is_refused_before_memory_is_allocated(count: int) -> None:
    long, short = struct.pack(">i", count), bytearray()
    value = count + 1
    while value >= 128:
        short.append(value & 127 | 128)
        value >>= 7
    short.append(value)
    bodies = [
        ("MetadataRequest", 1, long + bytes(1000)),
        ("MetadataRequest", 12, bytes(short) + bytes(1000)),
        ("DeleteGroupsRequest", 0, long + bytes(1000)),
        ("DeleteGroupsRequest", 2, bytes(short) + bytes(1000)),
        ("ProduceRequest", 3, b"\xff\xff" + bytes(6) + long + bytes(1000)),
        ("ProduceRequest", 9, bytes(7) + bytes(short) + bytes(1000)),
        ("ProduceRequest", 9, bytes(7) + b"\2\2t\2" + bytes(4) + bytes(short) + bytes(1000)),
        ("FetchRequest", 4, bytes(17) + long + bytes(1000)),
        ("FetchRequest", 12, bytes(25) + bytes(short) + bytes(1000)),
        ("FetchRequest", 12, bytes(25) + b"\2\2t" + bytes(short) + bytes(1000)),
        ("FetchRequest", 12, bytes(25) + b"\1\2\2t" + bytes(short) + bytes(1000)),
        ("SyncGroupRequest", 0, bytes(8) + bytes([0, 0, 0, 1, 0, 0]) + long + bytes(1000)),
        ("ApiVersionsRequest", 3, b"\1\1" + bytes(short) + bytes(1000)),
        ("DescribeProducersRequest", 0, b"\2\2t" + bytes(short) + bytes(1000)),
    ]
    for name, version, body in bodies:
        cls = getattr(messages, name)

        def work(cls: Any = cls, version: int = version, body: bytes = body) -> None:
            with pytest.raises(WireError, match=r"do not fit|invalid length"):
                decode(cls, version, body)

        # Once to compile the readers, once to measure.
        work()
        peak = peak_bytes(work)
        assert peak < 200_000, f"{name} of version {version} took {peak} bytes"


def test_few_bytes_cannot_become_many_objects() -> None:
    """An element of a few bytes needs hundreds of bytes in memory, so the number of elements is limited too."""
    topics = 200_000
    body = struct.pack(">i", topics) + b"\0\0" * topics
    with pytest.raises(WireError, match="too many array elements"):
        decode(m.MetadataRequest, 1, body)
    assert len(decode(m.MetadataRequest, 1, body, elements_max=topics).topics) == topics
    partitions = struct.pack(">i", 500) + bytes(500 * 12)
    nested = struct.pack(">i", 300) + (b"\0\0" + partitions) * 300 + bytes(4)
    with pytest.raises(WireError, match="too many array elements"):
        decode(m.DeleteRecordsRequest, 0, nested)


def test_tagged_fields_count_as_elements() -> None:
    tags = bytearray(b"\xe0\xa7\x12")  # the number of tags: 300,000
    for tag in range(300_000):
        tags += bytes([tag & 127 | 128, tag >> 7 & 127 | 128, tag >> 14]) + b"\0"
    with pytest.raises(WireError, match="too many array elements"):
        decode(m.ListGroupsRequest, 3, bytes(tags))
    with pytest.raises(WireError, match="tagged fields in the header"):
        decode_header(struct.pack(">hhih", 16, 3, 1, -1) + bytes(tags))


@pytest.mark.parametrize(
    ("name", "version", "body", "reason"),
    [
        ("HeartbeatRequest", 0, b"\xff\xff" + bytes(6), "group_id is null"),
        ("HeartbeatRequest", 4, b"\0" + bytes(7), "group_id is null"),
        ("HeartbeatRequest", 0, b"\xff\xfe" + bytes(6), "group_id is null or has a negative length"),
        ("HeartbeatRequest", 3, bytes(8) + b"\xff\xfe", "group_instance_id is null or has a negative length"),
        ("HeartbeatRequest", 0, b"\0\2\xff\xfe" + bytes(6), "not UTF-8"),
        ("HeartbeatRequest", 0, b"\0\3\xed\xa0\x80" + bytes(6), "not UTF-8"),
        ("HeartbeatRequest", 4, b"\x81\x80\x02" + b"x" * 32768 + bytes(6), "invalid length 32768"),
        ("MetadataRequest", 0, b"\xff\xff\xff\xff", "topics is null"),
        ("MetadataRequest", 1, b"\xff\xff\xff\xfe", "topics is null or has a negative length"),
        ("SyncGroupRequest", 4, b"\1" + bytes(4) + b"\1\0\2\1\0\0\0", "assignment is null"),
        ("ListGroupsRequest", 3, b"\xff\xff\xff\xff\xff\x0f", "longer than 5 bytes"),
        ("ListGroupsRequest", 3, b"\xff\xff\xff\xff\x7f", "larger than 32 bits"),
        ("ListGroupsRequest", 3, b"\2\1\0\1\0", "tag 1 is repeated"),
        ("ListGroupsRequest", 3, b"\1\1\5abc", "tag 1: invalid length 5"),
        ("FetchRequest", 12, bytes(25) + b"\1\1\1\1\0\3\2a!", "tag 0 declares 3 bytes but has 2"),
        ("ProduceRequest", 3, b"\xff\xff" + bytes(6) + b"\xff\xff\xff\xff", "topic_data"),
        ("ProduceRequest", 9, bytes(7) + b"\0\0", "topic_data"),
        ("ProduceRequest", 9, bytes(7) + b"\2\2t\0\0\0", "partition_data"),
        (
            "ProduceRequest",
            3,
            b"\xff\xff" + bytes(9) + b"\1\0\1t\0\0\0\1" + bytes(4) + b"\xff\xff\xff\xfe",
            "records",
        ),
        ("ProduceRequest", 13, bytes(7) + b"\2" + bytes(10), "the message is incomplete"),
        ("FetchRequest", 13, bytes(25) + b"\2" + bytes(10), "within a topic id"),
        ("FetchRequest", 4, bytes(17) + b"\xff\xff\xff\xff", "topics"),
        ("FetchRequest", 12, bytes(25) + b"\1\0\1\0", "forgotten_topics_data"),
        ("FetchRequest", 11, bytes(25) + bytes(8) + b"\xff\xff", "rack_id is null"),
    ],
)
def test_a_malformed_body_is_refused_with_the_reason(
    name: str, version: int, body: bytes, reason: str
) -> None:
    with pytest.raises(WireError, match=f"malformed {name} of version {version}: .*{reason}"):
        decode(getattr(messages, name), version, body)


def test_unknown_tags_are_skipped_and_known_ones_may_be_in_any_order() -> None:
    assert decode(m.ListGroupsRequest, 3, b"\2\x63\3abc\1\0") == m.ListGroupsRequest()
    plain = encode(m.FetchRequest(cluster_id="c"), 15)
    assert plain.endswith(b"\1\0\2\2c")
    state = b"\1\x0d" + struct.pack(">iq", 5, 6) + b"\0"
    mixed = plain[:-5] + b"\3" + state + b"\x63\1!" + b"\0\2\2c"
    read = decode(m.FetchRequest, 15, mixed)
    assert read.cluster_id == "c"
    assert read.replica_state == m.FetchRequest.ReplicaState(replica_id=5, replica_epoch=6)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "shorter than a header"),
        (b"\0\x12\0\4\0\0\0\1\0", "shorter than a header"),
        (b"\0\x12\0\4\0\0\0\1\0\5abc", "client id: invalid length 5, with 3 bytes left"),
        (b"\0\x12\0\4\0\0\0\1\xff\xfe", "client id: invalid length -2"),
        (b"\0\x12\0\4\0\0\0\1\0\2\xff\xff", "client id is not UTF-8"),
        (b"\0\x12\0\4\0\0\0\1\xff\xff", "header is incomplete"),
        (b"\0\x12\0\4\0\0\0\1\xff\xff\1\0\x7fabc", "longer than the frame"),
    ],
)
def test_a_malformed_header_is_refused_with_the_reason(frame: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decode_header(frame)


def test_a_header_of_an_unknown_api_or_version_is_decoded() -> None:
    header = decode_header(b"\x03\xe7\0\x09\0\0\0\1\0\2mebody")
    assert header == (None, 999, 9, 1, "me", 12)
    newer = decode_header(b"\0\x12\0\x63\0\0\0\1\0\2me\1\0\2hibody")
    assert newer == (Api.API_VERSIONS, 18, 99, 1, "me", 17)
    with pytest.raises(WireError, match="unknown API key 999"):
        decode_request(b"\x03\xe7\0\x09\0\0\0\1\0\2mebody")
