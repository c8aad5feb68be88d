"""An app that runs: the log first, then Spark, the flows in the order in which they build on each other, and the
followers.

Parts meet at topics only. A part that fails is told of once, with what to do; the others go on. Stopping is the other
way round: whoever writes last stops first, and the log stops last.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.app import App
from headrace.broker.host_names import split_names
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from headrace.errors import HeadraceError
from headrace.model.extras import ExtraMissing
from headrace.model.graph import check
from headrace.private import make_private_dir
from headrace.runtime.embedded import BrokerChild, backup_environment, backup_options
from headrace.runtime.look import AlertLook, FlowLook, Look, ViewLook
from headrace.runtime.part import Part
from headrace.settings import Settings
from headrace.settings.page_place import FREE_LISTEN, NOT_SERVED, USUAL_LISTEN
from headrace.views.follower import Follower
from headrace.views.opening import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.flow.compiled import Compiled
    from headrace.flow.runner import FlowRunner
    from headrace.model.rule import Rule
    from headrace.model.schema import Schema
    from headrace.ops.alerts.watch import AlertWatch
    from headrace.runtime.metrics import RunMetrics
    from headrace.runtime.proofs import Proofs
    from headrace.serve.access_log import LogFile
    from headrace.serve.server import Server

__all__ = ["Run"]

_OPEN_S = 120.0
_STOP_S = 60.0


class Run:
    """``tell`` takes a line for a person, ``warn`` one that must not be missed; they may be called from any thread.
    ``only`` names the flows to run, ``feed`` what writes events beside it. A ``spark`` that is given is somebody else's
    too, and is not stopped here. With ``page`` it is served where nothing was said of serving too.
    """

    def __init__(
        self,
        app: App,
        settings: Settings,
        *,
        tell: Callable[[str], None],
        warn: Callable[[str], None] | None = None,
        rebuild_changed: bool = False,
        only: Sequence[str] = (),
        with_views: bool = True,
        spark: SparkSession | None = None,
        page: bool = False,
        feed: str = "",
    ) -> None:
        self.app = app
        self.settings = settings
        self.feed = feed
        self.stop_asked = threading.Event()
        self.cluster: Cluster
        self.spark = spark
        """None where there is no flow to run."""
        self.compiled: list[Compiled] = []
        self.schemas: dict[str, Schema] = {}
        self.flows: list[FlowRunner] = []
        self.followers: list[Follower] = []
        self.proofs: Proofs | None = None
        """Once all that a proof needs is there."""
        self.alerts: AlertWatch | None = None
        """Where lags are watched: by a run of the whole app."""
        self.metrics: RunMetrics | None = None
        self.server: Server | None = None
        self._access_log: LogFile | None = None
        self._tell = tell
        self._warn = warn or tell
        self._rebuild_changed = rebuild_changed
        self._only = only
        self._with_views = with_views
        self._page = page
        self._spark_is_ours = spark is None
        self._broker: BrokerChild | None = None
        self.parts: list[Part] = []
        self.broker_failure: HeadraceError | None = None
        """What ended the embedded broker, once that was noticed."""
        self._told: set[str] = set()
        self._began = time.monotonic()
        self._before: dict[str, tuple[float, int]] = {}

    # Starting

    def start(self) -> None:
        from headrace.ops.alerts.rules import rules_of

        check(self.app)
        rules = rules_of(self.app, self.settings.alerts)
        make_private_dir(self.settings.data)
        self._start_log()
        if self._with_views:
            self._start_server()
        self._tell(f"log at {self.cluster.bootstrap}, data in {self.settings.data}")
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
        for topic in self.app.topics:
            if self.app.writer_of(topic) is None:
                ensure_declared(self.cluster, topic, topic.name, self.settings.topics.partitions)

    def _start_followers(self) -> None:
        for view in self.app.views:
            follower = Follower(
                view,
                self.app.flows,
                self.cluster,
                lambda view=view: open_store(view, self.app.name, self.settings.data),  # type: ignore[misc]
                tell=self._tell,
                max_rows=self.settings.views.max_rows,
            )
            self.followers.append(follower)
            self._begin(Part(f"view {view.name}", follower.run, self.stop_asked))

    def _start_flows(self) -> None:
        if not self.app.flows:
            return
        from headrace.flow.compiling import compile_app
        from headrace.flow.options import FlowOptions
        from headrace.flow.runner import FlowRunner
        from headrace.flow.session import start
        from headrace.flow.slots import slots_for

        if self.spark is None:
            self._tell("starting Spark")
            slots = slots_for(self.cluster, self.app, self.settings)
            self.spark = start(self.settings, self.app.name, slots=slots, say=self._tell)
        self.compiled, self.schemas = compile_app(self.spark, self.app)
        options = FlowOptions.of(self.settings)
        for one in self.compiled:
            if self._only and one.flow.name not in self._only:
                continue
            runner = FlowRunner(
                self.spark,
                self.cluster,
                self.app,
                one,
                self.schemas,
                options,
                rebuild_changed=self._rebuild_changed,
            )
            self.flows.append(runner)
            part = Part(f"flow {one.flow.name}", runner.run, self.stop_asked)
            self._begin(part)
            # What reads its output asks the log which topic that is, so its generation must be there first.
            deadline = time.monotonic() + _OPEN_S
            while not runner.opened.wait(0.1) and part.is_running and time.monotonic() < deadline:
                pass

    def _start_proofs(self) -> None:
        from headrace.runtime.proofs import Proofs

        where = (self.spark, self.cluster, self.app, self.settings, self.compiled, self.schemas)
        self.proofs = Proofs(*where, tell=self._tell, warn=self._warn)
        if self.settings.verify.every_s:
            self._begin(Part("proofs", self.proofs.run, self.stop_asked))

    def _start_alerts(self, rules: dict[str, Rule]) -> None:
        """Before Spark: what is not read while it starts may be lost all the same."""
        from headrace.ops.alerts.watch import AlertWatch
        from headrace.runtime.run_readers import run_readers

        readers = run_readers(self.cluster, self.app, self.flows, self.followers)
        every_s, name = self.settings.alerts.every_s, self.app.name
        self.alerts = alerts = AlertWatch(
            self.cluster, name, rules, readers, every_s, tell=self._tell, warn=self._warn
        )

        def watch(stop: threading.Event) -> None:
            with contextlib.closing(readers):
                alerts.run(stop)

        self._begin(Part("alerts", watch, self.stop_asked))

    def _start_metrics(self, listen: str) -> None:
        from headrace.runtime.metrics import RunMetrics

        hosts = split_names(self.settings.metrics.hosts)
        self.metrics = RunMetrics(self.app.name, self.flows, self.followers, self.alerts, hosts)
        self.metrics.start(listen, anyone=self.settings.metrics.anyone_may_read)
        self._tell(f"metrics are at {self.metrics.address}")

    def _start_server(self) -> None:
        """Before Spark: what the views have is there to be read."""
        listen = self.settings.serve.listen
        if listen == NOT_SERVED or (listen is None and not self._page):
            return
        from headrace.serve.server import AddressTaken

        if listen is not None:
            self.server = self._server(listen)
        else:
            try:
                self.server = self._server(USUAL_LISTEN)
            except AddressTaken:
                self.server = self._server(FREE_LISTEN)
            except ExtraMissing as error:
                self._tell(f"there is no page: {error}")
                return
        self.server.start()
        self._tell(f"the page is at {self.server.address}")
        if self.server.pg_address:
            self._tell(f"answering in PostgreSQL's protocol at {self.server.pg_address}")

    def _server(self, listen: str) -> Server:
        from headrace.runtime.live import RunLive
        from headrace.serve.access_log import LogFile
        from headrace.serve.server import Server

        settings = self.settings
        path = settings.serve.access_log or settings.data / "access.log"
        self._access_log = LogFile(path, settings.serve.access_log_bytes_max)
        return Server(
            self.app,
            self.cluster,
            settings.data,
            settings.serve,
            listen,
            warn=self._warn,
            log=self._access_log.write,
            live=RunLive(self),
        )

    def _begin(self, part: Part) -> None:
        self.parts.append(part)
        part.start()

    # Running

    def check_parts(self) -> None:
        """Tells of each part that has failed, once; raises if the log is gone."""
        if self._broker is not None:
            self._expect_broker(self._broker)
        failure = self.server.failure if self.server is not None else None
        if failure is not None and "serving" not in self._told:
            self._told.add("serving")
            self._tell(f"serving has stopped: {failure}")
        for part in self.parts:
            if part.error is not None and part.name not in self._told:
                self._told.add(part.name)
                self._tell(f"{part.name} has stopped: {part.error}")

    def _expect_broker(self, broker: BrokerChild) -> None:
        try:
            broker.check_alive()
        except HeadraceError as error:
            self.broker_failure = error
            raise

    @property
    def expected_flows(self) -> list[str]:
        """Those that it runs, or will once Spark is there."""
        return [one.name for one in self.app.flows if not self._only or one.name in self._only]

    @property
    def failed(self) -> list[Part]:
        return [part for part in self.parts if part.error is not None]

    @property
    def differing(self) -> list[str]:
        """Views that a proof has found not to be as derived."""
        return self.proofs.differs if self.proofs else []

    def look(self) -> Look:
        now = time.monotonic()
        return Look(
            round(now - self._began, 1),
            [self._flow_look(runner, now) for runner in self.flows],
            [self._view_look(follower, now) for follower in self.followers],
            [AlertLook(one.alert, one.text, one.since_ms) for one in self.alerts.firing]
            if self.alerts
            else [],
        )

    def _flow_look(self, runner: FlowRunner, now: float) -> FlowLook:
        opened = runner.current
        last = opened.last if opened else None
        rows_in = last.totals.rows_in if last else 0
        return FlowLook(
            name=runner.status.name,
            state=runner.status.state,
            why=runner.status.why,
            generation=opened.generation.generation if opened else 0,
            batch=last.batch if last else None,
            rows_per_s=self._rate(f"flow {runner.status.name}", now, rows_in),
            rows_in=rows_in,
            rows_out=last.totals.rows_out if last else 0,
            lag=runner.lag(),
            watermark_us=last.next_watermark_us if last else None,
            state_rows=last.state_rows if last else 0,
            late=last.totals.late if last else 0,
            dead=last.totals.dead + last.totals.table_dead if last else 0,
            latency=runner.latency,
        )

    def _view_look(self, follower: Follower, now: float) -> ViewLook:
        status = follower.status
        return ViewLook(
            name=status.view,
            state=status.state,
            why=status.reason,
            applied=status.applied,
            per_s=self._rate(f"view {status.view}", now, status.applied),
            lag=status.lag,
            dead=status.dead,
            foreign=status.foreign,
            repeats=status.repeats,
            verified=self.proofs.last(status.view) if self.proofs else "",
            differs=self.proofs is not None and status.view in self.proofs.differs,
        )

    def _rate(self, name: str, now: float, count: int) -> float:
        before = self._before.get(name)
        self._before[name] = (now, count)
        if before is None or now <= before[0]:
            return 0.0
        return max(0.0, (count - before[1]) / (now - before[0]))

    # Stopping

    def stop_flows(self) -> None:
        """All parts end; Spark and the log stay, for a last proof."""
        self.stop_asked.set()
        if self.proofs is not None:
            self.proofs.cancel()
        for part in self.parts:
            if not part.join(_STOP_S):
                self._tell(f"{part.name} did not stop within {_STOP_S:.0f} s, and is left behind")

    def close(self) -> None:
        if self.server is not None:
            self.server.stop()
        if self._access_log is not None:
            self._access_log.close()
        self.stop_flows()
        if self.spark is not None and self._spark_is_ours:
            from headrace.flow.session import stop

            stop(self.spark)
        if self.metrics is not None:
            self.metrics.close()
        if self._broker is not None:
            self._broker.stop()
