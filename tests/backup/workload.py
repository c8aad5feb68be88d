"""A broker under a seeded workload, and a model of its own that says what must be there after each step.

The model knows only what it has sent and what was answered. What a log holds it finds out by parsing batches itself:
records of a transaction count when their producer's marker has come, and not before.
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
from headrace.broker.request import Request
from headrace.broker.settings import BrokerSettings
from headrace.clock import Clock
from headrace.files import SystemFile, SystemFiles
from headrace.records import RecordLimits, build_batch, iter_headers, open_batch, read_marker
from headrace.wire import Api, decode_request, encode_request
from headrace.wire import messages as m
from tests.unit.broker.desk import Asking

Place = tuple[str, int]
GROUP = "readers"


class UnsyncedFile(SystemFile):
    __slots__ = ()

    def sync(self) -> None:
        return None


class UnsyncedFiles(SystemFiles):
    """Files of a machine that loses no power: a step takes no longer than its work."""

    def open(self, path: Path, *, create: bool = False) -> SystemFile:
        found = super().open(path, create=create)
        return UnsyncedFile(found.descriptor, path)

    def sync_dir(self, directory: Path) -> None:
        return None


class LateFile(UnsyncedFile):
    __slots__ = ("files",)
    files: LateFiles

    def sync(self) -> None:
        if "backup" not in self.path.parts:
            self.files.wait(self.path)


class LateFiles(UnsyncedFiles):
    """The log's own syncs take their time, each another: what is written to several logs comes to the disk of one
    before that of the other, and a moment may lie between. ``hold`` keeps those of partitions up altogether.
    """

    def __init__(self, seed: int, most_s: float = 0.002) -> None:
        self._random = random.Random(seed)
        self._most_s = most_s
        self._open = threading.Event()
        self._open.set()

    def open(self, path: Path, *, create: bool = False) -> SystemFile:
        found = LateFile(super().open(path, create=create).descriptor, path)
        found.files = self
        return found

    def wait(self, path: Path) -> None:
        if "topics" in path.parts:
            assert self._open.wait(30), "nobody has released it"
        if self._random.random() < 0.5:
            time.sleep(self._random.random() * self._most_s)

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()


@dataclass
class Model:
    """What was acknowledged up to some step."""

    topics: dict[str, str] = field(default_factory=dict)
    """Ids by name."""
    records: dict[Place, dict[int, tuple[bytes, bytes | None]]] = field(default_factory=dict)
    """What readers of committed records see, by offset."""
    starts: dict[Place, int] = field(default_factory=dict)
    groups: dict[Place, int] = field(default_factory=dict)
    sequences: dict[Place, tuple[int, int, int]] = field(default_factory=dict)
    """The last batch of the idempotent producer: its number, its offset, and the leader's answer to it."""
    pending: dict[Place, dict[int, tuple[bytes, bytes | None]]] = field(default_factory=dict)
    """Of the transaction that is open."""
    pending_groups: dict[Place, int] = field(default_factory=dict)

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
            for place in [one for one in kept if one[0] == topic]:
                del kept[place]  # type: ignore[attr-defined]

    def seen(self, place: Place, *, compacted: bool) -> Any:
        start = self.starts.get(place, 0)
        rows = {at: row for at, row in self.records.get(place, {}).items() if at >= start}
        return folded(rows) if compacted else rows


def folded(rows: dict[int, tuple[bytes, bytes | None]]) -> dict[bytes, bytes]:
    """The last value of each key, without those that were deleted."""
    last = {key: value for _, (key, value) in sorted(rows.items())}
    return {key: value for key, value in last.items() if value is not None}


