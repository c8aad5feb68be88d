"""The outlook of a topic: its rate, its retention, and when its records will be deleted.

The rate is the average of the last five minutes. It is computed from offsets and timestamps, so it works with every
Kafka broker. A record is deleted by ``retention.ms`` or, at the current rate, by ``retention.bytes``, whichever comes
first.

The sizes of partitions and the free space come from a DescribeLogDirs request. librdkafka does not offer it, so
Headrace's own wire code sends it over a plaintext connection. If the cluster needs authentication or does not respond,
sizes are unknown, and all other values are still computed.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaException

from headrace.client.cluster import Cluster
from headrace.client.offset_spec import Bounds, Partition
from headrace.wire import Api, WireError, decode_response, encode_request
from headrace.wire import messages as m

__all__ = ["WINDOW_MS", "Outlook", "Sizes", "duration_text", "outlook", "size_text", "sizes_of"]


WINDOW_MS = 5 * 60 * 1000
_VOLATILE = "headrace.volatile"
_ARCHIVE = "headrace.archive.enable"


@dataclass(frozen=True, slots=True)
class Outlook:
    """None means "unknown" for sizes and byte rates, and "never" or "no limit" for times and retention."""

    size_bytes: int | None
    records_per_s: float
    bytes_per_s: float | None
    retention_ms: int | None
    retention_bytes: int | None
    lost_after_ms: int | None
    lost_by: str | None
    disk_full_in_ms: int | None
    volatile: bool
    archived: bool
    """Whether records beyond the limits move to the archive. Such records are not lost."""

    def row(self) -> dict[str, object]:
        return {
            "size_bytes": self.size_bytes,
            "records_per_s": round(self.records_per_s, 3),
            "bytes_per_s": None if self.bytes_per_s is None else round(self.bytes_per_s, 1),
            "retention_ms": self.retention_ms,
            "retention_bytes": self.retention_bytes,
            "lost_after_ms": self.lost_after_ms,
            "lost_by": self.lost_by,
            "disk_full_in_ms": self.disk_full_in_ms,
            "volatile": self.volatile,
            "archived": self.archived,
        }

    def lines(self) -> list[str]:
        per_s = f"{self.records_per_s:.4g} records/s"
        if self.bytes_per_s is not None:
            per_s += f", {size_text(self.bytes_per_s)}/s"
        keeps = [f"for {duration_text(self.retention_ms)}"] if self.retention_ms is not None else []
        keeps += (
            [f"{size_text(self.retention_bytes)} of each partition"]
            if self.retention_bytes is not None
            else []
        )
        loss = (
            "never by retention"
            if self.lost_after_ms is None
            else f"{duration_text(self.lost_after_ms)} after it was written, by {self.lost_by}"
        )
        lines = [
            f"size        {'unknown' if self.size_bytes is None else size_text(self.size_bytes)}",
            f"rate        {per_s} (last {duration_text(WINDOW_MS)})",
            f"keeps       {' and '.join(keeps) or 'everything'}",
            f"lost        {loss}",
        ]
        if self.disk_full_in_ms is not None:
            lines.append(f"disk full   in {duration_text(self.disk_full_in_ms)} at this rate")
        if self.archived:
            lines.append("archive     records beyond these limits stay readable")
        if self.volatile:
            lines.append(
                "volatile    in memory only: a restart of the broker deletes it; not a source of truth"
            )
        return lines


def outlook(
    bounds: Mapping[Partition, Bounds],
    window_starts: Mapping[Partition, int],
    sizes: Sizes | None,
    configs: Sequence[Mapping[str, object]],
) -> Outlook:
    """Compute the outlook. ``window_starts`` has, by partition, the first offset of the last ``WINDOW_MS``."""
    values = {str(config["config"]): config["value"] for config in configs}
    has_retention = "delete" in str(values.get("cleanup.policy", "delete"))
    retention_ms = _limit(values.get("retention.ms")) if has_retention else None
    retention_bytes = _limit(values.get("retention.bytes")) if has_retention else None
    volatile = values.get(_VOLATILE) == "true"
    seconds = WINDOW_MS / 1000
    rates = {
        partition: max(0, limits.end - window_starts[partition]) / seconds
        for partition, limits in bounds.items()
    }
    lost_after_ms, lost_by = retention_ms, "retention.ms" if retention_ms is not None else None
    bytes_per_s: float | None = None
    if sizes is not None:
        byte_rates = {}
        for partition, rate in rates.items():
            records = bounds[partition].end - bounds[partition].start
            byte_rates[partition] = rate * sizes.bytes.get(partition, 0) / records if records > 0 else 0.0
        bytes_per_s = sum(byte_rates.values())
        fastest = max(byte_rates.values(), default=0.0)
        if retention_bytes is not None and fastest > 0:
            by_bytes_ms = int(retention_bytes / fastest * 1000)
            if lost_after_ms is None or by_bytes_ms < lost_after_ms:
                lost_after_ms, lost_by = by_bytes_ms, "retention.bytes"
    disk_full_ms = None
    if sizes is not None and sizes.free_bytes is not None and bytes_per_s and not volatile:
        in_ms = int(sizes.free_bytes / bytes_per_s * 1000)
        # If the topic reaches its retention limit first, it does not grow further and does not fill the disk.
        disk_full_ms = in_ms if lost_after_ms is None or in_ms < lost_after_ms else None
    archived = values.get(_ARCHIVE) == "true"
    return Outlook(
        None if sizes is None else sum(sizes.bytes.values()),
        sum(rates.values()),
        bytes_per_s,
        retention_ms,
        retention_bytes,
        None if archived else lost_after_ms,
        None if archived else lost_by,
        disk_full_ms,
        volatile,
        archived,
    )


def _limit(value: object) -> int | None:
    number = int(str(value)) if value is not None else -1
    return number if number >= 0 else None


def size_text(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def duration_text(ms: int) -> str:
    seconds = ms / 1000
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


_VERSION = 4
_TIMEOUT_S = 5.0
_RESPONSE_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class Sizes:
    """``free_bytes`` is the smallest free space of all disks with these partitions; None if unknown."""

    bytes: Mapping[Partition, int]
    free_bytes: int | None


def sizes_of(cluster: Cluster, partitions: Iterable[Partition]) -> Sizes | None:
    if cluster.properties.get("security.protocol", "plaintext").lower() != "plaintext":
        return None
    request = m.DescribeLogDirsRequest
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    message = request(
        topics=[
            request.DescribableLogDirTopic(topic=name, partitions=rows) for name, rows in by_topic.items()
        ]
    )
    sizes: dict[Partition, int] = {}
    free_bytes: list[int] = []
    try:
        nodes = cluster.wait_for(cluster.admin().describe_cluster(request_timeout=cluster.timeout_s)).nodes
    except KafkaException:
        return None
    for node in nodes:
        with contextlib.suppress(OSError, WireError, struct.error):
            _describe(str(node.host), node.port, message, sizes, free_bytes)
    return Sizes(sizes, min(free_bytes, default=None)) if sizes else None


def _describe(
    host: str, port: int, message: object, sizes: dict[Partition, int], free_bytes: list[int]
) -> None:
    request = encode_request(Api.DESCRIBE_LOG_DIRS, _VERSION, 1, "headrace", message)  # type: ignore[arg-type]
    with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
        connection.sendall(request)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            if not 0 < size <= _RESPONSE_BYTES_MAX:
                return
            _, response = decode_response(Api.DESCRIBE_LOG_DIRS, _VERSION, stream.read(size))
    for directory in response.results:
        if directory.topics and directory.usable_bytes >= 0:
            free_bytes.append(directory.usable_bytes)
        for topic in directory.topics:
            for partition in topic.partitions:
                key = (topic.name, partition.partition_index)
                # Replicas can lag; the leader has the largest size.
                sizes[key] = max(sizes.get(key, 0), partition.partition_size)
