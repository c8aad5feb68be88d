"""The unchanged shop on three Kafka nodes and two Spark workers. The test kills one of each."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message

from examples.shop import enrich_orders, orders
from examples.shop.traffic import Traffic
from faults.servers.kafka_cluster import KafkaCluster
from faults.servers.spark_cluster import SparkCluster
from faults.wait import until, unwatch, watched_process
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.progress import current
from headrace.client.records import read
from tests.cli.runner import Headrace
from tools.jars import spark_jars
from tools.java import java_home
from tools.paths import ROOT

APP = "examples.shop:app"
TIMEOUT_S = 800.0


class Orders(Traffic):
    """Traffic that remembers which orders were acknowledged."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._producer = cluster.producer({"linger.ms": 5, "acks": "all", "enable.idempotence": True})
        self.acknowledged: set[bytes] = set()
        self.failed: list[str] = []

    def _send(self, topic: object, event: object) -> None:
        key, value = topic.encode(event)  # type: ignore[attr-defined]
        self._producer.produce(topic.name, value, key, on_delivery=self._delivered)  # type: ignore[attr-defined]
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
        elif message.topic() == orders.name:
            self.acknowledged.add(message.key() or b"")


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaCluster]:
    with contextlib.closing(KafkaCluster(tmp_path / "kafka")) as cluster:
        yield cluster


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[SparkCluster]:
    with contextlib.closing(SparkCluster(tmp_path / "spark")) as cluster:
        yield cluster


def batch_of(cluster: Cluster) -> int:
    """Return the flow's last batch, or -1 before the first batch and during a leader election."""
    try:
        progress = current(cluster, enrich_orders.progress_topic)
    except LogError as error:
        if not error.retriable:
            raise
        return -1
    return -1 if progress is None or progress.last is None else progress.last.batch


def last_batch(cluster: Cluster) -> int:
    return until(lambda: batch_of(cluster) + 1, "the last batch", timeout_s=TIMEOUT_S) - 1


def position(data: Path, view: str) -> int:
    with contextlib.closing(sqlite3.connect(f"file:{data / 'shop.db'}?mode=ro", uri=True)) as store:
        row = store.execute(
            "SELECT batch FROM _headrace_views WHERE view = ? AND part = 'serving'", (view,)
        ).fetchone()
    return -1 if row is None else int(row[0])


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_an_app_continues_after_a_killed_kafka_node_and_a_killed_spark_worker(
    kafka: KafkaCluster, spark: SparkCluster, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    headrace = Headrace(kafka.bootstrap)
    cluster = Cluster(kafka.bootstrap)
    environment = {
        "JAVA_HOME": str(java_home()),
        "HEADRACE_DATA": str(data),
        "HEADRACE_SPARK__JARS": str(spark_jars()[0].parent),
        "HEADRACE_SPARK__MASTER": spark.master,
        "HEADRACE_SPARK__SECRET_FILE": str(spark.secret_file),
        "HEADRACE_SPARK__SHUFFLE_PARTITIONS": "2",
    }
    settings = tmp_path / "headrace.toml"
    settings.write_text('[spark.conf]\n"spark.executor.memory" = "512m"\n')

    def start_command(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command in the folder of the app, as users do. Every wait fails once the command has ended."""
        log = tmp_path / f"{name}.log"
        with log.open("wb") as output:
            command = headrace.started(
                *arguments,
                "--settings",
                str(settings),
                env=environment,
                stdout=output,
                stderr=output,
                cwd=ROOT,
            )
            process = stack.enter_context(command)
        stack.enter_context(watched_process(process, name, log))
        return process

    with contextlib.ExitStack() as stack:
        flows = start_command("flows", "flow", "run", APP)
        followers = [
            start_command(f"follower{number}", "view", "follow", APP, "--group", "g") for number in range(2)
        ]
        until(lambda: cluster.topic(orders.name) is not None, "the topics", timeout_s=TIMEOUT_S)
        traffic = Orders(cluster)
        for number in range(20):
            traffic.price(number)
        stop = threading.Event()

        def write() -> None:
            while not stop.wait(0.02):
                traffic.order(datetime.now(UTC))
                traffic.click(datetime.now(UTC))
            traffic.flush()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            until(lambda: batch_of(cluster) >= 1, "two batches", timeout_s=TIMEOUT_S)
            kafka.kill(1)
            before = last_batch(cluster)
            until(lambda: batch_of(cluster) >= before + 2, "batches without a node", timeout_s=TIMEOUT_S)
            spark.kill_worker(0)
            unwatch(followers[0])
            os.kill(followers[0].pid, signal.SIGKILL)
            before = last_batch(cluster)
            until(lambda: batch_of(cluster) >= before + 2, "batches without a worker", timeout_s=TIMEOUT_S)
            kafka.start(1)
        finally:
            stop.set()
            writer.join()
        assert traffic.failed == []

        def has_caught_up() -> bool:
            if batch_of(cluster) < 0:
                return False
            progress = current(cluster, enrich_orders.progress_topic)
            assert progress is not None
            assert progress.last is not None
            ends = cluster.ends(orders.name)
            read_to = {int(partition): to for partition, (_, to) in progress.last.inputs[orders.name].items()}
            return read_to == ends and position(data, "sales") == progress.last.batch

        until(has_caught_up, "the flow and the view to catch up", timeout_s=TIMEOUT_S)
        for process in (flows, *followers):
            unwatch(process)
        flows.send_signal(signal.SIGINT)
        flows.wait(120)
        for process in followers[1:]:
            process.send_signal(signal.SIGINT)
            process.wait(60)
    written = [
        message.key()
        for message in read(
            cluster,
            orders.name,
            {partition: (0, end) for partition, end in cluster.ends(orders.name).items()},
        )
    ]
    assert traffic.acknowledged <= set(written)
    assert len(written) == len(set(written))
    local = {**environment, "HEADRACE_SPARK__MASTER": "local[2]"}
    verified = headrace.call("verify", APP, "--all", env=local)
    assert verified.code == 0, verified.out + verified.err
