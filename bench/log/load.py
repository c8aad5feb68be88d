"""The load of one client on a log server. It runs in its own process, so that it is measured apart from the harness.

    python -m bench.log.load WORK BOOTSTRAP TOPIC [NAME=NUMBER-OR-TEXT ...]

    produce        count size codec         messages per second until all are acknowledged
    consume        count partitions         messages per second from the first offset on
    latency        rate seconds             time from when a message is due until a consumer in another process has it
    one_by_one     count                    requests of one message per second, each sent after the response to the last
    pipelined      count                    requests of one message per second, as many in flight as the client allows
    transactions   count records            transactions of a few messages per second
    java_produce   count size               as produce, with Apache Kafka's own producer performance tool

It prints one JSON object. The client is librdkafka, except for ``java_produce``, with the same settings for every
server.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tools.jars import kafka_server_classpath
from tools.java import java

__all__ = ["main"]

_FLUSH_S = 120.0
_TICK_S = 0.001
_WARM_S = 0.5

Figures = dict[str, float]


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


def _reader(bootstrap: str, topic: str, partitions: int, **more: Any) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            # By default the client pauses for a second whenever it has prefetched a hundred thousand
            # messages. The measurement would include that pause.
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 65536,
            "fetch.queue.backoff.ms": 2,
            "fetch.message.max.bytes": 4 << 20,
            **more,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    return consumer


def _values(size: int) -> list[bytes]:
    """Return a thousand different values. Half of their bytes repeat, so that they can be compressed."""
    rng = random.Random(size)
    return [rng.randbytes(size // 2) + b"x" * (size - size // 2) for _ in range(1000)]


class _DeliveryErrors:
    """Counts failed deliveries. After any failure, the measurement has no result."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def __call__(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self.count += 1
            self.first = self.first or str(error)

    def check(self, unacknowledged: int = 0) -> None:
        if self.count or unacknowledged:
            raise SystemExit(
                f"{self.count} deliveries failed ({self.first}), {unacknowledged} were not acknowledged"
            )


def produce(bootstrap: str, topic: str, count: int, size: int, codec: str = "none") -> Figures:
    producer = _producer(
        bootstrap,
        **{
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "batch.num.messages": 10_000,
            "compression.type": codec,
        },
    )
    producer.list_topics(topic, timeout=30)
    delivery_errors = _DeliveryErrors()
    values = _values(size)
    began = time.perf_counter()
    for number in range(count):
        while True:
            try:
                # Use a callback for every hundredth message: one per message would measure Python instead of the
                # server.
                producer.produce(
                    topic, values[number % 1000], on_delivery=None if number % 100 else delivery_errors
                )
                break
            except BufferError:
                producer.poll(0.05)
        if not number % 10_000:
            producer.poll(0)
    unacknowledged = producer.flush(_FLUSH_S)
    seconds = time.perf_counter() - began
    delivery_errors.check(unacknowledged)
    return {"rate": count / seconds}


def consume(bootstrap: str, topic: str, count: int, partitions: int = 1) -> Figures:
    consumer = _reader(bootstrap, topic, partitions)
    received = first = 0
    began = time.perf_counter()
    deadline = began + 120
    while received < count and time.perf_counter() < deadline:
        # Do not request more messages than exist, because the client would wait for them.
        messages = consumer.consume(min(10_000, count - received), 1.0)
        if messages and not received and len(messages) < count:
            # Start the clock after the first messages, to exclude the connection, unless all messages arrived at once.
            began, first = time.perf_counter(), len(messages)
        if messages and (error := messages[-1].error()) is not None:
            raise SystemExit(f"reading failed: {error}")
        received += len(messages)
    seconds = time.perf_counter() - began
    if received < count:
        raise SystemExit(f"only {received} of {count} messages arrived")
    consumer.close()
    return {"rate": (received - first) / seconds}


def latency(bootstrap: str, topic: str, rate: int, seconds: int) -> Figures:
    """Send messages at fixed times, whatever happens to earlier messages, so a stall counts for every message that it
    delays.
    """
    receive, send = os.pipe()
    total = rate * seconds
    reader = os.fork()
    if not reader:
        # Fork before any client exists, because a client's threads do not survive a fork.
        os.close(receive)
        _time_arrivals(bootstrap, topic, total, send)
        os._exit(0)
    os.close(send)
    producer = _producer(bootstrap, **{"linger.ms": 0})
    delivery_errors = _DeliveryErrors()
    with os.fdopen(receive) as arrivals:
        assert arrivals.readline() == "ready\n"
        producer.produce(topic, b"0", on_delivery=delivery_errors)
        producer.flush(30)
        assert arrivals.readline() == "first\n"
        padding = b"x" * 80
        due = time.monotonic() + 0.1
        per_tick = max(1, round(rate * _TICK_S))
        for number in range(0, total, per_tick):
            due += per_tick / rate
            while (early := due - time.monotonic()) > 0:
                time.sleep(early)
            stamp = b"%d " % int(due * 1e9) + padding
            for _ in range(min(per_tick, total - number)):
                producer.produce(topic, stamp, on_delivery=delivery_errors)
            producer.poll(0)
        delivery_errors.check(producer.flush(_FLUSH_S))
        figures = json.loads(arrivals.readline())
    if os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1]):
        raise SystemExit("the consumer failed")
    return dict(figures)


