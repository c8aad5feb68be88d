"""An app that runs in this process, with its flows on the tests' Spark and its server beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.app import App
from headrace.runtime.run import Run
from headrace.settings import AlertSettings, FlowSettings, LogSettings, ServeSettings, Settings
from tests.serve.http import Http
from tests.support.flows import FlowWorld

__all__ = ["serving"]


@contextmanager
def serving(world: FlowWorld, app: App, data: Path) -> Iterator[tuple[Run, Http]]:
    settings = Settings(
        data=data,
        log=LogSettings(bootstrap_servers=world.cluster.bootstrap),
        flow=FlowSettings(trigger_ms=0),
        serve=ServeSettings(listen="127.0.0.1:0"),
        alerts=AlertSettings(every_s=0),
    )
    run = Run(app, settings, tell=lambda line: None, spark=world.spark)
    try:
        run.start()
        assert run.server is not None
        yield run, Http(run.server.port)
    finally:
        run.close()
