"""The generations of a flow that exist side by side, and which of them serves.

A flow has one generation until its first rebuild. From then on, topic ``headrace.generations`` has a record per flow
(key: the flow's name) with all generations that exist: the *serving* one, perhaps one that is *building*, and those
that are *kept*. Each of them has a progress topic and a topic for its rows.

The flow's topic, under the name that the app declares, is the *stable topic*. The serving generation writes it; all
other generations write only topics of their own (``<topic>.g2``). A switch to another generation writes the difference
between the two to the stable topic, so a reader of the stable topic needs to know nothing about generations.

The topic is compacted. Only the owner of the transactional id ``headrace.generations.<flow>`` writes the record of a
flow: it opens the id, reads the record, and writes the next one. So no update is lost.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable
from types import TracebackType

import msgspec

from headrace.app_argument import app_argument
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import APPEND_TIME
from headrace.client.errors import LogError
from headrace.client.progress import Progress, current, generations, wait_until_decided
from headrace.client.records import read
from headrace.client.transactional_writer import BULK, OutgoingRecord, TransactionalWriter
from headrace.clock import Clock, SystemClock
from headrace.errors import HeadraceError
from headrace.model.declarations import Flow
from headrace.model.progress import Generation

__all__ = [
    "TOPIC",
    "Entry",
    "FlowGenerations",
    "GenerationServes",
    "GenerationUnknown",
    "GenerationsCache",
    "GenerationsWriter",
    "Switch",
    "UnreadableGenerations",
    "cancel_abandoned_switch",
    "drop_generation",
    "end_of_generations",
    "find_generations",
    "generations_in_log",
    "generations_of",
    "is_abandoned",
    "is_progress_topic",
    "process_name",
    "progress_of",
    "progress_topic_of",
    "serving_progress_topic",
    "transactional_id_of",
]

TOPIC = "headrace.generations"
_CONFIGS = {"cleanup.policy": "compact", **APPEND_TIME}
_SWITCHES_MAX = 20
_CACHE_S = 1.0
_TRANSACTION_MS = 600_000
"""The transaction of a switch has all rows that differ."""


class UnreadableGenerations(HeadraceError):
    code = "HR-FLOW-GENERATIONS"


class GenerationUnknown(HeadraceError):
    code = "HR-FLOW-GENERATION-UNKNOWN"

    def __init__(self, flow: str, number: int, known: Iterable[int]) -> None:
        numbers = ", ".join(map(str, known)) or "none"
        super().__init__(
            f"flow {flow} has no generation {number}",
            detail=f"its generations are: {numbers}",
            hint=f"headrace generation list {app_argument()} shows the generations of all flows",
        )


class Entry(msgspec.Struct, frozen=True):
    """One generation that exists."""

    number: int
    progress: str
    """Its progress topic."""
    topic: str
    """The topic to which it writes its rows. For the first generation this is the stable topic until another generation
    replaces it.
    """
    fingerprint: str
    """The fingerprint of the function that derives it."""
    reason: str
    begun_ms: int
    approved: bool = False
    """Whether an operator accepts its difference from the serving generation, whatever it is."""
    kept_ms: int = 0
    """When another generation replaced it; 0 if it has not served yet, or serves."""


class Switch(msgspec.Struct, frozen=True):
    """A switch from one generation to another."""

    before: int
    after: int
    at_ms: int
    published: int
    """The number of records that the switch wrote to the stable topic."""


class FlowGenerations(msgspec.Struct, frozen=True):
    flow: str
    app: str
    stable: str
    """The name of the stable topic."""
    serving: int
    newest: int
    """The highest number that any generation of the flow ever had."""
    entries: tuple[Entry, ...]
    is_published: bool = True
    """Whether the stable topic has the rows of the serving generation. False after a switch back, until the difference
    is published, and for a flow that an earlier release rebuilt.
    """
    switching: int = 0
    """The generation to which a switch is under way; else 0. Meanwhile the serving generation writes nothing."""
    is_sealed: bool = False
    """Whether the generation to which the flow switches writes nothing either, because its rows are compared."""
    switch_by: str = ""
    """The process that switches, as ``host:pid``."""
    switch_until_ms: int = 0
    """If the switch has neither ended nor been extended until then, another process may cancel it."""
    switches: tuple[Switch, ...] = ()
    """The last switches, the newest last."""

    def entry(self, number: int) -> Entry | None:
        return next((entry for entry in self.entries if entry.number == number), None)

    def expect(self, number: int) -> Entry:
        found = self.entry(number)
        if found is None:
            raise GenerationUnknown(self.flow, number, (entry.number for entry in self.entries))
        return found

    @property
    def serving_entry(self) -> Entry:
        return self.expect(self.serving)

    @property
    def building(self) -> Entry | None:
        """The newest generation that has never served."""
        waiting = [entry for entry in self.entries if entry.number != self.serving and not entry.kept_ms]
        return waiting[-1] if waiting else None

    @property
    def kept(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.number != self.serving and entry.kept_ms)

    def writes_stable(self, number: int) -> bool:
        """Whether this generation writes the stable topic now."""
        return number == self.serving and self.is_published and not self.switching

    def role(self, number: int) -> str:
        if number == self.serving:
            return "serving"
        found = self.entry(number)
        return "kept" if found is not None and found.kept_ms else "building"

    # Changes

    def with_entry(self, entry: Entry) -> FlowGenerations:
        """Add or replace an entry."""
        others = [other for other in self.entries if other.number != entry.number]
        ordered = tuple(sorted([*others, entry], key=lambda each: each.number))
        return msgspec.structs.replace(self, entries=ordered, newest=max(self.newest, entry.number))

    def without(self, number: int) -> FlowGenerations:
        return msgspec.structs.replace(
            self, entries=tuple(entry for entry in self.entries if entry.number != number)
        )

    def is_paused(self, number: int) -> bool:
        """Whether the generation must not write now, because of a switch."""
        return bool(self.switching) and (
            number == self.serving or (self.is_sealed and number == self.switching)
        )

    def with_switch(self, number: int, by: str, until_ms: int, *, sealed: bool = False) -> FlowGenerations:
        """Begin a switch, or extend it."""
        return msgspec.structs.replace(
            self, switching=number, is_sealed=sealed, switch_by=by, switch_until_ms=until_ms
        )

    def without_switch(self) -> FlowGenerations:
        return msgspec.structs.replace(self, switching=0, is_sealed=False, switch_by="", switch_until_ms=0)

    def switched(self, published: int, at_ms: int, *, is_published: bool = True) -> FlowGenerations:
        """Complete the switch. An old generation that wrote only the stable topic continues in a topic of its own."""
        old = self.serving_entry
        topic = f"{self.stable}.g{old.number}" if old.topic == self.stable else old.topic
        new = msgspec.structs.replace(self.expect(self.switching), kept_ms=0, approved=False)
        changed = self.with_entry(msgspec.structs.replace(old, kept_ms=at_ms, topic=topic)).with_entry(new)
        switch = Switch(old.number, new.number, at_ms, published)
        return msgspec.structs.replace(
            changed.without_switch(),
            serving=new.number,
            is_published=is_published,
            switches=(*self.switches, switch)[-_SWITCHES_MAX:],
        )


_decoder = msgspec.json.Decoder(FlowGenerations)
_encoder = msgspec.json.Encoder()


def find_generations(cluster: Cluster, flow: str) -> FlowGenerations | None:
    """Return the recorded generations of a flow; None if the flow was never rebuilt.

    The topic has one record per rebuild or switch since the last compaction, so it is read completely.
    """
    if cluster.topic(TOPIC) is None:
        return None
    value = None
    ranges = {0: (cluster.starts(TOPIC)[0], cluster.ends(TOPIC)[0])}
    for message in read(cluster, TOPIC, ranges):
        if message.key() == flow.encode():
            value = message.value()
    if value is None:
        return None
    try:
        return _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableGenerations(
            f"topic {TOPIC}: the record of flow {flow} is not of this release: {error}",
            hint="only Headrace may write to this topic; run the release that wrote the record",
        ) from error


def generations_of(cluster: Cluster, flow: Flow) -> FlowGenerations | None:
    """Return the generations of a flow; None before its first start."""
    recorded = find_generations(cluster, flow.name)
    if recorded is not None:
        return recorded
    progress = current(cluster, flow.progress_topic)
    return None if progress is None else _implied(flow, progress)


def _implied(flow: Flow, progress: Progress) -> FlowGenerations:
    """Return the generations of a flow that this release has not rebuilt: its newest generation serves.

    Earlier releases wrote all generations to one progress topic, and only the first to the stable topic.
    """
    generation = progress.generation
    entry = Entry(
        generation.generation,
        flow.progress_topic,
        generation.output,
        generation.fingerprint,
        generation.reason,
        generation.started_ms,
    )
    return FlowGenerations(
        flow.name,
        generation.app,
        flow.writes.name,
        generation.generation,
        generation.generation,
        (entry,),
        is_published=generation.output == flow.writes.name,
    )


def progress_topic_of(cluster: Cluster, flow: Flow, number: int) -> str:
    """Return the progress topic of a generation. Generations of earlier releases share the flow's first one."""
    own = own_progress_topic(flow.name, number)
    return own if number > 1 and cluster.topic(own) is not None else flow.progress_topic


