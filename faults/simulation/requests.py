"""Requests to a simulated broker. They go through its handlers as from a connection, but without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.patch import patched
from faults.simulation.partition_oracle import Stored, split_batches
from headrace.broker import broker as broker_module
from headrace.broker.broker import Broker
from headrace.broker.groups import GroupSettings
from headrace.broker.handlers import HANDLERS
from headrace.broker.handlers.fetch import begin as begin_fetch
from headrace.broker.handlers.produce import AppendedRequest
from headrace.broker.handlers.produce import begin as begin_produce
from headrace.broker.net.request import Request
from headrace.broker.settings import BrokerSettings, Durability
from headrace.clock import Clock
from headrace.files import Files
from headrace.log.journal import Journal
from headrace.wire import messages as m
from headrace.wire.api import Api

__all__ = ["DATA", "Fetched", "SimulatedBroker", "TopicState"]

DATA = Path("/disk/data")


@dataclass(frozen=True, slots=True)
class Fetched:
    error: int
    batches: list[Stored]
    start: int = -1
    end: int = -1
    aborted: tuple[tuple[int, int], ...] = ()
    """For read-committed: first offset and producer of each aborted transaction."""


@dataclass(frozen=True, slots=True)
class TopicState:
    id: bytes
    partitions: int
    leader_epochs: tuple[int, ...]


class SimulatedBroker:
    """A broker on the machine's files. Create it inside a running loop."""

    def __init__(
        self,
        files: Files,
        clock: Clock,
        *,
        durability: Durability = "synced",
        snapshot_after_bytes: int = 4 << 20,
        retention_check_s: float = 30.0,
        groups: GroupSettings | None = None,
        compaction_check_s: float = 15.0,
        compaction_memory_bytes: int = 1 << 20,
    ) -> None:
        def journal(*arguments: Any) -> Journal:
            return Journal(*arguments, snapshot_after_bytes=snapshot_after_bytes)

        settings = BrokerSettings(
            data_dir=DATA,
            durability=durability,
            retention_check_s=retention_check_s,
            compaction_check_s=compaction_check_s,
            compaction_memory_bytes=compaction_memory_bytes,
            compaction_bytes_per_s=0,
        )
        with patched(broker_module, "Journal", journal):
            self.inner = Broker(settings, files=files, clock=clock, groups=groups)

    async def start(self) -> None:
        await self.inner.start()

    async def stop(self) -> None:
        await self.inner.stop()

    def dead_tasks(self) -> list[str]:
        """Return the background tasks that have ended although the broker runs."""
        broker = self.inner
        tasks = [
            *broker._tasks,
            *broker.committer._tasks,
            *broker.compactor.tasks,
            *broker.archiver.tasks,
        ]
        dead = [task for task in tasks if task.done() and not task.cancelled()]
        return [f"{task.get_coro()}: {task.exception()}" for task in dead]

    # Records

    async def produce(self, topic: str, partition: int, batch: bytes) -> tuple[int, int]:
        """Return error and base offset."""
        return await self.answer(self.begin_produce(topic, partition, batch))

    def begin_produce(
        self, topic: str, partition: int, batch: bytes, *, as_id: str | None = None
    ) -> AppendedRequest:
        """Append without waiting for the response. ``as_id`` is the sender's transactional id."""
        data = m.ProduceRequest.PartitionProduceData(index=partition, records=memoryview(batch))
        message = m.ProduceRequest(
            transactional_id=as_id,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
        )
        return begin_produce(self.inner, _request(Api.PRODUCE, 9 if as_id is None else 12, message))

    async def answer(self, produced: AppendedRequest) -> tuple[int, int]:
        if produced.durable_futures:
            await asyncio.wait(produced.durable_futures)
        answer = produced.finish().responses[0].partition_responses[0]
        return int(answer.error_code), int(answer.base_offset)

    async def fetch_bytes(
        self, topic: str, partition: int, offset: int, max_bytes: int = 4096
    ) -> tuple[int, bytes]:
        """Return error, and the batches as received."""
        answer = await self._fetch_partition(topic, partition, offset, max_bytes, -1)
        return int(answer.error_code), bytes(answer.records)

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int = 4096,
        *,
        last_epoch: int = -1,
        committed: bool = False,
    ) -> Fetched:
        """``committed``: read only below the last stable offset, which is then the end."""
        answer = await self._fetch_partition(
            topic, partition, offset, max_bytes, last_epoch, committed=committed
        )
        if answer.error_code:
            return Fetched(int(answer.error_code), [])
        batches = split_batches(bytes(answer.records))
        if not committed:
            return Fetched(0, batches, answer.log_start_offset, answer.high_watermark)
        aborted = tuple(
            sorted(
                (aborted_transaction.first_offset, aborted_transaction.producer_id)
                for aborted_transaction in answer.aborted_transactions
            )
        )
        return Fetched(0, batches, answer.log_start_offset, answer.last_stable_offset, aborted)

    async def _fetch_partition(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int,
        last_epoch: int,
        *,
        committed: bool = False,
    ) -> Any:
        wanted = m.FetchRequest.FetchPartition(
            partition=partition,
            fetch_offset=offset,
            partition_max_bytes=max_bytes,
            last_fetched_epoch=last_epoch,
        )
        message = m.FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=max_bytes,
            isolation_level=int(committed),
            topics=[m.FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
        )
        fetching = begin_fetch(self.inner, _request(Api.FETCH, 12, message))
        response = fetching.attempt(last=False)
        while response is None:
            assert fetching.is_cold
            await fetching.read_cold()
            response = fetching.attempt(last=True)
        return response.responses[0].partitions[0]

    async def read_all(self, topic: str, partition: int, max_bytes: int = 4096) -> Fetched:
        """Read everything from the start of the log to its end. Stop at an error."""
        start, end = await self.range(topic, partition)
        batches: list[Stored] = []
        offset = start
        while offset < end:
            piece = await self.fetch(topic, partition, offset, max_bytes)
            if piece.error:
                return Fetched(piece.error, batches, start, end)
            if not piece.batches:
                break
            batches += piece.batches
            offset = piece.batches[-1].next
        return Fetched(0, batches, start, end)

    async def range(self, topic: str, partition: int) -> tuple[int, int]:
        """Return start and end of the log from ListOffsets, or ``(-1, -1)`` on an error."""
        offsets = []
        for timestamp in (-2, -1):
            requested = m.ListOffsetsRequest.ListOffsetsPartition(
                partition_index=partition, timestamp=timestamp
            )
            message = m.ListOffsetsRequest(
                topics=[m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[requested])]
            )
            answer = (await self._call(Api.LIST_OFFSETS, 6, message)).topics[0].partitions[0]
            offsets.append(-1 if answer.error_code else int(answer.offset))
        return offsets[0], offsets[1]

    async def delete_records(self, topic: str, partition: int, offset: int) -> tuple[int, int]:
        """Return error and new start."""
        part = m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition, offset=offset)
        message = m.DeleteRecordsRequest(
            topics=[m.DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[part])]
        )
        answer = (await self._call(Api.DELETE_RECORDS, 2, message)).topics[0].partitions[0]
        return int(answer.error_code), int(answer.low_watermark)

    async def end_offset_of_epoch(self, topic: str, partition: int, epoch: int) -> tuple[int, int]:
        part = m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=partition, leader_epoch=epoch)
        message = m.OffsetForLeaderEpochRequest(
            topics=[m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[part])]
        )
        answer = (await self._call(Api.OFFSET_FOR_LEADER_EPOCH, 4, message)).topics[0].partitions[0]
        return int(answer.leader_epoch), int(answer.end_offset)

    async def new_producer(self) -> tuple[int, int]:
        """Return error and producer id."""
        message = m.InitProducerIdRequest(transactional_id=None, producer_id=-1, producer_epoch=-1)
        answer = await self._call(Api.INIT_PRODUCER_ID, 4, message)
        return int(answer.error_code), int(answer.producer_id)

    async def init_transactional_producer(self, transactional_id: str) -> tuple[int, int, int]:
        """Return error, producer id and epoch."""
        message = m.InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=900_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        answer = await self._call(Api.INIT_PRODUCER_ID, 5, message)
        return int(answer.error_code), int(answer.producer_id), int(answer.producer_epoch)

    async def end_transaction(
        self, transactional_id: str, producer: tuple[int, int], *, commit: bool
    ) -> tuple[int, int, int]:
        """Return error, and the producer id and epoch to continue with."""
        message = m.EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commit,
        )
        answer = await self._call(Api.END_TXN, 5, message)
        return int(answer.error_code), int(answer.producer_id), int(answer.producer_epoch)

    async def commit_in_transaction(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        group_partition: tuple[str, str, int],
        offset: int,
    ) -> int:
        """Commit an offset of a (group, topic, partition) in a transaction."""
        request = m.TxnOffsetCommitRequest
        group, topic, partition = group_partition
        part = request.TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=""
        )
        message = request(
            transactional_id=transactional_id,
            group_id=group,
            producer_id=producer[0],
            producer_epoch=producer[1],
            topics=[request.TxnOffsetCommitRequestTopic(name=topic, partitions=[part])],
        )
        answer = await self._call(Api.TXN_OFFSET_COMMIT, 5, message)
        return int(answer.topics[0].partitions[0].error_code)

    # Topics

    async def topics(self) -> dict[str, TopicState]:
        response = await self._call(Api.METADATA, 12, m.MetadataRequest(topics=None))
        return {
            topic.name: TopicState(
                topic.topic_id,
                len(topic.partitions),
                tuple(part.leader_epoch for part in topic.partitions),
            )
            for topic in response.topics
        }

    async def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> tuple[int, bytes]:
        """Return error and topic id."""
        request = m.CreateTopicsRequest
        topic = request.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[request.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
        )
        answer = (await self._call(Api.CREATE_TOPICS, 7, request(topics=[topic]))).topics[0]
        return int(answer.error_code), answer.topic_id

    async def delete_topic(self, name: str) -> int:
        topic = m.DeleteTopicsRequest.DeleteTopicState(name=name)
        answer = await self._call(Api.DELETE_TOPICS, 6, m.DeleteTopicsRequest(topics=[topic]))
        return int(answer.responses[0].error_code)

    async def create_partitions(self, name: str, partitions: int) -> int:
        topic = m.CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=partitions, assignments=None)
        answer = await self._call(Api.CREATE_PARTITIONS, 3, m.CreatePartitionsRequest(topics=[topic]))
        return int(answer.results[0].error_code)

    async def set_config(self, topic: str, key: str, value: str) -> int:
        request = m.IncrementalAlterConfigsRequest
        config = request.AlterableConfig(name=key, config_operation=0, value=value)
        resource = request.AlterConfigsResource(resource_type=2, resource_name=topic, configs=[config])
        answer = await self._call(Api.INCREMENTAL_ALTER_CONFIGS, 1, request(resources=[resource]))
        return int(answer.responses[0].error_code)

    async def config(self, topic: str, key: str) -> str | None:
        request = m.DescribeConfigsRequest
        resource = request.DescribeConfigsResource(
            resource_type=2, resource_name=topic, configuration_keys=[key]
        )
        answer = await self._call(Api.DESCRIBE_CONFIGS, 4, request(resources=[resource]))
        configs = answer.results[0].configs
        return configs[0].value if configs else None

    # Groups

    async def commit(self, group: str, topic: str, partition: int, offset: int) -> int:
        request = m.OffsetCommitRequest
        part = request.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=""
        )
        message = request(
            group_id=group, topics=[request.OffsetCommitRequestTopic(name=topic, partitions=[part])]
        )
        answer = await self._call(Api.OFFSET_COMMIT, 9, message)
        return int(answer.topics[0].partitions[0].error_code)

    async def committed(self, group: str, topic: str, partition: int) -> int:
        request = m.OffsetFetchRequest
        message = request(
            group_id=group,
            topics=[request.OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])],
        )
        answer = await self._call(Api.OFFSET_FETCH, 7, message)
        return int(answer.topics[0].partitions[0].committed_offset)

    async def join(self, group: str, session_timeout_ms: int) -> tuple[int, str, int]:
        """Become the only member of a group. Return error, member id and generation."""
        request = m.JoinGroupRequest
        protocol = request.JoinGroupRequestProtocol(name="range", metadata=b"")
        joined = await self._call(
            Api.JOIN_GROUP,
            3,
            request(
                group_id=group,
                session_timeout_ms=session_timeout_ms,
                rebalance_timeout_ms=60_000,
                protocol_type="consumer",
                protocols=[protocol],
            ),
        )
        if joined.error_code:
            return int(joined.error_code), "", -1
        member, generation = joined.member_id, joined.generation_id
        assignment = m.SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=b"all")
        message = m.SyncGroupRequest(
            group_id=group, generation_id=generation, member_id=member, assignments=[assignment]
        )
        synced = await self._call(Api.SYNC_GROUP, 2, message)
        return int(synced.error_code), member, generation

    async def heartbeat(self, group: str, member: str, generation: int) -> int:
        message = m.HeartbeatRequest(group_id=group, member_id=member, generation_id=generation)
        return int((await self._call(Api.HEARTBEAT, 2, message)).error_code)

    async def _call(self, api: Api, version: int, message: Any) -> Any:
        return await HANDLERS[api](self.inner, _request(api, version, message))


def _request(api: Api, version: int, message: Any) -> Request:
    return Request(api, version, 1, "simulated", message, "127.0.0.1")
