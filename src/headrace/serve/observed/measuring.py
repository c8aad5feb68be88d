"""Where everything is, measured again and again: of whoever runs it, else of the log and the stores.

It outlasts a log that does not answer: then what was measured last is told, with why and since when.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.errors import from_kafka
from headrace.client.progress_log import Progress
from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.model.flow import Flow
from headrace.model.topic import Topic
from headrace.model.view import View
from headrace.ops.lag.app_readers import AppReaders
from headrace.ops.lag.lag import Lag
from headrace.ops.lag.log_look import KeptLook, LogLook
from headrace.ops.lag.meter import LagMeter
from headrace.ops.lag.reader import ViewPlace
from headrace.serve.live import LiveLook
from headrace.serve.observed.noted import Noted
from headrace.serve.views import Views
from headrace.views.position import Position

__all__ = ["Measured", "Measuring"]

_TIMEOUT_S = 3.0
_STORE_AGAIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Measured:
    log: LogLook = field(default_factory=LogLook)
    lags: Mapping[tuple[str, str], Lag] = field(default_factory=dict)
    """By what and name, as of readers."""
    progress: Mapping[str, Progress] = field(default_factory=dict)
    """By flow."""
    positions: Mapping[str, Position] = field(default_factory=dict)
    """By view."""
    trouble: str = ""
    """Why the log did not answer, where it did not."""
    silent_s: float = 0.0
    """Since when."""

    def log_name(self, app: App, topic: Topic) -> str:
        """Of a topic that a flow writes, its newest generation."""
        writer = app.writer_of(topic)
        at = self.progress.get(writer.name) if writer else None
        return at.generation.output if at else topic.name


class Measuring:
    """In one thread."""

    def __init__(self, app: App, cluster: Cluster, views: Views, noted: Noted, clock: Clock) -> None:
        self._app = app
        self._views = views
        self._noted = noted
        self._clock = clock
        self._kept = KeptLook(cluster, clock)
        self._meter = LagMeter(cluster, clock)
        self._readers = AppReaders(cluster, app, self._progress_of, self._place_of, with_groups=False)
        self._live: LiveLook | None = None
        self._progress: dict[str, Progress] = {}
        self._positions: dict[str, Position] = {}
        self._stores: dict[str, tuple[float, HeadraceError]] = {}
        """Views whose store did not answer: when, and what it said."""
        self._last = Measured()
        self._answered = clock.steady()

    @staticmethod
    def patient_with(cluster: Cluster) -> Cluster:
        """The same log, with its client, and not waited for for long."""
        cluster.admin()
        return dataclasses.replace(cluster, timeout_s=min(cluster.timeout_s, _TIMEOUT_S))

    def measure(self, live: LiveLook | None) -> Measured:
        self._live = live
        self._progress, self._positions = {}, {}
        try:
            self._noted.look()
            readers = self._readers()
            seen = Measured(progress=self._progress, positions=self._positions)
            topics = {seen.log_name(self._app, topic) for topic in self._app.topics}
            topics |= {one for reader in readers for one in reader.log_topics}
            log = self._kept.look(topics)
            lags: dict[tuple[str, str], Lag] = {}
            for lag in self._meter.look(readers, log):
                lags[lag.reader.what, lag.reader.name] = lag
        except (HeadraceError, KafkaException, TimeoutError) as error:
            return dataclasses.replace(
                self._last,
                progress={**self._last.progress, **self._progress},
                positions={**self._last.positions, **self._positions},
                trouble=_told(error),
                silent_s=self._clock.steady() - self._answered,
            )
        self._answered = self._clock.steady()
        self._last = dataclasses.replace(seen, log=log, lags=lags)
        return self._last

    def close(self) -> None:
        self._meter.close()

    def _progress_of(self, flow: Flow) -> Progress | None:
        running = self._live.flows.get(flow.name) if self._live else None
        found = running.progress if running else None
        found = found or self._noted.progress_of(flow)
        if found is not None:
            self._progress[flow.name] = found
        return found

    def _place_of(self, view: View) -> ViewPlace:
        followed = self._live.views.get(view.name) if self._live else None
        position = followed.status.position if followed else self._stored(view)
        state = followed.status.state if followed else "serving" if position else "not built"
        if position is None:
            return ViewPlace(state)
        self._positions[view.name] = position
        return ViewPlace(
            state,
            position.topic,
            position.offsets,
            position.generation,
            position.batch,
            position.dead,
        )

    def _stored(self, view: View) -> Position | None:
        """A store that does not answer is not asked again at once: others would wait for it each time."""
        now = self._clock.steady()
        at, trouble = self._stores.get(view.name, (0.0, None))
        if trouble is not None and now - at < _STORE_AGAIN_S:
            raise trouble
        try:
            standing = self._views.standing(view)
        except HeadraceError as error:
            self._stores[view.name] = self._clock.steady(), error
            raise
        self._stores.pop(view.name, None)
        return standing.position if standing else None


def _told(error: HeadraceError | KafkaException | TimeoutError) -> str:
    if isinstance(error, HeadraceError):
        return error.message
    cause = error if isinstance(error, KafkaException) else KafkaError(KafkaError._TIMED_OUT)
    return from_kafka(cause, "asking the log").message
