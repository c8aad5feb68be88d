"""The owner of a generation: the driver that the newest owner or generation record in its progress topic names.

The log fences drivers: only the driver that opened the generation's transactional id last can write. The log rejects a
driver with the same error in two cases: another driver opened the flow, or the driver's own transaction timed out. The
owner record distinguishes the two cases. After an error, a driver continues only if the newest record names it. So its
retries never take the flow from a newer driver.

The owner of a derived topic is the flow that its record in ``headrace.generations`` names. Two flows must not write one
topic, whatever the apps they belong to: their rows would be mixed. So a flow writes this record together with its first
progress record, and checks it before it opens the transactional id of the topic, which would fence the owner.
"""

from __future__ import annotations

import os
import secrets
import socket
import time

import msgspec

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.generations import TOPIC, find_generations, transactional_id_of
from headrace.client.generations_writer import ensure_generations_topic
from headrace.client.progress import Progress, current_driver
from headrace.client.transactional_writer import BULK, OutgoingRecord, TransactionalWriter, WriterRefused
from headrace.flow.errors import FlowFenced, ProducerFenced, TopicTaken, TransactionTimedOut
from headrace.model.declarations import Flow
from headrace.model.generations import Entry, FlowGenerations
from headrace.model.generations import encode as encode_generations
from headrace.model.progress import Batch, Driver, Generation, Owner, encode

__all__ = ["Ownership", "claim_topic", "expect_driver", "expect_owner", "open_writer"]

_REFUSALS_MAX = 3


def open_writer(
    cluster: Cluster, flow: Flow, entry: Entry | None = None, timeout_ms: int = 60_000
) -> TransactionalWriter:
    """Open the writer of a generation (default: the first), which fences the previous driver."""
    return TransactionalWriter(
        cluster, transactional_id_of(flow, entry), f"flow {flow.name}", timeout_ms=timeout_ms, properties=BULK
    )


def expect_driver(cluster: Cluster, flow: Flow, progress_topic: str, driver_id: str) -> None:
    """Raise ``FlowFenced`` if another driver has opened the generation."""
    newest = current_driver(cluster, progress_topic)
    if newest is not None and newest.id != driver_id:
        raise FlowFenced(flow.name, newest)


class Ownership:
    """The claim of one runner to its flow. It remains the same each time the runner reopens the flow."""

    def __init__(self, cluster: Cluster, flow: Flow, timeout_ms: int) -> None:
        self._cluster = cluster
        self._flow = flow
        self.progress_topic = flow.progress_topic
        """The progress topic of the generation that the runner derives."""
        self._timeout_ms = timeout_ms
        self.id = secrets.token_hex(8)
        self.claimed = False
        """Whether the log names this driver."""
        self.refusals = 0
        """How often the log rejected the same batch, without a committed batch in between."""
        self._refused_batch: tuple[int, int] | None = None
        self._seen_last: Batch | None = None
        self._read_end = -1

    def driver(self) -> Driver:
        return Driver(self.id, socket.gethostname(), os.getpid(), time.time_ns() // 1_000_000)

    def claim(self, writer: TransactionalWriter, progress: Progress) -> int:
        """Commit the owner record for an existing generation, and return its offset."""
        generation = progress.generation
        record = Owner(
            app=generation.app,
            flow=generation.flow,
            generation=generation.generation,
            driver=self.driver(),
            generation_offset=progress.generation_offset,
            batch_offset=progress.last_offset,
        )
        return self.claim_with(writer, record)

    def claim_with(self, writer: TransactionalWriter, record: Owner | Generation) -> int:
        """Commit the record, which names this driver, and return its offset."""
        key, value = encode(record)
        offset = writer.commit_record(OutgoingRecord(self.progress_topic, key, value))
        self.claimed = True
        return offset

    def expect_current_owner(self) -> None:
        """Raise ``FlowFenced`` if another driver opened the flow after this driver."""
        if self.claimed:
            expect_driver(self._cluster, self._flow, self.progress_topic, self.id)

    def expect_current_owner_when_idle(self, last: Batch | None) -> None:
        """Like ``expect_current_owner``, for repeated calls. The log refuses the batches of a replaced driver, so this
        reads the progress topic only if no batch was committed since the previous call, and the topic has grown since
        it was read.
        """
        end = self._cluster.ends(self.progress_topic).get(0, 0)
        if last is self._seen_last and end != self._read_end:
            self.expect_current_owner()
            self._read_end = end
        self._seen_last = last

    def error_for_refusal(self, refused: WriterRefused, last: Batch | None) -> Exception:
        """Return the error for a rejected write, if the log names no other driver. The runner reopens the flow after
        ``ProducerFenced``, but only a few times without a committed batch in between.
        """
        last_batch = (last.generation, last.batch) if last else None
        self.refusals = self.refusals + 1 if last_batch == self._refused_batch else 1
        self._refused_batch = last_batch
        if self.refusals < _REFUSALS_MAX:
            return ProducerFenced(self._flow.name, open_ms=refused.open_ms, detail=str(refused))
        if not self.claimed:
            return FlowFenced(self._flow.name, current_driver(self._cluster, self.progress_topic))
        return TransactionTimedOut(
            f"flow {self._flow.name}: the transaction of one batch timed out {self.refusals} times; the batch took"
            f" {refused.open_ms} ms, and transaction.timeout.ms is {self._timeout_ms}",
            detail=f"no other driver has opened the flow; {refused.message}",
            hint="increase flow.transaction_timeout_ms, or decrease flow.max_rows",
        )


def expect_owner(cluster: Cluster, app: App, flow: Flow) -> None:
    """Raise ``TopicTaken`` if another flow writes the flow's topic. A topic that was deleted has no owner."""
    recorded = find_generations(cluster, flow.writes.name)
    if recorded is None or (recorded.app, recorded.flow) == (app.name, flow.name):
        return
    if cluster.topic(recorded.stable) is None:
        return
    if recorded.app == app.name:
        what = (
            f"topic {recorded.stable} is derived by flow {recorded.flow}, and flow {flow.name} writes it too"
        )
        hint = f"if the flow was renamed, keep its name on the log: @app.flow(..., name={recorded.flow!r})"
    else:
        what = (
            f"topic {recorded.stable} is derived by flow {recorded.flow} of app {recorded.app}, but this app is"
            f" {app.name}"
        )
        hint = f"write another topic; if app {recorded.app} was renamed, change its name back"
    raise TopicTaken(
        what,
        detail=f"{TOPIC} has the generations of each derived topic; it names one flow per topic",
        hint=hint,
    )


def claim_topic(cluster: Cluster, app: App, flow: Flow, entry: Entry) -> list[OutgoingRecord]:
    """Return the record that names the flow as the owner of its topic; nothing if it is recorded already."""
    recorded = find_generations(cluster, flow.writes.name)
    if recorded is not None and (recorded.app, recorded.flow) == (app.name, flow.name):
        return []
    ensure_generations_topic(cluster)
    begun = msgspec.structs.replace(entry, begun_ms=time.time_ns() // 1_000_000)
    generations = FlowGenerations(flow.name, app.name, flow.writes.name, begun.number, begun.number, (begun,))
    return [OutgoingRecord(TOPIC, generations.stable.encode(), encode_generations(generations))]
