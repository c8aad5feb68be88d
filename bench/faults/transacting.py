"""A producer of transactions as a process of its own, so that it can be stopped like one: a zombie to be.

    python -m bench.faults.transacting PORT ID TOPIC PARTITIONS PROTOCOL SEED

It says what it does, line by line, before it does it (``begins 3``, ``ends 3``) and after it was told
(``holds``, ``committed 3``), and ends with ``refused CODE`` when it is refused, or with ``never refused`` after many
transactions. Protocol 1 is librdkafka. Protocol 2,
which raises the epoch at every end, is spoken here by hand, request by request.
"""

from __future__ import annotations

import random
import socket
import struct
import sys
import time
from typing import Any, Protocol

from bench.faults.batches import build_batch

__all__ = ["RECORDS", "Producer", "Refused", "main", "open_producer", "values_of"]

RECORDS = 4
"""Records of each transaction in each partition."""
_TRIES_MAX = 200
_TRANSACTIONS_MAX = 60
_RETRIED = (14, 15, 16, 51)


class Refused(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Producer(Protocol):
    def begin(self) -> None: ...
    def send(self, topic: str, partition: int, values: list[bytes]) -> None: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...


def values_of(who: str, number: int, partition: int) -> list[bytes]:
    """What the transaction of this number writes to a partition."""
    return [b"%s %d %d %d" % (who.encode(), number, partition, index) for index in range(RECORDS)]


class First:
    """librdkafka."""

    def __init__(self, port: int, transactional_id: str) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka import Producer as Stock

        self._failure = KafkaException
        self._inner = Stock(
            {
                "bootstrap.servers": f"127.0.0.1:{port}",
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 60_000,
                "linger.ms": 0,
                "retry.backoff.ms": 5,
                "reconnect.backoff.ms": 5,
                "reconnect.backoff.max.ms": 50,
                "log_level": 0,
            }
        )
        self._call(self._inner.init_transactions, 60)

    def _call(self, call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except self._failure as failed:
            raise Refused(failed.args[0].code()) from failed

    def begin(self) -> None:
        self._call(self._inner.begin_transaction)

    def send(self, topic: str, partition: int, values: list[bytes]) -> None:
        for value in values:
            self._call(self._inner.produce, topic, value, None, partition)
        # A record that is refused fails the transaction: the commit says so, if this does not.
        self._call(self._inner.flush, 60)

    def commit(self) -> None:
        self._call(self._inner.commit_transaction, 60)

    def close(self) -> None:
        self._inner.purge()


class Second:
    """The second protocol: Produce 12 adds partitions by itself, and EndTxn 5 tells the next epoch."""

    def __init__(self, port: int, transactional_id: str) -> None:
        from headrace.wire import messages

        self._port = port
        self._id = transactional_id
        self._messages = messages
        self._connection: socket.socket | None = None
        self._sequences: dict[int, int] = {}
        answer = self._ask("INIT_PRODUCER_ID", 5, transaction_timeout_ms=60_000)
        self._producer, self._epoch = answer.producer_id, answer.producer_epoch

    def _ask(self, api_name: str, version: int, **fields: Any) -> Any:
        """The answer, asked for again while the broker is away or says to."""
        from headrace.wire import Api, decode_response, encode_request

        api = Api[api_name]
        message = getattr(self._messages, f"{api.title}Request")(transactional_id=self._id, **fields)
        for _ in range(_TRIES_MAX):
            try:
                answer = decode_response(
                    api, version, self._exchange(encode_request(api, version, 1, "zombie", message))
                )
            except OSError:
                self._drop()
                time.sleep(0.05)
                continue
            code = _error_of(answer[1])
            if code not in _RETRIED:
                if code:
                    raise Refused(code)
                return answer[1]
            time.sleep(0.01)
        raise Refused(code)

    def _exchange(self, request: bytes) -> bytes:
        if self._connection is None:
            self._connection = socket.create_connection(("127.0.0.1", self._port), timeout=60)
        self._connection.sendall(request)
        size = struct.unpack(">i", self._receive(4))[0]
        return self._receive(size)

    def _receive(self, count: int) -> bytes:
        assert self._connection is not None
        got = b""
        while len(got) < count:
            more = self._connection.recv(count - len(got))
            if not more:
                raise ConnectionError
            got += more
        return got

    def begin(self) -> None:
        self._sequences.clear()

    def send(self, topic: str, partition: int, values: list[bytes]) -> None:
        sequence = self._sequences.get(partition, 0)
        batch = build_batch(
            values,
            int(time.time() * 1000),
            producer_id=self._producer,
            epoch=self._epoch,
            sequence=sequence,
            transactional=True,
        )
        request = self._messages.ProduceRequest
        data = request.PartitionProduceData(index=partition, records=batch)
        topics = [request.TopicProduceData(name=topic, partition_data=[data])]
        self._ask("PRODUCE", 12, acks=-1, timeout_ms=60_000, topic_data=topics)
        self._sequences[partition] = sequence + len(values)

    def commit(self) -> None:
        who = {"producer_id": self._producer, "producer_epoch": self._epoch}
        answer = self._ask("END_TXN", 5, committed=True, **who)
        self._producer, self._epoch = answer.producer_id, answer.producer_epoch

    def close(self) -> None:
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _error_of(answer: Any) -> int:
    if hasattr(answer, "error_code"):
        return int(answer.error_code)
    return int(answer.responses[0].partition_responses[0].error_code)


def open_producer(protocol: int, port: int, transactional_id: str) -> Producer:
    return First(port, transactional_id) if protocol == 1 else Second(port, transactional_id)


def main(words: list[str]) -> int:
    port, transactional_id, topic, partitions, protocol, seed = words
    rng = random.Random(int(seed))

    def say(line: str) -> None:
        print(line, flush=True)

    try:
        producer = open_producer(int(protocol), int(port), transactional_id)
        say("holds")
        for number in range(_TRANSACTIONS_MAX):
            say(f"begins {number}")
            producer.begin()
            for partition in range(int(partitions)):
                for value in values_of("zombie", number, partition):
                    producer.send(topic, partition, [value])
                    time.sleep(rng.uniform(0, 0.002))
            say(f"ends {number}")
            producer.commit()
            say(f"committed {number}")
        say("never refused")
    except Refused as refused:
        say(f"refused {refused.code}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
