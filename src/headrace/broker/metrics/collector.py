"""Collects the broker's metrics for Prometheus, with the metric names of common Kafka exporters.

The collector lets the event loop run other tasks after every few samples, and the page has a maximum size. So a scrape
does not delay requests, even if the broker has many partitions and groups with long names.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.metrics.exposition import Exposition
from headrace.broker.metrics.stats import BUCKETS_S, error_name
from headrace.broker.storage.offline_partition import OfflinePartition

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.net.server import Server
    from headrace.broker.storage.partition import Partition

__all__ = ["collect"]

_PAGE_BYTES_MAX = 16 << 20
_ITEMS_PER_YIELD = 100
_STARTED_S = time.time()

_PARTITION_GAUGES = (
    ("kafka_log_log_size", "Size of the partition in bytes, on disk or (if it is volatile) in memory."),
    ("kafka_log_log_logstartoffset", "The first offset that can be read."),
    ("kafka_log_log_logendoffset", "The offset of the next record."),
    ("kafka_log_log_numlogsegments", "Number of segments of the partition."),
)


async def collect(broker: Broker, server: Server | None) -> bytes:
    out = Exposition(_PAGE_BYTES_MAX)
    for number, _ in enumerate(_collect_all(broker, server, out), 1):
        if number % _ITEMS_PER_YIELD == 0:
            await asyncio.sleep(0)
    out.single(
        "headrace_samples_left_out",
        "gauge",
        "Samples that were omitted because the page was full.",
        out.omitted,
    )
    return out.text()


def _collect_all(broker: Broker, server: Server | None, out: Exposition) -> Iterator[None]:
    """Collect all metrics. Yields after each small step."""
    yield from _process(out)
    yield from _connections(broker, server, out)
    yield from _requests(broker, out)
    yield from _topics(broker, out)
    yield from _partitions(broker, out)
    yield from _compaction(broker, out)
    yield from _archive(broker, out)
    yield from _backup(broker, out)
    yield from _groups(broker, out)


def _process(out: Exposition) -> Iterator[None]:
    times = os.times()
    out.single(
        "process_cpu_seconds_total",
        "counter",
        "User and system CPU time in seconds.",
        times.user + times.system,
    )
    out.single(
        "process_start_time_seconds", "gauge", "Start time of the process, in seconds since 1970.", _STARTED_S
    )
    with suppress(OSError, ValueError):
        pages = Path("/proc/self/statm").read_text().split()
        size = resource.getpagesize()
        out.single("process_virtual_memory_bytes", "gauge", "Virtual memory in bytes.", int(pages[0]) * size)
        out.single(
            "process_resident_memory_bytes", "gauge", "Resident memory in bytes.", int(pages[1]) * size
        )
    with suppress(OSError):
        out.single(
            "process_open_fds",
            "gauge",
            "Open file descriptors.",
            sum(1 for _ in Path("/proc/self/fd").iterdir()),
        )
    out.single(
        "process_max_fds", "gauge", "Maximum file descriptors.", resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    )
    yield


def _connections(broker: Broker, server: Server | None, out: Exposition) -> Iterator[None]:
    if server is not None:
        out.single(
            "kafka_server_socketservermetrics_connection_count",
            "gauge",
            "Open connections.",
            server.connections,
        )
        out.single(
            "kafka_server_socketservermetrics_connection_creation_total",
            "counter",
            "Accepted connections.",
            server.accepted,
        )
    name = "headrace_connections_closed_total"
    out.family(name, "counter", "Connections that the broker closed, by reason.")
    for event, count in sorted(broker.notices.counts.items()):
        out.sample(name, {"reason": event}, count)
    if server is not None:
        out.sample(name, {"reason": "idle"}, server.idle_closed)
    name = "headrace_held_bytes"
    out.family(name, "gauge", "Memory that all clients together use, in bytes, and its limit.")
    limits = broker.limits
    for kind, used_bytes, limit in (
        ("requests", broker.requests_held.total, limits.all_requests_bytes_max),
        ("answers", broker.responses_held.total, limits.all_responses_bytes_max),
        ("groups", broker.groups.used_bytes, broker.groups.settings.all_groups_bytes_max),
        ("fetch-sessions", broker.fetch_sessions.used_bytes, limits.fetch_sessions_bytes_max),
        ("waiting-fetches", broker.waiting_fetches.used_bytes, limits.waiting_fetches_bytes_max),
    ):
        out.sample(name, {"what": kind}, used_bytes)
        out.sample(name, {"what": f"{kind}-limit"}, limit)
    name = "headrace_requests_limited_total"
    out.family(name, "counter", "Requests that were refused, or got a partial response, because of a limit.")
    for event, count in sorted(broker.notices.limited.items()):
        out.sample(name, {"reason": event}, count)
    yield


def _requests(broker: Broker, out: Exposition) -> Iterator[None]:
    stats = broker.stats
    name = "kafka_network_requestmetrics_requests_total"
    out.family(name, "counter", "Responses sent.")
    for api, timings in stats.timings.items():
        out.sample(name, {"request": api.title}, timings.count)
    name = "kafka_network_requestmetrics_totaltime_seconds"
    out.family(
        name,
        "histogram",
        "Seconds from a request's arrival to its response, including waits that the client requested.",
    )
    for api, timings in stats.timings.items():
        cumulative = 0
        for bound, count in zip((*BUCKETS_S, "+Inf"), timings.buckets, strict=True):
            cumulative += count
            out.sample(f"{name}_bucket", {"request": api.title, "le": bound}, cumulative)
        out.sample(f"{name}_sum", {"request": api.title}, timings.total_s)
        out.sample(f"{name}_count", {"request": api.title}, timings.count)
        yield
    name = "kafka_network_requestmetrics_errors_total"
    out.family(name, "counter", "Errors of single partitions in Produce and Fetch responses.")
    for (api, code), count in stats.errors.items():
        out.sample(name, {"request": api.title, "error": error_name(code)}, count)
    out.single("headrace_clock_jumps_total", "counter", "Jumps of the wall clock.", broker.trusted_time.jumps)
    out.single(
        "headrace_damaged_batches_total",
        "counter",
        "Damaged batches that the broker has found.",
        stats.damaged_batches,
    )
    yield


def _topics(broker: Broker, out: Exposition) -> Iterator[None]:
    topics = broker.catalog.topics()
    out.single("kafka_brokers", "gauge", "Number of brokers in the cluster.", 1)
    families: tuple[tuple[str, str, Iterable[tuple[str, int]]], ...] = (
        ("bytesin", "Bytes of appended batches.", broker.stats.bytes_in.items()),
        ("bytesout", "Bytes of fetched batches.", broker.stats.bytes_out.items()),
        ("messagesin", "Appended records.", _messages_in(broker)),
    )
    for short, text, counts in families:
        name = f"kafka_server_brokertopicmetrics_{short}_total"
        out.family(name, "counter", text)
        for topic_name, count in list(counts):
            out.sample(name, {"topic": topic_name}, count)
            yield
    out.family(
        "headrace_topic_volatile", "gauge", "1 for a topic that is in memory only. A restart empties it."
    )
    for topic in topics:
        if topic.is_volatile:
            out.sample("headrace_topic_volatile", {"topic": topic.name}, 1)
    out.family("kafka_topic_partitions", "gauge", "Number of partitions of the topic.")
    for topic in topics:
        out.sample("kafka_topic_partitions", {"topic": topic.name}, topic.partitions)
        yield


def _messages_in(broker: Broker) -> Iterator[tuple[str, int]]:
    totals: dict[str, int] = {}
    for topic, _, partition in broker.partitions.all():
        if not isinstance(partition, OfflinePartition):
            totals[topic] = totals.get(topic, 0) + partition.end_offset - partition.opened_at_offset
    yield from totals.items()


def _partitions(broker: Broker, out: Exposition) -> Iterator[None]:
    partitions = broker.partitions.all()
    fenced = [(topic, index) for topic, index, partition in partitions if partition.fenced is not None]
    out.single(
        "kafka_server_replicamanager_partitioncount", "gauge", "Partitions of this broker.", len(partitions)
    )
    out.single(
        "kafka_server_replicamanager_offlinereplicacount",
        "gauge",
        "Partitions that refuse writes or cannot be read.",
        len(fenced),
    )
    yield
    served = [
        (name, index, partition)
        for name, index, partition in partitions
        if not isinstance(partition, OfflinePartition)
    ]
    for position, (name, text) in enumerate(_PARTITION_GAUGES):
        out.family(name, "gauge", text)
        for topic, index, partition in served:
            out.sample(name, {"topic": topic, "partition": index}, _gauge_values(partition)[position])
            yield


def _gauge_values(partition: Partition) -> tuple[int, int, int, int]:
    return (
        partition.size_bytes,
        partition.start_offset,
        partition.end_offset,
        len(partition.log.segments),
    )


def _compaction(broker: Broker, out: Exposition) -> Iterator[None]:
    """Collect the metrics of compaction. The gauges have Kafka's names. The counters are not in Kafka."""
    compactor, counts = broker.compactor, broker.compactor.counts
    cleaner, manager, prefix = "kafka_log_logcleaner", "kafka_log_logcleanermanager", "headrace_compaction"
    for name, text, value in (
        (
            f"{cleaner}_max_clean_time_secs",
            "Duration of the last compaction in seconds.",
            counts.last_run_took_s,
        ),
        (
            f"{cleaner}_cleaner_recopy_percent",
            "Size of the segments after the last compaction, in percent of their size before.",
            100 * counts.last_recopied_share,
        ),
        (
            f"{cleaner}_deadthreadcount",
            "1 if the compaction task has stopped because of an error.",
            int(compactor.has_died),
        ),
        (
            f"{manager}_time_since_last_run_ms",
            "Milliseconds since compaction last checked a partition.",
            int(1000 * compactor.since_check_s),
        ),
        (
            f"{manager}_uncleanable_partitions_count",
            "Partitions that are skipped until the next start because of damage or an incomplete compaction.",
            compactor.skipped,
        ),
    ):
        out.single(name, "gauge", text, value)
    yield
    for name, text, count in (
        ("runs", "Completed compactions of partitions.", counts.runs),
        (
            "read_bytes",
            "Bytes that compaction has read. It reads new records twice and other records once.",
            counts.bytes_read,
        ),
        ("written_bytes", "Bytes of new segments that compaction has written.", counts.bytes_written),
        ("removed_records", "Records that compaction has removed.", counts.records_removed),
    ):
        out.single(f"{prefix}_{name}_total", "counter", text, count)
    out.family(
        f"{prefix}_failures_total", "counter", "Failed compactions. Those with reason disk are retried."
    )
    for reason in ("disk", "damage"):
        out.sample(f"{prefix}_failures_total", {"reason": reason}, counts.failures[reason])
    yield


