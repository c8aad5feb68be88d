"""Who writes a flow: the driver that the newest record of an owner, or of a generation, names.

The log fences: whoever opens the flow's transactional id last can write, and nobody else. But it refuses a driver for
two reasons with one answer: another driver opened the flow, or the driver's own transaction ran out of time. The record
of the owner tells them apart. A driver that opened the flow before goes on only while the record names it, so that
nothing it repeats after an error takes the flow from a successor.
"""

from __future__ import annotations

import os
import secrets
import socket
import time

from headrace.client.cluster import Cluster
from headrace.client.progress_log import Progress, current_driver
from headrace.flow.errors import FlowFenced, ProducerFenced, TransactionTimedOut
from headrace.flow.writer import Side, Writer
from headrace.model.flow import Flow
from headrace.model.progress import Batch, Driver, Owner, encode

__all__ = ["Ownership", "expect_driver"]

_REFUSALS_MAX = 3


def expect_driver(cluster: Cluster, flow: Flow, driver_id: str) -> None:
    """Raises ``FlowFenced`` if another driver has opened the flow since."""
    newest = current_driver(cluster, flow.progress_topic)
    if newest is not None and newest.id != driver_id:
        raise FlowFenced(flow.name, newest)


class Ownership:
    """One runner's claim to its flow, over all its openings."""

    def __init__(self, cluster: Cluster, flow: Flow, timeout_ms: int) -> None:
        self._cluster = cluster
        self._flow = flow
        self._timeout_ms = timeout_ms
        self.id = secrets.token_hex(8)
        self.claimed = False
        """Whether the record of this driver is in the log."""
        self.refusals = 0
        """How often the log refused the last batch that it refused."""
        self._refused_at: tuple[int, int] | None = None

    def driver(self) -> Driver:
        return Driver(self.id, socket.gethostname(), os.getpid(), time.time_ns() // 1_000_000)

    def claim(self, writer: Writer, found: Progress) -> int:
        """Commit the record of the owner, for a generation that exists; returns its offset."""
        generation = found.generation
        record = Owner(
            app=generation.app,
            flow=generation.flow,
            generation=generation.generation,
            driver=self.driver(),
            generation_offset=found.generation_offset,
            batch_offset=found.last_offset,
        )
        key, value = encode(record)
        offset = writer.commit_alone(self._cluster, Side(self._flow.progress_topic, key, value))
        self.claimed = True
        return offset

    def expect_ours(self) -> None:
        """Raises ``FlowFenced`` if another driver has opened the flow since this one did."""
        if self.claimed:
            expect_driver(self._cluster, self._flow, self.id)

    def judge(self, refused: ProducerFenced, last: Batch | None) -> Exception:
        """What to make of a refusal when no other driver is known: the flow may be opened again, but not for ever
        without a batch in between.
        """
        at = (last.generation, last.batch) if last else None
        self.refusals = self.refusals + 1 if at == self._refused_at else 1
        self._refused_at = at
        if self.refusals < _REFUSALS_MAX:
            return refused
        if not self.claimed:
            return FlowFenced(self._flow.name, current_driver(self._cluster, self._flow.progress_topic))
        return TransactionTimedOut(
            f"flow {self._flow.name}: the log gave up the transaction of one batch {self.refusals} times; the batch"
            f" took {refused.open_ms} ms, and transaction.timeout.ms is {self._timeout_ms}",
            detail=f"no other driver has opened the flow; {refused.detail}",
            hint="set flow.transaction_timeout_ms higher, or flow.max_rows lower",
        )
