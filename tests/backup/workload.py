"""A broker under a seeded workload, and a model with the expected contents after each step.

The model knows only the requests and their responses. To read a log it parses the batches itself: records of a
transaction count only after the marker of their producer.
"""

from __future__ import annotations

import asyncio
import copy
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.handlers import produce
from headrace.broker.net.request import Request
from headrace.broker.settings import BrokerSettings
from headrace.clock import Clock
from headrace.files import SystemFile, SystemFiles
from headrace.records import RecordLimits, build_batch, iter_headers, open_batch, read_marker
from headrace.wire import Api, decode_request, encode_request
from headrace.wire import messages as m
from tests.unit.broker.broker_calls import BrokerCalls

TopicPartition = tuple[str, int]
GROUP = "readers"


class UnsyncedFile(SystemFile):
    __slots__ = ()

    def sync(self) -> None:
        return None


class UnsyncedFiles(SystemFiles):
    """Files whose syncs do nothing, so that steps are fast. The tests do not simulate power losses."""

    def open(self, path: Path, *, create: bool = False) -> SystemFile:
        file = super().open(path, create=create)
        return UnsyncedFile(file.descriptor, path)

    def sync_dir(self, directory: Path) -> None:
        return None


class DelayedSyncFile(UnsyncedFile):
    __slots__ = ("files",)
    files: DelayedSyncFiles

    def sync(self) -> None:
        if "backup" not in self.path.parts:
            self.files.wait(self.path)


class DelayedSyncFiles(UnsyncedFiles):
    """Syncs of the log take random times, so one of several logs is durable before another, and a restore point may
    come between them. ``hold`` blocks all syncs of partitions.
    """

    def __init__(self, seed: int, most_s: float = 0.002) -> None:
        self._random = random.Random(seed)
        self._most_s = most_s
        self._open = threading.Event()
        self._open.set()

    def open(self, path: Path, *, create: bool = False) -> SystemFile:
        file = DelayedSyncFile(super().open(path, create=create).descriptor, path)
        file.files = self
        return file

    def wait(self, path: Path) -> None:
        if "topics" in path.parts:
            assert self._open.wait(30), "the sync was not released"
        if self._random.random() < 0.5:
            time.sleep(self._random.random() * self._most_s)

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()


@dataclass
class Model:
    """Everything that was acknowledged up to some step."""

    topics: dict[str, str] = field(default_factory=dict)
    """Topic ids by name."""
    records: dict[TopicPartition, dict[int, tuple[bytes, bytes | None]]] = field(default_factory=dict)
    """Records that readers of committed records get, by offset."""
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    groups: dict[TopicPartition, int] = field(default_factory=dict)
    sequences: dict[TopicPartition, tuple[int, int, int]] = field(default_factory=dict)
    """The last batch of the idempotent producer: its number, its offset, and the leader's response to it."""
    pending: dict[TopicPartition, dict[int, tuple[bytes, bytes | None]]] = field(default_factory=dict)
    """Records of the open transaction."""
    pending_groups: dict[TopicPartition, int] = field(default_factory=dict)

    def forget(self, topic: str) -> None:
        del self.topics[topic]
        for kept in (
            self.records,
            self.starts,
            self.groups,
            self.sequences,
            self.pending,
            self.pending_groups,
        ):
            for topic_partition in [key for key in kept if key[0] == topic]:
                del kept[topic_partition]  # type: ignore[attr-defined]

    def visible_records(self, topic_partition: TopicPartition, *, compacted: bool) -> Any:
        start = self.starts.get(topic_partition, 0)
        rows = {at: row for at, row in self.records.get(topic_partition, {}).items() if at >= start}
        return last_values(rows) if compacted else rows


def last_values(rows: dict[int, tuple[bytes, bytes | None]]) -> dict[bytes, bytes]:
    """The last value of each key, without deleted keys."""
    last = {key: value for _, (key, value) in sorted(rows.items())}
    return {key: value for key, value in last.items() if value is not None}


