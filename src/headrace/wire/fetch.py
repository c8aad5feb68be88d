"""Hand-written code for Fetch: decodes the request quickly, and encodes the response without copying its records.

    request     4-14: replica int32 | wait int32 | min bytes int32 | max bytes int32 | isolation int8
                | 7+: session int32, epoch int32 | topics | 7+: forgotten topics | 11+: rack string
    topic       name string, 13+: id (16 bytes) | partitions
    partition   index int32 | 9+: leader epoch int32 | offset int64 | 12+: last epoch int32
                | 5+: start offset int64 | max bytes int32

    response    throttle int32 | 7+: error int16, session int32 | topics
    topic       name string, 13+: id (16 bytes) | partitions
    partition   index int32 | error int16 | high watermark int64 | last stable int64 | 5+: start offset int64
                | aborted transactions [ producer int64 | offset int64 ]? | 11+: preferred replica int32
                | records bytes?

From version 12 on, lengths are varints and each struct ends with tagged fields. Clients do not send tagged fields, so
messages with tagged fields are left to the general code in ``readers`` and ``writers``. Tests compare the decoder
and the encoder with the general code, in every version.
"""

from __future__ import annotations

import struct as layouts
from functools import cache
from typing import Any

from headrace.wire import messages, readers, writers
from headrace.wire.primitives import (
    ENCODE_ERRORS,
    MALFORMED,
    Buffer,
    WireError,
    malformed,
    read_compact_count,
    read_count,
    reserve_elements,
    string_reader,
    string_writer,
    write_count,
)

__all__ = ["decode_request", "response_parts"]

_START_OFFSET_FROM = 5
_SESSIONS_FROM = 7
_LEADER_EPOCH_FROM = 9
_RACK_FROM = 11
_FLEXIBLE_FROM = 12
_TOPIC_IDS_FROM = 13
_REPLICA_STATE_FROM = 15

_NO_ID = bytes(16)
_NO_HIGH_WATERMARK = 2**63 - 1

# Copying records up to this size in bytes is cheaper than sending them as a separate buffer.
_COPY_MAX = 1024

_HEAD = layouts.Struct(">iiiib")
_HEAD_WITHOUT_REPLICA = layouts.Struct(">iiib")
_SESSION = layouts.Struct(">ii")
_PARTITION_4 = layouts.Struct(">iqi")
_PARTITION_5 = layouts.Struct(">iqqi")
_PARTITION_9 = layouts.Struct(">iiqqi")
_PARTITION_12 = layouts.Struct(">iiqiqi")

_INT32 = layouts.Struct(">i")
_TOP_7 = layouts.Struct(">ihi")
_DATA_4 = layouts.Struct(">ihqq")
_DATA_5 = layouts.Struct(">ihqqq")
_ABORTED = layouts.Struct(">qq")


class _Tagged(Exception):
    """The message has tagged fields, so the general reader must decode it."""


def decode_request(version: int, buf: Buffer, pos: int, elements_max: int) -> Any:
    cls = messages.FetchRequest
    try:
        if version in cls.shape_.versions:
            return _read_request(version, buf, pos, [elements_max])
    except _Tagged:
        pass
    except MALFORMED as error:
        raise malformed("FetchRequest", version, error) from error
    return readers.decode(cls, version, buf, pos, elements_max=elements_max)


