"""A measured driver: it derives topics from one topic, with flows or with a hand-written query.

    python -m bench.flow.driver TASK

TASK is a JSON object with the fields of ``Task``. The driver runs until its input ends, then verifies the view if
requested and writes ``report.json``. All tasks have the same session (JVM, options, Spark's configuration), except for
the options that a task sets.
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

from bench.flow.hand_written import start_by_hand
from bench.flow.orders import REALTIME, many_flows_app, one_flow_app
from bench.flow.trigger_profile import KEEP_ALL, save_triggers
from headrace.client.cluster import Cluster
from headrace.flow.compile.compiler import compile_app
from headrace.flow.context import FlowContext, FlowOptions
from headrace.flow.runner import FlowRunner
from headrace.flow.spark.session import start, stop
from headrace.follow.follower import Follower
from headrace.model.store import file_of
from headrace.ops.verify.verifier import verify_view
from headrace.runtime.part import Part
from headrace.settings import FlowSettings, Settings, SparkSettings, TopicSettings
from headrace.stores.registry import open_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Task"]

_STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Task:
    """A derivation from ``topic`` to ``output``. All its files are under ``data``."""

    who: str
    """flow, flow-untraced, by-hand, flow+view, flow+verify, or decode."""
    query: str
    bootstrap: str
    topic: str
    output: str
    data: Path
    batch_events: int
    partitions: int
    flows: int = 1
    """Number of flows in one app. With several flows, the output topics are numbered."""
    trigger_ms: int = 0
    profiled: bool = False
    """Whether to write Spark's trigger metrics to ``triggers.json``."""
    spark: Mapping[str, Any] = field(default_factory=dict)
    """Spark settings that differ from the default."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "bench.flow.driver", json.dumps(asdict(self), default=str)]

    @classmethod
    def parse(cls, text: str) -> Task:
        fields = json.loads(text)
        return cls(**{**fields, "data": Path(fields["data"])})

    @property
    def settings(self) -> Settings:
        fields = dict(self.spark)
        conf = {**(KEEP_ALL if self.profiled else {}), **fields.pop("conf", {})}
        return Settings(
            data=self.data,
            spark=SparkSettings(conf=conf, **fields),
            flow=FlowSettings(max_rows=self.batch_events, trigger_ms=self.trigger_ms),
            topics=TopicSettings(partitions=self.partitions),
        )

    @property
    def view_file(self) -> Path:
        app, _ = one_flow_app(self.query, self.topic, self.output)
        path = file_of(app.views[0], app.name, self.data)
        assert path is not None, "a SQLite store has a file"
        return path

    @property
    def triggers_file(self) -> Path:
        return self.data / "triggers.json"

    def run(self, spark: SparkSession, stopping: threading.Event) -> None:
        with contextlib.ExitStack() as stack:
            if self.profiled:
                stopping = stack.enter_context(save_triggers(spark, self.triggers_file, stopping))
            if self.who == "by-hand":
                self._run_by_hand(spark, stopping)
            elif self.who == "decode":
                from bench.flow.decoders import compare

                compare(spark, Cluster(self.bootstrap), self.topic, self.data, self.partitions)
                stopping.wait()
            elif self.who == "flow-untraced":
                from bench.flow.lineage import untraced

                with untraced():
                    replace(self, who="flow").run(spark, stopping)
            elif self.flows > 1:
                self._run_flows(spark, stopping)
            else:
                self._run_flow(spark, stopping)

    def _run_flow(self, spark: SparkSession, stopping: threading.Event) -> None:
        app, flow = one_flow_app(self.query, self.topic, self.output)
        (compiled,), schemas = compile_app(spark, app)
        cluster = Cluster(self.bootstrap)
        runner = FlowRunner(
            FlowContext(spark, cluster, app, compiled, schemas, FlowOptions.of(self.settings))
        )
        if self.who == "flow":
            runner.run(stopping)
            return
        (view,) = app.views
        follower = Follower(view, [flow], cluster, lambda: open_writer(view, app.name, self.data))
        following = Part("the follower", follower.run, stopping)
        following.start()
        try:
            runner.run(stopping)
        finally:
            stopping.set()
            following.join(_STOP_S)
        if following.error is not None:
            raise following.error
        if self.who == "flow+verify":
            report = verify_view(spark, cluster, app, view, self.settings, [compiled], schemas)
            (self.data / "report.json").write_bytes(msgspec.json.encode(report))

    def _run_flows(self, spark: SparkSession, stopping: threading.Event) -> None:
        app = many_flows_app(self.query, self.topic, self.output, self.flows)
        all_compiled, schemas = compile_app(spark, app)
        cluster, options = Cluster(self.bootstrap), FlowOptions.of(self.settings)
        runners = [
            FlowRunner(FlowContext(spark, cluster, app, compiled, schemas, options))
            for compiled in all_compiled
        ]
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
            spark, self.query, self.bootstrap, self.topic, self.output, checkpoint, self.batch_events
        )
        while query.isActive and not stopping.wait(0.1):
            pass
        failure = query.exception()
        query.stop()
        if failure is not None:
            raise failure


def main() -> None:
    task = Task.parse(sys.argv[1])
    stopping = threading.Event()

    def stop_at_end_of_input() -> None:
        sys.stdin.read()
        stopping.set()

    threading.Thread(target=stop_at_end_of_input, daemon=True).start()
    # A task of a real-time flow occupies its slot permanently.
    slots = task.partitions if task.query == REALTIME else 0
    spark = start(task.settings, "bench", slots=slots)
    try:
        task.run(spark, stopping)
    finally:
        stop(spark)


if __name__ == "__main__":
    main()
