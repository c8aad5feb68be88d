"""The interface of every adapter. ``can`` names the optional features of a client; tests choose clients by them."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from faults.wait import fail_if_ended

__all__ = [
    "END",
    "START",
    "Admin",
    "Client",
    "ConsumedRecord",
    "Consumer",
    "ConsumerOptions",
    "Offsets",
    "Partition",
    "ProducerOptions",
    "Record",
    "Refused",
    "consumed_records",
    "refusal",
    "wait_for",
]


class Refused(Exception):
    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


def refusal(call: Callable[..., Any], *arguments: Any, **options: Any) -> int:
    """Return the error code with which a call is refused, or 0 if it succeeds."""
    try:
        call(*arguments, **options)
    except Refused as refused:
        return refused.code
    return 0


Partition = tuple[str, int]
Offsets = dict[Partition, int]
Headers = tuple[tuple[str, bytes | None], ...]

# Special offsets, as in the protocol.
START, END = -2, -1


@dataclass(frozen=True)
class Record:
    """A record to send."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = 0
    timestamp_ms: int | None = None


@dataclass(frozen=True)
class ConsumedRecord:
    """A record that a consumer received."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    append_time: bool


class Consumer(ABC):
    """One consumer. ``problems`` are the error codes that the client reported and survived."""

    problems: list[int]
    # The length of one poll in ``wait_for``, in seconds.
    poll_timeout_s = 0.05
    # The assignment after the last poll in ``wait_for``.
    held: Set[Partition] = frozenset()

    @abstractmethod
    def subscribe(self, *topics: str) -> None: ...

    @abstractmethod
    def subscribe_pattern(self, pattern: str) -> None: ...

    @abstractmethod
    def assign(self, offsets: Mapping[Partition, int]) -> None: ...

    @abstractmethod
    def poll(self, timeout_s: float = 0.05) -> list[ConsumedRecord]: ...

    @abstractmethod
    def assignment(self) -> set[Partition]: ...

    @abstractmethod
    def events(self) -> list[tuple[str, list[Partition]]]:
        """Return the rebalances that the client reported since the last call."""

    @abstractmethod
    def commit(self, offsets: Mapping[Partition, int] | None = None) -> None: ...

    @abstractmethod
    def committed(self, *partitions: Partition) -> dict[Partition, int | None]: ...

    @abstractmethod
    def seek(self, partition: Partition, offset: int) -> None: ...

    @abstractmethod
    def pause(self, *partitions: Partition) -> None: ...

    @abstractmethod
    def resume(self, *partitions: Partition) -> None: ...

    @abstractmethod
    def offsets_for_times(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]: ...

    @abstractmethod
    def bounds(self, partition: Partition) -> tuple[int, int]:
        """Return the first offset and the end offset."""

    @abstractmethod
    def close(self) -> None: ...

    def take(self, count: int, timeout_s: float = 240.0) -> list[ConsumedRecord]:
        """Poll until this many records have arrived. Further records of the last poll are returned too."""
        seen: list[ConsumedRecord] = []
        deadline = time.monotonic() + timeout_s
        while len(seen) < count:
            remaining_s = deadline - time.monotonic()
            assert remaining_s > 0, f"{len(seen)} of {count} records within {timeout_s} s"
            fail_if_ended(f"{len(seen)} of {count} records")
            # Poll in slices, as users do: a client in one long poll might not rejoin in time.
            seen += self.poll(min(remaining_s, 1.0))
        return seen

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Admin(ABC):
    """The administration calls. A call that the client does not have raises ``NotImplementedError``."""

    @abstractmethod
    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replication: int = 1,
        configs: Mapping[str, str] | None = None,
        validate: bool = False,
    ) -> None: ...

    @abstractmethod
    def delete_topic(self, topic: str) -> None: ...

    @abstractmethod
    def create_partitions(self, topic: str, total: int) -> None: ...

    @abstractmethod
    def topics(self) -> set[str]: ...

    @abstractmethod
    def describe_topic(self, topic: str) -> list[dict[str, Any]]:
        """For each partition: partition, leader, replicas, isr."""

    @abstractmethod
    def configs(self, topic: str) -> dict[str, tuple[str, bool]]:
        """For each setting: its value, and whether it is the default."""

    @abstractmethod
    def cluster(self) -> dict[str, Any]:
        """The controller's id and the nodes as (id, host, port)."""

    @abstractmethod
    def groups(self) -> set[str]: ...

    @abstractmethod
    def describe_group(self, group: str) -> dict[str, Any]:
        """The state, the assignor, and for each member its client id and partitions."""

    @abstractmethod
    def group_offsets(self, group: str) -> Offsets: ...

    @abstractmethod
    def delete_records(self, offsets: Mapping[Partition, int]) -> Offsets: ...

    def alter_configs(self, topic: str, changes: Iterable[tuple[str, str, str | None]]) -> None:
        raise NotImplementedError

    def alter_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        raise NotImplementedError

    def delete_group_offsets(self, group: str, *partitions: Partition) -> None:
        raise NotImplementedError

    def delete_group(self, group: str) -> None:
        raise NotImplementedError

    def list_offset(self, partition: Partition, spec: str | int) -> int:
        """The offset at ``earliest``, ``latest``, ``max_timestamp`` or a time in milliseconds."""
        raise NotImplementedError

    def log_dirs(self, topic: str) -> dict[int, int]:
        """Bytes on disk per partition."""
        raise NotImplementedError

    @abstractmethod
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    acks: int = -1
    codec: str = "none"
    idempotent: bool = False
    request_bytes_max: int = 1_000_000


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    reset: str = "earliest"
    assignor: str = "range"
    instance: str | None = None
    max_wait_ms: int = 100
    session_ms: int = 120_000
    """Long, so that a busy machine does not stall a member until it loses its group."""
    heartbeat_ms: int = 100
    committed: bool = False


