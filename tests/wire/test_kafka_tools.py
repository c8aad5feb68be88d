"""Apache Kafka's own tools, as its system tests use them, against the embedded broker."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from faults.clients.java_driver import JavaDriver
from faults.servers.server import Server
from tests.support.kafka_tools import kafka_tool

Fresh = Callable[[str], str]


def parse_events(lines: list[str]) -> list[dict[str, Any]]:
    """Parse the JSON lines that a tool printed; it may print warnings between them."""
    return [json.loads(line) for line in lines if line.startswith("{")]


def produce_with_tool(driver: JavaDriver, server: Server, topic: str, count: int) -> list[tuple[str, int]]:
    """Send this many records with the tool; return the value and offset of each acknowledged record."""
    lines = kafka_tool(
        driver,
        "VerifiableProducer",
        "--bootstrap-server",
        server.bootstrap,
        "--topic",
        topic,
        "--max-messages",
        str(count),
    )
    events = parse_events(lines)
    (summary,) = [event for event in events if event["name"] == "tool_data"]
    assert (summary["sent"], summary["acked"]) == (count, count)
    return [
        (success["value"], success["offset"])
        for success in events
        if success["name"] == "producer_send_success"
    ]


def test_the_verifiable_producer_and_consumer_agree_on_every_record(
    headrace_server: Server, driver: JavaDriver, fresh: Fresh
) -> None:
    topic, group = fresh("t"), fresh("g")
    sent = produce_with_tool(driver, headrace_server, topic, 500)
    assert sent == [(str(number), number) for number in range(500)]
    lines = kafka_tool(
        driver,
        "VerifiableConsumer",
        "--bootstrap-server",
        headrace_server.bootstrap,
        "--topic",
        topic,
        "--group-id",
        group,
        "--max-messages",
        "500",
        "--verbose",
    )
    events = parse_events(lines)
    read = [(event["value"], event["offset"]) for event in events if event["name"] == "record_data"]
    assert read == sent
    committed = [event for event in events if event["name"] == "offsets_committed"]
    assert all(event["success"] for event in committed)
    assert committed[-1]["offsets"] == [{"topic": topic, "partition": 0, "offset": 500}]


def test_the_transactional_message_copier_copies_every_record_exactly_once(
    headrace_server: Server, driver: JavaDriver, fresh: Fresh
) -> None:
    source, target, group = fresh("source"), fresh("target"), fresh("g")
    sent = [value for value, _ in produce_with_tool(driver, headrace_server, source, 600)]
    # The tool aborts some transactions at random, and then copies the same records again.
    lines = kafka_tool(
        driver,
        "TransactionalMessageCopier",
        "--broker-list",
        headrace_server.bootstrap,
        "--input-topic",
        source,
        "--input-partition",
        "0",
        "--output-topic",
        target,
        "--consumer-group",
        group,
        "--transaction-size",
        "20",
        "--transactional-id",
        fresh("copier"),
        "--enable-random-aborts",
        "--use-group-metadata",
    )
    last = parse_events(lines)[-1]
    assert (last["stage"], last["consumed"], last["remaining"]) == ("ShutdownComplete", 600, 0)
    committed = values_of(headrace_server, target, "read_committed")
    every = values_of(headrace_server, target, "read_uncommitted")
    assert committed == sent
    assert set(every) == set(sent)
    # Of thirty transactions the tool aborts about one in three, so it almost certainly aborted at least one.
    assert len(every) > len(committed)


def values_of(server: Server, topic: str, isolation: str) -> list[str]:
    """Return all values of the topic's only partition, read with librdkafka at this isolation level."""
    settings = {
        "bootstrap.servers": server.bootstrap,
        "group.id": "unused",
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        values: list[str] = []
        while (message := consumer.poll(30)) is not None:
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return values
            values.append((message.value() or b"").decode())
        raise AssertionError(f"no end of {topic} after {len(values)} records")
    finally:
        consumer.close()


def test_the_performance_tools_run_with_a_transactional_producer_and_a_read_committed_consumer(
    headrace_server: Server, driver: JavaDriver, fresh: Fresh
) -> None:
    topic, name = fresh("t"), fresh("perf")
    lines = kafka_tool(
        driver,
        "ProducerPerformance",
        "--bootstrap-server",
        headrace_server.bootstrap,
        "--topic",
        topic,
        "--num-records",
        "20000",
        "--throughput",
        "-1",
        "--record-size",
        "100",
        "--transactional-id",
        name,
        "--transaction-duration-ms",
        "50",
    )
    assert re.match(r"20000 records sent, [\d.]+ records/sec", lines[-1])
    *_, header, figures = kafka_tool(
        driver,
        "ConsumerPerformance",
        "--bootstrap-server",
        headrace_server.bootstrap,
        "--topic",
        topic,
        "--num-records",
        "20000",
        "--command-property",
        "isolation.level=read_committed",
    )
    columns = dict(zip(header.split(", "), figures.split(", "), strict=True))
    assert columns["data.consumed.in.nMsg"] == "20000"
    # Every transaction has ended, so Kafka's tool for hanging transactions finds none, and the id is idle.
    listed = kafka_tool(
        driver, "TransactionsCommand", "--bootstrap-server", headrace_server.bootstrap, "list"
    )
    (own_transaction,) = [line.split() for line in listed if line.startswith(name)]
    assert own_transaction[3] == "CompleteCommit"
    described = kafka_tool(
        driver,
        "TransactionsCommand",
        "--bootstrap-server",
        headrace_server.bootstrap,
        "describe-producers",
        "--topic",
        topic,
        "--partition",
        "0",
    )
    assert described[1].split()[0] == own_transaction[2]
    assert described[1].split()[-1] == "None"


def test_an_operator_finds_an_open_transaction_and_ends_it(
    headrace_server: Server, driver: JavaDriver, fresh: Fresh
) -> None:
    topic, name = fresh("t"), fresh("id")
    producer = Producer({"bootstrap.servers": headrace_server.bootstrap, "transactional.id": name})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"undecided", partition=0)
    producer.flush(60)
    call = ("TransactionsCommand", "--bootstrap-server", headrace_server.bootstrap)

    def table(*arguments: str) -> list[dict[str, str]]:
        head, *rows = [line.split() for line in kafka_tool(driver, *call, *arguments) if line.strip()]
        return [dict(zip(head, row, strict=False)) for row in rows]

    (producing,) = table("describe-producers", "--topic", topic, "--partition", "0")
    assert producing["CurrentTransactionStartOffset"] == "0"
    kafka_tool(driver, *call, "forceTerminateTransaction", "--transactionalId", name)
    (described,) = table("describe", "--transactional-id", name)
    assert described["TransactionState"] == "Empty"
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(60)
    assert refused.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)


def test_end_to_end_latency_is_measured(headrace_server: Server, driver: JavaDriver, fresh: Fresh) -> None:
    lines = kafka_tool(
        driver,
        "EndToEndLatency",
        "--bootstrap-server",
        headrace_server.bootstrap,
        "--topic",
        fresh("t"),
        "--num-records",
        "100",
        "--producer-acks",
        "all",
        "--record-size",
        "100",
    )
    assert re.match(r"Percentiles: 50th = \d+, 99th = \d+, 99.9th = \d+", lines[-1])


def test_kafka_s_client_compatibility_test_succeeds(
    headrace_server: Server, driver: JavaDriver, fresh: Fresh
) -> None:
    supported = (
        "offsets-for-times",
        "cluster-id",
        "create-topics",
        "describe-configs",
        "idempotent-producer",
    )
    lines = kafka_tool(
        driver,
        "ClientCompatibilityTest",
        "--bootstrap-server",
        headrace_server.bootstrap,
        "--topic",
        fresh("t"),
        "--num-cluster-nodes",
        "1",
        "--expect-record-too-large-exception",
        "false",
        "--describe-acls-supported",
        "false",
        *(part for what in supported for part in (f"--{what}-supported", "true")),
    )
    assert lines[-1] == "SUCCESS."
