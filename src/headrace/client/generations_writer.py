"""Changes the generations of a flow: begins one, approves it, drops it, and records a switch.

Only the owner of the transactional id ``headrace.generations.<topic>`` writes the record of a flow: it opens the id,
reads the record, and writes the next one. So no update is lost.
"""

from __future__ import annotations

import os
import socket
import time
from types import TracebackType

import msgspec

from headrace.app_argument import app_argument
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import APPEND_TIME
from headrace.client.errors import LogError
from headrace.client.generations import TOPIC, find_generations, generations_of, own_progress_topic
from headrace.client.progress import wait_until_decided
from headrace.client.transactional_writer import BULK, OutgoingRecord, TransactionalWriter
from headrace.model.declarations import Flow
from headrace.model.generations import Entry, FlowGenerations, GenerationServes, encode

__all__ = [
    "GenerationsWriter",
    "cancel_abandoned_switch",
    "drop_generation",
    "ensure_generations_topic",
    "is_abandoned",
    "process_name",
]

_CONFIGS = {"cleanup.policy": "compact", **APPEND_TIME}
_TRANSACTION_MS = 600_000
"""The transaction of a switch has all rows that differ."""


class GenerationsWriter:
    """Changes the record of one flow. Use it as a context manager; another writer of the same flow ends this one."""

    def __init__(self, cluster: Cluster, flow: Flow) -> None:
        self._cluster = cluster
        self._flow = flow
        ensure_generations_topic(cluster)
        self.writer = TransactionalWriter(
            cluster,
            f"headrace.generations.{flow.writes.name}",
            f"the generations of flow {flow.name}",
            timeout_ms=_TRANSACTION_MS,
            properties=BULK,
        )

    def __enter__(self) -> GenerationsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()

    def read(self) -> FlowGenerations:
        """Return the current record. Nobody else can change it until another writer opens.

        If another process was switching, its writer is fenced now, so its switch cannot complete. It is cancelled with
        the next write.
        """
        wait_until_decided(self._cluster, TOPIC)
        found = generations_of(self._cluster, self._flow)
        if found is None:
            raise LogError(
                f"flow {self._flow.name} has not been started yet",
                name="FLOW_NOT_STARTED",
                hint=f"start the app first: headrace run {app_argument()}",
            )
        return found.without_switch()

    def write(self, generations: FlowGenerations) -> None:
        self.writer.begin()
        self.send(generations)
        self.writer.flush()
        self.writer.commit()

    def send(self, generations: FlowGenerations) -> None:
        """Add the record to the open transaction."""
        self.writer.send([OutgoingRecord(TOPIC, generations.stable.encode(), encode(generations))])

    def begin_generation(self, fingerprint: str, reason: str, *, is_served_at_once: bool = False) -> Entry:
        """Record the next generation of the flow. Its driver begins to derive it."""
        generations = self.read()
        number = generations.newest + 1
        entry = Entry(
            number,
            own_progress_topic(self._flow, number),
            f"{generations.stable}.g{number}",
            fingerprint,
            reason,
            time.time_ns() // 1_000_000,
        )
        changed = generations.with_entry(entry)
        if is_served_at_once:
            changed = msgspec.structs.replace(
                changed.without_switch(), serving=number, is_published=False, entries=(entry,)
            )
        self.write(changed)
        return entry

    def approve(self, number: int) -> None:
        generations = self.read()
        entry = generations.expect(number)
        self.write(generations.with_entry(msgspec.structs.replace(entry, approved=True)))

    def drop(self, number: int) -> Entry:
        """Remove a generation that does not serve. Its driver ends."""
        generations = self.read()
        entry = generations.expect(number)
        if number in (generations.serving, generations.switching):
            raise GenerationServes(self._flow.name, number)
        self.write(generations.without(number))
        return entry


def ensure_generations_topic(cluster: Cluster) -> None:
    cluster.ensure_topic(TOPIC, 1, _CONFIGS)


def process_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def is_abandoned(generations: FlowGenerations, now_ms: int) -> bool:
    """Whether the process that switches has ended, or has not extended the switch in time."""
    host, _, pid = generations.switch_by.rpartition(":")
    if host == socket.gethostname() and pid.isdigit():
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
    return now_ms > generations.switch_until_ms


def drop_generation(cluster: Cluster, flow: Flow, number: int) -> Entry:
    """Remove a generation, and delete its topics. Its driver and its followers stop."""
    with GenerationsWriter(cluster, flow) as writer:
        entry = writer.drop(number)
        stable = writer.read().stable
    for topic in {entry.topic, entry.progress} - {stable, flow.progress_topic}:
        cluster.delete_topic(topic)
    return entry


def cancel_abandoned_switch(cluster: Cluster, flow: Flow, now_ms: int) -> None:
    """Cancel the switch of the flow if the process that began it has ended."""
    generations = find_generations(cluster, flow.writes.name)
    if generations is not None and generations.switching and is_abandoned(generations, now_ms):
        with GenerationsWriter(cluster, flow) as writer:
            writer.write(writer.read())
