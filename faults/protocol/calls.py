"""The oracle's requests, one function each, with fixed API versions and responses as plain values.

Errors of single topics and partitions are returned as Kafka's error codes, because the runs test these codes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from faults.protocol.answers import Fetched, Joined, ProduceAnswer, TopicSeen
from faults.protocol.codec import (
    NO_TAGS,
    Reader,
    array,
    blob,
    boolean,
    compact_array,
    compact_string,
    int8,
    int16,
    int32,
    int64,
    string,
)
from faults.protocol.connection import Connection

__all__ = [
    "EARLIEST",
    "LATEST",
    "Fetched",
    "Joined",
    "ProduceAnswer",
    "TopicSeen",
    "alter_topic",
    "commit",
    "committed",
    "create_partitions",
    "create_topic",
    "delete_records",
    "delete_topic",
    "fetch",
    "group_members",
    "heartbeat",
    "init_producer_id",
    "join",
    "list_offset",
    "produce",
    "produce_body",
    "read_produce_answer",
    "sync",
    "topic_configs",
    "topics",
]

Name = str | bytes

EARLIEST = -2
LATEST = -1
PRODUCE = 0
_TOPIC_RESOURCE = 2
_TIMEOUT_MS = 10_000


def produce_body(topic: Name, batches: Mapping[int, bytes], acks: int = -1) -> bytes:
    """Return the body of Produce 7."""
    data = array(int32(partition) + blob(batch) for partition, batch in batches.items())
    return string(None) + int16(acks) + int32(_TIMEOUT_MS) + array([string(topic) + data])


def read_produce_answer(reader: Reader) -> list[ProduceAnswer]:
    def partition() -> ProduceAnswer:
        index, error, base_offset = reader.int32(), reader.int16(), reader.int64()
        reader.int64()
        return ProduceAnswer(index, error, base_offset, reader.int64())

    def topic() -> list[ProduceAnswer]:
        reader.string()
        return reader.array(partition)

    return [answer for answers in reader.array(topic) for answer in answers]


def produce(
    connection: Connection, topic: Name, partition: int, batch: bytes, acks: int = -1
) -> ProduceAnswer:
    body = produce_body(topic, {partition: batch}, acks)
    return connection.call(PRODUCE, 7, body, read_produce_answer)[0]


def init_producer_id(connection: Connection, transactional_id: Name | None = None) -> tuple[int, int, int]:
    """Return error, producer id and epoch."""

    def read(reader: Reader) -> tuple[int, int, int]:
        reader.int32()
        return reader.int16(), reader.int64(), reader.int16()

    return connection.call(22, 1, string(transactional_id) + int32(60_000), read)


def fetch(
    connection: Connection,
    topic: Name,
    partition: int,
    offset: int,
    *,
    max_bytes: int = 1 << 20,
    wait_ms: int = 0,
) -> Fetched:
    body = int32(-1) + int32(wait_ms) + int32(1) + int32(max_bytes) + int8(0) + int32(0) + int32(-1)
    partition_request = int32(partition) + int32(-1) + int64(offset) + int64(-1) + int32(max_bytes)
    body += array([string(topic) + array([partition_request])]) + array([]) + string("")

    def read(reader: Reader) -> Fetched:
        reader.int32()
        error = reader.int16()
        reader.int32()
        if error or reader.int32() != 1:
            return Fetched(error or -1, -1, -1, b"")
        reader.string()
        reader.int32()
        reader.int32()
        error, high_watermark = reader.int16(), reader.int64()
        reader.int64()
        start = reader.int64()
        for _ in range(reader.int32()):
            reader.take(16)
        reader.int32()
        return Fetched(error, high_watermark, start, reader.blob() or b"")

    return connection.call(1, 11, body, read)


def list_offset(connection: Connection, topic: Name, partition: int, timestamp: int) -> tuple[int, int]:
    """Return error and offset."""
    body = int32(-1) + int8(0) + array([string(topic) + array([int32(partition) + int64(timestamp)])])

    def read(reader: Reader) -> tuple[int, int]:
        reader.int32()
        reader.int32()
        reader.string()
        reader.int32()
        reader.int32()
        error = reader.int16()
        reader.int64()
        return error, reader.int64()

    return connection.call(2, 2, body, read)


def delete_records(connection: Connection, topic: Name, partition: int, offset: int) -> tuple[int, int]:
    """Return error and the new log start offset."""
    body = array([string(topic) + array([int32(partition) + int64(offset)])]) + int32(_TIMEOUT_MS)

    def read(reader: Reader) -> tuple[int, int]:
        reader.int32()
        reader.int32()
        reader.string()
        reader.int32()
        reader.int32()
        start = reader.int64()
        return reader.int16(), start

    return connection.call(21, 1, body, read)


# Topics


def topics(
    connection: Connection, names: Iterable[Name] | None = None, *, auto_create: bool = False
) -> list[TopicSeen]:
    """Call Metadata 12, the first version with topic ids that can also find topics by name."""
    encoded_names = (bytes(16) + compact_string(name) + NO_TAGS for name in names or ())
    body = b"\x00" if names is None else compact_array(encoded_names)
    body += boolean(auto_create) + boolean(False) + NO_TAGS

    def broker(reader: Reader) -> None:
        reader.int32()
        reader.compact_string()
        reader.int32()
        reader.compact_string()
        reader.skip_tags()

    def partition(reader: Reader) -> int:
        error = reader.int16()
        reader.take(12)
        for _ in range(3):
            reader.compact_array(reader.int32)
        reader.skip_tags()
        return error

    def topic(reader: Reader) -> TopicSeen:
        error, name, topic_id = reader.int16(), reader.compact_string(), reader.take(16)
        reader.boolean()
        partitions = reader.compact_array(lambda: partition(reader))
        reader.int32()
        reader.skip_tags()
        return TopicSeen(error, name or "", topic_id, len(partitions))

    def read(reader: Reader) -> list[TopicSeen]:
        reader.int32()
        reader.compact_array(lambda: broker(reader))
        reader.compact_string()
        reader.int32()
        return reader.compact_array(lambda: topic(reader))

    return connection.call(3, 12, body, read, flexible=True)


def create_topic(
    connection: Connection, name: Name, partitions: int, configs: Mapping[Name, Name | None] | None = None
) -> int:
    settings = array(string(key) + string(value) for key, value in (configs or {}).items())
    body = array([string(name) + int32(partitions) + int16(1) + array([]) + settings])
    body += int32(_TIMEOUT_MS) + boolean(False)
    return connection.call(19, 4, body, _error_of_only_topic)


def delete_topic(connection: Connection, name: Name) -> int:
    return connection.call(20, 3, array([string(name)]) + int32(_TIMEOUT_MS), _error_of_only_topic)


def create_partitions(connection: Connection, name: Name, count: int) -> int:
    body = array([string(name) + int32(count) + array(None)]) + int32(_TIMEOUT_MS) + boolean(False)
    return connection.call(37, 1, body, _error_of_only_topic)


def _error_of_only_topic(reader: Reader) -> int:
    reader.int32()
    reader.int32()
    reader.string()
    return reader.int16()


def alter_topic(connection: Connection, name: Name, configs: Mapping[Name, Name | None]) -> int:
    """Set each value with IncrementalAlterConfigs."""
    changes = array(string(key) + int8(0) + string(value) for key, value in configs.items())
    body = array([int8(_TOPIC_RESOURCE) + string(name) + changes]) + boolean(False)

    def read(reader: Reader) -> int:
        reader.int32()
        reader.int32()
        return reader.int16()

    return connection.call(44, 0, body, read)


def topic_configs(
    connection: Connection, name: Name, keys: Sequence[str]
) -> tuple[int, dict[str, str | None]]:
    """Return error and the values of the named configs."""
    body = array([int8(_TOPIC_RESOURCE) + string(name) + array(string(key) for key in keys)]) + boolean(False)

    def read(reader: Reader) -> tuple[int, dict[str, str | None]]:
        reader.int32()
        reader.int32()
        error = reader.int16()
        reader.string()
        reader.int8()
        reader.string()
        configs: dict[str, str | None] = {}
        for _ in range(reader.int32()):
            key = reader.string() or ""
            configs[key] = reader.string()
            reader.take(3)
            for _ in range(reader.int32()):
                reader.string()
                reader.string()
                reader.int8()
        return error, configs

    return connection.call(32, 1, body, read)


# Groups


def commit(
    connection: Connection,
    group: Name,
    offsets: Mapping[tuple[str, int], int],
    *,
    metadata: Name | None = None,
    member_id: Name = "",
    generation: int = -1,
) -> list[int]:
    """Return one error per partition."""
    by_topic: dict[str, list[tuple[int, int]]] = {}
    for (topic, partition), offset in offsets.items():
        by_topic.setdefault(topic, []).append((partition, offset))
    body = string(group) + int32(generation) + string(member_id)
    body += array(
        string(topic)
        + array(int32(partition) + int64(offset) + int32(-1) + string(metadata) for partition, offset in rows)
        for topic, rows in by_topic.items()
    )

    def partition_error(reader: Reader) -> int:
        reader.int32()
        return reader.int16()

    def topic_errors(reader: Reader) -> list[int]:
        reader.string()
        return reader.array(lambda: partition_error(reader))

    def read(reader: Reader) -> list[int]:
        reader.int32()
        return [error for errors in reader.array(lambda: topic_errors(reader)) for error in errors]

    return connection.call(8, 6, body, read)


def committed(
    connection: Connection, group: Name, partitions: Iterable[tuple[str, int]]
) -> tuple[int, dict[tuple[str, int], tuple[int, str]]]:
    """Return error, and for each partition the offset and metadata. The offset is -1 if nothing was committed."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    body = string(group) + array(string(name) + array(map(int32, rows)) for name, rows in by_topic.items())

    def read(reader: Reader) -> tuple[int, dict[tuple[str, int], tuple[int, str]]]:
        reader.int32()
        committed_offsets: dict[tuple[str, int], tuple[int, str]] = {}
        error = 0
        for _ in range(reader.int32()):
            topic = reader.string() or ""
            for _ in range(reader.int32()):
                partition, offset = reader.int32(), reader.int64()
                reader.int32()
                committed_offsets[topic, partition] = (offset, reader.string() or "")
                error = reader.int16() or error
        return reader.int16() or error, committed_offsets

    return connection.call(9, 5, body, read)


