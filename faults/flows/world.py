"""One broker and one Spark session that several apps share, and the running flows and followers of an app."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from faults.servers.server import Server
from faults.wait import until, watched
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.client.generations import generations_of, progress_of
from headrace.follow.follower import Follower
from headrace.model.declarations import Flow, Topic
from headrace.model.store import file_of
from headrace.settings import FlowSettings, Settings, SwitchSettings
from headrace.stores.registry import open_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.flow.compile.compiler import Compiled
    from headrace.flow.runner import FlowRunner
    from headrace.model.progress import Batch, Generation
    from headrace.model.schema import Schema

__all__ = ["FlowWorld", "RunningApp"]

_REALTIME_MS = 2_000
"""This is shorter than a user may configure, and shorter than Spark's minimum, which ``faults.servers.spark`` lowers.
"""


_ANY_DIFFERENCE = SwitchSettings(gone_percent_max=100, rejected_percent_max=100)


@dataclass
class FlowWorld:
    """A log and a Spark session. Apps that share them must use different names of topics and flows."""

    server: Server
    cluster: Cluster
    spark: SparkSession
    home: Path

    def settings(self, *, max_rows: int = 100_000) -> Settings:
        return Settings(data=self.home, flow=FlowSettings(max_rows=max_rows, realtime_ms=_REALTIME_MS))

    def declare(self, app: App) -> None:
        for topic in app.topics:
            if app.writer_of(topic) is None:
                ensure_declared(self.cluster, topic, topic.name, 1)

    def write(self, topic: Topic, values: Sequence[Any], *, partition: int = -1) -> None:
        """Write dataclasses, or pairs of key and value as bytes."""
        producer = self.cluster.producer(
            {"linger.ms": 5, "message.max.bytes": 2_000_000, "batch.size": 200_000}
        )
        for record in values:
            key, value = record if isinstance(record, tuple) else topic.encode(record)
            producer.produce(topic.name, key=key, value=value, partition=partition)
        assert producer.flush(30) == 0

    @contextlib.contextmanager
    def running(
        self,
        app: App,
        *,
        max_rows: int = 100_000,
        follow: bool = True,
        rebuild: Sequence[str] = (),
        rebuild_changed: bool = False,
        **options: Any,
    ) -> Iterator[RunningApp]:
        """Run all flows and followers of the app until the block ends. ``rebuild`` names the flows that begin a new
        generation, and ``options`` overrides fields of ``FlowOptions``. A flow switches to a new generation whatever
        the difference is, unless ``options`` has other limits (``switch``).
        """
        from headrace.flow.compile.compiler import compile_app

        self.declare(app)
        compiled, schemas = compile_app(self.spark, app)
        run = RunningApp(self, app, compiled, schemas, max_rows, options)
        try:
            run.start(follow=follow, rebuild=rebuild, rebuild_changed=rebuild_changed)
            yield run
        finally:
            run.stop()
        if run.errors:
            raise run.errors[0]


class RunningApp:
    def __init__(
        self,
        world: FlowWorld,
        app: App,
        compiled: list[Compiled],
        schemas: dict[str, Schema],
        max_rows: int,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.world = world
        self.app = app
        self.compiled = compiled
        self.schemas = schemas
        self.errors: list[BaseException] = []
        self.runners: list[FlowRunner] = []
        self._max_rows = max_rows
        self._options = {"switch": _ANY_DIFFERENCE, **options}
        self._rebuilt: list[str] = []
        self._rebuild_changed = False
        self.notes: list[str] = []
        """What the flows told the user."""
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, *, follow: bool, rebuild: Sequence[str] = (), rebuild_changed: bool = False) -> None:
        from headrace.flow.context import FlowContext, FlowOptions
        from headrace.flow.runner import FlowRunner

        world = self.world
        options = dataclasses.replace(
            FlowOptions.of(world.settings(max_rows=self._max_rows)), **self._options
        )
        self._rebuilt, self._rebuild_changed = list(rebuild), rebuild_changed
        for compiled in self.compiled:
            context = FlowContext(world.spark, world.cluster, self.app, compiled, self.schemas, options)
            runner = FlowRunner(
                context,
                rebuild="asked for" if compiled.flow.name in rebuild else "",
                rebuild_changed=rebuild_changed,
                note=self.notes.append,
            )
            self.runners.append(runner)
            self._begin(runner.run)
            self._wait_until_open(runner, compiled.flow.name)
        for view in self.app.views if follow else ():
            follower = Follower(
                view,
                self.app.flows,
                world.cluster,
                lambda view=view: open_writer(view, self.app.name, world.home),  # type: ignore[misc]
                print_line=lambda line: None,
            )
            self._begin(follower.run)

    def restart(self) -> None:
        """Start new runners for all flows, after the threads of the old ones have ended."""
        from headrace.flow.runner import FlowRunner

        for index, runner in enumerate(self.runners):
            self.runners[index] = FlowRunner(
                runner.context, rebuild_changed=self._rebuild_changed, note=self.notes.append
            )
            self._begin(self.runners[index].run)

    def view_rows(self) -> dict[str, int]:
        """The rows of the app's only view: the first column and ``minutes``."""
        import sqlite3

        (view,) = self.app.views
        path = file_of(view, self.app.name, self.world.home)
        assert path is not None
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
            return dict(store.execute(f'SELECT "{view.topic.key[0]}", minutes FROM "{view.name}"'))

    def how_it_ended(self) -> str | None:
        return f"a flow or a view ended: {self.errors[0]}" if self.errors else None

    def _begin(self, run: Any) -> None:
        def run_and_keep_error() -> None:
            try:
                run(self._stop)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=run_and_keep_error, daemon=True)
        thread.start()
        self._threads.append(thread)

    def wait_until_derived(self) -> None:
        """Wait until every flow has processed all its input, including the output of other flows."""
        timeout: AssertionError | None = None
        try:
            with watched(self, self.how_it_ended):
                until(self.is_all_derived, "all input is derived", timeout_s=600, pause_s=0.1)
        except AssertionError as error:
            timeout = error
        if self.errors:
            # Raise the thread's own error, and not ``from timeout``, so that the error keeps its own cause.
            raise self.errors[0]
        if timeout is not None:
            states = [(runner.status, runner.current and runner.current.last) for runner in self.runners]
            raise AssertionError("\n".join(map(str, states))) from timeout

    def is_all_derived(self) -> bool:
        # Check the runners' state in memory first, because checking the log takes a dozen requests.
        return all(
            runner.current is not None and self._is_at_end(runner.current.generation, runner.current.last)
            for runner in self.runners
        ) and all(self._is_at_end_in_log(runner) for runner in self.runners)

    def _is_at_end_in_log(self, runner: FlowRunner) -> bool:
        cluster, flow = self.world.cluster, self._flow_of(runner)
        if flow.name in self._rebuilt:
            generations = generations_of(cluster, flow)
            if generations is None or generations.serving != runner.number:
                return False
        progress_read = progress_of(cluster, flow, runner.number)
        return progress_read is not None and self._is_at_end(progress_read.generation, progress_read.last)

    def _flow_of(self, runner: FlowRunner) -> Flow:
        return next(flow for flow in self.app.flows if flow.name == runner.status.name)

    def _is_at_end(self, generation: Generation, last: Batch | None) -> bool:
        """Whether the batch ends at the ends of all input topics with events. Tables do not count."""
        input_ranges = last.inputs if last else {}
        for source in generation.inputs:
            if source.kind != "events":
                continue
            ends = self.world.cluster.ends(source.log)
            read_until = {int(number): to for number, (_, to) in input_ranges.get(source.log, {}).items()}
            if any(read_until.get(number, 0) < end for number, end in ends.items()):
                return False
        return True

    def wait_until_followed(self) -> None:
        """Wait until every view of a flow is at the flow's last batch, and every other view at the end of its topic."""
        self.wait_until_derived()
        with watched(self, self.how_it_ended):
            self._wait_for_views()

    def _wait_until_open(self, runner: FlowRunner, flow: str) -> None:
        until(lambda: runner.opened.is_set() or self.errors, f"flow {flow} opens")

    def _wait_for_views(self) -> None:
        for view in self.app.views:
            until(lambda view=view: self._is_followed(view), f"view {view.name}", timeout_s=600, pause_s=0.05)  # type: ignore[misc]

    def _is_followed(self, view: Any) -> bool:
        import json
        import sqlite3

        if self.errors:
            raise self.errors[0]
        path = file_of(view, self.app.name, self.world.home)
        if path is None or not path.exists():
            return False
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            row = connection.execute(
                "SELECT batch, offsets, generation FROM _headrace_views WHERE view = ? AND part = 'serving'",
                (view.name,),
            ).fetchone()
        if row is None:
            return False
        flow = self.app.writer_of(view.topic)
        if flow is None:
            ends = self.world.cluster.ends(view.topic.name)
            return {
                int(partition): read_until for partition, read_until in json.loads(row[1]).items()
            } == ends
        progress = progress_of(self.world.cluster, flow)
        if progress is None or progress.generation.generation != row[2]:
            return False
        states = [
            runner.current
            for runner in self.runners
            if runner.status.name == flow.name and runner.number == row[2]
        ]
        if any(state and state.last and state.last.batch != row[0] for state in states):
            return False
        return progress.last is None or progress.last.batch == row[0]

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    @property
    def is_alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)
