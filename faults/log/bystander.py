"""A well-behaved client beside the attackers. It produces, reads and queries continuously, and every response must be
correct.

At the end, all its acknowledged records must be readable, each at its own offset.
"""

from __future__ import annotations

import time

from faults.bystander import BystanderThread
from faults.protocol import calls
from faults.protocol.batches import Batch, build_batch, parse_batches
from faults.protocol.connection import Connection

__all__ = ["Bystander"]


class Bystander(BystanderThread):
    """If ``writes`` is false, the bystander only reads what ``prepare`` wrote, so that it changes nothing on disk."""

    def __init__(
        self, port: int, topic: str = "bystander", *, pause_s: float = 0.0, writes: bool = True
    ) -> None:
        super().__init__("bystander", pause_s)
        self._port = port
        self._topic = topic
        self._writes = writes
        self._acknowledged: list[bytes] = []

    def prepare(self) -> None:
        with Connection(self._port) as connection:
            error = calls.create_topic(connection, self._topic, 1)
            if error:
                self.problems.append(f"the bystander's topic could not be created: error {error}")
            self._write_and_read(connection)

    def send_requests(self) -> None:
        with Connection(self._port, client_id="bystander", timeout_s=30.0) as connection:
            while not self.stop_requested.is_set():
                if self._writes:
                    self._write_and_read(connection)
                else:
                    self._read_last(connection)
                if self.pause_s:
                    time.sleep(self.pause_s)
            self._read_back(connection)

    def _write_and_read(self, connection: Connection) -> None:
        began = time.monotonic()
        value = b"bystander %d" % len(self._acknowledged)
        answer = calls.produce(connection, self._topic, 0, build_batch([value], int(time.time() * 1000)))
        if answer.error or answer.base_offset != len(self._acknowledged):
            self.problems.append(f"the bystander's record {value!r} got the response {answer}")
        self._acknowledged.append(value)
        self._read_last(connection)
        self.requests += 1
        self.slowest_s = max(self.slowest_s, (time.monotonic() - began) / 3)

    def _read_last(self, connection: Connection) -> None:
        value = self._acknowledged[-1]
        fetched = calls.fetch(connection, self._topic, 0, len(self._acknowledged) - 1)
        if value not in fetched.records:
            self.problems.append(
                f"the bystander's record {value!r} could not be read right after its ack: {fetched.error}"
            )
        error, end = calls.list_offset(connection, self._topic, 0, calls.LATEST)
        if error or end != len(self._acknowledged):
            self.problems.append(f"the bystander's topic ends at {end}, error {error}")
        self.requests += 2

    def _read_back(self, connection: Connection) -> None:
        values: list[bytes] = []
        while len(values) < len(self._acknowledged):
            fetched = calls.fetch(connection, self._topic, 0, len(values))
            batches = list(parse_batches(fetched.records))
            if fetched.error or not batches:
                self.problems.append(
                    f"the bystander can read only {len(values)} records: error {fetched.error}"
                )
                return
            for batch in batches:
                if not isinstance(batch, Batch) or batch.base_offset != len(values):
                    self.problems.append(f"the bystander read {batch} at {len(values)}")
                    return
                values += batch.values or ()
        if values != self._acknowledged:
            self.problems.append("the bystander read other records than it wrote")
