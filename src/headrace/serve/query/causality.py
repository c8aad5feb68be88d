"""Decides whether a view at some position reflects a position token, even if flows lie between the token's topics and
the view.

A view's position is how far the view has read its topic. If a flow writes that topic, the flow's progress records
contain the input offsets of each batch. The check follows these records upstream, to the topics that the token names.

Only the newest progress records are in memory. A batch whose record is not in memory counts as not reached. A request
can therefore wait longer than necessary, but never receives rows that are too old.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.errors import from_kafka
from headrace.client.generations import GenerationsCache
from headrace.client.progress import generations
from headrace.client.records import take
from headrace.follow.origin import flow_that_writes
from headrace.model.declarations import Flow, View
from headrace.model.progress import Batch, Generation, Sources, decode
from headrace.serve.errors import InvalidPositionToken, PositionTokenOutdated
from headrace.serve.query.position_token import PositionToken
from headrace.stores.position import Position

__all__ = ["BatchProgress", "Causality", "ProgressTail"]

_GENERATION = re.compile(r"(.+)\.g[0-9]+")
_BATCHES_MAX = 5_000
_POLL_RECORDS_MAX = 10_000
_FIRST_READ_S = 10.0

Ends = Mapping[int, int]


class Causality:
    """Checks views against position tokens. Thread-safe."""

    def __init__(self, cluster: Cluster, app: App) -> None:
        self._app = app
        generations = GenerationsCache(cluster)
        self._tails = {flow.name: _FlowTails(cluster, flow, generations) for flow in app.flows}

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()

    def refresh(self, view: View) -> None:
        """Read the new progress records of the flows that the view derives from."""
        for flow in self._upstream_flows(view):
            self._tails[flow.name].refresh()

    def newest_output(self, flow: Flow) -> str | None:
        """The name of the log topic that the flow's serving generation writes. Reads the log."""
        tail = self._tails[flow.name]
        tail.refresh()
        return tail.serving_output()

    def check_related(self, view: View, token: PositionToken) -> None:
        """Raise ``InvalidPositionToken`` unless the view derives from one of the token's topics."""
        upstream = {
            view.topic.name,
            *(topic.name for flow in self._upstream_flows(view) for topic in flow.reads),
        }
        if not any(_is_generation_of(log_topic, upstream) for log_topic in token.topics):
            raise InvalidPositionToken(
                f"view {view.name!r} does not derive from {', '.join(sorted(token.topics))[:300]}",
                hint=f"the view derives from {', '.join(sorted(upstream))}",
            )

    def covers(self, view: View, position: Position, token: PositionToken) -> bool:
        """Return whether rows at this position reflect everything that the token demands."""
        demand = _Demand(token)
        covered = demand.is_met(position.topic, position.topic_id, position.offsets)
        flow = flow_that_writes(view.topic.name, self._app.flows)
        if flow is not None:
            tail = self._tails[flow.name]
            generation = tail.generation(position.generation)
            batch = tail.batch(position.generation, position.batch)
            covered = self._inputs_cover(demand, flow, generation, batch, position) and covered
        if covered and not demand.checked:
            # All upstream topics are known, and none of them is in the token.
            raise PositionTokenOutdated(
                f"the position token in after= is outdated: a flow was rebuilt, and view {view.name!r} is no longer"
                f" derived from {', '.join(sorted(token.topics))[:300]}",
                hint="read without after, and use the token of that response",
            )
        return covered

    def _inputs_cover(
        self,
        demand: _Demand,
        flow: Flow,
        generation: Generation | None,
        batch: BatchProgress | None,
        position: Position | None = None,
    ) -> bool:
        """Return whether the flow's inputs up to ``batch`` meet the demand.

        ``position`` is the position of the view, if the view reads the flow's output directly.
        """
        if generation is None:
            return False
        realtime = generation.latency == "realtime" and position is not None
        if batch is None and not realtime:
            return False
        covered = True
        for source in generation.inputs:
            ends: Ends = batch.inputs.get(source.log, {}) if batch else {}
            if realtime and source.kind == "events" and position is not None:
                ends = _add_realtime_sources(ends, position)
            covered = demand.is_met(source.log, source.topic_id, ends) and covered
            upstream = flow_that_writes(source.topic, self._app.flows)
            if upstream is not None and upstream is not flow:
                tail = self._tails[upstream.name]
                writer = tail.generation(output=source.log)
                reached = tail.last_batch_within(writer.generation, dict(ends)) if writer else None
                covered = self._inputs_cover(demand, upstream, writer, reached) and covered
        return covered

    def _upstream_flows(self, view: View) -> list[Flow]:
        """The flows that the view derives from, directly or through other flows."""
        flows: list[Flow] = []
        topics = [view.topic.name]
        while topics:
            flow = flow_that_writes(topics.pop(), self._app.flows)
            if flow is not None and flow not in flows:
                flows.append(flow)
                topics += [topic.name for topic in flow.reads]
        return flows