class Client(ABC):
    """A client library. It caches one admin per server, because admins are stateless and expensive to open."""

    name: str
    can: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._admins: dict[str, Admin] = {}

    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Record], **options: Any
    ) -> list[tuple[int, int]]:
        """Send in order and return each record's partition and offset, which is -1 if the client does not know it.
        ``options`` are fields of ``ProducerOptions``.
        """
        return self.send(bootstrap, topic, records, ProducerOptions(**options))

    def consumer(self, bootstrap: str, group: str | None = None, **options: Any) -> Consumer:
        """``options`` are fields of ``ConsumerOptions``."""
        return self.open_consumer(bootstrap, group, ConsumerOptions(**options))

    @abstractmethod
    def send(
        self, bootstrap: str, topic: str, records: Sequence[Record], options: ProducerOptions
    ) -> list[tuple[int, int]]: ...

    @abstractmethod
    def open_consumer(self, bootstrap: str, group: str | None, options: ConsumerOptions) -> Consumer: ...

    @abstractmethod
    def open_admin(self, bootstrap: str) -> Admin: ...

    def admin(self, bootstrap: str) -> Admin:
        if bootstrap not in self._admins:
            self._admins[bootstrap] = self.open_admin(bootstrap)
        return self._admins[bootstrap]

    def close(self) -> None:
        for admin in self._admins.values():
            admin.close()
        self._admins.clear()


def consumed_records(polled: Mapping[Any, Iterable[Any]]) -> list[ConsumedRecord]:
    """Convert the records of one poll by kafka-python or aiokafka, which use the same field names."""
    return [
        ConsumedRecord(
            record.topic,
            record.partition,
            record.offset,
            record.key,
            record.value,
            tuple((key, value) for key, value in record.headers),
            record.timestamp,
            record.timestamp_type == 1,
        )
        for records in polled.values()
        for record in records
    ]


def grouped(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return by_topic


def wait_for(
    condition: Callable[[], bool],
    consumers: Sequence[Consumer],
    seen: list[ConsumedRecord] | None = None,
    timeout_s: float = 240.0,
) -> list[ConsumedRecord]:
    """Poll all consumers, each in its own thread, until the condition holds. Records are appended to ``seen``.

    Polling in turn would not work. A member that joins can block its caller until the other members have joined, and
    those join only when they are polled. The condition reads ``held``, each consumer's assignment after its last poll,
    because few clients allow calls from a second thread.
    """
    seen = [] if seen is None else seen
    stop = threading.Event()

    def keep_polling(consumer: Consumer) -> None:
        while not stop.is_set():
            seen.extend(consumer.poll(consumer.poll_timeout_s))
            consumer.held = consumer.assignment()

    deadline = time.monotonic() + timeout_s
    with ThreadPoolExecutor(max(1, len(consumers))) as threads:
        futures = [threads.submit(keep_polling, consumer) for consumer in consumers]
        try:
            while not condition():
                wait(futures, timeout=0.02, return_when=FIRST_EXCEPTION)
                for future in futures:
                    if future.done():
                        future.result()
                fail_if_ended(f"{len(seen)} records")
                if time.monotonic() > deadline:
                    held = [sorted(consumer.held) for consumer in consumers]
                    raise AssertionError(f"not within {timeout_s} s; {len(seen)} records, assignments {held}")
        finally:
            stop.set()
        for future in futures:
            future.result()
    return seen
