"""A group member in its own process, to be killed.

    python -m tests.support.worker CLIENT BOOTSTRAP TOPIC GROUP

It reads ten records, commits the first six, prints ``ready`` and keeps polling, like a worker that processes the other
four.
"""

from __future__ import annotations

import sys

from faults.clients import Client
from faults.clients.aio import AiokafkaClient
from faults.clients.kafka_python import KafkaPythonClient
from faults.clients.librdkafka import LibrdkafkaClient

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