def own_progress_topic(flow: str, number: int) -> str:
    return f"{flow}.g{number}.progress"


def is_progress_topic(flow: Flow, topic: str) -> bool:
    """Whether this is the progress topic of any generation of the flow."""
    number = topic.removeprefix(f"{flow.name}.g").removesuffix(".progress")
    return topic == flow.progress_topic or (
        number.isdecimal() and topic == own_progress_topic(flow.name, int(number))
    )


def transactional_id_of(flow: Flow, entry: Entry | None) -> str:
    """Return the transactional id of a generation's driver.

    It does not contain the app's name: if two apps have a flow of the same name, they must fence each other.
    """
    is_first = entry is None or entry.progress == flow.progress_topic
    return f"headrace.flow.{flow.name}" + ("" if is_first or entry is None else f".g{entry.number}")


def serving_progress_topic(cluster: Cluster, flow: Flow) -> str:
    recorded = find_generations(cluster, flow.name)
    return flow.progress_topic if recorded is None else recorded.serving_entry.progress


def progress_of(cluster: Cluster, flow: Flow, number: int = 0) -> Progress | None:
    """Return the progress of a generation (0: the serving one); None if it has not begun."""
    if not number:
        return current(cluster, serving_progress_topic(cluster, flow))
    progress = current(cluster, progress_topic_of(cluster, flow, number))
    return progress if progress is None or progress.generation.generation == number else None


