"""Measures the lag of an app's flows, views and consumer groups.

In ``headrace run`` the page, the readiness check, the metrics and the alert rules use the same monitor, so they show
the same numbers. A CLI command runs in another process and has its own monitor.

If the progress of a flow or the store of a view cannot be read, its lag is unknown. All other lags are still measured.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from confluent_kafka import KafkaError, KafkaException

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError, from_kafka
from headrace.client.group_admin import GroupAdminProcess
from headrace.client.progress import Progress
from headrace.clock import Clock, SystemClock
from headrace.errors import HeadraceError
from headrace.model.declarations import Flow, Topic, View
from headrace.model.rejection import Reason
from headrace.ops.dead.letter_index import LetterIndex
from headrace.ops.lag.lag import Lag
from headrace.ops.lag.log_snapshot import LogSnapshot, SnapshotCache
from headrace.ops.lag.meter import LagMeter
from headrace.ops.lag.progress_cache import ProgressCache
from headrace.ops.lag.reader import Reader, ViewPosition, flow_reader, view_reader

__all__ = ["Groups", "LagMonitor", "Measurement", "Positions"]

_SWEEP_S = 60.0
_LETTERS_S = 5.0
_LETTERS_MAX = 20_000
"""How many new dead letters one measurement reads."""


class Positions(Protocol):
    """Reads the positions that are not in the progress topics."""

    def running_progress(self, flow: Flow) -> Progress | None:
        """Return the progress of a flow that runs in this process; None for any other flow."""

    def view_position(self, view: View) -> ViewPosition: ...


@dataclass(frozen=True, slots=True)
class Measurement:
    log: LogSnapshot = field(default_factory=LogSnapshot)
    lags: Mapping[tuple[str, str], Lag] = field(default_factory=dict)
    """The lags of flows and views, by kind and name. A view's lag is the lag of its follower."""
    served: Mapping[str, Lag] = field(default_factory=dict)
    """By view, the lag of the rows that are served. During a rebuild it differs from ``lags``."""
    progress: Mapping[str, Progress] = field(default_factory=dict)
    """The newest progress by flow."""
    positions: Mapping[str, ViewPosition] = field(default_factory=dict)
    """The position by view, for views that are built."""
    error: str = ""
    """Why the log did not respond; empty if it did."""
    silent_s: float = 0.0
    """Seconds since the log last responded."""

    def log_name(self, app: App, topic: Topic) -> str:
        """Return the topic's name in the log. For a flow's topic, it is the name of the newest generation's topic."""
        writer = app.writer_of(topic)
        progress = self.progress.get(writer.name) if writer else None
        return progress.generation.output if progress else topic.name


