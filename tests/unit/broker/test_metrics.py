"""The metrics page: its content, and the limits of its cost."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from headrace.broker.broker import Broker
from headrace.broker.metrics.collector import collect
from headrace.broker.metrics.endpoint import MetricsPort
from headrace.broker.metrics.exposition import Exposition
from headrace.broker.net.server import Server
from headrace.broker.settings import BrokerSettings
from headrace.clock import SystemClock
from headrace.wire import Api
from headrace.wire import messages as m

from .broker_calls import BrokerCalls
from .test_hostile_clients import RunningBroker, fetch_all, fill, produce

SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)')


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    broker = Broker(BrokerSettings(data_dir=tmp_path / "data", listen_port=0))
    server = Server(broker)
    await server.listen("127.0.0.1", 0)
    broker.set_port(server.port)
    await broker.start()
    running = RunningBroker(broker, server)
    yield running
    await running.close()


def read(page: bytes) -> dict[str, float]:
    """Parse the page: samples by name and labels. Fail if it is not in Prometheus's format."""
    samples = {}
    declared = set()
    for line in page.decode().splitlines():
        if line.startswith("# TYPE "):
            declared.add(line.split()[2])
        elif not line.startswith("#"):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            name = re.sub(r"_(bucket|sum|count)$", "", match[1])
            assert match[1] in declared or name in declared, line
            samples[line.rpartition(" ")[0]] = float(match[3])
    return samples


async def test_the_page_has_records_bytes_offsets_requests_and_lag(scene: RunningBroker) -> None:
    await fill(scene, "orders", 2)
    client = await scene.connect()
    await client.call(Api.FETCH, 11, fetch_all("orders"))
    await produce(client, "absent", b"")
    commit = m.OffsetCommitRequest
    row = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    await client.call(
        Api.OFFSET_COMMIT,
        6,
        commit(group_id='g"1', topics=[commit.OffsetCommitRequestTopic(name="orders", partitions=[row])]),
    )
    samples = read(await collect(scene.broker, scene.server))
    topic, partition = '{topic="orders"}', '{topic="orders",partition="0"}'
    assert samples[f"kafka_server_brokertopicmetrics_messagesin_total{topic}"] == 2
    assert samples[f"kafka_server_brokertopicmetrics_bytesin_total{topic}"] > 2_000_000
    assert samples[f"kafka_server_brokertopicmetrics_bytesout_total{topic}"] > 2_000_000
    assert samples[f"kafka_log_log_size{partition}"] > 2_000_000
    assert samples[f"kafka_log_log_logstartoffset{partition}"] == 0
    assert samples[f"kafka_log_log_logendoffset{partition}"] == 2
    assert samples['kafka_network_requestmetrics_requests_total{request="Produce"}'] == 3
    assert samples['kafka_network_requestmetrics_totaltime_seconds_bucket{request="Fetch",le="+Inf"}'] == 1
    assert (
        samples[
            'kafka_network_requestmetrics_errors_total{request="Produce",error="UNKNOWN_TOPIC_OR_PARTITION"}'
        ]
        == 1
    )
    group = '{consumergroup="g\\"1",topic="orders",partition="0"}'
    assert samples[f"kafka_consumergroup_current_offset{group}"] == 1
    assert samples[f"kafka_consumergroup_lag{group}"] == 1
    assert samples["process_resident_memory_bytes"] > 1 << 20
    assert samples["kafka_server_replicamanager_offlinereplicacount"] == 0
    assert samples["headrace_samples_left_out"] == 0


async def test_every_closed_connection_is_counted_by_reason(scene: RunningBroker) -> None:
    client = await scene.connect()
    client.send(b"GET / HTTP/1.1\r\n\r\n")
    assert await client.is_closed()
    samples = read(await collect(scene.broker, scene.server))
    assert samples['headrace_connections_closed_total{reason="oversized-frame"}'] == 1


async def test_a_page_has_a_limit_in_bytes_and_counts_the_omitted_samples() -> None:
    out = Exposition(5_000)
    out.family("kafka_log_log_size", "gauge", "Bytes.")
    for index in range(10):
        out.sample("kafka_log_log_size", {"topic": 'a"\\\n' + "é" * 500, "partition": index}, index)
    sample_count = len(read(out.text()))
    assert (sample_count, out.omitted) == (5, 5)
    assert len(out.text()) < 5_000 + 1_100
    out.single("headrace_samples_left_out", "gauge", "Samples.", out.omitted)
    assert read(out.text())["headrace_samples_left_out"] == 5


