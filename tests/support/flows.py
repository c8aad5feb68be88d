"""Flows that run on one broker and one Spark for all tests: an app's, until all that was written is derived."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from headrace.client.progress_log import current
from headrace.model.store_place import file_of
from headrace.model.topic import Topic
from headrace.settings import FlowSettings, Settings
from headrace.views.follower import Follower
from headrace.views.opening import open_store
from tests.support.embedded import start_headrace
from tests.support.server import Server
from tests.support.spark import compiled, start_spark, stop_spark
from tests.support.waiting import until, watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.flow.compiled import Compiled
    from headrace.flow.runner import FlowRunner
    from headrace.model.schema import Schema

__all__ = ["FlowWorld", "RunningApp", "as_for_users", "flow_world"]

_REALTIME_MS = 2_000
"""Shorter than a user may have it, and than Spark would by itself; ``tests.support.spark`` allows it."""


@dataclass
class FlowWorld:
    """A log and a Spark; apps in it must name their topics and flows so that they do not meet."""

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
        """Dataclasses, or (key, value) as bytes."""
        where = {} if partition < 0 else {"partition": partition}
        producer = self.cluster.producer(
            {"linger.ms": 5, "message.max.bytes": 2_000_000, "batch.size": 200_000}
        )
        for one in values:
            key, value = one if isinstance(one, tuple) else topic.encode(one)
            producer.produce(topic.name, key=key, value=value, **where)
        assert producer.flush(30) == 0

    @contextlib.contextmanager
    def running(
        self,
        app: App,
        *,
        max_rows: int = 100_000,
        follow: bool = True,
        rebuild: Sequence[str] = (),
        **options: Any,
    ) -> Iterator[RunningApp]:
        """All flows and followers of the app, until the block ends; ``rebuild`` names flows that begin anew, and
        ``options`` are those of ``FlowOptions`` that differ from the settings.
        """
        from headrace.flow.compiling import compile_app

        self.declare(app)
        compiled, schemas = compile_app(self.spark, app)
        run = RunningApp(self, app, compiled, schemas, max_rows, options)
        try:
            run.start(follow=follow, rebuild=rebuild)
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
        self._options = options
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, *, follow: bool, rebuild: Sequence[str] = ()) -> None:
        from headrace.flow.options import FlowOptions
        from headrace.flow.runner import FlowRunner

        world = self.world
        options = dataclasses.replace(
            FlowOptions.of(world.settings(max_rows=self._max_rows)), **self._options
        )
        for one in self.compiled:
            runner = FlowRunner(
                world.spark,
                world.cluster,
                self.app,
                one,
                self.schemas,
                options,
                rebuild="asked for" if one.flow.name in rebuild else "",
            )
            self.runners.append(runner)
            self._begin(runner.run)
            until(lambda runner=runner: runner.opened.is_set() or self.errors, f"flow {one.flow.name} opens")  # type: ignore[misc]
        for view in self.app.views if follow else ():
            follower = Follower(
                view,
                self.app.flows,
                world.cluster,
                lambda view=view: open_store(view, self.app.name, world.home),  # type: ignore[misc]
                tell=lambda line: None,
            )
            self._begin(follower.run)

    def how_it_ended(self) -> str | None:
        return f"a flow or a view ended: {self.errors[0]}" if self.errors else None

    def _begin(self, run: Any) -> None:
        def guarded() -> None:
            try:
                run(self._stop)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        self._threads.append(thread)

    def derived(self) -> None:
        """Wait until every flow has read its inputs to their end, those behind others too."""
        late: AssertionError | None = None
        try:
            with watched(self, self.how_it_ended):
                until(self.is_derived, "all input is derived", timeout_s=600, pause_s=0.1)
        except AssertionError as error:
            late = error
        if self.errors:
            # As it was raised, with its own cause.
            raise self.errors[0]
        if late is not None:
            told = [(one.status, one.current and one.current.last) for one in self.runners]
            raise AssertionError("\n".join(map(str, told))) from late

    def is_derived(self) -> bool:
        return all(self._is_at_end(one.flow.progress_topic) for one in self.compiled)

    def _is_at_end(self, progress: str) -> bool:
        found = current(self.world.cluster, progress)
        if found is None:
            return False
        read = found.last.inputs if found.last else {}
        for one in found.generation.inputs:
            if one.kind != "events":
                continue
            ends = self.world.cluster.ends(one.log)
            at = {int(number): to for number, (_, to) in read.get(one.log, {}).items()}
            if any(at.get(number, 0) < end for number, end in ends.items()):
                return False
        return True

    def followed(self) -> None:
        """Wait until every view of a flow is at its flow's last batch, and every other at its topic's end."""
        self.derived()
        with watched(self, self.how_it_ended):
            self._wait_for_views()

    def _wait_for_views(self) -> None:
        for view in self.app.views:
            until(lambda view=view: self._is_followed(view), f"view {view.name}", timeout_s=600, pause_s=0.05)  # type: ignore[misc]

    def _is_followed(self, view: Any) -> bool:
        import json
        import sqlite3

        if self.errors:
            raise self.errors[0]
        path = file_of(view, self.app.name, self.world.home)
        if not path.exists():
            return False
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            found = connection.execute(
                "SELECT batch, offsets FROM _headrace_views WHERE view = ? AND part = 'serving'", (view.name,)
            ).fetchone()
        if found is None:
            return False
        flow = self.app.writer_of(view.topic)
        if flow is None:
            ends = self.world.cluster.ends(view.topic.name)
            return {int(one): at for one, at in json.loads(found[1]).items()} == ends
        progress = current(self.world.cluster, flow.progress_topic)
        return progress is not None and (progress.last is None or progress.last.batch == found[0])

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    @property
    def is_alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)


@pytest.fixture(scope="module")
def as_for_users(flow_world: FlowWorld) -> Iterator[None]:
    """Plans of the module's flows are compiled."""
    with compiled(flow_world.spark):
        yield


@pytest.fixture(scope="session")
def flow_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowWorld]:
    home = tmp_path_factory.mktemp("flows")
    options = ("--set", "log.cleaner.backoff.ms=100", "--set", "log.retention.check.interval.ms=100")
    server = start_headrace(home / "log", options)
    spark = start_spark(home)
    try:
        yield FlowWorld(server, Cluster(server.bootstrap), spark, home)
    finally:
        stop_spark(spark)
        assert server.stop() == 0, server.log.read_text()[-4000:]
