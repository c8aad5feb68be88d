"""Test doubles for the catalog and the handlers: a journal in memory, partitions that only record calls, and requests
that use the real wire format without a socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.handlers import HANDLERS
from headrace.broker.net.request import Request
from headrace.broker.settings import BrokerSettings
from headrace.broker.topics.catalog import Catalog
from headrace.broker.topics.topic import Topic
from headrace.clock import SystemClock
from headrace.errors import PartitionFenced
from headrace.log.config import LogConfig
from headrace.records import build_batch
from headrace.wire import Api, decode_request, decode_response, encode_request, encode_response, versions
from headrace.wire import messages as m


class MemoryJournal:
    """A journal in memory. ``durable`` has the entries that a start after a crash would read."""

    def __init__(self, durable: Sequence[bytes] = ()) -> None:
        self.durable = list(durable)
        self.entries = list(durable)
        self.fails = False
        self.written: list[list[bytes]] = []
        self._source: Callable[[], Iterable[bytes]] | None = None

    async def write(self, entries: Sequence[bytes]) -> None:
        await asyncio.sleep(0)
        if self.fails:
            raise PartitionFenced("the disk failed")
        self.durable += entries
        self.written.append(list(entries))

    def on_snapshot(self, source: Callable[[], Iterable[bytes]]) -> None:
        self._source = source
        self.entries = []

    def write_snapshot(self) -> None:
        assert self._source is not None
        self.durable = list(self._source())


class RecordingPartitions:
    """A stand-in for the broker's partitions that only records the calls of the catalog."""

    def __init__(self) -> None:
        self.open: dict[bytes, int] = {}
        self.configs: dict[bytes, LogConfig] = {}
        self.calls: list[str] = []
        self.open_fails: Exception | None = None
        self.before_open: Callable[[Topic], None] = lambda topic: None

    async def open_partitions(self, topic: Topic, config: LogConfig) -> None:
        self.calls.append(f"open {topic.name}")
        self.before_open(topic)
        await asyncio.sleep(0)
        if self.open_fails is not None:
            raise self.open_fails
        self.open[topic.id] = topic.partitions
        self.configs[topic.id] = config

    async def close_and_remove(self, topic: Topic) -> None:
        self.calls.append(f"remove {topic.name}")
        await asyncio.sleep(0)
        del self.open[topic.id], self.configs[topic.id]

    def reconfigure(self, topic: Topic, config: LogConfig) -> None:
        self.calls.append(f"reconfigure {topic.name}")
        self.configs[topic.id] = config


class CatalogHarness:
    """A catalog with a journal in memory. ``reload`` simulates a restart after a crash."""

    def __init__(self, **settings: Any) -> None:
        self.settings = BrokerSettings(data_dir=Path("data"), **settings)
        self.journal = MemoryJournal()
        self.partitions = RecordingPartitions()
        self.catalog = self._load()

    def _load(self) -> Catalog:
        return Catalog(self.journal, self.partitions, self.settings, SystemClock())

    def reload(self) -> Catalog:
        self.journal = MemoryJournal(self.journal.durable)
        self.catalog = self._load()
        return self.catalog


class BrokerCalls:
    """Requests to a real broker, encoded and decoded as a client would."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    async def __call__(self, api: Api, version: int | None = None, **fields: Any) -> Any:
        """Send a request with these fields and return the response; the default version is the newest."""
        version = versions(api)[1] if version is None else version
        sent = encode_request(api, version, 7, "tests", getattr(m, f"{api.title}Request")(**fields))
        header, message = decode_request(sent[4:])
        request = Request(api, version, header.correlation_id, header.client_id, message, "127.0.0.1")
        try:
            answer = encode_response(api, version, 7, await HANDLERS[api](self.broker, request))
        finally:
            self.broker.turns.give_back()
        correlation_id, response = decode_response(api, version, answer[4:])
        assert correlation_id == 7
        return response

    async def create(self, name: str, partitions: int = 1, **configs: str) -> Topic:
        """Create a topic; underscores in the names of ``configs`` become dots."""
        request = m.CreateTopicsRequest
        response = await self(
            Api.CREATE_TOPICS,
            topics=[
                request.CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=1,
                    configs=[
                        request.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                        for key, value in configs.items()
                    ],
                )
            ],
        )
        assert response.topics[0].error_code == 0, response.topics[0].error_message
        topic = self.broker.catalog.topic(name)
        assert topic is not None
        return topic

    async def append(self, name: str, *timestamps_ms: int, index: int = 0) -> None:
        """Append one batch per timestamp, and return when all are durable."""
        partition = self.broker.partition(name, index)
        assert partition is not None
        now_ms = self.broker.clock.now_ms()
        for timestamp_ms in timestamps_ms:
            batch = build_batch([(b"key", b"value", ())], timestamp_ms=timestamp_ms)
            accepted = partition.append(batch, now_ms, now_ms)
            if accepted.durable is not None:
                await accepted.durable