def generations_in_log(cluster: Cluster, flow: Flow) -> list[Generation]:
    """Return all generations whose progress topics exist, also those that neither serve nor are kept."""
    if cluster.topic(flow.progress_topic) is None:
        return []
    found = {record.generation: record for record in generations(cluster, flow.progress_topic)}
    recorded = find_generations(cluster, flow.name)
    for number in range(2, recorded.newest + 1 if recorded is not None else 0):
        topic = own_progress_topic(flow.name, number)
        progress = current(cluster, topic)
        if progress is not None:
            found[number] = progress.generation
    return [found[number] for number in sorted(found)]


class GenerationsCache:
    """The generations of flows, as of at most a second ago. Thread-safe."""

    def __init__(self, cluster: Cluster, clock: Clock | None = None) -> None:
        self._cluster = cluster
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._checked_s = float("-inf")
        self._end = -1
        self._found: dict[str, FlowGenerations | None] = {}

    def get(self, flow: Flow) -> FlowGenerations | None:
        """Return the generations that are recorded; None if the flow was never rebuilt."""
        with self._lock:
            now = self._clock.steady()
            if now - self._checked_s >= _CACHE_S:
                end = end_of_generations(self._cluster)
                if end != self._end:
                    self._found.clear()
                self._checked_s, self._end = now, end
            if flow.name not in self._found:
                found = find_generations(self._cluster, flow.name) if self._end >= 0 else None
                self._found[flow.name] = found
            return self._found[flow.name]

    def progress_topics(self, flow: Flow) -> list[str]:
        """Return the progress topics of all generations that exist, the serving one first."""
        found = self.get(flow)
        if found is None:
            return [flow.progress_topic]
        others = [entry.progress for entry in found.entries if entry.number != found.serving]
        return list(dict.fromkeys([found.serving_entry.progress, *others]))


def end_of_generations(cluster: Cluster) -> int:
    """Return the end of the topic, which grows with every change; -1 if no flow was ever rebuilt."""
    return cluster.ends(TOPIC)[0] if cluster.topic(TOPIC) is not None else -1


class GenerationsWriter:
    """Changes the record of one flow. Use it as a context manager; another writer of the same flow ends this one."""

    def __init__(self, cluster: Cluster, flow: Flow) -> None:
        self._cluster = cluster
        self._flow = flow
        cluster.ensure_topic(TOPIC, 1, _CONFIGS)
        self.writer = TransactionalWriter(
            cluster,
            f"headrace.generations.{flow.name}",
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
        value = _encoder.encode(generations)
        self.writer.send([OutgoingRecord(TOPIC, self._flow.name.encode(), value)])

    def begin_generation(self, fingerprint: str, reason: str, *, is_served_at_once: bool = False) -> Entry:
        """Record the next generation of the flow. Its driver begins to derive it."""
        generations = self.read()
        number = generations.newest + 1
        entry = Entry(
            number,
            own_progress_topic(self._flow.name, number),
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
    generations = find_generations(cluster, flow.name)
    if generations is not None and generations.switching and is_abandoned(generations, now_ms):
        with GenerationsWriter(cluster, flow) as writer:
            writer.write(writer.read())


class GenerationServes(HeadraceError):
    code = "HR-FLOW-GENERATION-SERVES"

    def __init__(self, flow: str, number: int) -> None:
        super().__init__(
            f"generation {number} of flow {flow} serves, so it cannot be dropped",
            hint=f"switch to another generation first: headrace generation switch {app_argument()} {flow} NUMBER",
        )
