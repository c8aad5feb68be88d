"""Flows, and what follows them, measured in one run on one machine: speed, cost, memory, and the settings behind it.

    python -m bench.flow [--quick] [--rounds N] [--scale X] [--only PART ...] [--results DIR]

    throughput  a flow beside the same query written by hand in Structured Streaming
    latency     how soon an event is seen in a view, beside a limit
    verify      how fast a view is proven, beside how fast it came about
    start       from the command to the first row
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

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bench import (
    formats,
    many,
    memory,
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
from bench.machine import write_machine
from bench.plan import Plan
from bench.report import RESULTS, earlier_rows, write_results
from bench.stand import Stand
from tests.support.embedded import start_headrace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PARTS", "chosen", "main"]

PARTS: dict[str, Callable[[Stand], None]] = {
    "throughput": throughput.measure,
    "latency": sight.measure,
    "verify": verify.measure,
    "start": start_up.measure,
    "stores": stores.measure,
    "state": state.measure,
    "many": many.measure,
    "formats": formats.measure,
    "memory": memory.measure,
    "trigger": trigger.measure,
    "settings": tuning.measure,
    "cluster": tuning_cluster.measure,
}
_APART = ("start", "memory", "cluster")
"""Parts that start programs of their own, which a quick run leaves out unless it is asked for them."""
_QUICK = RESULTS.parents[1] / "build" / "bench"


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="a little of all that one process can do: does it run at all?"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="how much of the usual work")
    parser.add_argument(
        "--only", nargs="+", metavar="PART", choices=PARTS, help="others keep the rows that they have"
    )
    parser.add_argument("--results", type=Path, help="bench/results, or build/bench of a quick run")
    options = parser.parse_args()
    began = time.monotonic()
    print(f"load before: {os.getloadavg()[0]:.2f}", flush=True)
    plan = Plan.quick() if options.quick else Plan.full(options.rounds, options.scale)
    results: Path = options.results or (_QUICK if options.quick else RESULTS)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        server = start_headrace(home / "broker")
        try:
            with _host(options.quick, home) as host:
                stand = Stand(plan, host, server, home)
                for part in chosen(options.only, options.quick):
                    print(f"{part}, after {time.monotonic() - began:.0f} s", flush=True)
                    PARTS[part](stand)
                    # What comes later may take an hour, or fail.
                    write_results(
                        "flow", stand.measured.rows(), results, beside=earlier_rows("flow", results)
                    )
        finally:
            server.stop()
    rows = stand.measured.rows()
    beside = earlier_rows("flow", results) if options.only else []
    path = write_results("flow", rows, results, beside=beside)
    write_machine(results)
    print(f"{len(rows)} rows in {path}, after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
