"""Looks at the app once a second, in a thread of its own, for all who ask: as a document, and in the rings.

It costs what the log and the stores are asked. Where that is much, because there are many parts, it looks less often
rather than take the machine from what it looks at.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.clock import Clock
from headrace.ops.graph import Graph
from headrace.serve.live import Live
from headrace.serve.observed.documents import Documents
from headrace.serve.observed.history import Ring
from headrace.serve.observed.measuring import Measuring
from headrace.serve.observed.noted import Noted
from headrace.serve.views import Views

__all__ = ["Sample", "Sampler"]

_EVERY_S = 1.0
_BUSY_MAX = 0.1
"""Of one core, at most."""
_JOIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Sample:
    number: int
    document: Mapping[str, Any]
    encoded: bytes


class Sampler:
    """``tell`` is called after each, and ``fail`` with what should not have happened; both in its thread."""

    def __init__(
        self,
        app: App,
        cluster: Cluster,
        views: Views,
        graph: Graph,
        live: Live | None,
        clock: Clock,
        tell: Callable[[Sample], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._live = live
        self._clock = clock
        self._tell = tell
        self._fail = fail
        asked = Measuring.patient_with(cluster)
        self.noted = Noted(app, asked, clock)
        self._measuring = Measuring(app, asked, views, self.noted, clock)
        self._documents = Documents(app, graph, clock)
        self._rings = {node.id: Ring(node.kind) for node in graph.nodes}
        self._began = clock.steady()
        self._number = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="serve observed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """One that waits for a log which does not answer ends by itself when that is over."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    def ring(self, node: str) -> Ring | None:
        return self._rings.get(node)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                began, spent = self._clock.steady(), time.thread_time()
                self._tell(self._sample())
                took_s, spent_s = self._clock.steady() - began, time.thread_time() - spent
                self._stop.wait(max(_EVERY_S, spent_s / _BUSY_MAX) - took_s)
        except Exception as error:
            self._fail(error)
        finally:
            self._measuring.close()
            self.noted.close()

    def _sample(self) -> Sample:
        live = self._live.look() if self._live else None
        seen = self._measuring.measure(live)
        watched = live.firing if live else None
        firing = self.noted.firing if watched is None else [*watched]
        uptime_s = live.uptime_s if live else self._clock.steady() - self._began
        document = self._documents.make(live, seen, firing, uptime_s)
        for node, ring in self._rings.items():
            ring.note(document["at_ms"], document["nodes"][node])
        self._number += 1
        return Sample(self._number, document, msgspec.json.encode(document))