class World:
    """Steps of a random workload against a broker in this process, one after the other; each is one request."""

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
        self.begun = 0
        self.idempotent = self.transactional = (-1, -1)
        self.sequence: dict[Place, int] = {}
        self.number = 0
        self.ask: Asking

    # Life

    async def start(self, data: Path | None = None) -> None:
        broker = Broker(
            BrokerSettings(data_dir=data or self.home / "data", **self.settings),
            clock=self.clock,
            files=self.files,
        )
        await broker.start()
        self.ask = Asking(broker)
        await self.first_round()

    async def first_round(self) -> None:
        keeper = self.ask.broker.backup
        if keeper is not None:
            for _ in range(2000):
                standing = keeper.standing
                if standing.moments or standing.failures:
                    return
                await asyncio.sleep(0.005)
            raise AssertionError("the first moment was never taken")

    async def stop(self) -> None:
        await self.ask.broker.stop()

    async def round(self) -> bool:
        assert self.ask.broker.backup is not None
        return await self.ask.broker.backup.round()

    async def prepare(self) -> None:
        await self.create("events")
        await self.create("table")
        self.idempotent = await self._init(None)
        self.transactional = await self._init("shop")
        self.history.append(copy.deepcopy(self.model))

    async def create(self, name: str) -> None:
        policy = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"} if name == "table" else {}
        topic = await self.ask.create(name, 2, internal_segment_bytes="700", **policy)
        self.model.topics[name] = topic.id.hex()

    async def _init(self, transactional_id: str | None) -> tuple[int, int]:
        response = await self.ask(
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
        self.begun += 1
        steps = {
            self.plain: 6,
            self.idempotently: 6,
            self.in_transaction: 8,
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

    def _place(self) -> Place:
        return self.random.choice(sorted(self.model.topics)), self.random.randrange(2)

    def _record(self, topic: str) -> tuple[bytes, bytes | None]:
        self.number += 1
        key = b"key-%d" % self.random.randrange(8)
        gone = topic == "table" and self.random.random() < 0.1
        return key, None if gone else b"value-%d-" % self.number + bytes(self.random.randrange(60))

    async def plain(self) -> None:
        place = self._place()
        record = self._record(place[0])
        offset = await self.send(place, record)
        self.model.records.setdefault(place, {})[offset] = record

    async def idempotently(self) -> None:
        place = self._place()
        record, number = self._record(place[0]), self.sequence.get(place, 0)
        offset = await self.send(place, record, producer=(*self.idempotent, number))
        self.sequence[place] = number + 1
        self.model.records.setdefault(place, {})[offset] = record
        self.model.sequences[place] = (*self.idempotent, number)

    async def in_transaction(self) -> None:
        place = self._place()
        record = self._record(place[0])
        # Transactions of clients of the second protocol: the epoch counts them, and each begins with sequence 0.
        number = len(self.model.pending.get(place, ()))
        offset = await self.send(place, record, producer=(*self.transactional, number), as_id="shop")
        self.model.pending.setdefault(place, {})[offset] = record

    async def end_transaction(self) -> None:
        model = self.model
        if not model.pending and not model.pending_groups:
            return
        commit = self.random.random() < 0.6
        response = await self.ask(
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
            for place, rows in model.pending.items():
                model.records.setdefault(place, {}).update(rows)
            model.groups.update(model.pending_groups)
        model.pending, model.pending_groups = {}, {}

    async def commit_group(self) -> None:
        place = self._place()
        # Asked once: a marker that nobody waits for may reach the disk meanwhile, and move the end.
        offset = self._end(place)
        await self._commit(place, offset)
        self.model.groups[place] = offset

    async def _commit(self, place: Place, offset: int) -> None:
        request = m.OffsetCommitRequest
        partition = request.OffsetCommitRequestPartition(partition_index=place[1], committed_offset=offset)
        topics = [request.OffsetCommitRequestTopic(name=place[0], partitions=[partition])]
        answer = await self.ask(Api.OFFSET_COMMIT, 9, group_id=GROUP, topics=topics)
        assert answer.topics[0].partitions[0].error_code == 0

    async def commit_group_in_transaction(self) -> None:
        place, request = self._place(), m.TxnOffsetCommitRequest
        offset = self._end(place)
        partition = request.TxnOffsetCommitRequestPartition(partition_index=place[1], committed_offset=offset)
        topics = [request.TxnOffsetCommitRequestTopic(name=place[0], partitions=[partition])]
        answer = await self.ask(
            Api.TXN_OFFSET_COMMIT,
            5,
            transactional_id="shop",
            group_id=GROUP,
            producer_id=self.transactional[0],
            producer_epoch=self.transactional[1],
            topics=topics,
        )
        assert answer.topics[0].partitions[0].error_code == 0
        self.model.pending_groups[place] = offset

    def _end(self, place: Place) -> int:
        partition = self.ask.broker.partition(*place)
        assert partition is not None
        return partition.high_watermark

    async def trim(self) -> None:
        place = ("events", self.random.randrange(2))
        offset = self.random.randint(self.model.starts.get(place, 0), self._end(place))
        partition = self.ask.broker.partition(*place)
        assert partition is not None
        await partition.delete_before(offset)
        self.model.starts[place] = max(self.model.starts.get(place, 0), offset)

    async def compact(self) -> None:
        await self.ask.broker.compactor.compact()

    async def replace_topic(self) -> None:
        if self.model.pending or self.model.pending_groups:
            return
        if "extra" not in self.model.topics:
            await self.create("extra")
            return
        state = m.DeleteTopicsRequest.DeleteTopicState(name="extra", topic_id=bytes(16))
        assert (await self.ask(Api.DELETE_TOPICS, topics=[state])).responses[0].error_code == 0
        self.model.forget("extra")
        self.sequence = {place: number for place, number in self.sequence.items() if place[0] != "extra"}

    async def send(
        self,
        place: Place,
        record: tuple[bytes, bytes | None],
        *,
        producer: tuple[int, int, int] = (-1, -1, -1),
        as_id: str | None = None,
    ) -> int:
        batch = build_batch(
            [(*record, ())],
            timestamp_ms=self.ask.broker.clock.now_ms(),
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
                    name=place[0],
                    partition_data=[request.PartitionProduceData(index=place[1], records=bytes(batch))],
                )
            ],
        )
        header, decoded = decode_request(encode_request(Api.PRODUCE, 12, 7, "tests", message)[4:])
        asked = Request(Api.PRODUCE, 12, header.correlation_id, header.client_id, decoded, "127.0.0.1")
        produced = produce.begin(self.ask.broker, asked)
        if produced.waits:
            await asyncio.wait(produced.waits)
        answer = produced.finish().responses[0].partition_responses[0]
        assert answer.error_code == 0, answer
        offset: int = answer.base_offset
        return offset


def committed(broker: Broker, place: Place) -> dict[int, tuple[bytes, bytes | None]]:
    """What readers of committed records see of a partition, found by parsing its batches."""
    partition = broker.partition(*place)
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
            found = {
                header.base_offset + one.offset: (one.key or b"", one.value)
                for one in open_batch(batch, RecordLimits()).records
                if header.base_offset + one.offset >= partition.start_offset
            }
            if header.is_transactional:
                pending.setdefault(header.producer_id, {}).update(found)
            else:
                rows.update(found)
        offset = piece.next_offset
    return rows


def difference(broker: Broker, model: Model) -> str | None:
    """What the broker has that the model has not, or the other way round."""
    topics = {topic.name: topic.id.hex() for topic in broker.catalog.topics()}
    if topics != model.topics:
        return f"topics {topics} instead of {model.topics}"
    for name in topics:
        for index in range(2):
            place = (name, index)
            compacted = name == "table"
            rows = committed(broker, place)
            found, wanted = folded(rows) if compacted else rows, model.seen(place, compacted=compacted)
            if found != wanted:
                return f"{place} has {found} instead of {wanted}"
    groups = {
        (topic, index): row.offset
        for topic, rows in broker.groups.fetch_all(GROUP).items()
        for index, row in rows.items()
    }
    return None if groups == model.groups else f"groups {groups} instead of {model.groups}"
