"""A real Apache Kafka with one node, started from its jars. It is the reference for the embedded broker.

Broker and controller run in one JVM (KRaft) with the settings that a single node needs: internal topics with one
replica and one partition, no initial rebalance delay, frequent compaction. Everything else has Kafka's defaults, so
clients see the same as on a plain installation.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from faults.servers.server import Server, free_port, spawn
from tools.jars import kafka_server_classpath
from tools.java import QUICK_START, java

__all__ = ["kafka_command", "start_kafka", "start_node"]

BUILD = Path(__file__).resolve().parents[2] / "build" / "kafka-format"

# These options shorten the start; they do not make the running server faster. Only errors are logged.
JVM = [*QUICK_START, "-Xmx512m", "-Xms128m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]


def start_kafka(directory: Path, settings: Mapping[str, str] | None = None) -> Server:
    port, controller_port = free_port(), free_port()
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(directory / "data"),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "log.cleaner.backoff.ms": "100",
        "log.cleaner.dedupe.buffer.size": "4194304",
        **(settings or {}),
    }
    server = start_node(directory, port, properties)
    server.wait_until_it_answers()
    return server


def start_node(directory: Path, port: int, properties: Mapping[str, str]) -> Server:
    """Start the node, on its existing data if it has run before."""
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "server.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    command = kafka_command()
    log = directory / "server.log"
    if not (directory / "data").exists():
        shutil.copytree(_formatted(command, properties), directory / "data")
    return Server("kafka", port, spawn([*command, "kafka.Kafka", config], log), log, directory / "data")


def kafka_command() -> list[str | Path]:
    return [java(), *JVM, "-cp", os.pathsep.join(map(str, kafka_server_classpath()))]


def _formatted(command: Sequence[str | Path], properties: Mapping[str, str]) -> Path:
    """Return a data directory that Kafka's own tool has formatted. It is cached, because it depends only on jars and
    node.
    """
    digest = hashlib.sha256(f"{command[-1]} {properties['node.id']}".encode()).hexdigest()[:16]
    target = BUILD / digest
    if not target.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=BUILD))
        config = fresh / "server.properties"
        lines = {**properties, "log.dirs": str(fresh / "data")}
        config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        tool = ["kafka.tools.StorageTool", "format", "-t", "headrace-wire-tests-00", "-c", str(config)]
        formatted = subprocess.run([*command, *tool], capture_output=True, text=True, check=False)
        assert formatted.returncode == 0, formatted.stdout + formatted.stderr
        try:
            os.rename(fresh / "data", target)
        except OSError:
            assert target.exists()
        shutil.rmtree(fresh)
    return target
