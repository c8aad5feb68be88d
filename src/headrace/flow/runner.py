"""A flow that keeps running: it is opened, runs until something ends it, and is opened again where that can help."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import Literal

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.flow_lag import behind
from headrace.client.progress_log import current
from headrace.client.reading import read
from headrace.errors import HeadraceError
from headrace.flow.blame import blame
from headrace.flow.compiled import Compiled
from headrace.flow.errors import FlowChanged, FlowFenced, InputReplaced, ProducerFenced, TableRepartitioned
from headrace.flow.failures import explain, heals
from headrace.flow.opening import Opened, expect_same_app, open_flow
from headrace.flow.options import FlowOptions
from headrace.flow.ownership import Ownership
from headrace.flow.realtime import Realtime
from headrace.flow.resumption import last_progress
from headrace.flow.running import Running
from headrace.flow.writer import Writer
from headrace.model.flow import Flow
from headrace.model.place import Place
from headrace.model.schema import Schema

__all__ = ["FlowRunner", "FlowStatus", "NotedFailure", "transactional_id"]

_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_SETTLED_S = 30.0
_SAMPLE = 100
_SMALLER = 4
"""A batch that took longer than its transaction may is tried again with this share of its rows."""


@dataclass(slots=True)
class FlowStatus:
    """For a display; what was done is in the progress records, for everybody."""

    name: str
    state: Literal["starting", "running", "waiting", "stopped", "failed"] = "starting"
    why: str = ""


@dataclass(frozen=True, slots=True)
class NotedFailure:
    """What went wrong last, whether it ended the flow or healed."""

    error: HeadraceError
    place: Place | None
    """In the user's files."""
    at_ms: int


def transactional_id(flow: Flow) -> str:
    """Whoever has it writes the flow, whichever app that is of."""
    return f"headrace.flow.{flow.name}"


