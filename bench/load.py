"""One client's work against a log server, in a process of its own, so that it is measured apart from the
harness.

    python -m bench.load WORK BOOTSTRAP TOPIC [NAME=NUMBER-OR-TEXT ...]

    produce        count size codec         messages per second until all are acknowledged
    consume        count partitions         messages per second from the first offset on
    latency        rate seconds             from when a message was due to when a consumer in another process has it
    one_by_one     count                    requests of one message per second, each awaited before the next
    pipelined      count                    the same, as many under way as the client allows
    transactions   count records            transactions per second, each of a few messages
    java_produce   count size               as produce, by Apache Kafka's own producer performance tool

Prints one JSON object. The client is librdkafka but for the last, with the same settings for every server.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
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
            # By default the client pauses for a second whenever it has a hundred thousand messages ahead of its user,
            # and that would be what is measured.
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
    """A thousand different values, of which half the bytes repeat, so that there is something to compress."""
    chance = random.Random(size)
    return [chance.randbytes(size // 2) + b"x" * (size - size // 2) for _ in range(1000)]


class _Refusals:
    """Counts deliveries that failed: the work then has no result."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def __call__(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self.count += 1
            self.first = self.first or str(error)

    def check(self, left: int = 0) -> None:
        if self.count or left:
            raise SystemExit(f"{self.count} deliveries failed ({self.first}), {left} were not answered")


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
    refusals = _Refusals()
    values = _values(size)
    began = time.perf_counter()
    for number in range(count):
        while True:
            try:
                # A callback on every hundredth message: per message it would measure Python, not the server.
                producer.produce(topic, values[number % 1000], on_delivery=None if number % 100 else refusals)
                break
            except BufferError:
                producer.poll(0.05)
        if not number % 10_000:
            producer.poll(0)
    left = producer.flush(_FLUSH_S)
    seconds = time.perf_counter() - began
    refusals.check(left)
    return {"rate": count / seconds}


def consume(bootstrap: str, topic: str, count: int, partitions: int = 1) -> Figures:
    consumer = _reader(bootstrap, topic, partitions)
    got = first = 0
    began = time.perf_counter()
    deadline = began + 120
    while got < count and time.perf_counter() < deadline:
        # Never more than there are: the client would wait for them.
        messages = consumer.consume(min(10_000, count - got), 1.0)
        if messages and not got and len(messages) < count:
            # The clock starts with the first messages, if they are not all: before them lies the connection.
            began, first = time.perf_counter(), len(messages)
        if messages and (error := messages[-1].error()) is not None:
            raise SystemExit(f"reading failed: {error}")
        got += len(messages)
    seconds = time.perf_counter() - began
    if got < count:
        raise SystemExit(f"only {got} of {count} messages came")
    consumer.close()
    return {"rate": (got - first) / seconds}


def latency(bootstrap: str, topic: str, rate: int, seconds: int) -> Figures:
    """Messages are due at fixed times, whatever happened to the ones before: a stall counts for all it delays."""
    receive, send = os.pipe()
    total = rate * seconds
    reader = os.fork()
    if not reader:
        # Before any client exists, since a client's threads do not survive a fork.
        os.close(receive)
        _time_arrivals(bootstrap, topic, total, send)
        os._exit(0)
    os.close(send)
    producer = _producer(bootstrap, **{"linger.ms": 0})
    refusals = _Refusals()
    with os.fdopen(receive) as arrivals:
        assert arrivals.readline() == "ready\n"
        producer.produce(topic, b"0", on_delivery=refusals)
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
                producer.produce(topic, stamp, on_delivery=refusals)
            producer.poll(0)
        refusals.check(producer.flush(_FLUSH_S))
        figures = json.loads(arrivals.readline())
    if os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1]):
        raise SystemExit("the consumer failed")
    return dict(figures)


