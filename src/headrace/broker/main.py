"""The broker process. It parses the settings, prints a line when it is ready, and stops cleanly on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import resource
import signal
import sys
import time
from functools import partial
from pathlib import Path

from headrace.broker.broker import Broker
from headrace.broker.garbage_collection import GarbageCollection
from headrace.broker.metrics.collector import collect
from headrace.broker.metrics.endpoint import MetricsPort
from headrace.broker.net.address import is_loopback, parse_address, split_names
from headrace.broker.net.server import Server
from headrace.broker.settings import BrokerSettings
from headrace.broker.storage.archive_access import parse_archive
from headrace.broker.transactions import TransactionSettings
from headrace.errors import ConfigError, DataDirError
from headrace.log.archive_store import BucketAddress
from headrace.service_manager import ServiceManager

__all__ = ["FREED_BYTES_MAX", "JsonLines", "keep_freed_memory", "run_broker"]

_log = logging.getLogger("headrace.broker")
# The event loop waits this long for another thread that executes Python code, each time it has used the network.
_SWITCH_S = 0.0005


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at_ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if hasattr(record, "event"):
            line["event"] = record.event
            line |= getattr(record, "values", {})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def run_broker(
    *,
    listen: str,
    data: Path,
    advertise: str | None = None,
    durability: str = "synced",
    open_to_anyone: bool = False,
    auto_create_topics: bool = True,
    log_format: str = "text",
    metrics: str | None = None,
    settings: dict[str, str] | None = None,
    backup: Path | None = None,
    backup_every_ms: int = 10_000,
    backup_keep_s: int = 604_800,
    backup_key: bytes | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit code of the process."""
    host, port = parse_address(listen, "--listen")
    if not is_loopback(host) and not open_to_anyone:
        raise ConfigError(
            f"other machines can reach {host}, but this broker has no authentication",
            hint="listen on 127.0.0.1, or allow anyone to read and write with --anyone-may-read-and-write",
        )
    metrics_address = parse_address(metrics, "--metrics") if metrics else None
    if metrics_address is not None and not is_loopback(metrics_address[0]) and not open_to_anyone:
        raise ConfigError(
            f"the metrics address {metrics_address[0]} is not a loopback address: other machines could read the"
            " names of all topics and groups",
            hint="serve metrics on 127.0.0.1, or allow anyone to read with --anyone-may-read-and-write",
        )
    advertised_host, advertised_port = parse_address(advertise, "--advertise") if advertise else (None, None)
    if durability not in ("synced", "os"):
        raise ConfigError(f"invalid durability {durability!r}: expected synced or os")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonLines() if log_format == "json" else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    logging.getLogger("headrace").addHandler(handler)
    logging.getLogger("headrace").setLevel(logging.INFO)
    configs = dict(settings or {})
    metrics_hosts = split_names(configs.pop("headrace.metrics.hosts", ""))
    transactions = TransactionSettings(
        timeout_ms_max=_pop_number(configs, "transaction.max.timeout.ms", 900_000),
        id_expiration_ms=_pop_number(configs, "transactional.id.expiration.ms", 7 * 24 * 3600 * 1000),
    )
    archive = parse_archive(configs)
    _raise_file_limit()
    keep_freed_memory()
    sys.setswitchinterval(_SWITCH_S)
    _create_parents(data)
    broker_settings = BrokerSettings(
        data_dir=data,
        listen_host=host,
        listen_port=port,
        advertised_host=advertised_host,
        advertised_port=advertised_port,
        durability="os" if durability == "os" else "synced",
        auto_create_topics=auto_create_topics,
        num_partitions=_pop_number(configs, "num.partitions", 1),
        volatile_bytes_max=_pop_number(configs, "headrace.volatile.max.bytes", 1 << 30),
        topics_max=_pop_number(configs, "headrace.topics.max", 10_000),
        partitions_max=_pop_number(configs, "headrace.partitions.max", 10_000),
        partitions_per_topic_max=_pop_number(configs, "headrace.topic.partitions.max", 1_000),
        retention_check_s=_pop_number(configs, "log.retention.check.interval.ms", 30_000) / 1000,
        archive_dir=archive if isinstance(archive, Path) else None,
        archive_bucket=archive if isinstance(archive, BucketAddress) else None,
        backup_dir=backup,
        backup_every_s=backup_every_ms / 1000,
        backup_keep_ms=backup_keep_s * 1000,
        backup_key=backup_key,
        compaction_check_s=_pop_number(configs, "log.cleaner.backoff.ms", 15_000) / 1000,
        compaction_memory_bytes=_pop_number(configs, "log.cleaner.dedupe.buffer.size", 128 << 20),
        compaction_bytes_per_s=_pop_number(configs, "log.cleaner.io.max.bytes.per.second", 64 << 20),
        configs=configs,
    )
    asyncio.run(_serve(broker_settings, transactions, metrics_address, metrics_hosts))
    return 0