def _read_request(version: int, buf: Any, pos: int, budget: list[int]) -> Any:
    request, fetch_topic, replica_state, _, forgotten_topic = _request_classes()
    flexible = version >= _FLEXIBLE_FROM
    count = read_compact_count if flexible else read_count
    if version < _REPLICA_STATE_FROM:
        replica, max_wait_ms, min_bytes, max_bytes, isolation = _HEAD.unpack_from(buf, pos)
        pos += _HEAD.size
    else:
        replica = -1
        max_wait_ms, min_bytes, max_bytes, isolation = _HEAD_WITHOUT_REPLICA.unpack_from(buf, pos)
        pos += _HEAD_WITHOUT_REPLICA.size
    session, epoch = 0, -1
    if version >= _SESSIONS_FROM:
        session, epoch = _SESSION.unpack_from(buf, pos)
        pos += _SESSION.size
    topics = []
    size, pos = count(buf, pos)
    reserve_elements("topics", size, 3, len(buf) - pos, budget)
    for _ in range(size):
        name, topic_id, pos = _read_topic(version, buf, pos, budget)
        partitions, pos = _read_partitions(version, buf, pos, budget)
        if flexible:
            pos = _no_tags(buf, pos)
        topics.append(fetch_topic(name, topic_id, partitions))
    forgotten = []
    if version >= _SESSIONS_FROM:
        size, pos = count(buf, pos)
        reserve_elements("forgotten_topics_data", size, 3, len(buf) - pos, budget)
        for _ in range(size):
            name, topic_id, pos = _read_topic(version, buf, pos, budget)
            forgotten_count, pos = count(buf, pos)
            reserve_elements("partitions", forgotten_count, 4, len(buf) - pos, budget)
            indexes = list(layouts.unpack_from(f">{forgotten_count}i", buf, pos))
            pos += 4 * forgotten_count
            if flexible:
                pos = _no_tags(buf, pos)
            forgotten.append(forgotten_topic(name, topic_id, indexes))
    rack = ""
    if version >= _RACK_FROM:
        rack, pos = _RACK_READERS[flexible](buf, pos, budget)
    if flexible:
        pos = _no_tags(buf, pos)
    return request(
        None,
        replica,
        replica_state(),
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation,
        session,
        epoch,
        topics,
        forgotten,
        rack,
    )


def _read_topic(version: int, buf: Any, pos: int, budget: list[int]) -> tuple[str, bytes, int]:
    if version >= _TOPIC_IDS_FROM:
        end = pos + 16
        if end > len(buf):
            raise WireError("the message is incomplete: it ends within a topic id")
        return "", bytes(buf[pos:end]), end
    name, pos = _NAME_READERS[version >= _FLEXIBLE_FROM](buf, pos, budget)
    return name, _NO_ID, pos


def _read_partitions(version: int, buf: Any, pos: int, budget: list[int]) -> tuple[list[Any], int]:
    fetch_partition = _request_classes()[3]
    size, pos = (read_compact_count if version >= _FLEXIBLE_FROM else read_count)(buf, pos)
    reserve_elements("partitions", size, 16, len(buf) - pos, budget)
    partitions = []
    if version >= _FLEXIBLE_FROM:
        for _ in range(size):
            index, leader, offset, last, start, max_bytes = _PARTITION_12.unpack_from(buf, pos)
            pos = _no_tags(buf, pos + _PARTITION_12.size)
            partitions.append(
                fetch_partition(index, leader, offset, last, start, max_bytes, _NO_ID, _NO_HIGH_WATERMARK)
            )
    elif version >= _LEADER_EPOCH_FROM:
        for _ in range(size):
            index, leader, offset, start, max_bytes = _PARTITION_9.unpack_from(buf, pos)
            pos += _PARTITION_9.size
            partitions.append(
                fetch_partition(index, leader, offset, -1, start, max_bytes, _NO_ID, _NO_HIGH_WATERMARK)
            )
    elif version >= _START_OFFSET_FROM:
        for _ in range(size):
            index, offset, start, max_bytes = _PARTITION_5.unpack_from(buf, pos)
            pos += _PARTITION_5.size
            partitions.append(
                fetch_partition(index, -1, offset, -1, start, max_bytes, _NO_ID, _NO_HIGH_WATERMARK)
            )
    else:
        for _ in range(size):
            index, offset, max_bytes = _PARTITION_4.unpack_from(buf, pos)
            pos += _PARTITION_4.size
            partitions.append(
                fetch_partition(index, -1, offset, -1, -1, max_bytes, _NO_ID, _NO_HIGH_WATERMARK)
            )
    return partitions, pos


def _no_tags(buf: Any, pos: int) -> int:
    if buf[pos]:
        raise _Tagged
    return pos + 1


