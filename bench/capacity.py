"""The capacity page: what one core and one gigabyte carry, from the results of the benchmarks.

Each figure is computed from rows of ``bench/results``. A figure whose row does not exist is shown as not measured yet,
with the command that measures it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.report import RESULTS, earlier_rows

__all__ = ["FIGURES", "Figure", "Results", "example", "render_capacity", "table"]

_MILLION = 1_000_000
_SYNCED = " (synced)"
_FLOWS = 20
"""The number of flows of the part ``many`` of ``bench.flow``."""


class NotMeasured(LookupError):
    """The results have no row of this name."""


class Results:
    """Figures by file and name of the row. If several rows have the name, the first one counts."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self._rows: dict[tuple[str, str], Mapping[str, Any]] = {}
        for file in ("log", "flow", "serve"):
            for row in earlier_rows(file, folder):
                self._rows.setdefault((file, row["name"]), row)

    def us(self, file: str, name: str) -> float:
        return float(self._row(file, name)["us"])

    def them(self, file: str, name: str) -> float:
        return float(self._row(file, name)["them"])

    def _row(self, file: str, name: str) -> Mapping[str, Any]:
        if (file, name) not in self._rows:
            raise NotMeasured(f"{file}: {name}")
        return self._rows[file, name]


@dataclass(frozen=True)
class Figure:
    part: str
    what: str
    unit: str
    compute: Callable[[Results], float]
    source: str
    """Where the figure comes from: the rows, or what is computed from them."""
    command: str
    """The command that measures it again."""

    def text(self, results: Results) -> str:
        try:
            value = self.compute(results)
        except NotMeasured:
            return "not measured yet"
        digits = f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
        return f"{digits} {self.unit}"


def _per_core(file: str, name: str) -> Callable[[Results], float]:
    """Return how many events one core processes in a second, from the CPU seconds per million events."""
    return lambda results: _MILLION / results.us(file, name)


def _plain(file: str, name: str, factor: float = 1.0) -> Callable[[Results], float]:
    return lambda results: results.us(file, name) * factor


def _further_flow(results: Results) -> float:
    name = f"driver's memory, {_FLOWS} flows in one app, map and filter"
    return (results.us("flow", name) - results.them("flow", name)) / (_FLOWS - 1)


def _first_flow(results: Results) -> float:
    return results.them("flow", f"driver's memory, {_FLOWS} flows in one app, map and filter")


def _per_million_keys(what: str, keys: int, store: str) -> Callable[[Results], float]:
    """Return the growth per million keys, from 100,000 keys to ``keys``."""
    name = f"{what}, {keys:,} keys of state in {store}"
    return lambda results: (
        (results.us("flow", name) - results.them("flow", name)) / ((keys - 100_000) / _MILLION)
    )


def _cores_of_slow_stream(results: Results) -> float:
    name = "CPU for a minute of 100/s, window aggregation; one machine, a trigger every 1,000 ms"
    return results.us("flow", name) / 60


_LOG = "make bench-log"
_FLOW = 'make bench-flow ARGS="--only {}"'
_SERVE = "make bench-serve"
_EVENTS = "events/s per core"

