"""What a generation must have read before it can replace another generation of its flow.

Of a topic that both read, it must have read what the other one has read.

If they read different topics for the same input, two generations of the flow upstream write these topics, and the
offsets cannot be compared. The end of the new topic is no goal as long as the generation upstream still derives history
and so appends to the topic. So the same rule applies to that generation first: it must have read enough to replace the
serving generation of its own flow. From then on its topic has all that the serving one has, and the present end of the
topic is what must be read.
"""

from __future__ import annotations

from headrace.client.cluster import Cluster
from headrace.client.generations import find_generations
from headrace.client.progress import Progress, current
from headrace.model.generations import Entry, FlowGenerations
from headrace.model.progress import Batch, Generation, Input

__all__ = ["Coverage"]


class Coverage:
    """What ``after`` must have read to replace ``before``, as of now.

    The goal in a topic of a flow upstream is set later, by the first call of ``is_reached`` that finds that the
    generation upstream has caught up.
    """

    def __init__(self, cluster: Cluster, before: Progress, after: Generation) -> None:
        self._cluster = cluster
        self._inputs = after.inputs
        self._goals: dict[str, dict[int, int]] = {}
        """The end offset that must be read, by topic and partition."""
        self._upstream: dict[str, Coverage] = {}
        """The goals of the generations upstream that do not serve, by the topic that they write."""
        self._decided_ends: dict[str, int] = {}
        earlier = {source.topic: source for source in before.generation.inputs}
        for source in after.inputs:
            same = earlier.get(source.topic)
            if same is not None and same.topic_id == source.topic_id:
                ranges = before.last.inputs.get(same.log, {}) if before.last is not None else {}
                self._goals[source.log] = {int(number): end for number, (_, end) in ranges.items()}

    def is_reached(self, last: Batch | None) -> bool:
        """Whether a generation whose last batch is ``last`` has read enough."""
        return all(self._has_goal(source) and self._has_read(source, last) for source in self._inputs)

    def are_tables_complete(self) -> bool:
        """Whether the generations upstream that write tables have caught up."""
        return all(self._has_goal(source) for source in self._inputs if source.kind == "table")

    def _has_read(self, source: Input, last: Batch | None) -> bool:
        if source.kind != "events":
            return True
        ranges = last.inputs.get(source.log, {}) if last is not None else {}
        read = {int(number): end for number, (_, end) in ranges.items()}
        return all(
            read.get(number, source.starts.get(str(number), 0)) >= end
            for number, end in self._goals[source.log].items()
        )

    def _has_goal(self, source: Input) -> bool:
        if source.log in self._goals:
            return True
        generations = find_generations(self._cluster, source.topic)
        entries = generations.entries if generations is not None else ()
        writer = next((entry for entry in entries if entry.topic == source.log), None)
        if generations is None or writer is None or writer.number == generations.serving:
            self._goals[source.log] = self._cluster.ends(source.log)
            return True
        if not self._has_caught_up(source.log, generations, writer):
            return False
        # The rows of the batch that was the last one to read may become visible a moment after its progress record.
        self._goals[source.log] = self._cluster.ends(source.log, committed=False)
        return True

    def _has_caught_up(self, topic: str, generations: FlowGenerations, writer: Entry) -> bool:
        """Whether the generation that writes the topic can replace the serving one."""
        cluster, serving = self._cluster, generations.serving_entry
        after = current(cluster, writer.progress)
        if after is None:
            return False
        if topic not in self._upstream:
            # Rows may be visible a moment before their progress record, so wait for the transactions of now.
            end = self._decided_ends.setdefault(topic, cluster.ends(serving.progress, committed=False)[0])
            before = current(cluster, serving.progress) if cluster.ends(serving.progress)[0] >= end else None
            if before is None:
                return False
            self._upstream[topic] = Coverage(cluster, before, after.generation)
        return self._upstream[topic].is_reached(after.last)
