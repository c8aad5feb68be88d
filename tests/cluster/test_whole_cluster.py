"""The shop, unchanged, on a Kafka of three nodes and a Spark of two workers, while one of each is killed."""

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
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.progress_log import current
from headrace.client.reading import read
from tests.cli.runner import Headrace
from tests.support.kafka_cluster import KafkaCluster
from tests.support.spark_cluster import SparkCluster
from tests.support.waiting import until, unwatch, watched_process
from tools.jars import spark_jars
from tools.java import java_home
from tools.places import ROOT

APP = "examples.shop:app"
LONG_S = 800.0


class Orders(Traffic):
    """Traffic that knows which orders were acknowledged."""

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
    with contextlib.closing(KafkaCluster(tmp_path / "kafka")) as made:
        yield made


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[SparkCluster]:
    with contextlib.closing(SparkCluster(tmp_path / "spark")) as made:
        yield made


def batch_of(cluster: Cluster) -> int:
    """The flow's last batch; -1 before the first, and while a new leader is being chosen."""
    try:
        found = current(cluster, enrich_orders.progress_topic)
    except LogError as error:
        if not error.retriable:
            raise
        return -1
    return -1 if found is None or found.last is None else found.last.batch


def last_batch(cluster: Cluster) -> int:
    return until(lambda: batch_of(cluster) + 1, "the last batch", timeout_s=LONG_S) - 1


def position(data: Path, view: str) -> int:
    with contextlib.closing(sqlite3.connect(f"file:{data / 'shop.db'}?mode=ro", uri=True)) as store:
        found = store.execute(
            "SELECT batch FROM _headrace_views WHERE view = ? AND part = 'serving'", (view,)
        ).fetchone()
    return -1 if found is None else int(found[0])


@pytest.mark.timeout(1200)
def test_an_app_goes_on_when_a_node_of_each_cluster_is_killed_and_every_view_is_proven(
    kafka: KafkaCluster, spark: SparkCluster, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    headrace = Headrace(kafka.bootstrap)
    cluster = Cluster(kafka.bootstrap)
    where = {
        "JAVA_HOME": str(java_home()),
        "HEADRACE_DATA": str(data),
        "HEADRACE_SPARK__JARS": str(spark_jars()[0].parent),
        "HEADRACE_SPARK__MASTER": spark.master,
        "HEADRACE_SPARK__SECRET_FILE": str(spark.secret_file),
        "HEADRACE_SPARK__SHUFFLE_PARTITIONS": "2",
    }
    settings = tmp_path / "headrace.toml"
    settings.write_text('[spark.conf]\n"spark.executor.memory" = "512m"\n')

    def started(name: str, *words: str) -> subprocess.Popen[bytes]:
        """From the folder of the app, as its users start it. Every wait fails once it has ended."""
        log = tmp_path / f"{name}.log"
        with log.open("wb") as said:
            command = headrace.started(
                *words, "--settings", str(settings), env=where, stdout=said, stderr=said, cwd=ROOT
            )
            process = stack.enter_context(command)
        stack.enter_context(watched_process(process, name, log))
        return process

    with contextlib.ExitStack() as stack:
        flows = started("flows", "flow", "run", APP)
        followers = [
            started(f"follower{number}", "view", "follow", APP, "--group", "g") for number in range(2)
        ]
        until(lambda: cluster.topic(orders.name) is not None, "the topics", timeout_s=LONG_S)
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
            until(lambda: batch_of(cluster) >= 1, "two batches", timeout_s=LONG_S)
            kafka.kill(1)
            before = last_batch(cluster)
            until(lambda: batch_of(cluster) >= before + 2, "batches without a node", timeout_s=LONG_S)
            spark.kill_worker(0)
            unwatch(followers[0])
            os.kill(followers[0].pid, signal.SIGKILL)
            before = last_batch(cluster)
            until(lambda: batch_of(cluster) >= before + 2, "batches without a worker", timeout_s=LONG_S)
            kafka.start(1)
        finally:
            stop.set()
            writer.join()
        assert traffic.failed == []

        def reached() -> bool:
            if batch_of(cluster) < 0:
                return False
            found = current(cluster, enrich_orders.progress_topic)
            assert found is not None
            assert found.last is not None
            ends = cluster.ends(orders.name)
            read_to = {int(one): to for one, (_, to) in found.last.inputs[orders.name].items()}
            return read_to == ends and position(data, "sales") == found.last.batch

        until(reached, "all of it is derived and followed", timeout_s=LONG_S)
        for one in (flows, *followers):
            unwatch(one)
        flows.send_signal(signal.SIGINT)
        flows.wait(120)
        for one in followers[1:]:
            one.send_signal(signal.SIGINT)
            one.wait(60)
    written = [
        message.key()
        for message in read(
            cluster, orders.name, {one: (0, end) for one, end in cluster.ends(orders.name).items()}
        )
    ]
    assert traffic.acknowledged <= set(written)
    assert len(written) == len(set(written))
    local = {**where, "HEADRACE_SPARK__MASTER": "local[2]"}
    proven = headrace.call("verify", APP, "--all", env=local)
    assert proven.code == 0, proven.out + proven.err
