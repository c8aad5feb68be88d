"""A reader's lag in records, bytes and seconds, and the time until retention deletes unread records at current rates.

Loss by retention.ms: the oldest unread record is deleted when its age reaches the limit. A reader that makes no
progress loses the record at that time. Deletion advances through the unread records at the rate at which they were
written. So a reader that is faster than this rate loses no records.

Loss by retention.bytes: a record is deleted when the partition has that many bytes after it. Unread bytes grow with
new records and shrink with records that are read.

Brokers delete whole segments, at intervals. So no record is deleted earlier than computed here, and most are deleted
later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from headrace.model.rule import SHARE
from headrace.ops.lag.reader import Partition, Reader

__all__ = ["Lag", "Loss", "Retention", "Unread", "loss_of", "retention_of", "soonest"]

LossCause = Literal["retention.ms", "retention.bytes", "never", "not known"]


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention limits of a topic's partitions. None means no limit: the topic is compacted or archived, or its
    retention is unlimited.
    """

    retention_s: float | None = None
    retention_bytes: int | None = None


def retention_of(configs: Mapping[str, str | None]) -> Retention:
    deletes = "delete" in (configs.get("cleanup.policy") or "delete")
    if not deletes or configs.get("headrace.archive.enable") == "true":
        return Retention()
    kept_ms = _limit(configs.get("retention.ms"))
    return Retention(None if kept_ms is None else kept_ms / 1_000, _limit(configs.get("retention.bytes")))


def _limit(text: str | None) -> int | None:
    number = int(text) if text else -1
    return number if number >= 0 else None


@dataclass(frozen=True, slots=True)
class Loss:
    by: LossCause
    in_s: float | None = None
    retention_s: float | None = None
    """How long a record that is written now would be retained."""

    @property
    def share(self) -> float | None:
        """The remaining time as a share of the time for which a record is retained."""
        if self.in_s is None or not self.retention_s:
            return None
        return self.in_s / self.retention_s


@dataclass(frozen=True, slots=True)
class Unread:
    """The unread records of one partition."""

    records: int
    age_s: float | None
    """Age of the oldest unread record."""
    bytes: float | None
    arriving_per_s: float
    taken_per_s: float


def loss_of(retention: Retention, unread: Unread) -> Loss | None:
    """Return the earliest loss; None if all records are read."""
    if not unread.records:
        return None
    return soonest([_by_time(retention, unread), _by_bytes(retention, unread)])


def soonest(losses: Iterable[Loss | None]) -> Loss | None:
    """Return the earliest loss. If no loss has a time, return a loss that is "not known" rather than one that is
    "never".
    """
    known = [loss for loss in losses if loss is not None]
    with_time = [loss for loss in known if loss.in_s is not None]
    if with_time:
        return min(with_time, key=lambda loss: loss.in_s or 0.0)
    return next((loss for loss in known if loss.by == "not known"), known[0] if known else None)


def _by_time(retention: Retention, unread: Unread) -> Loss:
    limit = retention.retention_s
    if limit is None:
        return Loss("never")
    if unread.age_s is None:
        return Loss("not known")
    remaining_s = limit - unread.age_s
    if remaining_s <= 0:
        return Loss("retention.ms", 0.0, limit)
    advance_per_s = unread.taken_per_s * unread.age_s / unread.records
    if advance_per_s >= 1:
        return Loss("never")
    return Loss("retention.ms", remaining_s / (1 - advance_per_s), limit)


def _by_bytes(retention: Retention, unread: Unread) -> Loss:
    limit = retention.retention_bytes
    if limit is None:
        return Loss("never")
    if unread.bytes is None:
        return Loss("not known")
    record_bytes = unread.bytes / unread.records
    arriving_bytes_per_s = unread.arriving_per_s * record_bytes
    retention_s = limit / arriving_bytes_per_s if arriving_bytes_per_s > 0 else None
    if unread.bytes >= limit:
        return Loss("retention.bytes", 0.0, retention_s)
    growth_bytes_per_s = arriving_bytes_per_s - unread.taken_per_s * record_bytes
    if growth_bytes_per_s <= 0:
        return Loss("never")
    return Loss("retention.bytes", (limit - unread.bytes) / growth_bytes_per_s, retention_s)


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of one reader. A value that is None is unknown; the reader's state or ``why`` gives the reason."""

    reader: Reader
    records: int | None = None
    gone: int = 0
    """Records that retention deleted before they were read."""
    est_bytes: int | None = None
    """Unread bytes, estimated by the average record size of each partition."""
    age_s: float | None = None
    """Age of the oldest unread record; 0 if all records are read."""
    arriving_per_s: float | None = None
    taken_per_s: float | None = None
    loss: Loss | None = None
    """None if all records are read, or the lag is unknown."""
    unread: Mapping[Partition, int] = field(default_factory=dict)
    """Unread records per partition."""
    ages: Mapping[Partition, float | None] = field(default_factory=dict)
    """By partition, the age of the oldest unread record in seconds."""
    ends: Mapping[Partition, int] = field(default_factory=dict)
    """By partition, the offset up to which the reader can read."""
    why: str = ""
    """Why the lag is unknown, if the reader's state does not give the reason."""

    @property
    def measures(self) -> dict[str, float | None]:
        """The values that alert rules compare."""
        loss, share = self._time_to_loss()
        return {
            "lag": self.records,
            "bytes": self.est_bytes,
            "age": self.age_s,
            "time_to_loss": loss,
            SHARE: share,
            "gone": None if self.records is None else self.gone,
            "dead": self.reader.dead,
        }

    def _time_to_loss(self) -> tuple[float | None, float | None]:
        if self.records is None or (self.loss is not None and self.loss.by == "not known"):
            return None, None
        if self.loss is None or self.loss.in_s is None:
            return math.inf, math.inf
        # If the limit has passed, the remaining share is 0, whatever the rates are.
        return self.loss.in_s, 0.0 if self.loss.in_s == 0 else self.loss.share

    def row(self) -> dict[str, object]:
        reader, loss = self.reader, self.loss
        return {
            "what": reader.what,
            "name": reader.name,
            "state": self.why or reader.state,
            "generation": reader.generation,
            "batch": reader.batch,
            "batches": reader.batches,
            "lag": self.records,
            "est_bytes": self.est_bytes,
            "age_s": _rounded(self.age_s),
            "gone": self.gone,
            "dead": reader.dead,
            "arriving_per_s": _rounded(self.arriving_per_s),
            "taken_per_s": _rounded(self.taken_per_s),
            "time_to_loss_s": _rounded(loss.in_s) if loss else None,
            "lost_by": loss.by if loss else None,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
