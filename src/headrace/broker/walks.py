"""Walking batches that take long, before they are appended and off the event loop.

A batch may unpack to a hundred times its size, and each of a million records costs the walk its time: little in C, and
a few microseconds where that part was not built. One small batch at a time is walked where it is appended. What is
larger is walked in a thread first, while its connection waits and the others are served; the append then finds the
result here. A batch whose few bytes may unpack to much is tried with a small limit, and goes to a thread when it runs
into that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.records import (
    CODEC_NAMES,
    WALKS_IN_C,
    BatchHeader,
    Checked,
    RecordError,
    RecordLimits,
    RecordsTooLarge,
    check_batch,
    read_header,
    recompress,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["Walk", "batches_of", "checked_batch", "forget", "repacked_batch", "walk_all", "walks_wanted"]


class _AtOnce(NamedTuple):
    """How much of one request is walked on the event loop."""

    bytes_max: int
    records_max: int
    unpacked_bytes_max: int
    doubtful_max: int


# The largest batch that topics take by default, and a little.
_IN_C = _AtOnce(1100 << 10, 20_000, 8 << 20, 8)
# Two bytes can be a header, each of which takes the walk in Python a microsecond.
_IN_PYTHON = _AtOnce(64 << 10, 2_000, 64 << 10, 2)
_AT_ONCE = _IN_C if WALKS_IN_C else _IN_PYTHON
# A request this small with nothing packed in it is quickly handled, whatever it holds.
_QUICK_BYTES = 64 * 1024
_ATTRIBUTES_AT, _CODEC_BITS = 22, 7
_TOPIC_IDS_FROM = 13
# The most that a byte of each codec can become; snappy says so up front, and zstd may become anything.
_RATIOS = {"none": 1, "gzip": 1032, "snappy": 32, "lz4": 256}

Buffer = bytes | bytearray | memoryview


class Walk(NamedTuple):
    """A batch to walk ahead; ``codec`` is what it is to be packed with anew, if that is another one."""

    batch: Any
    codec: int | None


class _Result(NamedTuple):
    batch: Any  # held, so that no other object can have its identity meanwhile
    checked: Checked | RecordError
    repacked: bytes | None


_ahead: dict[int, _Result] = {}


def batches_of(message: Any) -> list[Any]:
    """All that a Produce request carries, as views into its frame."""
    return [
        data.records
        for topic in message.topic_data
        for data in topic.partition_data
        if data.records is not None
    ]


def walks_wanted(
    broker: Broker, request: Request, frame_bytes: int, batches: Sequence[Any]
) -> Sequence[Walk] | None:
    """The walks that a thread should make for a Produce request, or ``None`` if it can be handled at once."""
    if frame_bytes <= _QUICK_BYTES and not any(map(_is_packed, batches)):
        return None
    return _long_walks(_with_codecs(broker, request), broker.limits.records)


def _is_packed(batch: Any) -> bool:
    return len(batch) > _ATTRIBUTES_AT and bool(batch[_ATTRIBUTES_AT] & _CODEC_BITS)


def _with_codecs(broker: Broker, request: Request) -> Iterator[tuple[Any, str]]:
    """Each batch, with the ``compression.type`` of the topic that it is for."""
    for data in request.message.topic_data:
        name = data.name if request.version < _TOPIC_IDS_FROM else broker.topic_name(data.topic_id)
        topic = broker.catalog.topic(name) if name is not None else None
        codec = "producer" if topic is None else broker.catalog.log_config(topic).compression_type
        for partition in data.partition_data:
            if partition.records is not None:
                yield partition.records, codec


def _long_walks(batches: Iterable[tuple[Any, str]], limits: RecordLimits) -> Sequence[Walk] | None:
    walks: list[Walk] = []
    bytes_in_all = records_in_all = 0
    doubtful: list[Walk] = []
    for batch, wanted in batches:
        try:
            header = read_header(batch)
        except RecordError:
            continue
        if header.codec >= len(CODEC_NAMES):
            continue
        walk = Walk(batch, _codec_to_pack(header, wanted))
        walks.append(walk)
        bytes_in_all += len(batch)
        records_in_all += max(header.count, 0)
        ratio = _RATIOS.get(CODEC_NAMES[header.codec])
        if ratio is None or len(batch) * ratio > _AT_ONCE.unpacked_bytes_max:
            doubtful.append(walk)
    if (
        bytes_in_all > _AT_ONCE.bytes_max
        or records_in_all > _AT_ONCE.records_max
        or len(doubtful) > _AT_ONCE.doubtful_max
    ):
        return walks
    small = replace(limits, unpacked_bytes_max=min(limits.unpacked_bytes_max, _AT_ONCE.unpacked_bytes_max))
    for walk in doubtful:
        try:
            _ahead[id(walk.batch)] = _Result(walk.batch, check_batch(walk.batch, small), None)
        except RecordsTooLarge:
            return walks
        except RecordError as error:
            _ahead[id(walk.batch)] = _Result(walk.batch, _bare(error), None)
    return None


def _codec_to_pack(header: BatchHeader, wanted: str) -> int | None:
    if wanted in ("producer", CODEC_NAMES[header.codec]):
        return None
    return CODEC_NAMES.index("none" if wanted == "uncompressed" else wanted)


def walk_all(walks: Sequence[Walk], limits: RecordLimits) -> None:
    """Walk, one after the other. May run in any thread."""
    for batch, codec in walks:
        repacked = None
        checked: Checked | RecordError
        try:
            checked = check_batch(batch, limits)
            if codec is not None:
                repacked = bytes(recompress(batch, codec, limits))
        except RecordError as error:
            checked = _bare(error)
        _ahead[id(batch)] = _Result(batch, checked, repacked)


def _bare(error: RecordError) -> RecordError:
    """Without where it was raised: those frames hold all that was unpacked, and the one that keeps the error is among
    them, so that only the garbage collector would free it.
    """
    error.__context__ = None
    return error.with_traceback(None)


def forget(batches: Iterable[Any]) -> None:
    """The request is handled: what nobody asked for is not needed any more."""
    if _ahead:
        for batch in batches:
            _ahead.pop(id(batch), None)


def checked_batch(batch: Buffer, limits: RecordLimits) -> Checked:
    """As ``check_batch``, from a walk ahead if there was one."""
    known = _ahead.get(id(batch)) if _ahead else None
    if known is None:
        return check_batch(batch, limits)
    if isinstance(known.checked, RecordError):
        raise known.checked
    return known.checked


def repacked_batch(batch: Buffer, codec: int, limits: RecordLimits) -> Buffer:
    known = _ahead.get(id(batch)) if _ahead else None
    if known is None or known.repacked is None:
        return recompress(batch, codec, limits)
    return known.repacked
