"""A transactional producer in its own process, so that a signal can pause it. The test makes it the zombie.

    python -m faults.log.transactional_process PORT ID TOPIC PARTITIONS PROTOCOL SEED

It prints a line before each step (``begins 3``, ``ends 3``) and after each response (``initialized``, ``committed 3``).
The last line is ``refused CODE`` when it is fenced, or ``never refused`` after many transactions. Protocol 1 uses
librdkafka. Protocol 2 raises the epoch at the end of every transaction; this module implements its requests.
"""

from __future__ import annotations

import random
import socket
import struct
import sys
import time
from typing import Any, Protocol

from faults.protocol.batches import build_batch

__all__ = ["RECORDS", "Producer", "Refused", "main", "open_producer", "values_of"]

RECORDS = 4
"""Records per transaction and partition."""
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


def values_of(producer: str, number: int, partition: int) -> list[bytes]:
    """Return the values that the transaction with this number writes to a partition."""
    return [b"%s %d %d %d" % (producer.encode(), number, partition, index) for index in range(RECORDS)]


class ProtocolOne:
    """The first transaction protocol, by librdkafka."""

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
        # A refused record fails the transaction. If this call does not report it, the commit does.
        self._call(self._inner.flush, 60)

    def commit(self) -> None:
        self._call(self._inner.commit_transaction, 60)

    def close(self) -> None:
        self._inner.purge()


class ProtocolTwo:
    """The second transaction protocol: Produce 12 adds partitions implicitly, and EndTxn 5 returns the next epoch."""

    def __init__(self, port: int, transactional_id: str) -> None:
        from headrace.wire import messages

        self._port = port
        self._id = transactional_id
        self._messages = messages
        self._connection: socket.socket | None = None
        self._sequences: dict[int, int] = {}
        answer = self._request("INIT_PRODUCER_ID", 5, transaction_timeout_ms=60_000)
        self._producer, self._epoch = answer.producer_id, answer.producer_epoch

    def _request(self, api_name: str, version: int, **fields: Any) -> Any:
        """Return the response. Retry while the broker is unreachable or its error is retriable."""
        from headrace.wire import Api, decode_response, encode_request

        api = Api[api_name]
        message = getattr(self._messages, f"{api.title}Request")(transactional_id=self._id, **fields)
        for _ in range(_TRIES_MAX):
            try:
                answer = decode_response(
                    api, version, self._exchange(encode_request(api, version, 1, "zombie", message))
                )
            except OSError:
                self._disconnect()
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
        received = b""
        while len(received) < count:
            chunk = self._connection.recv(count - len(received))
            if not chunk:
                raise ConnectionError
            received += chunk
        return received

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
        self._request("PRODUCE", 12, acks=-1, timeout_ms=60_000, topic_data=topics)
        self._sequences[partition] = sequence + len(values)

    def commit(self) -> None:
        producer = {"producer_id": self._producer, "producer_epoch": self._epoch}
        answer = self._request("END_TXN", 5, committed=True, **producer)
        self._producer, self._epoch = answer.producer_id, answer.producer_epoch

    def close(self) -> None:
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _error_of(answer: Any) -> int:
    if hasattr(answer, "error_code"):
        return int(answer.error_code)
    return int(answer.responses[0].partition_responses[0].error_code)


def open_producer(protocol: int, port: int, transactional_id: str) -> Producer:
    return ProtocolOne(port, transactional_id) if protocol == 1 else ProtocolTwo(port, transactional_id)


def main(arguments: list[str]) -> int:
    port, transactional_id, topic, partitions, protocol, seed = arguments
    rng = random.Random(int(seed))

    def print_line(line: str) -> None:
        print(line, flush=True)

    try:
        producer = open_producer(int(protocol), int(port), transactional_id)
        print_line("initialized")
        for number in range(_TRANSACTIONS_MAX):
            print_line(f"begins {number}")
            producer.begin()
            for partition in range(int(partitions)):
                for value in values_of("zombie", number, partition):
                    producer.send(topic, partition, [value])
                    time.sleep(rng.uniform(0, 0.002))
            print_line(f"ends {number}")
            producer.commit()
            print_line(f"committed {number}")
        print_line("never refused")
    except Refused as refused:
        print_line(f"refused {refused.code}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
