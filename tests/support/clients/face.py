"""What every adapter offers. ``can`` names what not every client has; tests choose their clients by it."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from tests.support.waiting import fail_if_ended

__all__ = [
    "END",
    "START",
    "Admin",
    "Client",
    "Consumer",
    "Offsets",
    "Partition",
    "Record",
    "Seen",
    "seen_in",
    "wait_for",
]

Partition = tuple[str, int]
Offsets = dict[Partition, int]
Headers = tuple[tuple[str, bytes | None], ...]

# Places to read from, numbered as the protocol numbers them.
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
class Seen:
    """A record as a consumer was given it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    append_time: bool


class Consumer(ABC):
    """One consumer; ``problems`` are error numbers that the client reports and then goes on from."""

    problems: list[int]
    # How long one poll lasts while others are polled beside it.
    slice_s = 0.05
    # The assignment after the last of those polls.
    held: Set[Partition] = frozenset()

    @abstractmethod
    def subscribe(self, *topics: str) -> None: ...

    @abstractmethod
    def subscribe_pattern(self, pattern: str) -> None: ...

    @abstractmethod
    def assign(self, offsets: Mapping[Partition, int]) -> None: ...

    @abstractmethod
    def poll(self, timeout_s: float = 0.05) -> list[Seen]: ...

    @abstractmethod
    def assignment(self) -> set[Partition]: ...

    @abstractmethod
    def events(self) -> list[tuple[str, list[Partition]]]:
        """What the client was told of rebalances since the last call."""

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
        """The first offset and the one after the last."""

    @abstractmethod
    def close(self) -> None: ...

    def take(self, count: int, timeout_s: float = 240.0) -> list[Seen]:
        """Poll until so many records have come; what comes beyond them in the same poll is handed over too."""
        seen: list[Seen] = []
        deadline = time.monotonic() + timeout_s
        while len(seen) < count:
            remaining_s = deadline - time.monotonic()
            assert remaining_s > 0, f"{len(seen)} of {count} records within {timeout_s} s"
            fail_if_ended(f"{len(seen)} of {count} records")
            # In slices, as users poll: a client that is in one long poll may not join again when it is told to.
            seen += self.poll(min(remaining_s, 1.0))
        return seen

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Admin(ABC):
    """Administration. Clients that lack a call leave it as it is here."""

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
        """Per partition: partition, leader, replicas, isr."""

    @abstractmethod
    def configs(self, topic: str) -> dict[str, tuple[str, bool]]:
        """Per setting: its value, and whether it is a default."""

    @abstractmethod
    def cluster(self) -> dict[str, Any]:
        """The controller's id and the nodes as (id, host, port)."""

    @abstractmethod
    def groups(self) -> set[str]: ...

    @abstractmethod
    def describe_group(self, group: str) -> dict[str, Any]:
        """The state, the assignor, and per member its client id and partitions."""

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


class Client(ABC):
    """A client library. Admins are kept per server, since they are costly to open and hold no state."""

    name: str
    can: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._admins: dict[str, Admin] = {}

    @abstractmethod
    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Record],
        *,
        acks: int = -1,
        codec: str = "none",
        idempotent: bool = False,
        request_bytes_max: int = 1_000_000,
    ) -> list[tuple[int, int]]:
        """Send in order and return each record's partition and offset (-1 if the client is not told)."""

    @abstractmethod
    def consumer(
        self,
        bootstrap: str,
        group: str | None = None,
        *,
        reset: str = "earliest",
        assignor: str = "range",
        instance: str | None = None,
        max_wait_ms: int = 100,
        session_ms: int = 30_000,
        heartbeat_ms: int = 100,
        committed: bool = False,
    ) -> Consumer: ...

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


def seen_in(found: Mapping[Any, Iterable[Any]]) -> list[Seen]:
    """What a poll of a client in Python gave, whose records have the same fields by the same names."""
    return [
        Seen(
            one.topic,
            one.partition,
            one.offset,
            one.key,
            one.value,
            tuple((key, value) for key, value in one.headers),
            one.timestamp,
            one.timestamp_type == 1,
        )
        for records in found.values()
        for one in records
    ]


def grouped(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return by_topic


def wait_for(
    condition: Callable[[], bool],
    consumers: Sequence[Consumer],
    seen: list[Seen] | None = None,
    timeout_s: float = 240.0,
) -> list[Seen]:
    """Poll all consumers until the condition holds, each in a thread of its own; records go to ``seen``.

    In turn would not do: a member that joins may hold its caller until the others have joined as well, and they
    join when they are polled. The condition looks at what each ``held`` after its last poll, since few clients may
    be asked by a second thread.
    """
    seen = [] if seen is None else seen
    over = threading.Event()

    def keep_polling(consumer: Consumer) -> None:
        while not over.is_set():
            seen.extend(consumer.poll(consumer.slice_s))
            consumer.held = consumer.assignment()

    deadline = time.monotonic() + timeout_s
    with ThreadPoolExecutor(max(1, len(consumers))) as threads:
        polling = [threads.submit(keep_polling, consumer) for consumer in consumers]
        try:
            while not condition():
                wait(polling, timeout=0.02, return_when=FIRST_EXCEPTION)
                for one in polling:
                    if one.done():
                        one.result()
                fail_if_ended(f"{len(seen)} records")
                if time.monotonic() > deadline:
                    held = [sorted(consumer.held) for consumer in consumers]
                    raise AssertionError(f"not within {timeout_s} s; {len(seen)} records, assignments {held}")
        finally:
            over.set()
        for one in polling:
            one.result()
    return seen
