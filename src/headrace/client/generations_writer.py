"""Changes the generations of a flow: begins one, drops it, and records a switch.

Only the owner of the transactional id ``headrace.generations.<topic>`` writes the record of a flow: it opens the id,
reads the record, and writes the next one. So no update is lost.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from types import TracebackType

import msgspec

from headrace.app_argument import app_argument
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import APPEND_TIME
from headrace.client.errors import LogError
from headrace.client.generations import (
    TOPIC,
    find_generations,
    generations_of,
    own_progress_topic,
    progress_of,
    transactional_id_of,
)
from headrace.client.progress import wait_until_decided
from headrace.client.transactional_writer import BULK, OutgoingRecord, TransactionalWriter
from headrace.model.declarations import Declared, Flow, writer_of
from headrace.model.generations import (
    Entry,
    FlowGenerations,
    GenerationRead,
    GenerationServes,
    GenerationUnknown,
    encode,
)
from headrace.processes import is_running

__all__ = [
    "TRANSACTION_MS",
    "GenerationsWriter",
    "cancel_abandoned_switch",
    "cancel_abandoned_switches",
    "drop_generation",
    "ensure_generations_topic",
    "expect_droppable",
    "is_abandoned",
    "process_name",
]

_CONFIGS = {"cleanup.policy": "compact", **APPEND_TIME}
TRANSACTION_MS = 600_000
"""The transaction of a switch has all rows that differ."""
_GRACE_MS = 60_000
_SKEW_MS = 15_000
"""How far the clock of another host may be behind."""
_VISIBLE_S = 30.0
_PAUSE_S = 0.01
_RUN = secrets.token_hex(4)
"""Distinguishes this process from an earlier one with the same pid, as in a restarted container."""


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
            timeout_ms=TRANSACTION_MS,
            properties=BULK,
        )

    def __enter__(self) -> GenerationsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()

    def read(self) -> FlowGenerations:
        """Return the current record. Only another writer that opens can change it.

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
        """Commit the record. When this returns, all readers see it."""
        self.writer.begin()
        self.send(generations)
        self.wait_until_visible(self.commit())

    def send(self, generations: FlowGenerations) -> None:
        """Add the record to the open transaction."""
        self.writer.send([OutgoingRecord(TOPIC, generations.stable.encode(), encode(generations))])

    def commit(self) -> int:
        """Commit the open transaction. Return the end of the topic, for ``wait_until_visible``."""
        self.writer.flush()
        end = self._cluster.ends(TOPIC, committed=False)[0]
        self.writer.commit()
        return end

    def wait_until_visible(self, end: int) -> None:
        """Wait until readers see the records before ``end``. The log confirms a commit a moment before that. A driver
        that does not see a switch yet would write, and one that does not see its generation yet would end.
        """
        deadline = time.monotonic() + _VISIBLE_S
        while self._cluster.ends(TOPIC)[0] < end:
            if time.monotonic() > deadline:
                raise LogError(
                    f"a transaction in {TOPIC} is still open after {_VISIBLE_S:g} s",
                    name="TIMED_OUT",
                    hint="check that only Headrace writes to this topic",
                    retriable=True,
                )
            time.sleep(_PAUSE_S)

    def begin_generation(
        self, fingerprint: str, reason: str, *, is_served_at_once: bool = False, is_deployed: bool = False
    ) -> Entry:
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
            is_deployed=is_deployed,
        )
        changed = generations.with_entry(entry)
        if is_served_at_once:
            changed = msgspec.structs.replace(
                changed.without_switch(), serving=number, is_published=False, entries=(entry,)
            )
        self.write(changed)
        return entry

    def drop(self, number: int) -> Entry:
        """Remove a generation that does not serve. Its driver ends."""
        generations = self.read()
        entry = generations.expect(number)
        if number == generations.serving:
            raise GenerationServes(self._flow.name, number)
        self.write(generations.without(number))
        return entry


def ensure_generations_topic(cluster: Cluster) -> None:
    cluster.ensure_topic(TOPIC, 1, _CONFIGS)


def process_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{_RUN}"


def is_abandoned(generations: FlowGenerations, now_ms: int) -> bool:
    """Whether the process that switches has ended, or has not extended the switch in time.

    A process of this host can be found by its pid. If it runs, it may only be slow, and has a minute longer. Not for
    ever, because its pid may belong to another program by now.
    """
    host, pid, run = (*generations.switch_by.split(":"), "", "")[:3]
    until_ms = generations.switch_until_ms
    if host != socket.gethostname() or not pid.isdigit():
        return now_ms > until_ms + _SKEW_MS
    if int(pid) == os.getpid():
        return run != _RUN or now_ms > until_ms
    return not is_running(int(pid)) or now_ms > until_ms + _GRACE_MS


def drop_generation(cluster: Cluster, app: Declared, flow: Flow, number: int) -> Entry:
    """Remove a generation, and delete its topics. Its driver and its followers stop.

    ``expect_droppable`` has the conditions. ``app`` declares the flow and the flows that may read its rows.
    """
    # Check before the writer opens, because that cancels a switch of another process.
    expect_droppable(cluster, app, flow, number)
    with GenerationsWriter(cluster, flow) as writer:
        entry = writer.drop(number)
    # Fence its driver, which would otherwise create the topics again where brokers do that by themselves.
    TransactionalWriter(cluster, transactional_id_of(flow, entry), f"flow {flow.name}").close()
    for topic in {entry.topic, entry.progress} - {flow.writes.name, flow.progress_topic}:
        cluster.delete_topic(topic)
    return entry


def expect_droppable(cluster: Cluster, app: Declared, flow: Flow, number: int) -> None:
    """Raise an error if the generation does not exist or serves, or if a flow serves rows that it derives from it."""
    generations = generations_of(cluster, flow)
    if generations is None:
        raise GenerationUnknown(flow.name, number, ())
    entry = generations.expect(number)
    if number == generations.serving:
        raise GenerationServes(flow.name, number)
    for reader in app.flows:
        progress = progress_of(cluster, reader) if flow.writes in reader.reads else None
        if progress is not None and entry.topic in [source.log for source in progress.generation.inputs]:
            raise GenerationRead(flow.name, number, reader.name)


def cancel_abandoned_switch(cluster: Cluster, flow: Flow, now_ms: int) -> None:
    """Cancel the switch of the flow if the process that began it has ended."""
    generations = find_generations(cluster, flow.writes.name)
    if generations is not None and generations.switching and is_abandoned(generations, now_ms):
        with GenerationsWriter(cluster, flow) as writer:
            writer.write(writer.read())


def cancel_abandoned_switches(cluster: Cluster, app: Declared, flow: Flow, now_ms: int) -> None:
    """Do the same for the flow and for the flows whose rows it reads: it waits for their switches too."""
    cancel_abandoned_switch(cluster, flow, now_ms)
    for topic in flow.reads:
        writer = writer_of(app, topic)
        if writer is not None:
            cancel_abandoned_switch(cluster, writer, now_ms)
