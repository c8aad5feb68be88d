"""Runs a whole app in one process: first the log, then the server and the followers, then Spark and the flows.

The parts communicate only through topics. If a part fails, its failure is reported once, and the others continue. The
log stops last.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.app import App
from headrace.broker.net.address import split_names
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.client.earlier_names import keep_earlier_names
from headrace.clock import SystemClock
from headrace.errors import HeadraceError
from headrace.files import make_private_dir
from headrace.follow.follower import Follower
from headrace.model.graph import check
from headrace.ops.dead.letter_index import index_path
from headrace.ops.lag.monitor import LagMonitor
from headrace.ops.schemas.start import expect_history_fits
from headrace.runtime.embedded import BrokerChild, backup_environment, backup_options
from headrace.runtime.generation_notices import GenerationNotices
from headrace.runtime.part import Part, close_together
from headrace.runtime.summary import RunPositions, RunSummary, Summarizer
from headrace.settings import Settings
from headrace.stores.registry import open_reader, open_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.flow.compile.compiler import Compiled
    from headrace.flow.runner import FlowRunner
    from headrace.model.rule import Rule
    from headrace.model.schema import Schema
    from headrace.ops.alerts.command import AlertCommand
    from headrace.ops.alerts.watch import AlertWatch
    from headrace.runtime.beside import BesideFlows
    from headrace.runtime.metrics import RunMetrics
    from headrace.runtime.proofs import Proofs
    from headrace.serve.http.request_log import LogFile
    from headrace.serve.http.server import Server

__all__ = ["Run"]

_FLOW_START_S = 120.0
_STOP_S = 60.0
_QUICK_S = 1.0
"""With ``close(quickly=True)``: how long to wait for batches and other parts, and then for all that must be closed."""
_END_S = 0.8
"""Within ``_QUICK_S``: after how long the JVM and the broker are killed."""
_LAG_TIMEOUT_S = 3.0
_TAKEN_OVER = "HR-FLOW-FENCED"


class Run:
    """``note`` and ``warn`` print a line for the user. Any thread can call them.

    ``only`` has the names of the flows to run (default: all). ``feed`` is the name of the function that writes events.
    A ``spark`` session that the caller passes is not stopped here. ``page`` starts the server even if ``serve.listen``
    is not set. With ``changed_only``, only flows that need a new generation run.
    """

    def __init__(
        self,
        app: App,
        settings: Settings,
        *,
        note: Callable[[str], None],
        warn: Callable[[str], None] | None = None,
        rebuild_changed: bool = False,
        only: Sequence[str] = (),
        with_views: bool = True,
        spark: SparkSession | None = None,
        page: bool = False,
        feed: str = "",
        changed_only: bool = False,
    ) -> None:
        self.app = app
        self.settings = settings
        self.feed = feed
        self.stop_requested = threading.Event()
        self.cluster: Cluster
        self.spark = spark
        """None until Spark has started, and for an app without flows."""
        self.compiled: list[Compiled] = []
        self.schemas: dict[str, Schema] = {}
        self.flows: list[FlowRunner] = []
        self.followers: list[Follower] = []
        self._beside: BesideFlows | None = None
        self.proofs: Proofs | None = None
        """None until the flows have started."""
        self.alerts: AlertWatch | None = None
        """None unless the whole app runs."""
        self._alert_command: AlertCommand | None = None
        self.metrics: RunMetrics | None = None
        self.server: Server | None = None
        self.access_log: LogFile | None = None
        self.note = note
        self._warn = warn or note
        self._rebuild_changed = rebuild_changed or changed_only
        self._changed_only = changed_only
        self._only = only
        self._with_views = with_views
        self._page = page
        self._owns_spark = spark is None
        self._broker: BrokerChild | None = None
        self._lag_monitor: LagMonitor | None = None
        self.parts: list[Part] = []
        self.broker_failure: HeadraceError | None = None
        """Why the embedded broker ended. ``check_parts`` sets it."""
        self._reported: set[str] = set()
        self._failed_before_stop: list[Part] | None = None
        self._stop_is_announced = False
        self._summarizer = Summarizer(self)

    # Starting

    def start(self) -> None:
        from headrace.ops.alerts.rules import rules_of

        check(self.app)
        rules = rules_of(self.app, self.settings.alerts)
        make_private_dir(self.settings.data)
        self._start_log()
        if self._with_views:
            self._start_server()
        self.note(f"log at {self.cluster.bootstrap}, data in {self.settings.data}")
        self.parts.append(GenerationNotices(self.cluster, self.app, self.note).start(self.stop_requested))
        if self._with_views:
            self._start_followers()
        if self._with_views and not self._only and self.settings.alerts.every_s:
            self._start_alerts(rules)
        if self.settings.metrics.listen:
            self._start_metrics(self.settings.metrics.listen)
        self._start_flows()
        if self._with_views:
            self._start_proofs()

    def _start_log(self) -> None:
        log = self.settings.log
        address = log.bootstrap_servers
        if address is None:
            make_private_dir(self.settings.log_dir)
            self._broker = BrokerChild(
                log.listen,
                self.settings.log_dir,
                self.settings.data / "broker.log",
                options=["--durability", log.durability, *backup_options(self.settings.broker)],
                environment=backup_environment(self.settings.broker),
            )
            address = self._broker.address
        self.cluster = Cluster(address, log.properties, replication=self.settings.topics.replication)
        keep_earlier_names(self.cluster, self.app)
        letters = index_path(self.settings.data, self.app.name)
        self._lag_monitor = LagMonitor(
            self.cluster, self.app, RunPositions(self), letters, timeout_s=_LAG_TIMEOUT_S
        )
        history = expect_history_fits(self.cluster, self.app, SystemClock().now_ms())
        for topic in self.app.topics:
            if self.app.writer_of(topic) is None and topic.of is None:
                ensure_declared(self.cluster, topic, topic.name, self.settings.topics.partitions)
        history.record(self.cluster)
        for line in history.notes():
            self.note(line)

    def _start_followers(self) -> None:
        for view in self.app.views:
            follower = Follower(
                view,
                self.app.flows,
                self.cluster,
                lambda view=view: open_writer(view, self.app.name, self.settings.data),  # type: ignore[misc]
                print_line=self.note,
                max_rows=self.settings.views.max_rows,
            )
            self.followers.append(follower)
            self.start_part(Part(f"view {view.name}", follower.run, self.stop_requested))

    def _start_flows(self) -> None:
        if not self.app.flows:
            return
        from headrace.flow.compile.compiler import compile_app
        from headrace.flow.context import FlowContext, FlowOptions
        from headrace.flow.engine.task_slots import slots_for
        from headrace.flow.generation_choice import generation_to_deploy, resting_line
        from headrace.flow.runner import FlowRunner
        from headrace.flow.spark.session import start
        from headrace.runtime.beside import BesideFlows

        if self.spark is None:
            self.note("starting Spark")
            slots = slots_for(self.cluster, self.app, self.settings)
            self.spark = start(self.settings, self.app.name, slots=slots, say=self.note)
        self.compiled, self.schemas = compile_app(self.spark, self.app)
        options = FlowOptions.of(self.settings)
        self._beside = beside = BesideFlows(self)
        for compiled in self.compiled:
            if self._only and compiled.flow.name not in self._only:
                continue
            context = FlowContext(self.spark, self.cluster, self.app, compiled, self.schemas, options)
            number = generation_to_deploy(context, self.note) if self._changed_only else 0
            if number is None:
                continue
            runner = FlowRunner(
                context,
                number,
                rebuild_changed=self._rebuild_changed,
                is_deployment=self._changed_only,
                note=self.note,
            )
            self.flows.append(runner)
            beside.add(context)
            part = Part(f"flow {compiled.flow.name}", runner.run, self.stop_requested)
            self.start_part(part)
            # A later flow can read this flow's output. The later flow finds the topic in the generation
            # record, which must exist.
            deadline = time.monotonic() + _FLOW_START_S
            while not runner.opened.wait(0.1) and part.is_running and time.monotonic() < deadline:
                pass
            resting = "" if self._changed_only else resting_line(context)
            if resting:
                self.note(resting)
        if not self._changed_only:
            # The app itself derives its other generations.
            self.start_part(Part("generations", beside.run, self.stop_requested))

    def _start_proofs(self) -> None:
        from headrace.runtime.proofs import Proofs

        arguments = (self.spark, self.cluster, self.app, self.settings, self.compiled, self.schemas)
        self.proofs = Proofs(*arguments, note=self.note, warn=self._warn)
        if self.settings.verify.every_s:
            self.start_part(Part("proofs", self.proofs.run, self.stop_requested))

    def _start_alerts(self, rules: dict[str, Rule]) -> None:
        """Start this before Spark, because retention can delete unread records while Spark starts."""
        from headrace.ops.alerts.command import AlertCommand, parse_command
        from headrace.ops.alerts.watch import AlertWatch

        settings = self.settings.alerts
        if settings.exec is not None:
            self._alert_command = AlertCommand(
                parse_command(settings.exec), settings.exec_timeout_s, self._warn
            )
        self.alerts = AlertWatch(
            self.cluster,
            self.lag_monitor,
            rules,
            settings.every_s,
            note=self.note,
            warn=self._warn,
            command=self._alert_command,
        )
        self.start_part(Part("alerts", self.alerts.run, self.stop_requested))

    def _start_metrics(self, listen: str) -> None:
        from headrace.runtime.metrics import RunMetrics

        hosts = split_names(self.settings.metrics.hosts)
        self.metrics = RunMetrics(
            self.app.name, self.flows, self.followers, self.lag_monitor, self.alerts, hosts
        )
        self.metrics.start(listen, anyone=self.settings.metrics.anyone_may_read)
        self.note(f"metrics are at {self.metrics.address}")

    def _start_server(self) -> None:
        """Start this before Spark, so that clients can read the views immediately."""
        from headrace.runtime.run_server import start_server

        start_server(self, page=self._page, warn=self._warn)

    def start_part(self, part: Part) -> None:
        self.parts.append(part)
        part.start()

    # Running

    def check_parts(self) -> None:
        """Report each failed part once. Raise if the embedded broker has ended."""
        if self._broker is not None:
            self._check_broker(self._broker)
        failure = self.server.failure if self.server is not None else None
        if failure is not None and "serving" not in self._reported:
            self._reported.add("serving")
            self.note(f"the server has stopped: {failure}")
        for part in self.parts:
            if part.error is not None and part.name not in self._reported:
                self._reported.add(part.name)
                self.note(f"{part.name} has stopped: {part.error}")

    def _check_broker(self, broker: BrokerChild) -> None:
        try:
            broker.check_alive()
        except HeadraceError as error:
            self.broker_failure = error
            raise

    def starting_parts(self) -> list[str]:
        """Return the flows that have not opened yet and the views that cannot be read yet. Failed parts do not count:
        the others serve.
        """
        failed = {part.name for part in self.failed}
        opened = {runner.status.name for runner in self.flows if runner.opened.is_set()}
        starting = [f"flow {name}" for name in self.expected_flows if name not in opened]
        starting += [
            f"view {follower.view.name}" for follower in self.followers if not self._is_readable(follower)
        ]
        return [name for name in starting if name not in failed]

    def _is_readable(self, follower: Follower) -> bool:
        """Whether the view has rows to serve: while it is rebuilt, the old rows."""
        if follower.status.state != "rebuilding":
            return follower.status.state == "following"
        reader = open_reader(follower.view, self.app.name, self.settings.data)
        if reader is None:
            return False
        with contextlib.closing(reader):
            return reader.state(follower.view.name) is not None

    @property
    def lag_monitor(self) -> LagMonitor:
        """Measures lag for the server, the alerts and the metrics. Exists once the log has started."""
        assert self._lag_monitor is not None
        return self._lag_monitor

    @property
    def expected_flows(self) -> list[str]:
        """The names of the flows that run, or will run once Spark has started."""
        return [flow.name for flow in self.app.flows if not self._only or flow.name in self._only]

    @property
    def failed(self) -> list[Part]:
        """The parts that failed. A part that ``close(quickly=True)`` interrupts has not failed. That another process
        takes the flows over is how a deployment ends.
        """
        if self._failed_before_stop is not None:
            return self._failed_before_stop
        failed = [part for part in self.parts if part.error is not None]
        return [part for part in failed if not (self._changed_only and part.error_code == _TAKEN_OVER)]

    @property
    def is_taken_over(self) -> bool:
        """Whether a deployment is complete: no flow changed, or another process runs all changed flows."""
        flows = [part for part in self.parts if part.name.startswith("flow ")]
        return self._changed_only and not any(part.is_running for part in flows)

    @property
    def differing(self) -> list[str]:
        """The views in which a proof found a difference."""
        return self.proofs.differs if self.proofs else []

    def summarize(self) -> RunSummary:
        return self._summarizer.summarize()

    # Stopping

    @property
    def _runners(self) -> list[FlowRunner]:
        """The runners of all generations."""
        return [*self.flows, *(self._beside.runners if self._beside is not None else ())]

    def announce_stop(self) -> None:
        """Say, once, what a stop by Ctrl-C waits for."""
        if self._stop_is_announced:
            return
        self._stop_is_announced = True
        waits = [f"the running batch of {runner.status.name}" for runner in self._runners if runner.is_busy]
        waits += ["the function that writes events"] if self.feed else []
        after = f", after {' and '.join(dict.fromkeys(waits))}" if waits else ""
        self.note(f"stopping within about three seconds{after}; Ctrl-C again stops at once and loses nothing")

    def close(self, *, quickly: bool = False) -> None:
        """Stop all parts, and the log last. ``quickly``: within seconds, and the log together with the rest. A batch
        that takes longer runs again at the next start.
        """
        if quickly:
            self._failed_before_stop = self.failed
            for runner in self._runners:
                runner.patience_s = _QUICK_S
        self.stop_requested.set()
        if quickly:
            self.announce_stop()
        if self.server is not None:
            self.server.request_stop() if quickly else self.server.stop()
        if self.proofs is not None:
            # Cancel in another thread, because the JVM may not respond.
            proofs = self.proofs
            Part("cancelled proofs", lambda stop: proofs.cancel(), self.stop_requested).start()
        if quickly:
            self._join_parts(_QUICK_S)
            self._close_at_once()
            return
        self._join_parts(_STOP_S)
        if self._alert_command is not None:
            self._alert_command.close()
        self._stop_spark()
        if self.metrics is not None:
            self.metrics.close()
        if self._lag_monitor is not None:
            self._lag_monitor.close()
        if self.access_log is not None:
            self.access_log.close()
        if self._broker is not None:
            self._broker.stop()

    def _stop_spark(self, **options: Any) -> None:
        if self.spark is not None and self._owns_spark:
            from headrace.flow.spark.session import stop

            stop(self.spark, **options)

    def _close_at_once(self) -> None:
        """Close what is left, all at the same time, because each can hang: an alert's command, Spark, a request to the
        log. What has not ended in time ends with this process. That the log stops meanwhile loses nothing: a batch is
        in the log completely, or not at all.
        """
        closing: dict[str, Callable[[], object]] = {
            "Spark": partial(self._stop_spark, patience_s=_END_S, clean=False)
        }
        if self._alert_command is not None:
            closing["the alert command"] = partial(self._alert_command.close, 0)
        if self.metrics is not None:
            closing["metrics"] = self.metrics.close
        if self._lag_monitor is not None:
            closing["the lag monitor"] = self._lag_monitor.close
        if self.server is not None:
            closing["the server"] = partial(self.server.stop, 0)
        if self._broker is not None:
            closing["the broker"] = partial(self._broker.stop, _END_S)
        unfinished = close_together(closing, _QUICK_S)
        if unfinished:
            self.note(f"ended without waiting longer for {' and '.join(unfinished)}; nothing is lost")
        self.kill()
        if self.access_log is not None:
            self.access_log.close()

    def _join_parts(self, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        for part in self.parts:
            if not part.join(max(0.0, deadline - time.monotonic())):
                self.note(
                    f"{part.name} did not stop within {patience_s:.0f} s; the next start repeats its work"
                )

    def kill(self) -> None:
        """Kill the embedded broker, before this process ends at once. The JVM ends with this process."""
        if self._broker is not None:
            self._broker.kill()
