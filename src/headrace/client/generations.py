"""Finds the generations of flows (``headrace.model.generations``) and their progress in the log."""

from __future__ import annotations

import threading

from headrace.client.cluster import Cluster
from headrace.client.progress import Progress, current, generations
from headrace.client.records import last_values
from headrace.clock import Clock, SystemClock
from headrace.model.declarations import Flow
from headrace.model.generations import Entry, FlowGenerations, decode
from headrace.model.progress import Generation

__all__ = [
    "TOPIC",
    "GenerationsCache",
    "all_generations",
    "end_of_generations",
    "find_generations",
    "generations_in_log",
    "generations_of",
    "is_progress_topic",
    "own_progress_topic",
    "progress_of",
    "progress_topic_of",
    "serving_progress_topic",
    "transactional_id_of",
]

TOPIC = "headrace.generations"
_CACHE_S = 1.0


def find_generations(cluster: Cluster, topic: str) -> FlowGenerations | None:
    """Return the recorded generations of the flow that derives the topic; None if the log has no such record."""
    value = last_values(cluster, TOPIC).get(topic.encode())
    return None if value is None else _decode(topic, value)


def all_generations(cluster: Cluster) -> dict[str, FlowGenerations]:
    """Return the recorded generations by the topic that their flow derives."""
    found = {}
    for key, value in last_values(cluster, TOPIC).items():
        topic = key.decode(errors="replace")
        found[topic] = _decode(topic, value)
    return found


def _decode(topic: str, value: bytes) -> FlowGenerations:
    return decode(value, where=f"topic {TOPIC}: the record of topic {topic}")


def generations_of(cluster: Cluster, flow: Flow) -> FlowGenerations | None:
    """Return the generations of a flow; None before its first start."""
    recorded = find_generations(cluster, flow.writes.name)
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
    own = own_progress_topic(flow, number)
    return own if number > 1 and cluster.topic(own) is not None else flow.progress_topic


def own_progress_topic(flow: Flow, number: int) -> str:
    return flow.own_names.topic(flow.name, f"g{number}.progress")


def is_progress_topic(flow: Flow, topic: str) -> bool:
    """Whether this is the progress topic of any generation of the flow."""
    prefix = flow.own_names.topic(flow.name, "g")
    number = topic.removeprefix(prefix).removesuffix(".progress")
    return topic == flow.progress_topic or (topic == f"{prefix}{number}.progress" and number.isdecimal())


def transactional_id_of(flow: Flow, entry: Entry | None) -> str:
    """Return the transactional id of a generation's driver.

    It contains the topic, not the names of the app and the flow: flows that write the same topic must fence each other.
    A flow that an earlier release started keeps its id, because a driver of that release may still run.
    """
    is_first = entry is None or entry.progress == flow.progress_topic
    name = flow.name if flow.name in flow.own_names.earlier else flow.writes.name
    return f"headrace.flow.{name}" + ("" if is_first or entry is None else f".g{entry.number}")


def serving_progress_topic(cluster: Cluster, flow: Flow) -> str:
    recorded = find_generations(cluster, flow.writes.name)
    return flow.progress_topic if recorded is None else recorded.serving_entry.progress


def progress_of(cluster: Cluster, flow: Flow, number: int = 0) -> Progress | None:
    """Return the progress of a generation (0: the serving one); None if it has no progress record yet."""
    if not number:
        return current(cluster, serving_progress_topic(cluster, flow))
    progress = current(cluster, progress_topic_of(cluster, flow, number))
    return progress if progress is None or progress.generation.generation == number else None


def generations_in_log(cluster: Cluster, flow: Flow) -> list[Generation]:
    """Return all generations whose progress topics exist, also those that neither serve nor are kept."""
    if cluster.topic(flow.progress_topic) is None:
        return []
    found = {record.generation: record for record in generations(cluster, flow.progress_topic)}
    recorded = find_generations(cluster, flow.writes.name)
    for number in range(2, recorded.newest + 1 if recorded is not None else 0):
        topic = own_progress_topic(flow, number)
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
                found = find_generations(self._cluster, flow.writes.name) if self._end >= 0 else None
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