def join(
    connection: Connection,
    group: Name,
    *,
    member_id: Name = "",
    session_ms: int = 10_000,
    rebalance_ms: int = 10_000,
    instance_id: Name | None = None,
    protocol: Name = "own",
    protocol_type: Name = "oracle",
) -> Joined:
    body = string(group) + int32(session_ms) + int32(rebalance_ms) + string(member_id) + string(instance_id)
    body += string(protocol_type) + array([string(protocol) + blob(b"")])

    def member(reader: Reader) -> str:
        member_id = reader.string() or ""
        reader.string()
        reader.blob()
        return member_id

    def read(reader: Reader) -> Joined:
        reader.int32()
        error, generation = reader.int16(), reader.int32()
        reader.string()
        leader, own_id = reader.string() or "", reader.string() or ""
        members = reader.array(lambda: member(reader))
        return Joined(error, generation, leader, own_id, tuple(members))

    return connection.call(11, 5, body, read)


def sync(
    connection: Connection,
    group: Name,
    generation: int,
    member_id: Name,
    assignments: Mapping[str, bytes] | None = None,
) -> tuple[int, bytes]:
    body = string(group) + int32(generation) + string(member_id) + string(None)
    body += array(string(member) + blob(assigned) for member, assigned in (assignments or {}).items())

    def read(reader: Reader) -> tuple[int, bytes]:
        reader.int32()
        return reader.int16(), reader.blob() or b""

    return connection.call(14, 3, body, read)


def group_members(connection: Connection, group: Name) -> tuple[str, list[str]]:
    """Return the state of a group and the ids of its members."""

    def member(reader: Reader) -> str:
        member_id = reader.string() or ""
        for _ in range(3):
            reader.string()
        reader.blob()
        reader.blob()
        return member_id

    def read(reader: Reader) -> tuple[str, list[str]]:
        reader.int32()
        reader.int32()
        reader.int16()
        reader.string()
        state = reader.string() or ""
        reader.string()
        reader.string()
        return state, sorted(reader.array(lambda: member(reader)))

    return connection.call(15, 4, array([string(group)]) + boolean(False), read)


def heartbeat(connection: Connection, group: Name, generation: int, member_id: Name) -> int:
    def read(reader: Reader) -> int:
        reader.int32()
        return reader.int16()

    body = string(group) + int32(generation) + string(member_id) + string(None)
    return connection.call(12, 3, body, read)