class LagMonitor:
    """Thread-safe. ``timeout_s`` limits each wait for the log (default: the cluster's timeout)."""

    def __init__(
        self,
        cluster: Cluster,
        app: App,
        positions: Positions,
        letters: Path | None = None,
        clock: Clock | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """``letters`` is the file of the index of dead letters; without it, the index is in memory."""
        clock = clock or SystemClock()
        if timeout_s is not None:
            # Create the admin client before the copy, so that ``cluster`` and its copy share one client.
            cluster.admin()
            cluster = dataclasses.replace(cluster, timeout_s=min(cluster.timeout_s, timeout_s))
        self.app = app
        self.progress_cache = ProgressCache(app, cluster, clock)
        self.latest = Measurement()
        self.group_lags: list[Lag] = []
        self._partial = Measurement()
        """The positions that a measurement has read so far."""
        self._positions = positions
        self._clock = clock
        self._log = SnapshotCache(cluster, clock)
        self._meter = LagMeter(cluster, clock)
        self.letters = LetterIndex(letters, cluster, app)
        # Most dead-letter topics do not exist, and the cache would query missing topics often.
        self._letters_log = SnapshotCache(cluster, clock)
        self._letters_read_s = float("-inf")
        self.open_letters: Mapping[tuple[str, Reason], int] = {}
        """The number of open dead letters by dead-letter topic and reason, in the last measurement."""
        self._unread_letters: Mapping[str, int] = {}
        self._groups = Groups(cluster, clock)
        # Groups are measured less often, so their rates need a separate meter.
        self._group_meter = LagMeter(cluster, clock)
        self._lock = threading.Lock()
        self._group_lock = threading.Lock()
        self._responded_s = clock.steady()

    def close(self) -> None:
        with self._lock:
            self._meter.close()
            self.progress_cache.close()
            self.letters.close()
        with self._group_lock:
            self._group_meter.close()
            self._groups.close()

    @property
    def lags(self) -> list[Lag]:
        """The last measured lags of flows, views and groups."""
        return [*self.latest.lags.values(), *self.group_lags]

    def measure(
        self, served: Callable[[View], ViewPosition | None] | None = None, *, full: bool = False
    ) -> Measurement:
        """Measure all flows and views.

        While a follower rebuilds a view, the view still serves its old rows: ``served`` returns the position
        of these rows. ``full`` also queries what rarely changes, such as start offsets and retention.
        """
        with self._lock:
            return self._measure(served, full)

    def sample(self, served: Callable[[View], ViewPosition | None]) -> Measurement:
        """Like ``measure``, but if the log does not respond, return the previous lags with the error."""
        with self._lock:
            try:
                return self._measure(served, full=False)
            except (HeadraceError, KafkaException, TimeoutError) as error:
                return dataclasses.replace(
                    self.latest,
                    progress={**self.latest.progress, **self._partial.progress},
                    positions={**self.latest.positions, **self._partial.positions},
                    error=_message(error),
                    silent_s=self._clock.steady() - self._responded_s,
                )

    def measure_groups(self) -> list[Lag]:
        """Measure the consumer groups that read the app's topics. The topic names come from the last ``measure``."""
        with self._group_lock:
            self.group_lags = self._group_meter.measure(self._groups.readers(self._topics()))
            return self.group_lags

    def _measure(self, served: Callable[[View], ViewPosition | None] | None, full: bool) -> Measurement:
        app = self.app
        # ``sample`` reports these even if the log does not respond, because they can come from memory.
        progress: dict[str, Progress] = {}
        positions: dict[str, ViewPosition] = {}
        self._partial = measured = Measurement(progress=progress, positions=positions)
        self.progress_cache.update()
        unknown = self._read_progress(progress)
        readers = [self._flow(flow, measured, unknown.get(flow.name)) for flow in app.flows]
        readers += [self._view(view, measured, positions) for view in app.views]
        if served is not None:
            readers += [reader for view in app.views if (reader := self._served(view, measured, served))]
        dead = self._count_letters(progress, full=full)
        readers = [
            dataclasses.replace(reader, dead=dead.get((reader.what, reader.name))) for reader in readers
        ]
        topics = {measured.log_name(app, topic) for topic in app.topics}
        topics |= {topic for reader in readers for topic in reader.log_topics}
        log = self._log.snapshot(topics, full=full)
        lags: dict[tuple[str, str], Lag] = {
            (lag.reader.what, lag.reader.name): lag for lag in self._meter.measure(readers, log)
        }
        self._responded_s = self._clock.steady()
        served_lags = {
            view.name: lags.pop(("served", view.name), lags["view", view.name]) for view in app.views
        }
        self.latest = Measurement(log, lags, served_lags, progress, positions)
        return self.latest

    def _count_letters(
        self, progress: Mapping[str, Progress], *, full: bool
    ) -> Mapping[tuple[str, str], int | None]:
        """Return the number of open dead letters by kind and name of the reader. It is None while the index has read
        only older letters, and none of them is open.
        """
        now_s = self._clock.steady()
        if full or now_s - self._letters_read_s >= _LETTERS_S:
            log = self._letters_log.snapshot(self.letters.topics, full=full)
            self.letters.catch_up(log, progress, records_max=_LETTERS_MAX)
            self.open_letters = self.letters.open_counts()
            self._unread_letters = self.letters.unread(log)
            self._letters_read_s = now_s
        counts: dict[str, int] = {}
        for (topic, _), count in self.open_letters.items():
            counts[topic] = counts.get(topic, 0) + count
        readers = [("flow", flow.name, flow.dead_topic) for flow in self.app.flows]
        readers += [("view", view.name, view.dead_topic) for view in self.app.views]
        return {
            (what, name): counts.get(topic, None if self._unread_letters.get(topic) else 0)
            for what, name, topic in readers
        }

    def _read_progress(self, progress: dict[str, Progress]) -> dict[str, str]:
        """Return why the progress of a flow is unknown, by flow."""
        unknown = {}
        for flow in self.app.flows:
            try:
                newest = self._positions.running_progress(flow) or self.progress_cache.progress_of(flow)
            except LogError:
                raise
            except HeadraceError as error:
                unknown[flow.name] = error.message
                continue
            if newest is not None:
                progress[flow.name] = newest
        return unknown

    def _flow(self, flow: Flow, measured: Measurement, unknown: str | None) -> Reader:
        if unknown is not None:
            return Reader("flow", flow.name, unknown, lag_known=False)
        newest = measured.progress.get(flow.name)
        if newest is not None:
            return flow_reader(flow.name, newest.generation, newest.last)
        # The flow has not started. It will read its topics from their start.
        topics = tuple(measured.log_name(self.app, topic) for topic in flow.streams)
        return Reader("flow", flow.name, "not begun", topics=topics, has_started=False)

    def _view(self, view: View, measured: Measurement, positions: dict[str, ViewPosition]) -> Reader:
        try:
            position = self._positions.view_position(view)
        except LogError:
            raise
        except HeadraceError as error:
            return Reader("view", view.name, error.message, lag_known=False)
        if not position.topic:
            topics = (measured.log_name(self.app, view.topic),)
            return Reader("view", view.name, position.state, topics=topics, has_started=False)
        positions[view.name] = position
        return view_reader(view.name, position, self._writer_progress(view, measured))

    def _served(
        self, view: View, measured: Measurement, served: Callable[[View], ViewPosition | None]
    ) -> Reader | None:
        try:
            position = served(view)
        except LogError:
            raise
        except HeadraceError as error:
            return Reader("served", view.name, error.message, lag_known=False)
        if position is None:
            return None
        if not position.topic:
            return Reader("served", view.name, position.state, lag_known=False, has_started=False)
        reader = view_reader(view.name, position, self._writer_progress(view, measured))
        return dataclasses.replace(reader, what="served")

    def _writer_progress(self, view: View, measured: Measurement) -> Progress | None:
        writer = self.app.writer_of(view.topic)
        return measured.progress.get(writer.name) if writer else None

    def _topics(self) -> set[str]:
        """Return the topics whose consumer groups are measured: declared topics, topics of generations, and the topics
        for progress, late events and dead letters.
        """
        app, latest = self.app, self.latest
        names = {topic.name for topic in app.topics} | {latest.log_name(app, topic) for topic in app.topics}
        for flow in app.flows:
            names |= {flow.progress_topic, flow.late_topic, flow.dead_topic}
        return names | {view.dead_topic for view in app.views}


class Groups:
    """The consumer groups that read topics of an app.

    A cluster can have many other groups. All groups are queried once a minute. Between these queries, only groups that
    read the app's topics are queried.
    """

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._admin = GroupAdminProcess(cluster)
        self._clock = clock
        self._swept_s: float | None = None
        self._names: list[str] = []

    def close(self) -> None:
        self._admin.close()

    def readers(self, topics: Collection[str]) -> list[Reader]:
        """Return a reader per group with committed offsets in these topics, in the order of the group names."""
        now_s = self._clock.steady()
        is_sweep_due = self._swept_s is None or now_s - self._swept_s >= _SWEEP_S
        names = [*self._admin.list_groups()] if is_sweep_due else self._names
        readers = []
        for name, offsets in self._admin.committed_offsets(names).items():
            own = {partition: offset for partition, offset in offsets.items() if partition[0] in topics}
            if own:
                readers.append(Reader("group", name, "committed", own, read_committed=False))
        self._names = [reader.name for reader in readers]
        if is_sweep_due:
            self._swept_s = now_s
        return readers


def _message(error: HeadraceError | KafkaException | TimeoutError) -> str:
    if isinstance(error, HeadraceError):
        return error.message
    cause = error if isinstance(error, KafkaException) else KafkaError(KafkaError._TIMED_OUT)
    return from_kafka(cause, "querying the log").message
