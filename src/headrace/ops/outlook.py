"""What becomes of a topic's records: how fast they come, how long they stay, and when they are lost to a reader.

Rates are those of the last minutes, by the records' own times: they come from offsets, so any Kafka has them.
A record is lost by whichever comes first, ``retention.ms`` or, at the present rate, ``retention.bytes``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.client.places import Bounds, Partition
from headrace.ops.log_dirs import Sizes

__all__ = ["WINDOW_MS", "Outlook", "duration_text", "outlook", "size_text"]

WINDOW_MS = 5 * 60 * 1000
_VOLATILE = "headrace.volatile"
_ARCHIVE = "headrace.archive.enable"


@dataclass(frozen=True, slots=True)
class Outlook:
    """None is "not known" for sizes, and "no end in sight" for times."""

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
    """What is past the limits moves to the archive, and is not lost."""

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
            f"size        {'not known' if self.size_bytes is None else size_text(self.size_bytes)}",
            f"rate        {per_s} (last {duration_text(WINDOW_MS)})",
            f"keeps       {' and '.join(keeps) or 'everything'}",
            f"lost        {loss}",
        ]
        if self.disk_full_in_ms is not None:
            lines.append(f"disk full   in {duration_text(self.disk_full_in_ms)} at this rate")
        if self.archived:
            lines.append("archive     takes what is past these limits, and it stays readable")
        if self.volatile:
            lines.append("volatile    in memory only: a restart empties it, and it is no source of truth")
        return lines


def outlook(
    bounds: Mapping[Partition, Bounds],
    before: Mapping[Partition, int],
    sizes: Sizes | None,
    configs: Sequence[Mapping[str, object]],
) -> Outlook:
    """``before`` is where each partition's records of the last ``WINDOW_MS`` begin."""
    values = {str(one["config"]): one["value"] for one in configs}
    trimmed = "delete" in str(values.get("cleanup.policy", "delete"))
    retention_ms = _limit(values.get("retention.ms")) if trimmed else None
    retention_bytes = _limit(values.get("retention.bytes")) if trimmed else None
    volatile = values.get(_VOLATILE) == "true"
    seconds = WINDOW_MS / 1000
    rates = {one: max(0, limits.end - before[one]) / seconds for one, limits in bounds.items()}
    lost_after, lost_by = retention_ms, "retention.ms" if retention_ms is not None else None
    bytes_per_s: float | None = None
    if sizes is not None:
        byte_rates = {}
        for one, rate in rates.items():
            records = bounds[one].end - bounds[one].start
            byte_rates[one] = rate * sizes.bytes.get(one, 0) / records if records > 0 else 0.0
        bytes_per_s = sum(byte_rates.values())
        fastest = max(byte_rates.values(), default=0.0)
        if retention_bytes is not None and fastest > 0:
            by_size = int(retention_bytes / fastest * 1000)
            if lost_after is None or by_size < lost_after:
                lost_after, lost_by = by_size, "retention.bytes"
    full = None
    if sizes is not None and sizes.free_bytes is not None and bytes_per_s and not volatile:
        in_ms = int(sizes.free_bytes / bytes_per_s * 1000)
        # A topic that has reached its limits grows no further.
        full = in_ms if lost_after is None or in_ms < lost_after else None
    archived = values.get(_ARCHIVE) == "true"
    return Outlook(
        None if sizes is None else sum(sizes.bytes.values()),
        sum(rates.values()),
        bytes_per_s,
        retention_ms,
        retention_bytes,
        None if archived else lost_after,
        None if archived else lost_by,
        full,
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
