"""Produce: append each batch, and respond when all batches are as durable as the configuration requires.

``begin`` appends the batches of one request. The connection calls it in the order in which its requests arrive, and
several requests can then wait for the disk together. The broker appends a transactional batch only if the transaction
coordinator accepts the partition into that transaction.

``prevalidate`` validates large batches before the append, so that they do not block the event loop. A batch can
decompress to a hundred times its size. Validation takes little time per record in C, and a few microseconds per record
in Python if the C extension is missing. The append itself validates small batches. A thread validates large batches;
meanwhile their connection waits, and the broker serves other connections. If a batch is small but may decompress to
many bytes, the event loop first tries to validate it with a small limit. If the batch exceeds that limit, the thread
validates it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.event_loop import Step
from headrace.broker.permissions import Operation, Permission, Resource
from headrace.broker.storage.partition import Accepted, Partition, Prevalidated, ProduceRefused, codec_for
from headrace.errors import StorageError
from headrace.records import (
    CODEC_NAMES,
    VALIDATES_IN_C,
    BatchSummary,
    RecordError,
    RecordLimits,
    RecordsTooLarge,
    check_batch,
    codec_of,
    read_header,
    recompress,
    transactional_producer,
)
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.net.request import Request

__all__ = [
    "BATCHES_PER_STEP",
    "PERMISSIONS",
    "AppendedRequest",
    "Prevalidation",
    "begin",
    "begin_in_steps",
    "prevalidate",
]

PERMISSIONS = (
    Permission(Operation.WRITE, Resource.TOPIC),
    Permission(Operation.WRITE, Resource.TRANSACTIONAL_ID),
    Permission(Operation.IDEMPOTENT_WRITE, Resource.CLUSTER),
)

BATCHES_PER_STEP = 200

_ZSTD = 4
_ZSTD_SINCE = 7
_TOPIC_IDS_SINCE = 13
_ADDS_SINCE = 12
_ABORTABLE_SINCE = 11
# Temporary errors. The client gets NOT_ENOUGH_REPLICAS instead, because every client retries that error.
_TEMPORARY_ERRORS = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


class AppendedRequest:
    """A Produce request whose batches are appended. Respond when every future in ``durable_futures`` is done."""

    __slots__ = ("_accepted", "durable_futures", "response")

    def __init__(self, response: Any) -> None:
        self.response = response
        self.durable_futures: list[asyncio.Future[None]] = []
        self._accepted: list[tuple[Any, Accepted]] = []

    def accept(self, result: Any, accepted: Accepted) -> None:
        result.base_offset = accepted.appended.base_offset
        result.log_append_time_ms = accepted.append_time_ms
        if accepted.durable is not None:
            self.durable_futures.append(accepted.durable)
            self._accepted.append((result, accepted))

    def when_durable(self, call: Callable[[], None]) -> None:
        """Call ``call`` when every future in ``durable_futures`` is done. There must be at least one."""
        remaining = len(self.durable_futures)

        def on_durable(_: asyncio.Future[None]) -> None:
            nonlocal remaining
            remaining -= 1
            if not remaining:
                call()

        for future in self.durable_futures:
            future.add_done_callback(on_durable)

    def finish(self) -> Any:
        """Return the response. Call this when every future in ``durable_futures`` is done."""
        for result, accepted in self._accepted:
            assert accepted.durable is not None
            error = accepted.durable.exception()
            if error is not None:
                assert isinstance(error, StorageError)
                _refuse(result, ErrorCode.KAFKA_STORAGE_ERROR, error.message)
        return self.response

    @property
    def failed(self) -> bool:
        """Whether the broker refused any partition. In that case, with acks=0, the broker closes the connection."""
        return any(p.error_code for topic in self.response.responses for p in topic.partition_responses)


def begin(
    broker: Broker, request: Request, prevalidated: Sequence[Prevalidated | None] = ()
) -> AppendedRequest:
    """Append all batches. ``prevalidated`` is empty, or has one validation result per batch, in order."""
    produced = AppendedRequest(m.ProduceResponse())
    for _ in _append_all(broker, request, produced, prevalidated, _Times(broker)):
        pass
    return produced


async def begin_in_steps(broker: Broker, request: Request, prevalidation: Prevalidation) -> AppendedRequest:
    """Like ``begin``, but the event loop runs other requests after each step of many batches.

    If the batches need validation in a thread, it happens first.
    """
    if prevalidation.needs_thread:
        await broker.loop.run_in_executor(broker.batch_executor, prevalidation.run)
    if len(prevalidation.results) <= BATCHES_PER_STEP:
        return begin(broker, request, prevalidation.results)
    produced = AppendedRequest(m.ProduceResponse())
    async with broker.turns:
        step = Step(broker.clock, BATCHES_PER_STEP)
        times = _Times(broker)
        for _ in _append_all(broker, request, produced, prevalidation.results, times):
            if step.is_over():
                await broker.turns.pause()
                step.restart()
                times.read()
    return produced


class _Times:
    """The append times of the batches of a step."""

    __slots__ = ("_broker", "now_ms", "trusted_ms")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.read()

    def read(self) -> None:
        self.now_ms = self._broker.clock.now_ms()
        self.trusted_ms = self._broker.trusted_time.now_ms()


def _append_all(
    broker: Broker,
    request: Request,
    produced: AppendedRequest,
    prevalidated: Sequence[Prevalidated | None],
    times: _Times,
) -> Iterator[None]:
    """Append all batches. Yields before each partition of the request; topics can change meanwhile."""
    message = request.message
    validations = iter(prevalidated)
    response = produced.response
    request_error = _request_error(message)
    has_ids = request.version >= _TOPIC_IDS_SINCE
    for topic in message.topic_data:
        name = broker.topic_name(topic.topic_id) if has_ids else topic.name
        topic_response = m.ProduceResponse.TopicProduceResponse(name=name or "", topic_id=topic.topic_id)
        response.responses.append(topic_response)
        for data in topic.partition_data:
            yield
            if has_ids:
                name = broker.topic_name(topic.topic_id)
            result = m.ProduceResponse.PartitionProduceResponse(index=data.index, base_offset=-1)
            topic_response.partition_responses.append(result)
            validated = None if data.records is None else next(validations, None)
            try:
                if request_error is not None:
                    raise request_error
                partition = _find(broker, message, name, data.index)
                if data.records is None or not len(data.records):
                    raise ProduceRefused(
                        ErrorCode.INVALID_RECORD, "the request has no batch for this partition"
                    )
                if request.version < _ZSTD_SINCE and codec_of(data.records) == _ZSTD:
                    raise ProduceRefused(
                        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later"
                    )
                producer = transactional_producer(data.records)
                must_start_at_zero = False
                if producer is not None:
                    assert name is not None
                    _admit(broker, request, producer, partition, name, data.index)
                    must_start_at_zero = request.version >= _ADDS_SINCE
                accepted = partition.append(
                    data.records,
                    times.now_ms,
                    times.trusted_ms,
                    must_start_at_zero=must_start_at_zero,
                    prevalidated=validated,
                )
                produced.accept(result, accepted)
                result.log_start_offset = partition.start_offset
            except ProduceRefused as refused:
                _refuse(result, refused.code, refused.message, refused.log_start_offset)
                result.record_errors = [
                    m.ProduceResponse.BatchIndexAndErrorMessage(
                        batch_index=index, batch_index_error_message=refused.message
                    )
                    for index in refused.records
                ]


def _request_error(message: Any) -> ProduceRefused | None:
    """Return the error for all partitions if the transactional batches of the request are inconsistent."""
    producers = set()
    for topic in message.topic_data:
        for data in topic.partition_data:
            if data.records is not None and (producer := transactional_producer(data.records)) is not None:
                producers.add(producer)
    if producers and message.transactional_id is None:
        return ProduceRefused(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "the request has a transactional batch but no transactional id",
        )
    if len(producers) > 1:
        return ProduceRefused(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            "the request has transactional batches from more than one producer",
        )
    return None


def _admit(
    broker: Broker, request: Request, producer: tuple[int, int], partition: Partition, name: str, index: int
) -> None:
    """Add the partition to the producer's transaction, or raise ``ProduceRefused``."""
    producer_id, epoch = producer
    transaction = partition.open_transactions().get(producer_id)
    # Two cases do not need the coordinator. A partition that refuses writes must not join a transaction. If
    # the transaction is open in this partition already, the coordinator has accepted the partition before.
    is_open = transaction is not None and transaction.producer_epoch == epoch
    if partition.needs_restart or (is_open and not broker.transactions.is_marking(producer_id)):
        return
    code = broker.transactions.admit(
        request.message.transactional_id,
        producer_id,
        epoch,
        name,
        index,
        may_add=request.version >= _ADDS_SINCE,
    )
    message = f"{name}-{index} is not part of a transaction of producer {producer_id}"
    if code is ErrorCode.CONCURRENT_TRANSACTIONS:
        message = f"the previous transaction of producer {producer_id} is still completing: retry"
    elif code in _TEMPORARY_ERRORS:
        message = "the transaction coordinator is not available: retry"
    if code is ErrorCode.TRANSACTION_ABORTABLE and request.version < _ABORTABLE_SINCE:
        code = ErrorCode.INVALID_TXN_STATE
    elif code in _TEMPORARY_ERRORS or (
        code is ErrorCode.CONCURRENT_TRANSACTIONS and request.version < _ADDS_SINCE
    ):
        code = ErrorCode.NOT_ENOUGH_REPLICAS
    if code is not ErrorCode.NONE:
        raise ProduceRefused(code, message)


