"""An app in this process: its flows on the tests' Spark session, and its server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.flows.world import FlowWorld
from faults.serve.http import Http
from headrace.app import App
from headrace.runtime.run import Run
from headrace.settings import AlertSettings, FlowSettings, LogSettings, ServeSettings, Settings

__all__ = ["served_app"]


@contextmanager
def served_app(world: FlowWorld, app: App, data: Path) -> Iterator[tuple[Run, Http]]:
    settings = Settings(
        data=data,
        log=LogSettings(bootstrap_servers=world.cluster.bootstrap),
        flow=FlowSettings(trigger_ms=0),
        serve=ServeSettings(listen="127.0.0.1:0"),
        alerts=AlertSettings(every_s=0),
    )
    run = Run(app, settings, note=lambda line: None, spark=world.spark)
    try:
        run.start()
        assert run.server is not None
        yield run, Http(run.server.port)
    finally:
        run.close()
