"""A group member in a process of its own, made to be killed.

    python -m tests.support.worker CLIENT BOOTSTRAP TOPIC GROUP

It reads ten records, commits the first six, says ``ready`` and polls on, like a worker that is busy with the rest.
"""

from __future__ import annotations

import sys

from tests.support.clients import Client
from tests.support.clients.aio import AiokafkaClient
from tests.support.clients.kafka_python import KafkaPythonClient
from tests.support.clients.librdkafka import LibrdkafkaClient

WORKERS: dict[str, type[Client]] = {
    client.name: client for client in (LibrdkafkaClient, KafkaPythonClient, AiokafkaClient)
}


def main(name: str, bootstrap: str, topic: str, group: str) -> None:
    consumer = WORKERS[name]().consumer(bootstrap, group, session_ms=6000)
    consumer.subscribe(topic)
    assert len(consumer.take(10)) == 10
    consumer.commit({(topic, 0): 6})
    print("ready", flush=True)
    while True:
        consumer.poll(0.2)


if __name__ == "__main__":
    main(*sys.argv[1:])
