"""A driver of two flows in a process of its own, which may kill or stop itself at a step of a batch.

    python -m bench.faults.flow_driver BOOTSTRAP HOME [--strike kill|stop|linger STEP NTH] [--without PROTECTION]
                                       [--follow] [--prove] [--stay]

Steps are those between which the promise of a batch must hold: ``begun`` (the transaction is open), ``sent`` (its rows
are in the log), ``told`` (the progress record too), ``committed`` (and Spark has not noted it). The NTH time that any
of the two flows comes there, the process strikes; or it lingers there for a while, every NTH time, so that somebody
else can strike. It prints a word per thing that happens, and ends with 0 when all input is derived: at once, or with
``--stay`` when there is a file ``finish`` in HOME. With ``--follow`` views of both follow too, into a SQLite file in
HOME, and with ``--prove`` the product itself proves all of it before the end.
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
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.settings import FlowSettings, Settings, SparkSettings
from headrace.views.follower import Follower
from headrace.views.opening import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.flow.runner import FlowRunner

__all__ = ["STEPS", "Parts", "app_of_sales", "main"]

STEPS = ("begun", "sent", "told", "committed")
_ROWS_AT_ONCE = 25
_PATIENCE_S = 600.0
_LINGER_S = 1.0
_QUIET = 3


@dataclass(frozen=True)
class Sale:
    sale_id: str
    product_id: str
    amount: int
    at: datetime


def app_of_sales() -> App:
    """Rows that are kept, and sums of them; the second reads what the first writes."""
    app = App("sales")
    sales = app.topic("sales", Sale, key="sale_id", time="at", late=timedelta(hours=1), partitions=2)
    kept = app.topic("kept", key="sale_id", time="at", late=timedelta(hours=1), partitions=2)
    sums = app.topic("sums", key=["product_id", "minute"])
    app.view("kept_rows", kept)
    app.view("sum_rows", sums)

    @app.flow(reads=[sales], writes=kept)
    def keep(sales: Any) -> Any:
        return sales.where("amount > 0")

    @app.flow(reads=[kept], writes=sums)
    def sum_up(kept: Any) -> Any:
        from pyspark.sql import functions as F

        minutes = kept.groupBy("product_id", F.window("at", "1 minute").alias("window"))
        summed = minutes.agg(F.sum("amount").alias("amount"), F.count(F.lit(1)).alias("sales"))
        return summed.select("product_id", F.col("window.start").alias("minute"), "amount", "sales")

    return app


def _say(word: str) -> None:
    print(word, flush=True)


def _strike(how: str, step: str, nth: int) -> None:
    """Writer's methods, wrapped: the product itself has no such places."""
    from headrace.flow.writer import Writer

    counted = itertools.count(1)

    def reach(here: str) -> None:
        if here != step:
            return
        times = next(counted)
        if how == "linger" and times % nth == 0:
            _say(f"lingering {here}")
            time.sleep(_LINGER_S)
            _say("gone on")
        elif times == nth and how != "linger":
            _say(f"striking {here}")
            os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)

    begin, sides, flush, commit = Writer.begin, Writer.sides, Writer.flush, Writer.commit

    def begun(self: Any) -> None:
        begin(self)
        reach("begun")

    def sent(self: Any) -> None:
        flush(self)
        reach("sent")

    def told(self: Any, records: Any) -> None:
        listed = list(records)
        sides(self, listed)
        if any(one.topic.endswith(".progress") for one in listed):
            flush(self)
            reach("told")

    def committed(self: Any) -> None:
        commit(self)
        reach("committed")

    Writer.begin, Writer.flush, Writer.sides, Writer.commit = begun, sent, told, committed  # type: ignore[method-assign]


