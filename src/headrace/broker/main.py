"""Running a broker as a process: settings in, one line when it is ready, a clean stop on a signal."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import resource
import signal
import sys
import time
from functools import partial
from pathlib import Path

from headrace.broker.address import is_loopback, parse_address
from headrace.broker.archive_address import parse_archive
from headrace.broker.broker import Broker
from headrace.broker.heap import keep_freed_memory
from headrace.broker.host_names import split_names
from headrace.broker.metrics import collect
from headrace.broker.metrics_port import MetricsPort
from headrace.broker.server import Server
from headrace.broker.settings import BrokerSettings
from headrace.broker.transactions import TransactionSettings
from headrace.errors import ConfigError, DataDirError
from headrace.log.bucket_address import BucketAddress

__all__ = ["JsonLines", "run_broker"]

_log = logging.getLogger("headrace.broker")


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
    """Serve until SIGINT or SIGTERM; returns the process's exit code."""
    host, port = parse_address(listen, "--listen")
    if not is_loopback(host) and not open_to_anyone:
        raise ConfigError(
            f"{host} can be reached from other machines, and this broker has no logins",
            hint="listen on 127.0.0.1, or say that anyone may read and write with --anyone-may-read-and-write",
        )
    metrics_at = parse_address(metrics, "--metrics") if metrics else None
    if metrics_at is not None and not is_loopback(metrics_at[0]) and not open_to_anyone:
        raise ConfigError(
            f"{metrics_at[0]} can be reached from other machines, and metrics name every topic and group",
            hint="give metrics a port of 127.0.0.1, or say that anyone may read with --anyone-may-read-and-write",
        )
    advertised_host, advertised_port = parse_address(advertise, "--advertise") if advertise else (None, None)
    if durability not in ("synced", "os"):
        raise ConfigError(f"durability {durability!r} is neither synced nor os")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonLines() if log_format == "json" else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    logging.getLogger("headrace").addHandler(handler)
    logging.getLogger("headrace").setLevel(logging.INFO)
    configs = dict(settings or {})
    metrics_hosts = split_names(configs.pop("headrace.metrics.hosts", ""))
    transactions = TransactionSettings(
        timeout_ms_max=_taken_number(configs, "transaction.max.timeout.ms", 900_000),
        id_kept_ms=_taken_number(configs, "transactional.id.expiration.ms", 7 * 24 * 3600 * 1000),
    )
    archive = parse_archive(configs)
    _raise_file_limit()
    keep_freed_memory()
    _make_parents(data)
    broker_settings = BrokerSettings(
        data_dir=data,
        listen_host=host,
        listen_port=port,
        advertised_host=advertised_host,
        advertised_port=advertised_port,
        durability="os" if durability == "os" else "synced",
        auto_create_topics=auto_create_topics,
        num_partitions=_taken_number(configs, "num.partitions", 1),
        volatile_bytes_max=_taken_number(configs, "headrace.volatile.max.bytes", 1 << 30),
        topics_max=_taken_number(configs, "headrace.topics.max", 10_000),
        partitions_max=_taken_number(configs, "headrace.partitions.max", 10_000),
        partitions_per_topic_max=_taken_number(configs, "headrace.topic.partitions.max", 1_000),
        retention_check_s=_taken_number(configs, "log.retention.check.interval.ms", 30_000) / 1000,
        archive_dir=archive if isinstance(archive, Path) else None,
        archive_bucket=archive if isinstance(archive, BucketAddress) else None,
        backup_dir=backup,
        backup_every_s=backup_every_ms / 1000,
        backup_keep_ms=backup_keep_s * 1000,
        backup_key=backup_key,
        compaction_check_s=_taken_number(configs, "log.cleaner.backoff.ms", 15_000) / 1000,
        compaction_memory_bytes=_taken_number(configs, "log.cleaner.dedupe.buffer.size", 128 << 20),
        compaction_bytes_per_s=_taken_number(configs, "log.cleaner.io.max.bytes.per.second", 64 << 20),
        configs=configs,
    )
    asyncio.run(_serve(broker_settings, transactions, metrics_at, metrics_hosts))
    return 0


def _taken_number(configs: dict[str, str], name: str, default: int) -> int:
    """A setting of the process, taken out of those that are also defaults of topics."""
    text = configs.pop(name, str(default))
    if not text.isdigit() or not 1 <= int(text) < 2**31:
        raise ConfigError(f"{name} is {text!r}, and must be a whole number of at least 1")
    return int(text)


def _make_parents(data: Path) -> None:
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataDirError(
            f"the folder {data.parent}, in which the data directory shall be, cannot be made: {error.strerror}",
            hint="give a directory that can be created and written to with --data",
        ) from error


def _raise_file_limit() -> None:
    """Every partition and every connection holds descriptors: take all that the system allows without asking."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(
    settings: BrokerSettings,
    transactions: TransactionSettings,
    metrics_at: tuple[str, int] | None,
    metrics_hosts: list[str],
) -> None:
    began = time.perf_counter()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    broker = Broker(settings, transactions=transactions)
    server = Server(broker)
    known_by = [*metrics_hosts, settings.advertised[0]]
    metrics = MetricsPort(partial(collect, broker, server), broker.clock, hosts=known_by)
    try:
        await _listen(server, settings.listen_host, settings.listen_port, "--listen")
        broker.listens_on(server.port)
        if metrics_at is not None:
            await _listen(metrics, *metrics_at, "--metrics")
            _log.info("metrics are at http://%s:%d/metrics", metrics_at[0], metrics.port)
        await broker.start()
        # What the start made stays for good, so the collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        host, port = broker.settings.advertised
        print(
            f"headrace broker ready on {host}:{port} (data {settings.data_dir}, durability {settings.durability}, "
            f"{len(broker.catalog.topics())} topics, {(time.perf_counter() - began) * 1000:.0f} ms)",
            flush=True,
        )
        await stop.wait()
        _log.info("stopping: answering what is under way, then closing the files")
    finally:
        await metrics.close()
        await server.close()
        await broker.stop()
    _log.info("stopped cleanly")


async def _listen(what: Server | MetricsPort, host: str, port: int, option: str) -> None:
    try:
        await what.listen(host, port)
    except OSError as error:
        raise ConfigError(
            f"{host}:{port} cannot be listened on: {error.strerror or error}",
            hint=f"another process may hold the port; give another one with {option} HOST:PORT, or port 0",
        ) from error
