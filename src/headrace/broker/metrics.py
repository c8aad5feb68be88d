"""What a broker tells Prometheus, under the names that the usual exporters of Kafka use.

Collecting goes by slices, with other work between them, and stops at a number of bytes: a scrape never holds up a
request, however many partitions and groups there are, and however long their names.
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

from headrace.broker.exposition import Exposition
from headrace.broker.offline_partition import OfflinePartition
from headrace.broker.stats import BUCKETS_S, error_name

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.partition import Partition
    from headrace.broker.server import Server

__all__ = ["collect"]

_PAGE_BYTES_MAX = 16 << 20
_AT_ONCE = 100
_STARTED_S = time.time()

_PARTITION_GAUGES = (
    ("kafka_log_log_size", "Bytes of the partition on disk, or in memory if it is volatile."),
    ("kafka_log_log_logstartoffset", "The first offset that can be read."),
    ("kafka_log_log_logendoffset", "The next offset to be given."),
    ("kafka_log_log_numlogsegments", "Segments of the partition."),
)


async def collect(broker: Broker, server: Server | None) -> bytes:
    out = Exposition(_PAGE_BYTES_MAX)
    for number, _ in enumerate(_all(broker, server, out), 1):
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
    out.one("headrace_samples_left_out", "gauge", "Samples that were too many for one scrape.", out.left_out)
    return out.text()


def _all(broker: Broker, server: Server | None, out: Exposition) -> Iterator[None]:
    """Yields after each small piece of work."""
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
    out.one(
        "process_cpu_seconds_total",
        "counter",
        "Processor time, user and system.",
        times.user + times.system,
    )
    out.one("process_start_time_seconds", "gauge", "When the process was started.", _STARTED_S)
    with suppress(OSError, ValueError):
        pages = Path("/proc/self/statm").read_text().split()
        size = resource.getpagesize()
        out.one("process_virtual_memory_bytes", "gauge", "Address space.", int(pages[0]) * size)
        out.one("process_resident_memory_bytes", "gauge", "Memory in use.", int(pages[1]) * size)
    with suppress(OSError):
        out.one(
            "process_open_fds", "gauge", "Open descriptors.", sum(1 for _ in Path("/proc/self/fd").iterdir())
        )
    out.one("process_max_fds", "gauge", "Descriptors allowed.", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield


def _connections(broker: Broker, server: Server | None, out: Exposition) -> Iterator[None]:
    if server is not None:
        out.one(
            "kafka_server_socketservermetrics_connection_count",
            "gauge",
            "Open connections.",
            server.connections,
        )
        out.one(
            "kafka_server_socketservermetrics_connection_creation_total",
            "counter",
            "Connections accepted.",
            server.accepted,
        )
    name = "headrace_connections_closed_total"
    out.family(name, "counter", "Connections that the broker closed, by what their clients did.")
    for event, count in sorted(broker.notices.counts.items()):
        out.sample(name, {"reason": event}, count)
    if server is not None:
        out.sample(name, {"reason": "idle"}, server.idle_closed)
    name = "headrace_held_bytes"
    out.family(name, "gauge", "Bytes that all clients together make the broker hold, and the limit of it.")
    limits = broker.limits
    for what, held, limit in (
        ("requests", broker.requests_held.total, limits.all_requests_bytes_max),
        ("answers", broker.answers_held.total, limits.all_answers_bytes_max),
        ("groups", broker.groups.used_bytes, broker.groups.settings.all_groups_bytes_max),
        ("fetch-sessions", broker.fetch_sessions.used_bytes, limits.fetch_sessions_bytes_max),
        ("waiting-fetches", broker.waiting_fetches.used_bytes, limits.waiting_fetches_bytes_max),
    ):
        out.sample(name, {"what": what}, held)
        out.sample(name, {"what": f"{what}-limit"}, limit)
    name = "headrace_requests_limited_total"
    out.family(name, "counter", "Requests that were refused, or answered in part, because of a limit.")
    for event, count in sorted(broker.notices.limited.items()):
        out.sample(name, {"reason": event}, count)
    yield


def _requests(broker: Broker, out: Exposition) -> Iterator[None]:
    stats = broker.stats
    name = "kafka_network_requestmetrics_requests_total"
    out.family(name, "counter", "Requests answered.")
    for api, timings in stats.timings.items():
        out.sample(name, {"request": api.title}, timings.count)
    name = "kafka_network_requestmetrics_totaltime_seconds"
    out.family(
        name, "histogram", "From a request's last byte to its answer, waits that it asked for included."
    )
    for api, timings in stats.timings.items():
        below = 0
        for bound, count in zip((*BUCKETS_S, "+Inf"), timings.buckets, strict=True):
            below += count
            out.sample(f"{name}_bucket", {"request": api.title, "le": bound}, below)
        out.sample(f"{name}_sum", {"request": api.title}, timings.total_s)
        out.sample(f"{name}_count", {"request": api.title}, timings.count)
        yield
    name = "kafka_network_requestmetrics_errors_total"
    out.family(name, "counter", "Partitions of Produce and Fetch that were answered with an error.")
    for (api, code), count in stats.errors.items():
        out.sample(name, {"request": api.title, "error": error_name(code)}, count)
    out.one("headrace_clock_jumps_total", "counter", "Jumps of the wall clock.", broker.trusted_time.jumps)
    out.one(
        "headrace_damaged_batches_total",
        "counter",
        "Stored batches that were found damaged.",
        stats.damaged,
    )
    yield


def _topics(broker: Broker, out: Exposition) -> Iterator[None]:
    topics = broker.catalog.topics()
    out.one("kafka_brokers", "gauge", "Brokers of the cluster.", 1)
    families: tuple[tuple[str, str, Iterable[tuple[str, int]]], ...] = (
        ("bytesin", "Bytes of batches that were appended.", broker.stats.bytes_in.items()),
        ("bytesout", "Bytes of batches that were fetched.", broker.stats.bytes_out.items()),
        ("messagesin", "Records that were appended.", _messages_in(broker)),
    )
    for short, text, counts in families:
        name = f"kafka_server_brokertopicmetrics_{short}_total"
        out.family(name, "counter", text)
        for which, count in list(counts):
            out.sample(name, {"topic": which}, count)
            yield
    out.family("headrace_topic_volatile", "gauge", "1 for a topic in memory only, which a restart empties.")
    for topic in topics:
        if topic.is_volatile:
            out.sample("headrace_topic_volatile", {"topic": topic.name}, 1)
    out.family("kafka_topic_partitions", "gauge", "Partitions of the topic.")
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
    held = broker.partitions.all()
    fenced = [(topic, index) for topic, index, partition in held if partition.fenced is not None]
    out.one("kafka_server_replicamanager_partitioncount", "gauge", "Partitions here.", len(held))
    out.one(
        "kafka_server_replicamanager_offlinereplicacount",
        "gauge",
        "Partitions that take no writes, or cannot be read.",
        len(fenced),
    )
    yield
    served = [
        (name, index, partition)
        for name, index, partition in held
        if not isinstance(partition, OfflinePartition)
    ]
    for at, (name, text) in enumerate(_PARTITION_GAUGES):
        out.family(name, "gauge", text)
        for topic, index, partition in served:
            out.sample(name, {"topic": topic, "partition": index}, _figures(partition)[at])
            yield


def _figures(partition: Partition) -> tuple[int, int, int, int]:
    return (
        partition.size_bytes,
        partition.start_offset,
        partition.end_offset,
        len(partition.log.segments),
    )


def _compaction(broker: Broker, out: Exposition) -> Iterator[None]:
    """Kafka has gauges of the last run and of what is wrong, and no counters: those are ours."""
    compactor, counts = broker.compactor, broker.compactor.counts
    cleaner, manager, ours = "kafka_log_logcleaner", "kafka_log_logcleanermanager", "headrace_compaction"
    for name, text, value in (
        (f"{cleaner}_max_clean_time_secs", "How long the last compaction took.", counts.last_took_s),
        (
            f"{cleaner}_cleaner_recopy_percent",
            "What the last compaction left of the segments that it went through, in percent of their bytes.",
            100 * counts.last_recopied_share,
        ),
        (f"{cleaner}_deadthreadcount", "1 if compaction has ended by an error.", int(compactor.has_died)),
        (
            f"{manager}_time_since_last_run_ms",
            "Since compaction last looked at a partition.",
            int(1000 * compactor.since_look_s),
        ),
        (
            f"{manager}_uncleanable_partitions_count",
            "Partitions left alone until the next start: damage, or an unfinished compaction.",
            compactor.left_alone,
        ),
    ):
        out.one(name, "gauge", text, value)
    yield
    for name, text, count in (
        ("runs", "Compactions of a partition.", counts.runs),
        (
            "read_bytes",
            "Bytes that compaction has read: what is new twice, the rest once.",
            counts.bytes_read,
        ),
        ("written_bytes", "Bytes of new segments that compaction has written.", counts.bytes_written),
        ("removed_records", "Records that were replaced, or deleted and expired.", counts.records_removed),
    ):
        out.one(f"{ours}_{name}_total", "counter", text, count)
    out.family(
        f"{ours}_failures_total", "counter", "Compactions that failed; those for the disk are repeated."
    )
    for reason in ("disk", "damage"):
        out.sample(f"{ours}_failures_total", {"reason": reason}, counts.failures[reason])
    yield


def _archive(broker: Broker, out: Exposition) -> Iterator[None]:
    if not broker.settings.has_archive:
        return
    counts, reads, ours = broker.archiver.counts, broker.partitions.archive_reads, "headrace_archive"
    for name, text, count in (
        ("moved_segments", "Segments that were moved to the archive.", counts.segments),
        ("moved_bytes", "Bytes of their logs.", counts.bytes),
        ("reads", "Reads from the archive.", reads.reads),
    ):
        out.one(f"{ours}_{name}_total", "counter", text, count)
    name = f"{ours}_failures_total"
    out.family(name, "counter", "What failed because the archive could not be used; it is tried again.")
    for what, count in (("change", counts.failures), ("read", reads.failures)):
        out.sample(name, {"what": what}, count)
    out.one(
        f"{ours}_deleted_topics",
        "gauge",
        "Deleted topics that still have files in the archive.",
        len(broker.partitions.deleted.archived),
    )
    yield


def _backup(broker: Broker, out: Exposition) -> Iterator[None]:
    backup = broker.backup
    if backup is None:
        return
    standing, ours = backup.standing, "headrace_backup"
    for name, text, value in (
        (
            "behind_records",
            "Records that the newest moment of the backup has not got.",
            backup.behind_records(),
        ),
        (
            "behind_seconds",
            "How long ago that moment was taken, where something was written since.",
            backup.behind_s(),
        ),
        (
            "moment_seconds",
            "When it was taken, since 1970; 0 before the first.",
            standing.last_moment_ms / 1000,
        ),
        ("round_seconds", "How long it took to ship.", standing.last_took_s),
        (
            "under_way_seconds",
            "How long the present round has lasted: of a folder that does not answer it grows and grows.",
            backup.under_way_s(),
        ),
        (
            "unreadable_partitions",
            "Partitions of which the newest moment has something older, because their files cannot be read.",
            standing.unreadable,
        ),
        ("in_trouble", "1 while the folder cannot be written to.", int(standing.trouble is not None)),
        ("refused", "1 if another broker writes to the folder.", int(standing.refused is not None)),
    ):
        out.one(f"{ours}_{name}", "gauge", text, value)
    for name, text, count in (
        ("moments", "Moments that were shipped.", standing.moments),
        ("written_bytes", "Bytes that were written to the folder.", standing.written_bytes),
        ("failures", "Rounds that failed; they are repeated.", standing.failures),
    ):
        out.one(f"{ours}_{name}_total", "counter", text, count)
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
    out.family(
        name, "gauge", "Records that the group has not committed yet; more than that if some are gone."
    )
    for group, topic, index, offset in _committed(broker, groups):
        partition = broker.partition(topic, index)
        if partition is not None and not isinstance(partition, OfflinePartition):
            labels = {"consumergroup": group, "topic": topic, "partition": index}
            out.sample(name, labels, max(0, partition.high_watermark - offset))
        yield
    name = "kafka_consumergroup_members"
    out.family(name, "gauge", "Members of the group.")
    for group in groups:
        described = broker.groups.describe(group)
        out.sample(name, {"consumergroup": group}, 0 if described is None else len(described.members))
        yield


def _committed(broker: Broker, groups: Iterable[str]) -> Iterator[tuple[str, str, int, int]]:
    """Group, topic, partition and offset; of each group as of one moment."""
    for group in groups:
        rows = [
            (group, topic, index, row.offset)
            for topic, partitions in broker.groups.fetch_all(group).items()
            for index, row in partitions.items()
        ]
        yield from rows