def _without_transactions() -> None:
    """Rows are there for everybody as soon as they are sent, as Spark's own sink has it."""
    from headrace.flow.writer import Writer

    def plain(self: Any, cluster: Any, flow: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self.flow = flow
        self._began = 0.0
        self._largest = ("", 0, "")
        self._producer = cluster.producer({"linger.ms": 5})

    def nothing(self: Any) -> None:
        return None

    Writer.__init__, Writer.begin, Writer.commit, Writer.abort = plain, nothing, Writer.flush, nothing  # type: ignore[method-assign]


def _without_healing() -> None:
    """The first error ends the flow, also one that time would heal."""
    from headrace.flow import runner

    vars(runner)["heals"] = lambda error: False


_PROTECTIONS = {"transaction": _without_transactions, "healing": _without_healing}


def _settings(home: Path, stays: bool) -> Settings:
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    if stays:
        # All of the heap from the beginning, so that whatever the process grows by is not the heap.
        options += " -Xms512m -XX:+AlwaysPreTouch"
    return Settings(
        data=home,
        flow=FlowSettings(max_rows=_ROWS_AT_ONCE),
        spark=SparkSettings(
            driver_memory="512m",
            java_options=options,
            shuffle_partitions=1,
            # A flow without input asks for some a hundred times a second otherwise, while the other still works. And a
            # process that derives a few hundred rows takes longer to compile its plans than to run them.
            conf={
                "spark.sql.streaming.pollingDelay": "100ms",
                "spark.sql.codegen.wholeStage": "false",
                "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            },
        ),
    )


class Parts:
    """The flows and the followers, each in a thread; the first that cannot go on ends all."""

    def __init__(self, spark: SparkSession, cluster: Cluster, settings: Settings, app: App) -> None:
        from headrace.flow.compiling import compile_app

        self.app = app
        self.compiled, self.schemas = compile_app(spark, self.app)
        self.ending = threading.Event()
        self.ends: list[str] = []
        self._spark, self._cluster, self._settings = spark, cluster, settings
        self._runners: list[FlowRunner] = []
        self._followers: list[Follower] = []
        self._threads: list[threading.Thread] = []

    def start(self, *, follow: bool) -> None:
        from headrace.flow.options import FlowOptions
        from headrace.flow.runner import FlowRunner

        options = FlowOptions.of(self._settings)
        for one in self.compiled:
            runner = FlowRunner(self._spark, self._cluster, self.app, one, self.schemas, options)
            self._begin(runner.run)
            self._runners.append(runner)
            while not runner.opened.wait(0.05) and not self.ending.is_set():
                pass
        for view in self.app.views if follow else ():
            follower = Follower(
                view,
                self.app.flows,
                self._cluster,
                lambda view=view: open_store(view, self.app.name, self._settings.data),  # type: ignore[misc]
            )
            self._begin(follower.run)
            self._followers.append(follower)

    def _begin(self, run: Callable[[threading.Event], None]) -> None:
        def guarded() -> None:
            from headrace.flow.errors import FlowFenced

            try:
                run(self.ending)
            except Exception as error:
                self.ends.append("fenced" if isinstance(error, FlowFenced) else f"failed: {error!r}")
                self.ending.set()

        self._threads.append(threading.Thread(target=guarded))
        self._threads[-1].start()

    @property
    def are_quiet(self) -> bool:
        if not all(one.status.state == "running" and one.lag() == 0 for one in self._runners):
            return False
        last = {one.current.generation.output: one.current.last for one in self._runners if one.current}
        for follower in self._followers:
            batch, at = last.get(follower.view.topic.name), follower.status.position
            if batch is not None and (at is None or at.batch < batch.batch):
                return False
        return True

    def prove(self) -> None:
        from headrace.ops.errors import CannotVerify
        from headrace.ops.verify import Verifier

        where = (self._spark, self._cluster, self.app, self._settings)
        with Verifier(*where, self.compiled, self.schemas) as verifier:
            for report in verifier.all():
                if isinstance(report, CannotVerify) or report.verdict != "proven":
                    self.ends.append(f"not proven: {report}")

    def stop(self) -> None:
        self.ending.set()
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
    given = parser.parse_args()
    from headrace.flow.session import start, stop

    if given.without:
        _PROTECTIONS[given.without]()
    if given.strike:
        _strike(given.strike[0], given.strike[1], int(given.strike[2]))
    settings = _settings(given.home, given.stay)
    spark = start(settings, "sales")
    _say("started")
    try:
        parts = Parts(spark, Cluster(given.bootstrap), settings, app_of_sales())
        parts.start(follow=given.follow)
        while given.stay and not (given.home / "finish").exists() and not parts.ending.wait(0.2):
            pass
        deadline = time.monotonic() + _PATIENCE_S
        quiet = 0
        while quiet < _QUIET and not parts.ending.wait(0.3) and time.monotonic() < deadline:
            quiet = quiet + 1 if parts.are_quiet else 0
        if quiet >= _QUIET and given.prove:
            parts.prove()
        parts.stop()
    finally:
        stop(spark)
    _say(parts.ends[0] if parts.ends else "done" if quiet >= _QUIET else "late")
    return 0 if parts.ends == ["fenced"] or (not parts.ends and quiet >= _QUIET) else 1


if __name__ == "__main__":
    sys.exit(main())