FIGURES: dict[str, Figure] = {
    "produce": Figure(
        "broker",
        "records produced, 100 B, acknowledged when on disk",
        _EVENTS,
        _per_core("log", f"server's CPU per million produced, 100 B, 1 partition, none{_SYNCED}"),
        "server's CPU per million produced",
        _LOG,
    ),
    "produce-1k": Figure(
        "broker",
        "records produced, 1,000 B, acknowledged when on disk",
        _EVENTS,
        _per_core("log", f"server's CPU per million produced, 1,000 B, 1 partition, none{_SYNCED}"),
        "server's CPU per million produced",
        _LOG,
    ),
    "consume": Figure(
        "broker",
        "records consumed, 100 B, by each reader",
        _EVENTS,
        _per_core("log", f"server's CPU per million consumed, 100 B, 1 partition, none{_SYNCED}"),
        "server's CPU per million consumed",
        _LOG,
    ),
    "broker-memory": Figure(
        "broker",
        "memory after load, without the page cache",
        "MB",
        _plain("log", f"resident memory after load{_SYNCED}"),
        "resident memory after load",
        _LOG,
    ),
    "record-disk": Figure(
        "broker",
        "disk for an order as JSON, LZ4",
        "B",
        _plain("flow", "a million orders as JSON in the log, LZ4"),
        "a million orders as JSON in the log",
        _FLOW.format("formats"),
    ),
    "map": Figure(
        "flow",
        "map and filter",
        _EVENTS,
        _per_core("flow", "driver's CPU per million events, map and filter"),
        "driver's CPU per million events",
        _FLOW.format("throughput"),
    ),
    "window": Figure(
        "flow",
        "window aggregation",
        _EVENTS,
        _per_core("flow", "driver's CPU per million events, window aggregation"),
        "driver's CPU per million events",
        _FLOW.format("throughput"),
    ),
    "keys": Figure(
        "flow",
        "aggregation over all time, 10,000,000 keys in RocksDB",
        _EVENTS,
        _per_core("flow", "CPU per million events, 10,000,000 keys of state in RocksDB"),
        "CPU per million events",
        _FLOW.format("state"),
    ),
    "slow": Figure(
        "flow",
        "batches of one flow with state: 100 events/s, a batch per second",
        "cores",
        _cores_of_slow_stream,
        "CPU for a minute of 100/s",
        _FLOW.format("settings"),
    ),
    "idle": Figure(
        "flow",
        "each flow without input",
        "cores",
        _plain("flow", f"CPU per second of an idle flow, {_FLOWS} flows in one app"),
        "CPU per second of an idle flow",
        _FLOW.format("idle"),
    ),
    "first-flow": Figure(
        "flow",
        "memory of Spark and the first flow",
        "MB",
        _first_flow,
        "driver's memory, one flow",
        _FLOW.format("many"),
    ),
    "further-flow": Figure(
        "flow",
        "memory of each further flow",
        "MB",
        _further_flow,
        f"driver's memory, {_FLOWS} flows and one flow",
        _FLOW.format("many"),
    ),
    "state-memory": Figure(
        "state",
        "memory per million keys, `spark.state = memory`",
        "MB",
        _per_million_keys("driver's memory", _MILLION, "memory"),
        "driver's memory, 1,000,000 and 100,000 keys",
        _FLOW.format("state"),
    ),
    "state-rocksdb": Figure(
        "state",
        "memory per million keys, `spark.state = rocksdb`",
        "MB",
        _per_million_keys("driver's memory", 10 * _MILLION, "RocksDB"),
        "driver's memory, 10,000,000 and 100,000 keys",
        _FLOW.format("state"),
    ),
    "state-disk": Figure(
        "state",
        "disk per million keys, `spark.state = rocksdb`",
        "MB",
        _per_million_keys("checkpoint on disk", 10 * _MILLION, "RocksDB"),
        "checkpoint on disk, 10,000,000 and 100,000 keys",
        _FLOW.format("state"),
    ),
    **{
        f"view-{store}": Figure(
            "view",
            f"rows into {title}, one follower",
            "rows/s",
            _plain("flow", f"follower into {store}, from the log"),
            "follower, from the log",
            _FLOW.format("stores"),
        )
        for store, title in {
            "sqlite": "SQLite",
            "postgres": "PostgreSQL",
            "redis": "Redis",
            "search": "a search index",
            "delta": "Delta",
        }.items()
    },
    "reads": Figure(
        "server",
        "rows by key from SQLite, one process",
        "reads/s",
        _plain("serve", "rows by key from sqlite, 8 connections"),
        "rows by key from sqlite, 8 connections",
        _SERVE,
    ),
    "subscribers": Figure(
        "server",
        "a thousand subscribers, 100 changes/s",
        "cores",
        _plain("serve", "server's CPU per second for a thousand further subscribers, from 100 to 1,000"),
        "server's CPU for a thousand further subscribers",
        _SERVE,
    ),
    "subscriber-memory": Figure(
        "server",
        "memory of a thousand subscribers",
        "MB",
        _plain("serve", "server's memory for a further subscriber, from 100 to 1,000"),
        "server's memory for a further subscriber",
        _SERVE,
    ),
    "verify": Figure(
        "verify",
        "events derived again and compared, window aggregation, two cores",
        "events/s",
        _plain("flow", "verify, window aggregation"),
        "verify",
        _FLOW.format("verify"),
    ),
}


def table(results: Results) -> str:
    head = ("Part", "What", "Figure", "Computed from the row", "Measured by")
    lines = [
        (figure.part, figure.what, figure.text(results), figure.source, f"`{figure.command}`")
        for figure in FIGURES.values()
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ("---",) * len(head), *lines))


_RATE, _MAPS, _WINDOWS, _KEYS, _SUBSCRIBERS, _DAYS = 2_000, 1, 2, 5 * _MILLION, 500, 30


def example(results: Results) -> str:
    """Return the worked example, computed with the formulas of the page."""

    def figure(name: str) -> float:
        return FIGURES[name].compute(results)

    flows = _MAPS + _WINDOWS
    readers = flows + 1
    cores = {
        "broker": _RATE / figure("produce") + readers * _RATE / figure("consume"),
        "batches": flows * figure("slow"),
        "events": _RATE * (_MAPS / figure("map") + _WINDOWS / figure("window")),
        "views": 2 * _RATE / figure("view-sqlite"),
        "server": _SUBSCRIBERS / 1_000 * figure("subscribers"),
    }
    memory_mb = {
        "broker": figure("broker-memory"),
        "flows": figure("first-flow") + (flows - 1) * figure("further-flow"),
        "state": _KEYS / _MILLION * figure("state-rocksdb"),
        "server": _SUBSCRIBERS / 1_000 * figure("subscriber-memory"),
    }
    disk_gb = _RATE * figure("record-disk") * 86_400 * _DAYS / 1e9
    lines = [
        f"- cores: {_sum(cores, 2)}, and twice as many to catch up after a stop:"
        f" **{math.ceil(2 * sum(cores.values()))} cores**;",
        f"- memory: {_sum(memory_mb, 0)} MB, and as much again for the page cache;",
        f"- disk for {_DAYS} days of orders: {_RATE:,} × {figure('record-disk'):.0f} B × 86,400 s × {_DAYS}"
        f" = {disk_gb:,.0f} GB.",
    ]
    return "\n".join(lines) + "\n"


def _sum(parts: Mapping[str, float], digits: int) -> str:
    terms = " + ".join(f"{value:,.{digits}f} ({name})" for name, value in parts.items())
    return f"{terms} = {sum(parts.values()):,.{digits}f}"


def render_capacity(folder: Path = RESULTS) -> Sequence[tuple[str, str]]:
    """Return the generated parts of the page by the name of their markers."""
    results = Results(folder)
    try:
        worked = example(results)
    except NotMeasured as missing:
        worked = f"Not measured yet: {missing}.\n"
    return (("capacity", table(results)), ("example", worked))