def _pop_number(configs: dict[str, str], name: str, default: int) -> int:
    """Remove a setting from ``configs`` and return it. The settings that remain are limits and topic defaults."""
    text = configs.pop(name, str(default))
    if not text.isdigit() or not 1 <= int(text) < 2**31:
        raise ConfigError(f"invalid {name} {text!r}: expected an integer from 1 to 2147483647")
    return int(text)


def _create_parents(data: Path) -> None:
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataDirError(
            f"cannot create {data.parent} for the data directory: {error.strerror}",
            hint="choose a writable directory with --data",
        ) from error


def _raise_file_limit() -> None:
    """Raise the soft limit of file descriptors to the hard limit. Every partition and connection uses descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(
    settings: BrokerSettings,
    transactions: TransactionSettings,
    metrics_address: tuple[str, int] | None,
    metrics_hosts: list[str],
) -> None:
    began = time.perf_counter()
    manager = ServiceManager.from_environment()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    broker = Broker(settings, transactions=transactions)
    server = Server(broker)
    allowed_hosts = [*metrics_hosts, settings.advertised[0]]
    garbage_collection = GarbageCollection(
        loop, broker.clock, broker.stats.responses, lambda: broker.turns.is_taken
    )
    metrics = MetricsPort(partial(collect, broker, server), broker.clock, hosts=allowed_hosts)
    try:
        await _listen(server, settings.listen_host, settings.listen_port, "--listen")
        broker.set_port(server.port)
        if metrics_address is not None:
            await _listen(metrics, *metrics_address, "--metrics")
            _log.info("metrics are at http://%s:%d/metrics", metrics_address[0], metrics.port)
        await broker.start()
        garbage_collection.start()
        host, port = broker.settings.advertised
        print(
            f"headrace broker ready on {host}:{port} (data {settings.data_dir}, durability {settings.durability}, "
            f"{len(broker.catalog.topics())} topics, {(time.perf_counter() - began) * 1000:.0f} ms)",
            flush=True,
        )
        manager.ready()
        while not await _wait_for(stop, manager.watchdog_s):
            manager.alive()
        _log.info("stopping: waiting for requests in progress, then closing the files")
    finally:
        manager.stopping()
        garbage_collection.stop()
        await metrics.close()
        await server.close()
        await broker.stop()
    _log.info("stopped cleanly")


async def _wait_for(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Return whether the event was set within the time."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), timeout_s)
    return event.is_set()


async def _listen(listener: Server | MetricsPort, host: str, port: int, option: str) -> None:
    try:
        await listener.listen(host, port)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint=f"another process may use the port; choose another port with {option} HOST:PORT, or 0 for a free port",
        ) from error


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# The highest value that glibc accepts for M_MMAP_THRESHOLD.
FREED_BYTES_MAX = 32 << 20


def keep_freed_memory() -> bool:
    """Let the C library retain up to 32 MiB of freed memory. Returns false if the C library does not support this.

    A fetch reads megabytes into a buffer, sends the buffer, and frees it. By default, glibc returns such a buffer to
    the kernel at once, and every page of the next buffer causes a page fault. In a measurement, these faults took two
    thirds of a fetch's system time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, FREED_BYTES_MAX) and mallopt(_M_MMAP_THRESHOLD, FREED_BYTES_MAX))
