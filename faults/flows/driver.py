"""A driver of two flows in its own process. It can kill or pause itself at a step of a batch.

    python -m faults.flows.driver BOOTSTRAP HOME [--strike kill|stop|linger STEP NTH] [--without PROTECTION]
                                       [--follow] [--prove] [--stay]

The steps of a batch are ``open`` (its transaction is open), ``sent`` (its rows are in the log), ``recorded`` (its
progress record is in the log too) and ``committed`` (the transaction is committed, but Spark has not recorded the batch
yet). The process sends itself SIGKILL (``kill``) or SIGSTOP (``stop``) the NTH time that either flow reaches STEP. With
``linger`` it sleeps at STEP every NTH time, so that the test can kill or pause it then. It prints a line before it
kills, stops or delays itself.

It exits with 0 as soon as the flows have processed all input. With ``--stay`` it first waits until the file
``HOME/finish`` exists. With ``--follow`` it follows the views of both flows into a SQLite file in HOME. With
``--prove`` it runs the product's verifier over all views and topics before it exits.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faults.flows.sales_app import app
from faults.patch import patch
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.follow.follower import Follower
from headrace.settings import FlowSettings, Settings, SparkSettings
from headrace.stores.registry import open_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.flow.runner import FlowRunner

__all__ = ["STEPS", "AppThreads", "main"]

STEPS = ("open", "sent", "recorded", "committed")
_ROWS_AT_ONCE = 25
_PATIENCE_S = 600.0
_LINGER_S = 1.0
_QUIET_CHECKS = 3


def _print_line(line: str) -> None:
    print(line, flush=True)


def _install_strike(how: str, step: str, nth: int) -> None:
    """Wrap the writer's methods so that the process strikes at ``step``. The product has no hooks for this."""
    from headrace.client.transactional_writer import TransactionalWriter as Writer

    visits = itertools.count(1)

    def reach(reached_step: str) -> None:
        if reached_step != step:
            return
        visit = next(visits)
        if how == "linger" and visit % nth == 0:
            _print_line(f"lingering {reached_step}")
            time.sleep(_LINGER_S)
            _print_line("resumed")
        elif visit == nth and how != "linger":
            _print_line(f"striking {reached_step}")
            os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)

    begin, send, flush, commit = Writer.begin, Writer.send, Writer.flush, Writer.commit

    def begin_and_strike(self: Any) -> None:
        begin(self)
        reach("open")

    def flush_and_strike(self: Any) -> None:
        flush(self)
        reach("sent")

    def send_and_strike(self: Any, records: Any) -> None:
        record_list = list(records)
        send(self, record_list)
        if any(record.topic.endswith(".progress") for record in record_list):
            flush(self)
            reach("recorded")

    def commit_and_strike(self: Any) -> None:
        commit(self)
        reach("committed")

    for name, replacement in (
        ("begin", begin_and_strike),
        ("flush", flush_and_strike),
        ("send", send_and_strike),
        ("commit", commit_and_strike),
    ):
        patch(Writer, name, replacement)


def _without_transactions() -> None:
    """Make rows visible as soon as they are sent, as with Spark's own sink."""
    from headrace.client.transactional_writer import TransactionalWriter as Writer

    def init_without_transactions(
        self: Any, cluster: Any, transactional_id: str, purpose: str, **options: Any
    ) -> None:
        self.id, self._purpose, self._cluster = transactional_id, purpose, cluster
        self._began, self._wait_s, self._response_s = 0.0, 120.0, 30.0
        self._producer = cluster.producer({"linger.ms": 5})

    def do_nothing(self: Any, **options: Any) -> None:
        return None

    patch(Writer, "__init__", init_without_transactions)
    patch(Writer, "begin", do_nothing)
    patch(Writer, "commit", Writer.flush)
    patch(Writer, "abort", do_nothing)


def _without_healing() -> None:
    """Let the first error end the flow, even if it is transient."""
    from headrace.flow import runner

    patch(runner, "is_retriable", lambda error: False)


_PROTECTIONS = {"transaction": _without_transactions, "healing": _without_healing}