def _archive(broker: Broker, out: Exposition) -> Iterator[None]:
    if not broker.settings.has_archive:
        return
    counts, reads, prefix = broker.archiver.counts, broker.partitions.archive_reads, "headrace_archive"
    for name, text, count in (
        ("moved_segments", "Segments moved to the archive.", counts.segments),
        ("moved_bytes", "Bytes of the segments moved to the archive.", counts.bytes),
        ("reads", "Reads from the archive.", reads.reads),
    ):
        out.single(f"{prefix}_{name}_total", "counter", text, count)
    name = f"{prefix}_failures_total"
    out.family(name, "counter", "Failed operations on the archive. They are retried.")
    for kind, count in (("change", counts.failures), ("read", reads.failures)):
        out.sample(name, {"what": kind}, count)
    out.single(
        f"{prefix}_deleted_topics",
        "gauge",
        "Deleted topics whose files are still in the archive.",
        len(broker.partitions.deleted.archived),
    )
    yield


def _backup(broker: Broker, out: Exposition) -> Iterator[None]:
    backup = broker.backup
    if backup is None:
        return
    status, prefix = backup.status, "headrace_backup"
    for name, text, value in (
        (
            "behind_records",
            "Records that are not in the newest restore point.",
            backup.behind_records(),
        ),
        (
            "behind_seconds",
            "Age of the newest restore point in seconds, or 0 if it has all records.",
            backup.behind_s(),
        ),
        (
            "restore_point_seconds",
            "Time of the newest restore point in seconds since 1970, or 0 before the first.",
            status.last_restore_point_ms / 1000,
        ),
        (
            "round_seconds",
            "Duration of the last successful backup round in seconds.",
            status.last_round_took_s,
        ),
        (
            "under_way_seconds",
            "Duration of the current backup round in seconds. It grows while the folder does not respond.",
            backup.round_age_s(),
        ),
        (
            "unreadable_partitions",
            "Partitions whose copies are older than the newest restore point, because their files cannot be read.",
            status.unreadable,
        ),
        ("failing", "1 while the backup cannot be written to its folder.", int(status.error is not None)),
        ("refused", "1 if another broker writes to the backup folder.", int(status.refused is not None)),
    ):
        out.single(f"{prefix}_{name}", "gauge", text, value)
    for name, text, count in (
        ("restore_points", "Restore points written.", status.restore_points),
        ("written_bytes", "Bytes written to the backup folder.", status.written_bytes),
        ("failures", "Failed backup rounds. They are retried.", status.failures),
    ):
        out.single(f"{prefix}_{name}_total", "counter", text, count)
    yield