async def http(port: int, raw: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    async with asyncio.timeout(120):
        answer = await reader.read()
    writer.close()
    return answer


async def test_the_port_serves_one_page_and_closes_slow_clients(tmp_path: Path) -> None:
    broker = Broker(BrokerSettings(data_dir=tmp_path / "data", listen_port=0))
    port = MetricsPort(partial(collect, broker, None), broker.clock, deadline_s=0.3)
    await port.listen("127.0.0.1", 0)
    page = await http(port.port, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head, _, body = page.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"version=0.0.4" in head
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"kafka_brokers 1\n" in body
    assert (await http(port.port, b"GET /other HTTP/1.1\r\nHost: [::1]:1\r\n\r\n")).startswith(
        b"HTTP/1.1 404 "
    )
    assert (await http(port.port, b"POST /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")).startswith(
        b"HTTP/1.1 405 "
    )
    assert await http(port.port, b"GET /metr") == b""
    assert await http(port.port, b"GET /" + b"x" * 20_000) == b""
    slow = [await asyncio.open_connection("127.0.0.1", port.port) for _ in range(100)]
    for reader, writer in slow:
        assert await reader.read() == b""
        writer.close()
    last_page = await http(port.port, b"GET /metrics HTTP/1.1\r\nHOST:localhost:9\r\n\r\n")
    assert last_page.startswith(b"HTTP/1.1 200 ")
    await port.close()
    await broker.stop()


async def test_silent_connections_do_not_block_a_scrape() -> None:
    async def collected() -> bytes:
        return b"a 1\n"

    port = MetricsPort(collected, SystemClock(), deadline_s=60.0)
    await port.listen("127.0.0.1", 0)
    silent = [await asyncio.open_connection("127.0.0.1", port.port) for _ in range(100)]
    for _ in range(3):
        answer = await http(port.port, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
    for _, writer in silent:
        writer.close()
    async with asyncio.timeout(60):
        while port._open:
            await asyncio.sleep(0.01)
    await port.close()


@pytest.mark.parametrize(
    ("listen", "host", "status"),
    [
        ("127.0.0.1", "Host: 127.0.0.1:9100", 200),
        ("127.0.0.1", "host: metrics.example", 200),
        ("127.0.0.1", "Host: evil.example", 400),
        ("127.0.0.1", "Host: 127.0.0.1.evil.example", 400),
        ("127.0.0.1", "Host: 192.0.2.7", 400),
        ("127.0.0.1", "Host: localhost\r\nHost: evil.example", 400),
        ("127.0.0.1", "Host:", 400),
        ("127.0.0.1", "X: y", 400),
        # A port beyond loopback also accepts its IP address as the host, but not a foreign host name.
        ("0.0.0.0", "Host: 192.0.2.7:9100", 200),
        ("0.0.0.0", "Host: [2001:db8::1]", 200),
        ("0.0.0.0", "Host: METRICS.example:1", 200),
        ("0.0.0.0", "Host: evil.example", 400),
    ],
)
async def test_the_port_accepts_only_its_own_host_names(listen: str, host: str, status: int) -> None:
    async def collected() -> bytes:
        return b"a_secret 1\n"

    port = MetricsPort(collected, SystemClock(), hosts=["metrics.example"])
    await port.listen(listen, 0)
    answer = await http(port.port, f"GET /metrics HTTP/1.1\r\n{host}\r\n\r\n".encode())
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert (b"a_secret" in answer) == (status == 200)
    await port.close()


async def test_a_scrape_of_many_partitions_yields_to_other_tasks(call: BrokerCalls) -> None:
    await call.create("wide", partitions=300)
    iterations = 0

    async def other() -> None:
        nonlocal iterations
        while True:
            await asyncio.sleep(0)
            iterations += 1

    other_task = asyncio.create_task(other())
    page = await collect(call.broker, None)
    other_task.cancel()
    assert page.count(b"kafka_log_log_size{") == 300
    assert iterations >= 2