def _find(broker: Broker, message: Any, name: str | None, index: int) -> Partition:
    if message.acks not in (-1, 0, 1):
        raise ProduceRefused(
            ErrorCode.INVALID_REQUIRED_ACKS, f"invalid acks {message.acks}: expected -1, 0 or 1"
        )
    if name is None:
        raise ProduceRefused(ErrorCode.UNKNOWN_TOPIC_ID)
    partition = broker.partitions.find(name, index)
    if partition is None:
        raise ProduceRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if message.acks == -1 and partition.min_insync_replicas > 1:
        raise ProduceRefused(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"min.insync.replicas is {partition.min_insync_replicas}, but this cluster has one broker: set it to 1",
        )
    return partition


def _refuse(result: Any, code: ErrorCode, message: str | None, log_start_offset: int = -1) -> None:
    result.error_code = code
    result.error_message = message
    result.base_offset = -1
    result.log_append_time_ms = -1
    result.log_start_offset = log_start_offset


class _InlineLimits(NamedTuple):
    """Limits on what the event loop validates of one request."""

    bytes_max: int
    records_max: int
    decompressed_bytes_max: int
    tries_max: int
    """Batches that the event loop tries to decompress up to ``decompressed_bytes_max``."""


# bytes_max is slightly more than the largest batch that topics accept by default.
_C_LIMITS = _InlineLimits(1100 << 10, 20_000, 8 << 20, 8)
# A record header can be as short as two bytes, and Python needs about a microsecond to validate it.
_PYTHON_LIMITS = _InlineLimits(64 << 10, 2_000, 64 << 10, 2)
_INLINE = _C_LIMITS if VALIDATES_IN_C else _PYTHON_LIMITS
# An uncompressed request of at most this size is fast to validate, whatever records it has.
_SMALL_BYTES = 64 * 1024
# The maximum compression ratio of each codec. zstd has no maximum.
_RATIOS = {"none": 1, "gzip": 1032, "snappy": 32, "lz4": 256}