class FlowRunner:
    """One flow in one thread; ``run`` returns when it is told to stop, and raises what cannot heal."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        app: App,
        compiled: Compiled,
        schemas: dict[str, Schema],
        settings: FlowOptions,
        *,
        rebuild: str = "",
        rebuild_changed: bool = False,
    ) -> None:
        self.status = FlowStatus(compiled.flow.name)
        self.opened = threading.Event()
        """Set once the generation is in the log, so that what reads the flow's output can be opened."""
        self._spark = spark
        self._cluster = cluster
        self._app = app
        self._compiled = compiled
        self._schemas = schemas
        self._settings = settings
        self._rebuild = rebuild
        self._rebuild_changed = rebuild_changed
        self.current: Opened | None = None
        self.failure: NotedFailure | None = None
        self._ownership = Ownership(cluster, compiled.flow, settings.transaction_timeout_ms)
        self._run_now: Running | Realtime | None = None
        self._ends: tuple[float, dict[str, dict[int, int]]] = (0.0, {})

    def run(self, stop: threading.Event) -> None:
        failures = 0
        while not stop.is_set():
            began = time.monotonic()
            try:
                self._run_once(stop)
            except Exception as raised:
                error = self._judged(raised)
                output = self.current.generation.output if self.current else ""
                explained = explain(self._compiled.flow, error, self._standing(), output)
                place = blame(self._compiled.flow, error)
                self.failure = NotedFailure(explained, place, time.time_ns() // 1_000_000)
                if not heals(error):
                    self.status.state, self.status.why = "failed", explained.message
                    raise explained from (None if explained is raised else raised)
                failures = 0 if time.monotonic() - began > _SETTLED_S else failures + 1
                self.status.state = "waiting"
                self.status.why = (
                    error.message if isinstance(error, HeadraceError) else "the log cannot be reached"
                )
                stop.wait(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
        self.status.state, self.status.why = "stopped", ""

    def _judged(self, error: Exception) -> Exception:
        """Whatever ended the run: if another driver has opened the flow since, that is why."""
        try:
            self._ownership.expect_ours()
            if isinstance(error, ProducerFenced):
                return self._ownership.judge(error, self.current.last if self.current else None)
        except FlowFenced as fenced:
            return fenced
        except LogError:
            # Who has the flow is asked again before it is opened.
            return error
        return error

    def _run_once(self, stop: threading.Event) -> None:
        flow = self._compiled.flow
        self._ownership.expect_ours()
        # Before the id is taken from whoever has it.
        expect_same_app(self._app, flow, current(self._cluster, flow.progress_topic))
        writer = Writer(
            self._cluster, flow.name, transactional_id(flow), self._settings.transaction_timeout_ms
        )
        try:
            opened = self._open(writer)
            self._rebuild = ""
            self.current = opened
            self.opened.set()
            running = self._running(writer, opened)
            with contextlib.closing(running):
                running.start()
                self._run_now = running
                self.status.state, self.status.why = "running", ""
                self._watch(running, stop)
        finally:
            self._run_now = None
            writer.close()

    def _running(self, writer: Writer, opened: Opened) -> Running | Realtime:
        if self._compiled.flow.is_realtime:
            return Realtime(
                self._spark,
                self._cluster,
                self._compiled,
                self._schemas,
                writer,
                opened,
                self._settings,
                self._rows_at_once(opened),
            )
        return Running(
            self._spark,
            self._cluster,
            self._app,
            self._compiled,
            self._schemas,
            writer,
            opened,
            self._settings,
            self._rows_at_once(opened),
        )

    def _standing(self) -> str:
        if self.current is None:
            return ""
        progress = last_progress(self.current.generation, self.current.last)
        if not (self._compiled.stateful or self._compiled.flow.is_realtime):
            return progress
        return f"the checkpoint is at {self.current.checkpoint}, {progress}"

    def _open(self, writer: Writer) -> Opened:
        def open_it(rebuild: str) -> Opened:
            return open_flow(
                self._spark,
                self._cluster,
                self._app,
                self._compiled,
                writer,
                self._settings,
                self._ownership,
                rebuild=rebuild,
            )

        try:
            return open_it(self._rebuild)
        except (FlowChanged, InputReplaced, TableRepartitioned) as changed:
            if not self._rebuild_changed:
                raise
            return open_it(changed.message)

    @property
    def latency(self) -> str:
        return self._compiled.flow.latency

    @property
    def took_ms(self) -> float | None:
        """The last batch of this run, from its plan to its commit; in real time there is none to tell of."""
        running = self._run_now
        return running.took_ms if running else None

    def plan(self, chars_max: int) -> str | None:
        """What Spark made of the function when it last ran; asks Spark."""
        running = self._run_now
        if running is None:
            return None
        try:
            return running.plan(chars_max)
        except (AssertionError, PySparkException, Py4JError):
            # It may end at any moment.
            return None

    def lag(self) -> int:
        """Records of its input topics that no committed batch has read; asked of the log, at most once a second. While
        it does not answer, what it said last counts.
        """
        opened = self.current
        if opened is None:
            return 0
        now = time.monotonic()
        streams = [one for one in opened.generation.inputs if one.kind == "events"]
        if now - self._ends[0] > 1.0:
            ends = self._ends[1]
            with contextlib.suppress(LogError):
                ends = {one.log: self._cluster.ends(one.log) for one in streams}
            self._ends = (now, ends)
        return behind(opened.generation, opened.last, self._ends[1])

    def _watch(self, running: Running | Realtime, stop: threading.Event) -> None:
        while running.query.isActive and not running.too_large and not stop.wait(0.1):
            running.look(stop)
        if stop.is_set() or (running.too_large and running.error is None):
            running.stop()
            return
        running.wait_for_the_end()
        failed = running.query.exception()
        if running.error is not None:
            raise running.error
        if failed is not None:
            raise failed

    def _rows_at_once(self, opened: Opened) -> int:
        """As many rows as fit the bytes that a batch may have, going by those that come next."""
        sizes = []
        for one in opened.generation.inputs:
            if one.kind != "events":
                continue
            reached = (
                {n: to for n, (_, to) in opened.last.inputs.get(one.log, {}).items()}
                if opened.last
                else one.starts
            )
            ends = self._cluster.ends(one.log)
            ranges = {int(n): (at, min(ends[int(n)], at + _SAMPLE)) for n, at in reached.items()}
            sizes += [len(message) for message in read(self._cluster, one.log, ranges)]
        average = max(1, sum(sizes) // len(sizes)) if sizes else 1
        rows = min(self._settings.max_rows, self._settings.max_bytes // average)
        return max(1, rows // int(_SMALLER**self._ownership.refusals))
