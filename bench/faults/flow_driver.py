"""A driver of two flows in a process of its own, which may kill or stop itself at a step of a batch.

    python -m bench.faults.flow_driver BOOTSTRAP HOME [--strike kill|stop|linger STEP NTH] [--without PROTECTION]

Steps are those between which the promise of a batch must hold: ``begun`` (the transaction is open), ``sent`` (its rows
are in the log), ``told`` (the progress record too), ``committed`` (and Spark has not noted it). The NTH time that any
of the two flows comes there, the process strikes; or it lingers there for a while, every NTH time, so that somebody
else can strike. It prints a word per thing that happens, and ends with 0 when all input is derived: at once, or with
``--stay`` when there is a file ``finish`` in HOME.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from headrace.app import App

__all__ = ["STEPS", "app_of_sales", "main"]

STEPS = ("begun", "sent", "told", "committed")
_ROWS_AT_ONCE = 40
_PATIENCE_S = 240.0
_LINGER_S = 0.3
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
        self._failed = None
        self._producer = cluster.producer({"linger.ms": 5})

    def nothing(self: Any) -> None:
        return None

    Writer.__init__, Writer.begin, Writer.commit, Writer.abort = plain, nothing, Writer.flush, nothing  # type: ignore[method-assign]


def _without_healing() -> None:
    """The first error ends the flow, also one that time would heal."""
    from headrace.flow import runner

    vars(runner)["heals"] = lambda error: False


_PROTECTIONS = {"transaction": _without_transactions, "healing": _without_healing}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("home", type=Path)
    parser.add_argument("--strike", nargs=3, metavar=("HOW", "STEP", "NTH"))
    parser.add_argument("--without", choices=_PROTECTIONS)
    parser.add_argument("--stay", action="store_true")
    given = parser.parse_args()
    from headrace.client.cluster import Cluster
    from headrace.flow.compiling import compile_app
    from headrace.flow.errors import FlowFenced
    from headrace.flow.options import FlowOptions
    from headrace.flow.runner import FlowRunner
    from headrace.flow.session import start, stop
    from headrace.settings import FlowSettings, Settings, SparkSettings

    if given.without:
        _PROTECTIONS[given.without]()
    if given.strike:
        _strike(given.strike[0], given.strike[1], int(given.strike[2]))
    settings = Settings(
        data=given.home,
        flow=FlowSettings(max_rows=_ROWS_AT_ONCE),
        # All of the heap from the beginning, so that whatever the process grows by is not the heap.
        spark=SparkSettings(
            driver_memory="512m",
            java_options="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms512m -XX:+AlwaysPreTouch",
            shuffle_partitions=1,
        ),
    )
    app = app_of_sales()
    cluster = Cluster(given.bootstrap)
    spark = start(settings, app.name)
    _say("started")
    ending = threading.Event()
    ends: list[str] = []
    threads: list[threading.Thread] = []
    runners: list[FlowRunner] = []

    def run(runner: FlowRunner) -> None:
        try:
            runner.run(ending)
        except Exception as error:
            ends.append("fenced" if isinstance(error, FlowFenced) else f"failed: {error}")
            ending.set()

    try:
        compiled, schemas = compile_app(spark, app)
        for one in compiled:
            runner = FlowRunner(spark, cluster, app, one, schemas, FlowOptions.of(settings))
            threads.append(threading.Thread(target=run, args=(runner,)))
            threads[-1].start()
            runners.append(runner)
            while not runner.opened.wait(0.05) and not ending.is_set():
                pass
        deadline = time.monotonic() + _PATIENCE_S
        quiet = 0
        while quiet < _QUIET and not ending.wait(0.4) and time.monotonic() < deadline:
            may_end = not given.stay or (given.home / "finish").exists()
            is_quiet = all(runner.status.state == "running" and runner.lag() == 0 for runner in runners)
            quiet = quiet + 1 if may_end and is_quiet else 0
        ending.set()
        for thread in threads:
            thread.join(60)
    finally:
        stop(spark)
    _say(ends[0] if ends else "done" if quiet >= _QUIET else f"late: {[runner.status for runner in runners]}")
    return 0 if ends == ["fenced"] or (not ends and quiet >= _QUIET) else 1


if __name__ == "__main__":
    sys.exit(main())
