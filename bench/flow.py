"""Flows, and what follows them, measured in one run on one machine: speed, cost, memory, and the settings behind it.

    python -m bench.flow [--quick] [--rounds N] [--scale X] [--only PART ...] [--results DIR]

    throughput  a flow beside the same query written by hand in Structured Streaming
    lineage     a flow beside the same flow without the coordinates of its rows
    latency     how soon an event is seen in a view, beside a limit
    verify      how fast a view is proven, beside how fast it came about
    start       from the command to the first row
    recovery    how long a flow takes to catch up after kill -9, beside the same flow behind a tenth of the history
    stores      how fast a follower fills each store, beside the store's own bulk load
    state       what an event costs while state grows from 10^5 to 10^7 keys
    many        what an event costs with twenty flows in one app, beside one flow
    formats     JSON beside Avro: bytes, and what it costs to read them
    memory      the whole of ``headrace run``, beside Spark by hand and Apache Kafka
    trigger     where the time of a small batch goes, beside the same query by hand
    settings    partitions of state, state stores and triggers on one machine, each beside the default
    cluster     the same on a Spark cluster of two workers

Ours and the peer read the same topic of the same embedded broker with the same session, each in a process of its own,
and take turns; who begins alternates. It counts only if both have written the same records. A flow does more for it:
every batch is one transaction with its progress, values that do not fit and late rows are laid aside and counted.
Figures are medians of the rounds. The CPU is that of the driver, Python and JVM; the broker's does not count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bench import (
    formats,
    lineage,
    many,
    memory,
    recovery,
    sight,
    start_up,
    state,
    stores,
    throughput,
    trigger,
    tuning,
    tuning_cluster,
    verify,
)
from bench.host import Fresh, Here, Host
from bench.plan import Plan
from bench.sitting import Sitting, parser
from bench.stand import Stand

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PARTS", "chosen", "main"]

PARTS: dict[str, Callable[[Stand], None]] = {
    "throughput": throughput.measure,
    "lineage": lineage.measure,
    "latency": sight.measure,
    "verify": verify.measure,
    "start": start_up.measure,
    "recovery": recovery.measure,
    "stores": stores.measure,
    "state": state.measure,
    "many": many.measure,
    "formats": formats.measure,
    "memory": memory.measure,
    "trigger": trigger.measure,
    "settings": tuning.measure,
    "cluster": tuning_cluster.measure,
}
_APART = ("start", "recovery", "memory", "cluster")
"""Parts that start programs of their own, which a quick run leaves out unless it is asked for them."""


def chosen(only: list[str] | None, quick: bool) -> list[str]:
    """Which parts are measured, in their order."""
    if only:
        return [part for part in PARTS if part in only]
    return [part for part in PARTS if not (quick and part in _APART)]


@contextlib.contextmanager
def _host(quick: bool, home: Path) -> Iterator[Host]:
    if not quick:
        yield Fresh()
        return
    from headrace.flow.session import start, stop
    from headrace.settings import Settings, SparkSettings

    with contextlib.ExitStack() as stack:

        def started() -> SparkSession:
            # For a few rows the second compiler costs more than it gives.
            little = SparkSettings(
                driver_memory="768m", java_options="-XX:TieredStopAtLevel=1", conf=formats.avro_conf()
            )
            spark = start(Settings(data=home / "spark", spark=little), "bench", slots=1)
            stack.callback(stop, spark)
            return spark

        yield Here(started)


def main() -> None:
    asked = parser(__doc__, PARTS, "a little of all that one process can do: does it run at all?")
    asked.add_argument("--scale", type=float, default=1.0, help="how much of the usual work")
    options = asked.parse_args()
    plan = Plan.quick() if options.quick else Plan.full(options.rounds, options.scale)
    sitting = Sitting("flow", options)
    with sitting.broker() as (server, home), _host(options.quick, home) as host:
        stand = Stand(plan, host, server, home)
        sitting.measure(stand, {part: PARTS[part] for part in chosen(options.only, options.quick)})


if __name__ == "__main__":
    main()