class _Demand:
    """A token, and those of its topics that the check has found upstream of the view."""

    def __init__(self, token: PositionToken) -> None:
        self._token = token
        self.checked: set[str] = set()

    def is_met(self, log_topic: str, topic_id: str, ends: Ends) -> bool:
        """Return whether ``ends`` reaches the token's offsets of the topic. Return True if the token does not name
        the topic.
        """
        required = self._token.topics.get(log_topic)
        if required is None:
            return True
        if required.topic_id != topic_id:
            raise PositionTokenOutdated(
                f"the parameter 'after' names topic {log_topic!r}, which was deleted and created again",
                hint="read without after, and use the token of that response",
            )
        self.checked.add(log_topic)
        return all(ends.get(number, 0) >= end for number, end in required.ends.items())


def _is_generation_of(log_topic: str, topics: set[str]) -> bool:
    """Return whether the log topic is any generation of one of these topics."""
    generation = _GENERATION.fullmatch(log_topic)
    return log_topic in topics or (generation is not None and generation[1] in topics)


def _add_realtime_sources(ends: Ends, position: Position) -> dict[int, int]:
    """Extend ``ends`` by the source offsets that rows of a real-time flow carry.

    The output reflects an input partition up to the lowest offset that all output partitions have reached.
    """
    extended = dict(ends)
    sources: Sources = position.sources
    for number in {int(source.partition("/")[2]) for source in sources}:
        lowest = min(sources.get(f"{output}/{number}", -1) for output in position.offsets)
        extended[number] = max(lowest + 1, extended.get(number, 0))
    return extended


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The progress of a flow after a batch."""

    generation: int
    batch: int
    inputs: dict[str, dict[int, int]]
    """The end offset that the output reflects, by log topic of each input (events and tables) and by partition."""
    written: Ends
    """The offset after the last row so far, by partition of the output."""


class _FlowTails:
    """The progress records of all generations of one flow. Thread-safe."""

    def __init__(self, cluster: Cluster, flow: Flow, generations: GenerationsCache) -> None:
        self._cluster = cluster
        self._flow = flow
        self._cache = generations
        self._lock = threading.Lock()
        self._tails: dict[str, ProgressTail] = {}
        """By progress topic, the serving generation's first."""

    def close(self) -> None:
        for tail in self._all():
            tail.close()

    def refresh(self) -> None:
        topics = self._cache.progress_topics(self._flow)
        with self._lock:
            before = self._tails
            self._tails = {topic: before.get(topic) or ProgressTail(self._cluster, topic) for topic in topics}
            dropped = [tail for topic, tail in before.items() if topic not in self._tails]
        for tail in dropped:
            tail.close()
        for tail in self._all():
            tail.refresh()

    def generation(self, number: int = 0, output: str = "") -> Generation | None:
        found = (tail.generation(number, output) for tail in self._all())
        return next((generation for generation in found if generation is not None), None)

    def serving_output(self) -> str | None:
        return next((tail.newest_output() for tail in self._all()), None)

    def batch(self, generation: int, batch: int) -> BatchProgress | None:
        found = (tail.batch(generation, batch) for tail in self._all())
        return next((progress for progress in found if progress is not None), None)

    def last_batch_within(self, generation: int, offsets: Ends) -> BatchProgress | None:
        found = (tail.last_batch_within(generation, offsets) for tail in self._all())
        return next((progress for progress in found if progress is not None), None)

    def _all(self) -> list[ProgressTail]:
        with self._lock:
            return [*self._tails.values()]


