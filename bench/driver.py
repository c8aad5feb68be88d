"""A driver under measurement: derivations from one topic to others, by flows or by hand.

    python -m bench.driver TASK

A task is a JSON object, as ``Task`` has its fields. It runs until its input ends; a proof is then made of the view, and
its report left as ``proof.json``. All have the same session, but for what a task sets by itself: the same JVM, its
options, Spark's configuration.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench.by_hand import start_by_hand
from bench.orders import REALTIME, app_of, many_of
from bench.profile import KEEP_ALL, left_behind
from headrace.client.cluster import Cluster
from headrace.flow.compiling import compile_app
from headrace.flow.options import FlowOptions
from headrace.flow.runner import FlowRunner
from headrace.flow.session import start, stop
from headrace.model.store_place import file_of
from headrace.ops.verify import verify_view
from headrace.runtime.part import Part
from headrace.settings import FlowSettings, Settings, SparkSettings, TopicSettings
from headrace.views.follower import Follower
from headrace.views.opening import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Task"]

_STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Task:
    """From ``topic`` to ``output``; all that is kept is under ``data``, which is the task's own."""

    who: str
    """flow, flow-untraced, by-hand, flow+view, flow+proof, or decode."""
    query: str
    bootstrap: str
    topic: str
    output: str
    data: Path
    at_once: int
    partitions: int
    flows: int = 1
    """In one app; with several, outputs are numbered."""
    trigger_ms: int = 0
    profiled: bool = False
    """Whether what Spark says of its triggers is left as ``triggers.json``."""
    spark: Mapping[str, Any] = field(default_factory=dict)
    """Settings of Spark, where they are not the default."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "bench.driver", json.dumps(asdict(self), default=str)]

    @classmethod
    def of(cls, words: str) -> Task:
        given = json.loads(words)
        return cls(**{**given, "data": Path(given["data"])})

    @property
    def settings(self) -> Settings:
        given = dict(self.spark)
        conf = {**(KEEP_ALL if self.profiled else {}), **given.pop("conf", {})}
        return Settings(
            data=self.data,
            spark=SparkSettings(conf=conf, **given),
            flow=FlowSettings(max_rows=self.at_once, trigger_ms=self.trigger_ms),
            topics=TopicSettings(partitions=self.partitions),
        )

    @property
    def view_file(self) -> Path:
        app, _ = app_of(self.query, self.topic, self.output)
        place = file_of(app.views[0], app.name, self.data)
        assert place is not None, "SQLite has one"
        return place

    @property
    def triggers_file(self) -> Path:
        return self.data / "triggers.json"

    def run(self, spark: SparkSession, stopping: threading.Event) -> None:
        with contextlib.ExitStack() as stack:
            if self.profiled:
                stopping = stack.enter_context(left_behind(spark, self.triggers_file, stopping))
            if self.who == "by-hand":
                self._run_by_hand(spark, stopping)
            elif self.who == "decode":
                from bench.decoding import compare

                compare(spark, Cluster(self.bootstrap), self.topic, self.data, self.partitions)
                stopping.wait()
            elif self.who == "flow-untraced":
                from bench.lineage import untraced

                with untraced():
                    replace(self, who="flow").run(spark, stopping)
            elif self.flows > 1:
                self._run_flows(spark, stopping)
            else:
                self._run_flow(spark, stopping)

    def _run_flow(self, spark: SparkSession, stopping: threading.Event) -> None:
        app, flow = app_of(self.query, self.topic, self.output)
        (compiled,), schemas = compile_app(spark, app)
        cluster = Cluster(self.bootstrap)
        runner = FlowRunner(spark, cluster, app, compiled, schemas, FlowOptions.of(self.settings))
        if self.who == "flow":
            runner.run(stopping)
            return
        (view,) = app.views
        follower = Follower(view, [flow], cluster, lambda: open_store(view, app.name, self.data))
        following = Part("the follower", follower.run, stopping)
        following.start()
        try:
            runner.run(stopping)
        finally:
            stopping.set()
            following.join(_STOP_S)
        if following.error is not None:
            raise following.error
        if self.who == "flow+proof":
            report = verify_view(spark, cluster, app, view, self.settings, [compiled], schemas)
            (self.data / "proof.json").write_bytes(msgspec.json.encode(report))

    def _run_flows(self, spark: SparkSession, stopping: threading.Event) -> None:
        app = many_of(self.query, self.topic, self.output, self.flows)
        all_compiled, schemas = compile_app(spark, app)
        cluster, options = Cluster(self.bootstrap), FlowOptions.of(self.settings)
        runners = [FlowRunner(spark, cluster, app, one, schemas, options) for one in all_compiled]
        parts = [
            Part(f"flow {number}", runner.run, stopping) for number, runner in enumerate(runners, start=1)
        ]
        for part in parts:
            part.start()
        while all(part.is_running for part in parts) and not stopping.wait(0.1):
            pass
        stopping.set()
        for part in parts:
            part.join(_STOP_S)
        for part in parts:
            if part.error is not None:
                raise part.error

    def _run_by_hand(self, spark: SparkSession, stopping: threading.Event) -> None:
        Cluster(self.bootstrap).ensure_topic(self.output, self.partitions)
        checkpoint = (self.settings.checkpoints / self.output / "by-hand").absolute().as_uri()
        query = start_by_hand(
            spark, self.query, self.bootstrap, self.topic, self.output, checkpoint, self.at_once
        )
        while query.isActive and not stopping.wait(0.1):
            pass
        failed = query.exception()
        query.stop()
        if failed is not None:
            raise failed


def main() -> None:
    task = Task.of(sys.argv[1])
    stopping = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        stopping.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    # In real time a task holds its slot all the time.
    slots = task.partitions if task.query == REALTIME else 0
    spark = start(task.settings, "bench", slots=slots)
    try:
        task.run(spark, stopping)
    finally:
        stop(spark)


if __name__ == "__main__":
    main()