class World:
    """Runs a random workload against a broker in this process, step by step; each step is one request."""

    def __init__(self, home: Path, seed: int, *, clock: Clock | None = None, **settings: Any) -> None:
        self.home = home
        self.random = random.Random(seed)
        self.folder = home / "backup"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.settings = {"backup_dir": self.folder, "backup_every_s": 3600.0, **settings}
        self.clock = clock
        self.files: SystemFiles = UnsyncedFiles()
        self.model = Model()
        self.history: list[Model] = []
        self.started = 0
        self.idempotent = self.transactional = (-1, -1)
        self.sequence: dict[TopicPartition, int] = {}
        self.number = 0
        self.call: BrokerCalls

    # Start and stop

    async def start(self, data: Path | None = None) -> None:
        broker = Broker(
            BrokerSettings(data_dir=data or self.home / "data", **self.settings),
            clock=self.clock,
            files=self.files,
        )
        await broker.start()
        self.call = BrokerCalls(broker)
        await self.wait_for_first_restore_point()

    async def wait_for_first_restore_point(self) -> None:
        backup = self.call.broker.backup
        if backup is not None:
            for _ in range(2000):
                status = backup.status
                if status.restore_points or status.failures:
                    return
                await asyncio.sleep(0.005)
            raise AssertionError("the first restore point was never written")

    async def stop(self) -> None:
        await self.call.broker.stop()

    async def round(self) -> bool:
        assert self.call.broker.backup is not None
        return await self.call.broker.backup.round()

    async def prepare(self) -> None:
        await self.create("events")
        await self.create("table")
        self.idempotent = await self._init(None)
        self.transactional = await self._init("shop")
        self.history.append(copy.deepcopy(self.model))

    async def create(self, name: str) -> None:
        policy = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"} if name == "table" else {}
        topic = await self.call.create(name, 2, internal_segment_bytes="700", **policy)
        self.model.topics[name] = topic.id.hex()

    async def _init(self, transactional_id: str | None) -> tuple[int, int]:
        response = await self.call(
            Api.INIT_PRODUCER_ID,
            transactional_id=transactional_id,
            transaction_timeout_ms=600_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        assert response.error_code == 0
        return response.producer_id, response.producer_epoch

    # Steps

    async def step(self) -> None:
        self.started += 1
        steps = {
            self.send_record: 6,
            self.send_idempotently: 6,
            self.send_in_transaction: 8,
            self.end_transaction: 2,
            self.commit_group: 3,
            self.commit_group_in_transaction: 1,
            self.trim: 1,
            self.compact: 1,
            self.replace_topic: 1,
        }
        (chosen,) = self.random.choices(list(steps), list(steps.values()))
        await chosen()
        self.history.append(copy.deepcopy(self.model))

    def _any_partition(self) -> TopicPartition:
        return self.random.choice(sorted(self.model.topics)), self.random.randrange(2)

    def _record(self, topic: str) -> tuple[bytes, bytes | None]:
        self.number += 1
        key = b"key-%d" % self.random.randrange(8)
        gone = topic == "table" and self.random.random() < 0.1
        return key, None if gone else b"value-%d-" % self.number + bytes(self.random.randrange(60))

    async def send_record(self) -> None:
        topic_partition = self._any_partition()
        record = self._record(topic_partition[0])
        offset = await self.send(topic_partition, record)
        self.model.records.setdefault(topic_partition, {})[offset] = record

    async def send_idempotently(self) -> None:
        topic_partition = self._any_partition()
        record, number = self._record(topic_partition[0]), self.sequence.get(topic_partition, 0)
        offset = await self.send(topic_partition, record, producer=(*self.idempotent, number))
        self.sequence[topic_partition] = number + 1
        self.model.records.setdefault(topic_partition, {})[offset] = record
        self.model.sequences[topic_partition] = (*self.idempotent, number)

    async def send_in_transaction(self) -> None:
        topic_partition = self._any_partition()
        record = self._record(topic_partition[0])
        # With Kafka's transaction protocol version 2 (KIP-890), each transaction increments the producer's
        # epoch and begins with sequence 0.
        number = len(self.model.pending.get(topic_partition, ()))
        offset = await self.send(
            topic_partition, record, producer=(*self.transactional, number), as_id="shop"
        )
        self.model.pending.setdefault(topic_partition, {})[offset] = record

    async def end_transaction(self) -> None:
        model = self.model
        if not model.pending and not model.pending_groups:
            return
        commit = self.random.random() < 0.6
        response = await self.call(
            Api.END_TXN,
            5,
            transactional_id="shop",
            producer_id=self.transactional[0],
            producer_epoch=self.transactional[1],
            committed=commit,
        )
        assert response.error_code == 0
        self.transactional = (response.producer_id, response.producer_epoch)
        if commit:
            for topic_partition, rows in model.pending.items():
                model.records.setdefault(topic_partition, {}).update(rows)
            model.groups.update(model.pending_groups)
        model.pending, model.pending_groups = {}, {}

    async def commit_group(self) -> None:
        topic_partition = self._any_partition()
        # Read the end only once: a marker may become durable meanwhile and move it.
        offset = self._end(topic_partition)
        await self._commit(topic_partition, offset)
        self.model.groups[topic_partition] = offset

    async def _commit(self, topic_partition: TopicPartition, offset: int) -> None:
        request = m.OffsetCommitRequest
        partition = request.OffsetCommitRequestPartition(
            partition_index=topic_partition[1], committed_offset=offset
        )
        topics = [request.OffsetCommitRequestTopic(name=topic_partition[0], partitions=[partition])]
        answer = await self.call(Api.OFFSET_COMMIT, 9, group_id=GROUP, topics=topics)
        assert answer.topics[0].partitions[0].error_code == 0

    async def commit_group_in_transaction(self) -> None:
        topic_partition, request = self._any_partition(), m.TxnOffsetCommitRequest
        offset = self._end(topic_partition)
        partition = request.TxnOffsetCommitRequestPartition(
            partition_index=topic_partition[1], committed_offset=offset
        )
        topics = [request.TxnOffsetCommitRequestTopic(name=topic_partition[0], partitions=[partition])]
        answer = await self.call(
            Api.TXN_OFFSET_COMMIT,
            5,
            transactional_id="shop",
            group_id=GROUP,
            producer_id=self.transactional[0],
            producer_epoch=self.transactional[1],
            topics=topics,
        )
        assert answer.topics[0].partitions[0].error_code == 0
        self.model.pending_groups[topic_partition] = offset

    def _end(self, topic_partition: TopicPartition) -> int:
        partition = self.call.broker.partition(*topic_partition)
        assert partition is not None
        return partition.high_watermark

    async def trim(self) -> None:
        topic_partition = ("events", self.random.randrange(2))
        offset = self.random.randint(self.model.starts.get(topic_partition, 0), self._end(topic_partition))
        partition = self.call.broker.partition(*topic_partition)
        assert partition is not None
        await partition.delete_before(offset)
        self.model.starts[topic_partition] = max(self.model.starts.get(topic_partition, 0), offset)

    async def compact(self) -> None:
        await self.call.broker.compactor.compact()

    async def replace_topic(self) -> None:
        if self.model.pending or self.model.pending_groups:
            return
        if "extra" not in self.model.topics:
            await self.create("extra")
            return
        state = m.DeleteTopicsRequest.DeleteTopicState(name="extra", topic_id=bytes(16))
        assert (await self.call(Api.DELETE_TOPICS, topics=[state])).responses[0].error_code == 0
        self.model.forget("extra")
        self.sequence = {
            topic_partition: number
            for topic_partition, number in self.sequence.items()
            if topic_partition[0] != "extra"
        }

    async def send(
        self,
        topic_partition: TopicPartition,
        record: tuple[bytes, bytes | None],
        *,
        producer: tuple[int, int, int] = (-1, -1, -1),
        as_id: str | None = None,
    ) -> int:
        batch = build_batch(
            [(*record, ())],
            timestamp_ms=self.call.broker.clock.now_ms(),
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
            transactional=as_id is not None,
        )
        request = m.ProduceRequest
        message = request(
            transactional_id=as_id,
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                request.TopicProduceData(
                    name=topic_partition[0],
                    partition_data=[
                        request.PartitionProduceData(index=topic_partition[1], records=bytes(batch))
                    ],
                )
            ],
        )
        header, decoded = decode_request(encode_request(Api.PRODUCE, 12, 7, "tests", message)[4:])
        handled = Request(Api.PRODUCE, 12, header.correlation_id, header.client_id, decoded, "127.0.0.1")
        produced = produce.begin(self.call.broker, handled)
        if produced.durable_futures:
            await asyncio.wait(produced.durable_futures)
        answer = produced.finish().responses[0].partition_responses[0]
        assert answer.error_code == 0, answer
        offset: int = answer.base_offset
        return offset


