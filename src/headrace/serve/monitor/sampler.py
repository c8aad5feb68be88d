"""Samples the app once a second for all clients, in its own thread.

Each sample produces one document, and one row of numbers for each node of the app's graph, in a ring buffer. Taking a
sample queries the log and the stores. If the app has many parts, the interval grows, so that sampling uses at most a
tenth of one core. A sample counts as recent for two intervals.
"""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.progress import Progress
from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.model.declarations import Flow, View
from headrace.ops.alerts.alert_log import AlertRecord
from headrace.ops.graph import Graph
from headrace.ops.lag.lag import Lag
from headrace.ops.lag.monitor import LagMonitor
from headrace.ops.lag.reader import ViewPosition
from headrace.serve.monitor.app_document import AppDocuments
from headrace.serve.monitor.runtime_probe import RuntimeProbe, RuntimeStatus
from headrace.serve.query.views import Views

__all__ = ["FIELDS", "SAMPLES_MAX", "Ring", "Sample", "Sampler", "StoredPositions"]

_INTERVAL_S = 1.0
_CORE_SHARE_MAX = 0.1
"""Maximum share of one core."""
_JOIN_S = 2.0
_TIMEOUT_S = 3.0
_STORE_RETRY_S = 10.0


@dataclass(frozen=True, slots=True)
class Sample:
    number: int
    document: Mapping[str, Any]
    encoded: bytes
    served: Mapping[str, Lag]
    """The lag of the rows that each view serves; empty if the log did not respond."""
    firing: Sequence[AlertRecord]
    progress: Mapping[str, Progress]
    """The newest progress by flow."""
    error: str = ""
    """Why the log did not respond."""
    started_s: float = 0.0
    """Seconds on the steady clock."""
    recent_until_s: float = 0.0


class Sampler:
    """Calls ``publish`` with each sample, and ``fail`` if sampling itself fails. Both run in the sampler's thread."""

    def __init__(
        self,
        app: App,
        cluster: Cluster,
        views: Views,
        graph: Graph,
        probe: RuntimeProbe | None,
        letters: Path,
        clock: Clock,
        publish: Callable[[Sample], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._probe = probe
        self._clock = clock
        self._publish = publish
        self._fail = fail
        self._stored_positions = StoredPositions(views, clock)
        self._monitor = (
            probe.lag_monitor
            if probe
            else LagMonitor(cluster, app, self._stored_positions, letters, clock, _TIMEOUT_S)
        )
        self.progress_cache = self._monitor.progress_cache
        self.progress_cache.follows_alerts = True
        self._documents = AppDocuments(app, graph, clock)
        self._rings = {node.id: Ring(node.kind) for node in graph.nodes}
        self._started_s = clock.steady()
        self._number = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="serve monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and wait briefly. A thread that waits for an unresponsive log ends after its timeout."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    def ring(self, node: str) -> Ring | None:
        return self._rings.get(node)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                started_s, cpu_s = self._clock.steady(), time.thread_time()
                sample = self._sample()
                interval_s = max(_INTERVAL_S, (time.thread_time() - cpu_s) / _CORE_SHARE_MAX)
                recent_until_s = started_s + 2 * interval_s
                self._publish(replace(sample, started_s=started_s, recent_until_s=recent_until_s))
                self._stop.wait(interval_s - (self._clock.steady() - started_s))
        except Exception as error:
            self._fail(error)
        finally:
            if self._probe is None:
                self._monitor.close()

    def _sample(self) -> Sample:
        status = self._probe.status() if self._probe else None
        measured = self._monitor.sample(lambda view: self._served_position(view, status))
        runtime_alerts = status.firing if status else None
        firing = self.progress_cache.firing if runtime_alerts is None else [*runtime_alerts]
        uptime_s = status.uptime_s if status else self._clock.steady() - self._started_s
        document = self._documents.build(status, measured, firing, uptime_s)
        for node, ring in self._rings.items():
            ring.append(document["at_ms"], document["nodes"][node])
        self._number += 1
        encoded = msgspec.json.encode(document)
        served = {} if measured.error else measured.served
        return Sample(self._number, document, encoded, served, firing, measured.progress, measured.error)

    def _served_position(self, view: View, status: RuntimeStatus | None) -> ViewPosition | None:
        """Read the position of the view's served rows from the store. Return None if the lag monitor already measures
        these rows.
        """
        follower = status.views.get(view.name) if status else None
        if status is None or (follower is not None and follower.status.state == "following"):
            return None
        return self._stored_positions.view_position(view)


class StoredPositions:
    """Reads the positions of views from their stores. Only one thread at a time can use it."""

    def __init__(self, views: Views, clock: Clock) -> None:
        self._views = views
        self._clock = clock
        self._errors: dict[str, tuple[float, HeadraceError]] = {}
        """The time and the error of each view whose store failed."""

    def running_progress(self, flow: Flow) -> Progress | None:
        return None

    def view_position(self, view: View) -> ViewPosition:
        """Return the position. For some seconds after a store failed, raise its last error again without a query,
        because the query would delay the sample.
        """
        failed_s, error = self._errors.get(view.name, (0.0, None))
        if error is not None and self._clock.steady() - failed_s < _STORE_RETRY_S:
            raise error
        try:
            state = self._views.state(view)
        except HeadraceError as failure:
            self._errors[view.name] = self._clock.steady(), failure
            raise
        self._errors.pop(view.name, None)
        return ViewPosition.of("serving", state.position) if state else ViewPosition("not built")


SAMPLES_MAX = 900
"""15 minutes at one sample a second."""

FIELDS: Mapping[str, tuple[str, ...]] = {
    "source": ("per_s",),
    "topic": ("per_s", "end", "bytes"),
    "flow": (
        *("per_s_in", "per_s_out", "latency_ms", "lag_records", "lag_bytes", "lag_seconds"),
        *("watermark_ms", "state_rows", "state_bytes", "late", "dead"),
    ),
    "view": ("per_s", "applied", "lag_records", "lag_bytes", "lag_seconds", "dead"),
}
"""Names of the numbers by kind of node."""


class Ring:
    """A ring buffer of the numbers of one node, which the web page draws. It holds the last ``SAMPLES_MAX`` samples.

    One thread appends and any thread can read. A read omits samples that are overwritten meanwhile.
    """

    def __init__(self, kind: str) -> None:
        self.fields = FIELDS[kind]
        self._width = 1 + len(self.fields)
        self._cells = array("d", bytes(8 * self._width * SAMPLES_MAX))
        self._count = 0

    def append(self, at_ms: int, node: Mapping[str, Any]) -> None:
        start = self._count % SAMPLES_MAX * self._width
        row = array("d", [at_ms, *(_number(node, name) for name in self.fields)])
        self._cells[start : start + self._width] = row
        self._count += 1

    def samples(self, since_ms: int) -> list[list[float | None]]:
        """Return the samples since ``since_ms``, the oldest first."""
        count = self._count
        cells = self._cells[:]
        samples = []
        for number in range(max(0, self._count - SAMPLES_MAX, count - SAMPLES_MAX), count):
            start = number % SAMPLES_MAX * self._width
            at_ms, *values = cells[start : start + self._width]
            if at_ms >= since_ms:
                samples.append([int(at_ms), *(None if math.isnan(value) else value for value in values)])
        return samples


def _number(node: Mapping[str, Any], name: str) -> float:
    prefix, _, field = name.partition("_")
    value = node["lag"][field] if prefix == "lag" else node[name]
    return math.nan if value is None else float(value)
