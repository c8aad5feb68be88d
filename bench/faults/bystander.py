"""A good client beside the bad ones: it produces, reads and asks without a pause, and every answer must be right.

What it was acknowledged must be readable at the end, each record at its own offset.
"""

from __future__ import annotations

import threading
import time
import traceback

from bench.faults import calls
from bench.faults.batches import Batch, build_batch, parse_batches
from bench.faults.connection import Connection

__all__ = ["Bystander"]


class Bystander(threading.Thread):
    """``writes``: without, it only reads what ``prepare`` wrote, so that nothing on disk changes because of it."""

    def __init__(
        self, port: int, topic: str = "bystander", *, pause_s: float = 0.0, writes: bool = True
    ) -> None:
        super().__init__(name="bystander", daemon=True)
        self.problems: list[str] = []
        self.requests = 0
        self.slowest_s = 0.0
        self._port = port
        self._topic = topic
        self._pause_s = pause_s
        self._writes = writes
        self._acknowledged: list[bytes] = []
        self._stop_wanted = threading.Event()

    def prepare(self) -> None:
        with Connection(self._port) as connection:
            error = calls.create_topic(connection, self._topic, 1)
            if error:
                self.problems.append(f"the bystander's topic could not be made: error {error}")
            self._one_round(connection)

    def run(self) -> None:
        try:
            with Connection(self._port, client_id="bystander", timeout_s=30.0) as connection:
                while not self._stop_wanted.is_set():
                    if self._writes:
                        self._one_round(connection)
                    else:
                        self._look(connection)
                    if self._pause_s:
                        time.sleep(self._pause_s)
                self._read_back(connection)
        except Exception:
            self.problems.append(f"the bystander was disturbed:\n{traceback.format_exc()}")

    def _one_round(self, connection: Connection) -> None:
        began = time.monotonic()
        value = b"bystander %d" % len(self._acknowledged)
        answer = calls.produce(connection, self._topic, 0, build_batch([value], int(time.time() * 1000)))
        if answer.error or answer.base_offset != len(self._acknowledged):
            self.problems.append(f"the bystander's record {value!r} was answered with {answer}")
        self._acknowledged.append(value)
        self._look(connection)
        self.requests += 1
        self.slowest_s = max(self.slowest_s, (time.monotonic() - began) / 3)

    def _look(self, connection: Connection) -> None:
        value = self._acknowledged[-1]
        fetched = calls.fetch(connection, self._topic, 0, len(self._acknowledged) - 1)
        if value not in fetched.records:
            self.problems.append(
                f"the bystander's record {value!r} was not there right after its ack: {fetched.error}"
            )
        error, end = calls.list_offset(connection, self._topic, 0, calls.LATEST)
        if error or end != len(self._acknowledged):
            self.problems.append(f"the bystander's topic ends at {end}, error {error}")
        self.requests += 2

    def _read_back(self, connection: Connection) -> None:
        found: list[bytes] = []
        while len(found) < len(self._acknowledged):
            fetched = calls.fetch(connection, self._topic, 0, len(found))
            batches = list(parse_batches(fetched.records))
            if fetched.error or not batches:
                self.problems.append(
                    f"the bystander reads no further than {len(found)}: error {fetched.error}"
                )
                return
            for batch in batches:
                if not isinstance(batch, Batch) or batch.base_offset != len(found):
                    self.problems.append(f"the bystander read {batch} at {len(found)}")
                    return
                found += batch.values or ()
        if found != self._acknowledged:
            self.problems.append("what the bystander reads is not what it wrote")

    def wait_for(self, requests: int, timeout_s: float = 60.0) -> None:
        """Until it has made so many, or has stopped."""
        deadline = time.monotonic() + timeout_s
        while self.requests < requests and self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)
        if self.requests < requests:
            self.problems.append(f"the good client got {self.requests} of {requests} answers")

    def finish(self, timeout_s: float = 240.0) -> list[str]:
        """Let it read back what it wrote; what went wrong for it."""
        self._stop_wanted.set()
        self.join(timeout_s)
        if self.is_alive():
            self.problems.append(f"the bystander was not done within {timeout_s} s")
        if not self.requests:
            self.problems.append("the bystander never had an answer")
        return self.problems