def committed(broker: Broker, topic_partition: TopicPartition) -> dict[int, tuple[bytes, bytes | None]]:
    """The committed records of a partition, found by parsing its batches."""
    partition = broker.partition(*topic_partition)
    assert partition is not None
    rows: dict[int, tuple[bytes, bytes | None]] = {}
    pending: dict[int, dict[int, tuple[bytes, bytes | None]]] = {}
    offset = partition.start_offset
    while offset < partition.high_watermark:
        piece = partition.reader.read(offset, 1 << 20)
        for position, header in iter_headers(piece.data):
            batch = bytes(piece.data[position : position + header.size])
            if header.is_control:
                marker = read_marker(batch)
                assert marker is not None
                ended = pending.pop(header.producer_id, {})
                rows.update(ended if marker.committed else {})
                continue
            records = {
                header.base_offset + record.offset: (record.key or b"", record.value)
                for record in open_batch(batch, RecordLimits()).records
                if header.base_offset + record.offset >= partition.start_offset
            }
            if header.is_transactional:
                pending.setdefault(header.producer_id, {}).update(records)
            else:
                rows.update(records)
        offset = piece.next_offset
    return rows


def difference(broker: Broker, model: Model) -> str | None:
    """The differences between the broker and the model."""
    topics = {topic.name: topic.id.hex() for topic in broker.catalog.topics()}
    if topics != model.topics:
        return f"topics {topics} instead of {model.topics}"
    for name in topics:
        for index in range(2):
            topic_partition = (name, index)
            compacted = name == "table"
            rows = committed(broker, topic_partition)
            actual, expected = (
                last_values(rows) if compacted else rows,
                model.visible_records(topic_partition, compacted=compacted),
            )
            if actual != expected:
                return f"{topic_partition} has {actual} instead of {expected}"
    groups = {
        (topic, index): row.offset
        for topic, rows in broker.groups.fetch_all(GROUP).items()
        for index, row in rows.items()
    }
    return None if groups == model.groups else f"groups {groups} instead of {model.groups}"
