"""A real Apache Kafka of one node, started from its jars: the reference that the embedded broker is held against.

It runs as broker and controller in one JVM (KRaft) with the least that lets one node stand alone: internal topics
with one replica and one partition, no initial rebalance delay. All else is Kafka's default, so that what clients
see here is what they see on a plain installation.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.server import Server, free_port, spawn
from tools.jars import kafka_server_classpath
from tools.java import QUICK_START, java

__all__ = ["start_kafka"]

# Quick to start rather than quick at full load, and silent unless something is wrong.
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
        **(settings or {}),
    }
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "server.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    command: list[str | Path] = [java(), *JVM, "-cp", os.pathsep.join(map(str, kafka_server_classpath()))]
    log = directory / "server.log"
    format_storage = ["kafka.tools.StorageTool", "format", "-t", "headrace-wire-tests-00", "-c", str(config)]
    formatted = subprocess.run([*command, *format_storage], capture_output=True, text=True, check=False)
    assert formatted.returncode == 0, formatted.stdout + formatted.stderr
    server = Server("kafka", port, spawn([*command, "kafka.Kafka", config], log), log, directory / "data")
    server.wait_until_it_answers()
    return server
