"""A server that does not create topics by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faults.clients import Client, Record
from faults.clients.java_driver import JavaDriver
from faults.servers.apache_kafka import start_kafka
from faults.servers.headrace_broker import start_headrace
from faults.servers.server import Server
from tests.support.raw import Raw, raw_connection
from tests.wire.scripts.groups import coordinator
from tests.wire.scripts.talk import Conversation

Fresh = Callable[[str], str]


@pytest.fixture(scope="module", params=["headrace", pytest.param("kafka", marks=pytest.mark.kafka_half)])
def strict(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory: Path = tmp_path_factory.mktemp("strict")
    if request.param == "kafka":
        server = start_kafka(directory, {"auto.create.topics.enable": "false"})
    else:
        server = start_headrace(directory, ["--no-auto-create-topics"])
    yield server
    server.kill()


@pytest.fixture
def talk(strict: Server, driver: JavaDriver, fresh: Fresh) -> Iterator[Conversation]:
    with raw_connection(driver, strict.port) as raw:
        yield Conversation(
            raw, lambda: Raw(driver, strict.port), fresh("strict"), is_kafka=strict.name == "kafka"
        )


def test_no_request_creates_a_missing_topic(talk: Conversation) -> None:
    missing = talk.name("missing")
    for version in (0, 1, 4, 9, 12):
        answer = talk.raw.call("Metadata", version, topics=[{"name": missing}], allowAutoTopicCreation=True)
        assert [topic["errorCode"] for topic in answer["topics"]] == [3]
    everything = talk.raw.call("Metadata", 1, topics=None)
    assert missing not in {topic["name"] for topic in everything["topics"]}


def test_a_consumer_of_a_missing_topic_gets_an_error_and_reads_once_it_is_created(
    talk: Conversation, strict: Server, librdkafka: Client, fresh: Fresh
) -> None:
    coordinator(talk)
    topic = talk.name("late")
    admin = librdkafka.admin(strict.bootstrap)
    with librdkafka.consumer(strict.bootstrap, fresh("g")) as consumer:
        consumer.subscribe(topic)
        while not consumer.problems:
            assert consumer.poll(0.1) == []
        assert set(consumer.problems) == {3}
        admin.create_topic(topic)
        librdkafka.produce(strict.bootstrap, topic, [Record(b"at last")])
        assert [record.value for record in consumer.take(1)] == [b"at last"]
