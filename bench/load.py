"""One client's work against a log server, in a process of its own, so that it is measured apart from the
harness.

    python -m bench.load produce  BOOTSTRAP TOPIC COUNT SIZE     messages per second until all are acknowledged
    python -m bench.load consume  BOOTSTRAP TOPIC COUNT          messages per second from the first offset on
    python -m bench.load latency  BOOTSTRAP TOPIC COUNT          from produce() to the consumer that waits, one by one
    python -m bench.load acks     BOOTSTRAP TOPIC COUNT          from produce() to its acknowledgement, one by one

Prints one JSON object. The client is librdkafka with the same settings for every server.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

__all__ = ["main"]


def _producer(bootstrap: str, **more: Any) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
            **more,
        }
    )


def _reader(bootstrap: str, topic: str, offset: int) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": 65536,
            "fetch.message.max.bytes": 4 << 20,
        }
    )
    consumer.assign([TopicPartition(topic, 0, offset)])
    return consumer


def produce(bootstrap: str, topic: str, count: int, size: int) -> dict[str, float]:
    producer = _producer(bootstrap, **{"linger.ms": 5, "batch.size": 1_000_000, "batch.num.messages": 10_000})
    producer.list_topics(topic, timeout=30)
    failed = 0

    def delivered(error: KafkaError | None, _: object) -> None:
        nonlocal failed
        failed += error is not None

    payload = bytes(range(256)) * (size // 256 + 1)
    value = payload[:size]
    began = time.perf_counter()
    for number in range(count):
        while True:
            try:
                # A callback on every hundredth message: per message it would measure Python, not the server.
                producer.produce(topic, value, on_delivery=None if number % 100 else delivered)
                break
            except BufferError:
                producer.poll(0.05)
        if not number % 10_000:
            producer.poll(0)
    left = producer.flush(120)
    seconds = time.perf_counter() - began
    if failed or left:
        raise SystemExit(f"{failed} deliveries failed, {left} were not answered")
    return {"rate": count / seconds, "seconds": seconds}


def consume(bootstrap: str, topic: str, count: int) -> dict[str, float]:
    consumer = _reader(bootstrap, topic, 0)
    got = 0
    began = 0.0
    deadline = time.perf_counter() + 120
    while got < count and time.perf_counter() < deadline:
        messages = consumer.consume(10_000, 1.0)
        if messages and not began:
            began = time.perf_counter()
            got = -len(messages)
            count -= len(messages)
        got += sum(1 for message in messages if message.error() is None)
    seconds = time.perf_counter() - began
    if got < count:
        raise SystemExit(f"only {got} of {count} messages came")
    consumer.close()
    return {"rate": count / seconds, "seconds": seconds}


def latency(bootstrap: str, topic: str, count: int) -> dict[str, float]:
    producer = _producer(bootstrap, **{"linger.ms": 0})
    producer.produce(topic, b"first")
    producer.flush(30)
    consumer = _reader(bootstrap, topic, 0)
    while consumer.poll(5) is None:
        continue
    spans = []
    for number in range(count):
        began = time.perf_counter()
        producer.produce(topic, b"%d" % number)
        producer.poll(0)
        while (message := consumer.poll(5)) is None or message.value() != b"%d" % number:
            continue
        spans.append(time.perf_counter() - began)
        producer.poll(0)
    consumer.close()
    return _percentiles(spans)


def acks(bootstrap: str, topic: str, count: int) -> dict[str, float]:
    producer = _producer(bootstrap, **{"linger.ms": 0})
    producer.produce(topic, b"first")
    producer.flush(30)
    spans = []
    for number in range(count):
        began = time.perf_counter()
        producer.produce(topic, b"%d" % number)
        producer.flush(30)
        spans.append(time.perf_counter() - began)
    return _percentiles(spans)


def _percentiles(spans: list[float]) -> dict[str, float]:
    spans = sorted(spans)
    return {"p50_ms": spans[len(spans) // 2] * 1000, "p99_ms": spans[int(len(spans) * 0.99)] * 1000}


def main() -> None:
    work, bootstrap, topic, *numbers = sys.argv[1:]
    run = {"produce": produce, "consume": consume, "latency": latency, "acks": acks}[work]
    print(json.dumps(run(bootstrap, topic, *map(int, numbers))))


if __name__ == "__main__":
    main()