class ProgressTail:
    """The newest progress records of one flow. Thread-safe."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._lock = threading.Lock()
        self._consumer: Consumer | None = None
        self._generations: dict[int, Generation] = {}
        self._batches: deque[BatchProgress] = deque(maxlen=_BATCHES_MAX)

    def close(self) -> None:
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None

    def refresh(self) -> None:
        """Read new records. The first call reads all generations and the newest batches."""
        with self._lock:
            if self._consumer is None:
                if self._cluster.topic(self._topic) is None:
                    return
                self._open()
            else:
                self._poll(0)

    def generation(self, number: int = 0, output: str = "") -> Generation | None:
        """The generation with this number, or with this output topic."""
        with self._lock:
            generations = [*self._generations.values()]
        return next(
            (
                generation
                for generation in generations
                if generation.generation == number or generation.output == output
            ),
            None,
        )

    def newest_output(self) -> str | None:
        with self._lock:
            newest = max(self._generations, default=None)
            return None if newest is None else self._generations[newest].output

    def batch(self, generation: int, batch: int) -> BatchProgress | None:
        return next(
            (
                progress
                for progress in self._newest_first()
                if (progress.generation, progress.batch) == (generation, batch)
            ),
            None,
        )

    def last_batch_within(self, generation: int, offsets: Ends) -> BatchProgress | None:
        """The last batch that is completely below ``offsets`` of the output, together with all earlier batches."""
        for batch in self._newest_first():
            if batch.generation == generation and all(
                offsets.get(number, 0) >= end for number, end in batch.written.items()
            ):
                return batch
        return None

    def _newest_first(self) -> list[BatchProgress]:
        with self._lock:
            return [*reversed(self._batches)]

    def _open(self) -> None:
        start, end = self._cluster.starts(self._topic)[0], self._cluster.ends(self._topic)[0]
        # A generation has one record, which can lie before the range of batches that is read below.
        self._generations = {record.generation: record for record in generations(self._cluster, self._topic)}
        consumer = self._cluster.consumer({"fetch.wait.max.ms": 100})
        consumer.assign([TopicPartition(self._topic, 0, max(start, end - 2 * _BATCHES_MAX))])
        self._consumer = consumer
        try:
            while not self._poll(_FIRST_READ_S):
                pass
        except BaseException:
            self._consumer = None
            consumer.close()
            raise

    def _poll(self, timeout_s: float) -> bool:
        """Read the available records. Return whether the end of the topic was reached."""
        assert self._consumer is not None
        at_end = False
        messages = take(self._consumer, _POLL_RECORDS_MAX, timeout_s)
        if not messages and timeout_s:
            raise from_kafka(KafkaError(KafkaError._TIMED_OUT), f"reading topic {self._topic!r}")
        for message in messages:
            error = message.error()
            if error is None:
                self._add(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end = True
            elif not error.retriable() and error.code() not in (
                KafkaError._TRANSPORT,
                KafkaError._ALL_BROKERS_DOWN,
            ):
                raise from_kafka(error, f"reading topic {self._topic!r}")
        return at_end

    def _add(self, message: Message) -> None:
        record = decode(message.value() or b"", where=f"{self._topic} at offset {message.offset()}")
        if isinstance(record, Generation):
            self._generations[record.generation] = record
        elif isinstance(record, Batch):
            self._batches.append(self._progress(record))

    def _progress(self, batch: Batch) -> BatchProgress:
        last = self._batches[-1] if self._batches else None
        previous = last if last is not None and last.generation == batch.generation else None
        generation = self._generations[batch.generation]
        inputs = {topic: dict(ends) for topic, ends in previous.inputs.items()} if previous else {}
        for topic, ranges in batch.inputs.items():
            ends = inputs.setdefault(topic, {})
            for number, (_, end) in ranges.items():
                ends[int(number)] = max(end, ends.get(int(number), 0))
        for topic, tables in batch.tables.items():
            inputs.setdefault(topic, {}).update({int(number): end for number, end in tables.items()})
        written = dict(previous.written) if previous else self._written_before(generation, batch)
        for number, (_, end) in batch.outputs.get(generation.output, {}).items():
            written[int(number)] = max(end, written.get(int(number), 0) if previous else 0)
        return BatchProgress(batch.generation, batch.batch, inputs, written)

    def _written_before(self, generation: Generation, batch: Batch) -> dict[int, int]:
        """Return an upper bound of the offsets that earlier batches wrote, for the first batch in memory."""
        if batch.batch == 0:
            return {int(number): start for number, start in generation.output_starts.items()}
        return self._cluster.ends(generation.output) if self._cluster.topic(generation.output) else {}