def _groups(broker: Broker, out: Exposition) -> Iterator[None]:
    groups = [group.group_id for group in broker.groups.list_groups()]
    yield
    name = "kafka_consumergroup_current_offset"
    out.family(name, "gauge", "The offset that the group has committed.")
    for group, topic, index, offset in _committed(broker, groups):
        out.sample(name, {"consumergroup": group, "topic": topic, "partition": index}, offset)
        yield
    name = "kafka_consumergroup_lag"
    out.family(name, "gauge", "Offsets between the group's committed offset and the high watermark.")
    for group, topic, index, offset in _committed(broker, groups):
        partition = broker.partition(topic, index)
        if partition is not None and not isinstance(partition, OfflinePartition):
            labels = {"consumergroup": group, "topic": topic, "partition": index}
            out.sample(name, labels, max(0, partition.high_watermark - offset))
        yield
    name = "kafka_consumergroup_members"
    out.family(name, "gauge", "Number of members of the group.")
    for group in groups:
        description = broker.groups.describe(group)
        out.sample(name, {"consumergroup": group}, 0 if description is None else len(description.members))
        yield


def _committed(broker: Broker, groups: Iterable[str]) -> Iterator[tuple[str, str, int, int]]:
    """Yield group, topic, partition and offset. The offsets of one group are from the same point in time."""
    for group in groups:
        rows = [
            (group, topic, index, row.offset)
            for topic, partitions in broker.groups.fetch_all(group).items()
            for index, row in partitions.items()
        ]
        yield from rows