def _time_arrivals(bootstrap: str, topic: str, total: int, send: int) -> None:
    with os.fdopen(send, "w") as report:
        consumer = _reader(bootstrap, topic, 1, **{"fetch.wait.max.ms": 100})
        consumer.poll(0.5)
        print("ready", file=report, flush=True)
        spans: list[tuple[float, float]] = []
        while len(spans) <= total:
            message = consumer.poll(30)
            if message is None or message.error():
                raise SystemExit(f"reading failed: {message and message.error()}")
            now = time.monotonic()
            due = int((message.value() or b"").split()[0]) / 1e9
            spans.append((due, now - due))
            if not due:
                print("first", file=report, flush=True)
        consumer.close()
        warm = spans[1][0] + min(_WARM_S, (spans[-1][0] - spans[1][0]) / 4)
        print(json.dumps(_percentiles([span for due, span in spans[1:] if due >= warm])), file=report)


def _percentiles(spans: list[float]) -> Figures:
    spans = sorted(spans)
    at = {"p50_ms": 0.5, "p99_ms": 0.99, "p99.9_ms": 0.999}
    return {name: spans[int(len(spans) * part)] * 1000 for name, part in at.items()}


def one_by_one(bootstrap: str, topic: str, count: int) -> Figures:
    producer = _producer(bootstrap, **{"linger.ms": 0})
    delivery_errors = _DeliveryErrors()
    producer.produce(topic, b"first")
    producer.flush(30)
    began = time.perf_counter()
    for number in range(count):
        producer.produce(topic, b"%d" % number, on_delivery=delivery_errors)
        producer.flush(30)
    seconds = time.perf_counter() - began
    delivery_errors.check()
    return {"rate": count / seconds}


def pipelined(bootstrap: str, topic: str, count: int) -> Figures:
    producer = _producer(bootstrap, **{"linger.ms": 0, "batch.num.messages": 1})
    delivery_errors = _DeliveryErrors()
    producer.produce(topic, b"first")
    producer.flush(30)
    began = time.perf_counter()
    for number in range(count):
        producer.produce(topic, b"%d" % number, on_delivery=delivery_errors)
    unacknowledged = producer.flush(_FLUSH_S)
    seconds = time.perf_counter() - began
    delivery_errors.check(unacknowledged)
    return {"rate": count / seconds}


def transactions(bootstrap: str, topic: str, count: int, records: int) -> Figures:
    producer = _producer(bootstrap, **{"linger.ms": 0, "transactional.id": f"bench-{topic}-{os.getpid()}"})
    delivery_errors = _DeliveryErrors()
    producer.init_transactions(60)
    began = 0.0
    for number in range(-max(1, count // 10), count):
        if number == 0:
            began = time.perf_counter()
        producer.begin_transaction()
        for _ in range(records):
            producer.produce(topic, b"%d" % number, on_delivery=delivery_errors)
        producer.commit_transaction(60)
    seconds = time.perf_counter() - began
    delivery_errors.check()
    return {"rate": count / seconds}


def java_produce(bootstrap: str, topic: str, count: int, size: int) -> Figures:
    properties = [f"bootstrap.servers={bootstrap}", "linger.ms=5", "batch.size=1000000", "acks=all"]
    command: list[str | Path] = [java(), "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp"]
    command += [os.pathsep.join(map(str, kafka_server_classpath()))]
    command += ["org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(count)]
    command += ["--record-size", str(size), "--throughput", "-1", "--producer-props", *properties]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # The tool prints a line every five seconds, and a last line about the whole.
    rates = re.findall(rf"^{count} records sent, ([\d.]+) records/sec", done.stdout, re.MULTILINE)
    if done.returncode or not rates:
        raise SystemExit(f"the Java client failed:\n{done.stdout}{done.stderr}")
    return {"rate": float(rates[-1])}


WORKS = {
    work.__name__: work
    for work in (produce, consume, latency, one_by_one, pipelined, transactions, java_produce)
}


def main() -> None:
    work, bootstrap, topic, *rest = sys.argv[1:]
    texts = dict(argument.split("=", 1) for argument in rest)
    options: Any = {name: int(value) if value.isdigit() else value for name, value in texts.items()}
    print(json.dumps(WORKS[work](bootstrap, topic, **options)))


if __name__ == "__main__":
    main()
