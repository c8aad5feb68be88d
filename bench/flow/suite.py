"""Flows, views and stores, measured in one run on one machine: speed, cost, memory, and the settings behind them.

    python -m bench.flow [--quick] [--rounds N] [--scale X] [--only PART ...] [--results DIR]

    throughput  a flow against the same query written by hand in Structured Streaming
    lineage     a flow against the same flow without the coordinates of its rows
    latency     time until an event is visible in a view, against a limit
    verify      time to verify a view, against the time to build it
    start       time from the command to the first row
    recovery    time to catch up after kill -9, against the same flow with a tenth of the history
    stores      how fast a follower fills each store, against the store's own bulk load
    state       the cost of an event while state grows from 10^5 to 10^7 keys
    many        the cost of an event with twenty flows in one app, against one flow
    idle        the CPU of flows without new events, in an app with twenty flows and in one with one
    formats     JSON against Avro: size, and cost to decode
    memory      memory of ``headrace run`` as a whole, against Spark by hand and Apache Kafka
    trigger     the phases of a small batch, against the same query by hand
    settings    state partitions, state stores and triggers on one machine, each against the default
    cluster     the same on a Spark cluster of two workers

Both sides read the same topic of the same embedded broker with the same session. Each runs in its own process, in
alternating order. A round counts only if both wrote the same records. A flow does more: every batch is one transaction
with its progress, and invalid values and late rows go to side topics and are counted. Figures are medians of the
rounds. CPU is that of the driver (Python and JVM), without the broker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bench.flow import (
    formats,
    lineage,
    memory,
    recovery,
    small_batch,
    spark_settings,
    start_up,
    state,
    stores,
    throughput,
    verify,
    visibility_latency,
)
from bench.flow.context import FlowContext, Plan
from bench.flow.host import Host, ProcessHost, ThreadHost
from bench.session import Session, parser

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PARTS", "main", "selected_parts"]

PARTS: dict[str, Callable[[FlowContext], None]] = {
    "throughput": throughput.measure,
    "lineage": lineage.measure,
    "latency": visibility_latency.measure,
    "verify": verify.measure,
    "start": start_up.measure,
    "recovery": recovery.measure,
    "stores": stores.measure,
    "state": state.measure,
    "many": throughput.measure_many,
    "idle": throughput.measure_idle,
    "formats": formats.measure,
    "memory": memory.measure,
    "trigger": small_batch.measure,
    "settings": spark_settings.measure,
    "cluster": spark_settings.measure_cluster,
}
_WITH_OTHER_PROGRAMS = ("start", "recovery", "memory", "cluster")
"""Parts that start other programs. A quick run omits them unless ``--only`` names them."""


def selected_parts(only: list[str] | None, quick: bool) -> list[str]:
    """Return the parts to measure, in order."""
    if only:
        return [part for part in PARTS if part in only]
    return [part for part in PARTS if not (quick and part in _WITH_OTHER_PROGRAMS)]


@contextlib.contextmanager
def _host(quick: bool, home: Path) -> Iterator[Host]:
    if not quick:
        yield ProcessHost()
        return
    from headrace.flow.spark.session import start, stop
    from headrace.settings import Settings, SparkSettings

    with contextlib.ExitStack() as stack:

        def start_small_session() -> SparkSession:
            # With few rows, the second JIT compiler takes more time than it saves.
            settings = SparkSettings(
                driver_memory="768m", java_options="-XX:TieredStopAtLevel=1", conf=formats.avro_conf()
            )
            spark = start(Settings(data=home / "spark", spark=settings), "bench", slots=1)
            stack.callback(stop, spark)
            return spark

        yield ThreadHost(start_small_session)


def main() -> None:
    arguments = parser(
        __doc__, PARTS, "a small amount of every part that runs in one process, as a smoke test"
    )
    arguments.add_argument(
        "--scale", type=float, default=1.0, help="factor for the amount of work (default 1.0)"
    )
    options = arguments.parse_args()
    plan = Plan.quick() if options.quick else Plan.full(options.rounds, options.scale)
    session = Session("flow", options)
    with session.broker() as (server, home), _host(options.quick, home) as host:
        context = FlowContext(plan, host, server, home)
        session.measure(context, {part: PARTS[part] for part in selected_parts(options.only, options.quick)})
