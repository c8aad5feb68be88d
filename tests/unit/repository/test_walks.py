"""A reader opens few files to follow one operation. This traces the walks of docs/ARCHITECTURE.md and counts files."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

from headrace.broker.broker import Broker
from headrace.broker.net.server import Server
from headrace.broker.settings import BrokerSettings
from headrace.broker.topics.new_topic import NewTopic
from headrace.clock import SystemClock
from headrace.records import build_batch
from headrace.wire import Api, encode_request
from headrace.wire import messages as m

from .walks import documented_files, trace_files

PRODUCE_FILES_MAX = 17
"""The maximum number of files from the socket to the disk and back, including the thread that syncs. Lower it when the
operation needs fewer files.
"""
_REQUESTS = 4
_VERSION = 9


def _produce_request(number: int) -> bytes:
    batch = bytes(build_batch([(b"key", b"value", ())], timestamp_ms=SystemClock().now_ms()))
    partition = m.ProduceRequest.PartitionProduceData(index=0, records=batch)
    topic = m.ProduceRequest.TopicProduceData(name="orders", partition_data=[partition])
    request = m.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])
    return bytes(encode_request(Api.PRODUCE, _VERSION, number, "walk", request))


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    writer.write(request)
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


async def test_a_produce_request_runs_code_in_few_files(tmp_path: Path) -> None:
    walks: list[set[str]] = []
    # Only threads that start inside the block are traced, so the thread that syncs must start there.
    with trace_files() as files:
        broker = Broker(BrokerSettings(data_dir=tmp_path / "data", listen_port=0))
        server = Server(broker)
        await server.listen("127.0.0.1", 0)
        broker.set_port(server.port)
        await broker.start()
        await broker.catalog.create([NewTopic("orders", 1)])
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            # The first requests also create objects that later requests use, so they are not counted.
            for number in range(2 * _REQUESTS):
                request = _produce_request(number)
                files.clear()
                await _exchange(reader, writer, request)
                walks.append(set(files))
        finally:
            writer.close()
            await server.close()
            await broker.stop()
    # Background work runs only beside some requests, so the intersection excludes it.
    walk = set.intersection(*walks[_REQUESTS:])
    assert walk == set(documented_files("produce")), "docs/ARCHITECTURE.md lists the files of this walk"
    assert len(walk) <= PRODUCE_FILES_MAX
