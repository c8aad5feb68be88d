"""A driver of one flow in real time, and a follower of it, in a process of its own.

    python -m bench.faults.realtime_driver BOOTSTRAP HOME [--without repeats] [--prove]

It runs until it is killed, or until there is a file ``finish`` in HOME and all input is derived, noted and followed.
``--without repeats`` lets the follower apply rows that it has applied before; with ``--prove`` the product proves all
of it before the end.
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

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from headrace.settings import FlowSettings, Settings, SparkSettings
from headrace.views.follower import Follower
from headrace.views.opening import open_store

__all__ = ["FINISH", "app_of_gauges", "main"]

FINISH = "finish"
_PATIENCE_S = 600.0
_REALTIME_MS = 5_000


@dataclass(frozen=True)
class Reading:
    gauge: str
    number: int


def app_of_gauges() -> App:
    """The newest reading of each gauge: an old one that comes again would be seen."""
    app = App("gauges")
    readings = app.topic("readings", Reading, key="gauge", partitions=2)
    newest = app.topic("newest", key="gauge", partitions=2)

    @app.flow(reads=[readings], writes=newest, latency="realtime")
    def keep(readings: Any) -> Any:
        return readings.where("number % 7 <> 0")

    app.view("newest", newest)
    return app


def _with_repeats() -> None:
    from headrace.views.realtime_changelog import RealtimeChangelog

    is_new = RealtimeChangelog._is_new

    def any_row(self: Any, message: Any) -> bool | None:
        return None if is_new(self, message) is None else True

    RealtimeChangelog._is_new = any_row  # type: ignore[method-assign]


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
    parser.add_argument("--without", choices=("repeats",))
    parser.add_argument("--prove", action="store_true")
    given = parser.parse_args()
    from headrace.flow.compiling import compile_app
    from headrace.flow.options import FlowOptions
    from headrace.flow.runner import FlowRunner
    from headrace.flow.session import start, stop
    from headrace.flow.slots import slots_for
    from headrace.ops.verify import Verifier

    if given.without:
        _with_repeats()
    cluster, settings, app = Cluster(given.bootstrap), _settings(given.home), app_of_gauges()
    ensure_declared(cluster, app.topics[0], app.topics[0].name, 2)
    spark = start(settings, app.name, slots=slots_for(cluster, app, settings))
    ending, ends = threading.Event(), list[str]()
    try:
        compiled, schemas = compile_app(spark, app)
        (view,) = app.views
        runner = FlowRunner(spark, cluster, app, compiled[0], schemas, FlowOptions.of(settings))
        follower = Follower(view, app.flows, cluster, lambda: open_store(view, app.name, settings.data))

        def guarded(run: Callable[[threading.Event], None]) -> None:
            try:
                run(ending)
            except Exception as error:
                ends.append(f"failed: {error!r}")
                ending.set()

        parts = [threading.Thread(target=guarded, args=(run,)) for run in (runner.run, follower.run)]
        for part in parts:
            part.start()
        deadline = time.monotonic() + _PATIENCE_S
        done = False
        while not done and not ending.wait(0.2) and time.monotonic() < deadline:
            last = runner.current.last if runner.current else None
            at = follower.status.position
            done = (
                (given.home / FINISH).exists()
                and last is not None
                and runner.lag() == 0
                and at is not None
                and at.batch == last.batch
            )
        if done and given.prove:
            with Verifier(spark, cluster, app, settings, compiled, schemas) as verifier:
                ends += [
                    f"not proven: {one}" for one in verifier.all() if getattr(one, "verdict", "") != "proven"
                ]
        ending.set()
        for part in parts:
            part.join(60)
    finally:
        stop(spark)
    print(ends[0] if ends else "done" if done else "late", flush=True)
    return 0 if done and not ends else 1


if __name__ == "__main__":
    sys.exit(main())