class _Job(NamedTuple):
    number: int
    batch: Any
    codec: int | None
    """The topic's codec if the batch uses another codec and must be recompressed, else ``None``."""


class Prevalidation:
    """Validates the batches of one request before the append.

    ``results`` has one item per batch, in the order of the request. ``None`` means that the append validates the batch.
    If ``needs_thread`` is true, the caller runs ``run`` in a thread before the append.
    """

    __slots__ = ("_jobs", "_limits", "needs_thread", "results")

    def __init__(self, batch_count: int, limits: RecordLimits) -> None:
        self.results: list[Prevalidated | None] = [None] * batch_count
        self.needs_thread = False
        self._limits = limits
        self._jobs: list[_Job] = []

    def begin(self, batches: Sequence[tuple[Any, str]]) -> None:
        """Validate small batches now, and set ``needs_thread`` if the batches exceed the limits of the event loop.

        Each item of ``batches`` is a batch and the ``compression.type`` of its topic.
        """
        self.needs_thread = not self._fits_inline(batches)

    def _fits_inline(self, batches: Sequence[tuple[Any, str]]) -> bool:
        total_bytes = total_records = 0
        uncertain: list[_Job] = []
        for number, (batch, compression_type) in enumerate(batches):
            try:
                header = read_header(batch)
            except RecordError:
                continue
            if header.codec >= len(CODEC_NAMES):
                continue
            job = _Job(number, batch, codec_for(compression_type, header.codec))
            self._jobs.append(job)
            total_bytes += len(batch)
            total_records += max(header.count, 0)
            ratio = _RATIOS.get(CODEC_NAMES[header.codec])
            if ratio is None or len(batch) * ratio > _INLINE.decompressed_bytes_max:
                uncertain.append(job)
        if (
            total_bytes > _INLINE.bytes_max
            or total_records > _INLINE.records_max
            or len(uncertain) > _INLINE.tries_max
        ):
            return False
        bytes_max = min(self._limits.unpacked_bytes_max, _INLINE.decompressed_bytes_max)
        small = replace(self._limits, unpacked_bytes_max=bytes_max)
        for job in uncertain:
            try:
                self.results[job.number] = Prevalidated(check_batch(job.batch, small))
            except RecordsTooLarge:
                return False
            except RecordError as error:
                self.results[job.number] = Prevalidated(_without_traceback(error))
        return True

    def run(self) -> None:
        """Validate all batches in order, and recompress those that need it. Can run in any thread."""
        for number, batch, codec in self._jobs:
            recompressed = None
            checked: BatchSummary | RecordError
            try:
                checked = check_batch(batch, self._limits)
                if codec is not None:
                    recompressed = bytes(recompress(batch, codec, self._limits))
            except RecordError as error:
                checked = _without_traceback(error)
            self.results[number] = Prevalidated(checked, recompressed)


def prevalidate(broker: Broker, request: Request, frame_bytes: int) -> Prevalidation:
    batches = [
        (data.records, topic)
        for topic in request.message.topic_data
        for data in topic.partition_data
        if data.records is not None
    ]
    prevalidation = Prevalidation(len(batches), broker.limits.records)
    if frame_bytes > _SMALL_BYTES or any(codec_of(batch) for batch, _ in batches):
        prevalidation.begin([(batch, _compression_type(broker, request, topic)) for batch, topic in batches])
    return prevalidation


def _compression_type(broker: Broker, request: Request, data: Any) -> str:
    name = data.name if request.version < _TOPIC_IDS_SINCE else broker.topic_name(data.topic_id)
    topic = broker.catalog.topic(name) if name is not None else None
    return "producer" if topic is None else broker.catalog.log_config(topic).compression_type


def _without_traceback(error: RecordError) -> RecordError:
    """Remove the traceback, so that the decompressed bytes are freed at once.

    The frames of the traceback refer to the decompressed bytes and to the error. This is a reference cycle, which only
    the garbage collector would free.
    """
    error.__context__ = None
    return error.with_traceback(None)
