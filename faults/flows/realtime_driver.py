"""A driver of one real-time flow and of a follower of its output, in its own process.

python -m faults.flows.realtime_driver BOOTSTRAP HOME [--without deduplication] [--prove]

It runs until it is killed, or until HOME has a file ``finish``, the flow has recorded progress for all input, and
the follower has applied all output. With ``--without deduplication`` the follower applies repeated rows again. With
``--prove`` it runs the product's verifier over all views and topics before it exits.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.patch import patch
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.follow.follower import Follower
from headrace.settings import FlowSettings, Settings, SparkSettings
from headrace.stores.registry import open_writer

__all__ = ["FINISH", "app_of_gauges", "main"]

FINISH = "finish"
_PATIENCE_S = 600.0
_REALTIME_MS = 5_000


@dataclass(frozen=True)
class SensorValue:
    gauge: str
    number: int


def app_of_gauges() -> App:
    """Return an app that shows the newest reading of each gauge, so that a repeated older reading would be visible."""
    app = App("gauges")
    readings = app.topic("readings", SensorValue, key="gauge", partitions=2)
    newest = app.topic("newest", key="gauge", partitions=2)

    @app.flow(reads=[readings], writes=newest, latency="realtime")
    def keep(readings: Any) -> Any:
        return readings.where("number % 7 <> 0")

    app.view("newest", newest)
    return app


def _without_deduplication() -> None:
    from headrace.follow.realtime_changelog import RealtimeChangelog

    is_new = RealtimeChangelog._is_new

    def any_row(self: Any, message: Any) -> bool | None:
        return None if is_new(self, message) is None else True

    patch(RealtimeChangelog, "_is_new", any_row)


def _settings(home: Path) -> Settings:
    return Settings(
        data=home,
        flow=FlowSettings(realtime_ms=_REALTIME_MS),
        spark=SparkSettings(driver_memory="512m", java_options="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("home", type=Path)
    parser.add_argument("--without", choices=("deduplication",))
    parser.add_argument("--prove", action="store_true")
    options = parser.parse_args()
    from headrace.flow.compile.compiler import compile_app
    from headrace.flow.context import FlowContext, FlowOptions
    from headrace.flow.engine.task_slots import slots_for
    from headrace.flow.runner import FlowRunner
    from headrace.flow.spark.session import start, stop
    from headrace.ops.verify.verifier import Verifier

    if options.without:
        _without_deduplication()
    cluster, settings, app = Cluster(options.bootstrap), _settings(options.home), app_of_gauges()
    ensure_declared(cluster, app.topics[0], app.topics[0].name, 2)
    spark = start(settings, app.name, slots=slots_for(cluster, app, settings))
    stopping, failures = threading.Event(), list[str]()
    try:
        compiled, schemas = compile_app(spark, app)
        (view,) = app.views
        runner = FlowRunner(FlowContext(spark, cluster, app, compiled[0], schemas, FlowOptions.of(settings)))
        follower = Follower(view, app.flows, cluster, lambda: open_writer(view, app.name, settings.data))

        def run_and_record_failure(run: Callable[[threading.Event], None]) -> None:
            try:
                run(stopping)
            except Exception as error:
                failures.append(f"failed: {error!r}")
                stopping.set()

        threads = [
            threading.Thread(target=run_and_record_failure, args=(run,)) for run in (runner.run, follower.run)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + _PATIENCE_S
        done = False
        while not done and not stopping.wait(0.2) and time.monotonic() < deadline:
            last = runner.current.last if runner.current else None
            position = follower.status.position
            done = (
                (options.home / FINISH).exists()
                and last is not None
                and runner.lag() == 0
                and position is not None
                and position.batch == last.batch
            )
        if done and options.prove:
            with Verifier(spark, cluster, app, settings, compiled, schemas) as verifier:
                failures += [
                    f"not proven: {report}"
                    for report in verifier.all()
                    if getattr(report, "verdict", "") != "proven"
                ]
        stopping.set()
        for thread in threads:
            thread.join(60)
    finally:
        stop(spark)
    print(failures[0] if failures else "done" if done else "late", flush=True)
    return 0 if done and not failures else 1


if __name__ == "__main__":
    sys.exit(main())