def response_parts(out: bytearray, message: Any, version: int) -> list[bytearray | memoryview]:
    """Encode a FetchResponse as consecutive buffers: ``out`` with the encoded fields, and the records.

    Records can be None, one buffer or a list of buffers. They are not copied unless they are small.
    """
    start = len(out)
    if version in message.shape_.versions:
        try:
            parts = _response_parts(out, message, version)
            if parts is not None:
                return parts
        except ENCODE_ERRORS:
            # The general writer will fail as well, and its error names the field.
            pass
    del out[start:]
    writers.write(out, message, version)
    return [out]


def _response_parts(out: bytearray, message: Any, version: int) -> list[bytearray | memoryview] | None:
    """Return None if the message has fields that only the general writer can encode."""
    flexible = version >= _FLEXIBLE_FROM
    parts: list[bytearray | memoryview] = [out]
    if version >= _SESSIONS_FROM:
        out += _TOP_7.pack(message.throttle_time_ms, message.error_code, message.session_id)
    elif message.session_id:
        return None
    else:
        out += _INT32.pack(message.throttle_time_ms)
    write_count(out, len(message.responses), flexible)
    for topic in message.responses:
        if version < _TOPIC_IDS_FROM:
            _NAME_WRITERS[flexible](out, topic.topic)
        elif len(topic.topic_id) == 16:
            out += topic.topic_id
        else:
            return None
        write_count(out, len(topic.partitions), flexible)
        for partition in topic.partitions:
            if not _is_plain(partition, version):
                return None
            index, code, top = partition.partition_index, partition.error_code, partition.high_watermark
            stable = partition.last_stable_offset
            if version >= _START_OFFSET_FROM:
                out += _DATA_5.pack(index, code, top, stable, partition.log_start_offset)
            else:
                out += _DATA_4.pack(index, code, top, stable)
            _write_aborted(out, partition.aborted_transactions, flexible)
            if version >= _RACK_FROM:
                out += _INT32.pack(partition.preferred_read_replica)
            out = _add_records(parts, out, partition.records, flexible)
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    return None if message.node_endpoints else parts


def _is_plain(partition: Any, version: int) -> bool:
    epoch, leader, snapshot = _response_defaults()
    return (
        partition.diverging_epoch == epoch
        and partition.current_leader == leader
        and partition.snapshot_id == snapshot
        and (version >= _RACK_FROM or partition.preferred_read_replica == -1)
    )


def _write_aborted(out: bytearray, aborted: Any, flexible: bool) -> None:
    if not aborted:
        if aborted is None:
            out += b"\0" if flexible else b"\xff\xff\xff\xff"
        else:
            out += b"\1" if flexible else b"\0\0\0\0"
        return
    write_count(out, len(aborted), flexible)
    for transaction in aborted:
        out += _ABORTED.pack(transaction.producer_id, transaction.first_offset)
        if flexible:
            out.append(0)


def _add_records(
    parts: list[bytearray | memoryview], out: bytearray, records: Any, flexible: bool
) -> bytearray:
    """Add the records to the parts; returns the bytearray for the fields after them."""
    if records is None:
        out += b"\0" if flexible else b"\xff\xff\xff\xff"
        return out
    views = [memoryview(part) for part in (records if isinstance(records, list) else (records,))]
    size = sum(view.nbytes for view in views)
    write_count(out, size, flexible)
    if size <= _COPY_MAX:
        for view in views:
            out += view
        return out
    parts.extend(views)
    out = bytearray()
    parts.append(out)
    return out


_NAME_READERS = [string_reader("topic", flexible, False) for flexible in (False, True)]
_RACK_READERS = [string_reader("rack_id", flexible, False) for flexible in (False, True)]
_NAME_WRITERS = [string_writer(flexible, False) for flexible in (False, True)]


@cache
def _request_classes() -> tuple[Any, Any, Any, Any, Any]:
    cls = messages.FetchRequest
    return cls, cls.FetchTopic, cls.ReplicaState, cls.FetchPartition, cls.ForgottenTopic


@cache
def _response_defaults() -> tuple[Any, Any, Any]:
    cls = messages.FetchResponse
    return cls.EpochEndOffset(), cls.LeaderIdAndEpoch(), cls.SnapshotId()