def _settings(home: Path, stays: bool) -> Settings:
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    if stays:
        # Allocate the whole heap at the start, so that any growth of the process comes from elsewhere.
        options += " -Xms512m -XX:+AlwaysPreTouch"
    return Settings(
        data=home,
        flow=FlowSettings(max_rows=_ROWS_AT_ONCE),
        spark=SparkSettings(
            driver_memory="512m",
            java_options=options,
            shuffle_partitions=1,
            # ``pollingDelay``: without it, a flow without input polls a hundred times a second while the
            # other flow still works. ``codegen``: the flows write only a few hundred rows, so compiling the
            # plans would take longer than running them.
            conf={
                "spark.sql.streaming.pollingDelay": "100ms",
                "spark.sql.codegen.wholeStage": "false",
                "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            },
        ),
    )


class AppThreads:
    """The flows and the followers of an app, each in its own thread. The first failure stops all of them."""

    def __init__(self, spark: SparkSession, cluster: Cluster, settings: Settings, app: App) -> None:
        from headrace.flow.compile.compiler import compile_app

        self.app = app
        self.compiled, self.schemas = compile_app(spark, self.app)
        self.stopping = threading.Event()
        self.failures: list[str] = []
        self._spark, self._cluster, self._settings = spark, cluster, settings
        self._runners: list[FlowRunner] = []
        self._followers: list[Follower] = []
        self._threads: list[threading.Thread] = []

    def start(self, *, follow: bool) -> None:
        from headrace.flow.context import FlowContext, FlowOptions
        from headrace.flow.runner import FlowRunner

        options = FlowOptions.of(self._settings)
        for compiled in self.compiled:
            runner = FlowRunner(
                FlowContext(self._spark, self._cluster, self.app, compiled, self.schemas, options)
            )
            self._begin(runner.run)
            self._runners.append(runner)
            while not runner.opened.wait(0.05) and not self.stopping.is_set():
                pass
        for view in self.app.views if follow else ():
            follower = Follower(
                view,
                self.app.flows,
                self._cluster,
                lambda view=view: open_writer(view, self.app.name, self._settings.data),  # type: ignore[misc]
            )
            self._begin(follower.run)
            self._followers.append(follower)

    def _begin(self, run: Callable[[threading.Event], None]) -> None:
        def run_and_record_failure() -> None:
            from headrace.flow.errors import FlowFenced

            try:
                run(self.stopping)
            except Exception as error:
                self.failures.append("fenced" if isinstance(error, FlowFenced) else f"failed: {error!r}")
                self.stopping.set()

        self._threads.append(threading.Thread(target=run_and_record_failure))
        self._threads[-1].start()

    @property
    def are_idle(self) -> bool:
        if not all(flow.status.state == "running" and flow.lag() == 0 for flow in self._runners):
            return False
        last = {
            runner.current.generation.output: runner.current.last
            for runner in self._runners
            if runner.current
        }
        for follower in self._followers:
            batch, position = last.get(follower.view.topic.name), follower.status.position
            if batch is not None and (position is None or position.batch < batch.batch):
                return False
        return True

    def prove(self) -> None:
        from headrace.ops.verify.errors import CannotVerify
        from headrace.ops.verify.verifier import Verifier

        arguments = (self._spark, self._cluster, self.app, self._settings)
        with Verifier(*arguments, self.compiled, self.schemas) as verifier:
            for report in verifier.all():
                if isinstance(report, CannotVerify) or report.verdict != "proven":
                    self.failures.append(f"not proven: {report}")

    def stop(self) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join(60)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("home", type=Path)
    parser.add_argument("--strike", nargs=3, metavar=("HOW", "STEP", "NTH"))
    parser.add_argument("--without", choices=_PROTECTIONS)
    for name in ("stay", "follow", "prove"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    from headrace.flow.spark.session import start, stop

    if options.without:
        _PROTECTIONS[options.without]()
    if options.strike:
        _install_strike(options.strike[0], options.strike[1], int(options.strike[2]))
    settings = _settings(options.home, options.stay)
    spark = start(settings, "sales")
    _print_line("started")
    try:
        threads = AppThreads(spark, Cluster(options.bootstrap), settings, app)
        threads.start(follow=options.follow)
        while options.stay and not (options.home / "finish").exists() and not threads.stopping.wait(0.2):
            pass
        deadline = time.monotonic() + _PATIENCE_S
        idle_checks = 0
        while idle_checks < _QUIET_CHECKS and not threads.stopping.wait(0.3) and time.monotonic() < deadline:
            idle_checks = idle_checks + 1 if threads.are_idle else 0
        if idle_checks >= _QUIET_CHECKS and options.prove:
            threads.prove()
        threads.stop()
    finally:
        stop(spark)
    _print_line(
        threads.failures[0] if threads.failures else "done" if idle_checks >= _QUIET_CHECKS else "late"
    )
    return (
        0 if threads.failures == ["fenced"] or (not threads.failures and idle_checks >= _QUIET_CHECKS) else 1
    )


if __name__ == "__main__":
    sys.exit(main())
