"""Hand-written code for Produce: decodes the request with its records as views into the frame, and encodes the response
in one pass.

    request 3-8     transactional id string? | acks int16 | timeout int32
                    | topics [ name string | partitions [ index int32 | records bytes? ] ]
    request 9-13    the same with varint lengths, tagged fields after each struct, and from 13 on a topic id
                    (16 bytes) in place of the name
    response        topics [ name or id | partitions [ index int32 | error int16 | base offset int64
                    | append time int64 | 5+: start offset int64
                    | 8+: record errors [], error message string? ] ] | throttle time int32

Tests compare the decoder and the encoder with the general code, in every version.
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
    Reader,
    WireError,
    malformed,
    read_compact_count,
    read_count,
    read_tagged,
    reserve_elements,
    string_reader,
    string_writer,
    too_long,
    write_count,
)

__all__ = ["decode_request", "write_response"]

_START_OFFSET_FROM = 5
_RECORD_ERRORS_FROM = 8
_FLEXIBLE_FROM = 9
_TOPIC_IDS_FROM = 13
_NO_ID = bytes(16)
_NO_TAGS: dict[int, tuple[int, Reader]] = {}

_ACKS_AND_TIMEOUT = layouts.Struct(">hi")
_INT32 = layouts.Struct(">i")
_RESULT_3 = layouts.Struct(">ihqq")
_RESULT_5 = layouts.Struct(">ihqqq")


def decode_request(version: int, buf: Buffer, pos: int, elements_max: int) -> Any:
    """Decode a ProduceRequest. Its records are memoryviews of the buffer."""
    request, topic, partition = _request_classes()
    if version not in request.shape_.versions:
        return readers.decode(request, version, buf, pos)
    flexible = version >= _FLEXIBLE_FROM
    count = read_compact_count if flexible else read_count
    view: Any = memoryview(buf)
    budget = [elements_max]
    try:
        transactional_id, pos = _ID_READERS[flexible](view, pos, budget)
        acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(view, pos)
        topic_count, pos = count(view, pos + _ACKS_AND_TIMEOUT.size)
        reserve_elements("topic_data", topic_count, 3, len(view) - pos, budget)
        topics = []
        for _ in range(topic_count):
            if version < _TOPIC_IDS_FROM:
                topic_id = _NO_ID
                name, pos = _NAME_READERS[flexible](view, pos, budget)
            else:
                topic_id = bytes(view[pos : pos + 16])
                name = ""
                pos += 16
            partition_count, pos = count(view, pos)
            reserve_elements("partition_data", partition_count, 6, len(view) - pos, budget)
            partitions = []
            for _ in range(partition_count):
                (index,) = _INT32.unpack_from(view, pos)
                size, pos = count(view, pos + 4)
                records = None
                if size >= 0:
                    end = pos + size
                    if end > len(view):
                        raise too_long("records", size, len(view) - pos)
                    records = view[pos:end]
                    pos = end
                elif size != -1:
                    raise WireError(f"records: invalid length {size}")
                if flexible:
                    pos = read_tagged(view, pos, budget, _NO_TAGS, [])
                partitions.append(partition(index, records))
            if flexible:
                pos = read_tagged(view, pos, budget, _NO_TAGS, [])
            topics.append(topic(name, topic_id, partitions))
        if flexible:
            pos = read_tagged(view, pos, budget, _NO_TAGS, [])
    except MALFORMED as error:
        raise malformed("ProduceRequest", version, error) from error
    return request(transactional_id, acks, timeout_ms, topics)


def write_response(out: bytearray, message: Any, version: int) -> None:
    """Append a ProduceResponse. If it has more than error codes and offsets, the general writer encodes it."""
    start = len(out)
    try:
        if version in message.shape_.versions and _write_plain_response(out, message, version):
            return
    except ENCODE_ERRORS:
        # The general writer will fail as well, and its error names the field.
        pass
    del out[start:]
    writers.write(out, message, version)


def _write_plain_response(out: bytearray, message: Any, version: int) -> bool:
    flexible = version >= _FLEXIBLE_FROM
    write_count(out, len(message.responses), flexible)
    for topic in message.responses:
        if version < _TOPIC_IDS_FROM:
            _NAME_WRITERS[flexible](out, topic.name)
        elif len(topic.topic_id) == 16:
            out += topic.topic_id
        else:
            return False
        write_count(out, len(topic.partition_responses), flexible)
        for partition in topic.partition_responses:
            leader = partition.current_leader
            if (
                partition.record_errors
                or partition.error_message is not None
                or leader.leader_id != -1
                or leader.leader_epoch != -1
            ):
                return False
            index, code, base = partition.index, partition.error_code, partition.base_offset
            if version < _START_OFFSET_FROM:
                out += _RESULT_3.pack(index, code, base, partition.log_append_time_ms)
            else:
                appended, log_start = partition.log_append_time_ms, partition.log_start_offset
                out += _RESULT_5.pack(index, code, base, appended, log_start)
            if flexible:
                # No record errors, no message, no tagged fields.
                out += b"\1\0\0"
            elif version >= _RECORD_ERRORS_FROM:
                out += b"\0\0\0\0\xff\xff"
        if flexible:
            out.append(0)
    out += _INT32.pack(message.throttle_time_ms)
    if flexible:
        out.append(0)
    return not message.node_endpoints


_ID_READERS = [string_reader("transactional_id", flexible, True) for flexible in (False, True)]
_NAME_READERS = [string_reader("name", flexible, False) for flexible in (False, True)]
_NAME_WRITERS = [string_writer(flexible, False) for flexible in (False, True)]


@cache
def _request_classes() -> tuple[Any, Any, Any]:
    request = messages.ProduceRequest
    return request, request.TopicProduceData, request.PartitionProduceData