def _time_arrivals(bootstrap: str, topic: str, total: int, send: int) -> None:
    with os.fdopen(send, "w") as told:
        consumer = _reader(bootstrap, topic, 1, **{"fetch.wait.max.ms": 100})
        consumer.poll(0.5)
        print("ready", file=told, flush=True)
        spans: list[tuple[float, float]] = []
        while len(spans) <= total:
            message = consumer.poll(30)
            if message is None or message.error():
                raise SystemExit(f"reading failed: {message and message.error()}")
            now = time.monotonic()
            due = int(message.value().split()[0]) / 1e9
            spans.append((due, now - due))
            if not due:
                print("first", file=told, flush=True)
        consumer.close()
        warm = spans[1][0] + min(_WARM_S, (spans[-1][0] - spans[1][0]) / 4)
        print(json.dumps(_percentiles([span for due, span in spans[1:] if due >= warm])), file=told)


def _percentiles(spans: list[float]) -> Figures:
    spans = sorted(spans)
    at = {"p50_ms": 0.5, "p99_ms": 0.99, "p99.9_ms": 0.999}
    return {name: spans[int(len(spans) * part)] * 1000 for name, part in at.items()}


def one_by_one(bootstrap: str, topic: str, count: int) -> Figures:
    producer = _producer(bootstrap, **{"linger.ms": 0})
    refusals = _Refusals()
    producer.produce(topic, b"first")
    producer.flush(30)
    began = time.perf_counter()
    for number in range(count):
        producer.produce(topic, b"%d" % number, on_delivery=refusals)
        producer.flush(30)
    seconds = time.perf_counter() - began
    refusals.check()
    return {"rate": count / seconds}


def pipelined(bootstrap: str, topic: str, count: int) -> Figures:
    producer = _producer(bootstrap, **{"linger.ms": 0, "batch.num.messages": 1})
    refusals = _Refusals()
    producer.produce(topic, b"first")
    producer.flush(30)
    began = time.perf_counter()
    for number in range(count):
        producer.produce(topic, b"%d" % number, on_delivery=refusals)
    left = producer.flush(_FLUSH_S)
    seconds = time.perf_counter() - began
    refusals.check(left)
    return {"rate": count / seconds}


def transactions(bootstrap: str, topic: str, count: int, records: int) -> Figures:
    producer = _producer(bootstrap, **{"linger.ms": 0, "transactional.id": f"bench-{topic}-{os.getpid()}"})
    refusals = _Refusals()
    producer.init_transactions(60)
    began = 0.0
    for number in range(-max(1, count // 10), count):
        if number == 0:
            began = time.perf_counter()
        producer.begin_transaction()
        for _ in range(records):
            producer.produce(topic, b"%d" % number, on_delivery=refusals)
        producer.commit_transaction(60)
    seconds = time.perf_counter() - began
    refusals.check()
    return {"rate": count / seconds}


def java_produce(bootstrap: str, topic: str, count: int, size: int) -> Figures:
    properties = [f"bootstrap.servers={bootstrap}", "linger.ms=5", "batch.size=1000000", "acks=all"]
    command = [java(), "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp"]
    command += [os.pathsep.join(map(str, kafka_server_classpath()))]
    command += ["org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(count)]
    command += ["--record-size", str(size), "--throughput", "-1", "--producer-props", *properties]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # One line every five seconds, and one about the whole.
    said = re.findall(rf"^{count} records sent, ([\d.]+) records/sec", done.stdout, re.MULTILINE)
    if done.returncode or not said:
        raise SystemExit(f"the Java client failed:\n{done.stdout}{done.stderr}")
    return {"rate": float(said[-1])}


WORKS = {
    work.__name__: work
    for work in (produce, consume, latency, one_by_one, pipelined, transactions, java_produce)
}


def main() -> None:
    work, bootstrap, topic, *rest = sys.argv[1:]
    given = dict(argument.split("=", 1) for argument in rest)
    options: Any = {name: int(value) if value.isdigit() else value for name, value in given.items()}
    print(json.dumps(WORKS[work](bootstrap, topic, **options)))


if __name__ == "__main__":
    main()
