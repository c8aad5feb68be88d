"""When retention will take what a reader has not read, at the present rates.

By time: the oldest unread record has an age, and is removed when that reaches the limit. A reader that stands still has
what is left of it. One that reads moves away from what is removed next; the removal follows through the unread records
at the rate at which those were written, so it never comes by where they are read faster than that.

By bytes: a record is removed when the partition has as many bytes behind it as it keeps. What is unread grows by what
arrives, and shrinks by what is taken.

Brokers remove whole segments, now and then: no record goes sooner than is said here, most go later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from headrace.ops.lag.retention import Retention

__all__ = ["Loss", "Unread", "loss_of", "soonest"]

By = Literal["retention.ms", "retention.bytes", "never", "not known"]


@dataclass(frozen=True, slots=True)
class Loss:
    by: By
    in_s: float | None = None
    kept_s: float | None = None
    """How long a record that is written now would be kept."""

    @property
    def share(self) -> float | None:
        """Of the time that a record is kept."""
        if self.in_s is None or not self.kept_s:
            return None
        return self.in_s / self.kept_s


@dataclass(frozen=True, slots=True)
class Unread:
    """What a reader has yet to read of a partition."""

    records: int
    age_s: float | None
    """Of the oldest of them."""
    bytes: float | None
    arriving_per_s: float
    taken_per_s: float


def loss_of(retention: Retention, unread: Unread) -> Loss | None:
    """None where there is nothing to lose."""
    if not unread.records:
        return None
    return soonest([_by_time(retention, unread), _by_bytes(retention, unread)])


def soonest(losses: Iterable[Loss | None]) -> Loss | None:
    """The one that comes first; what is not known counts for less than what is, and for more than never."""
    found = [one for one in losses if one is not None]
    timed = [one for one in found if one.in_s is not None]
    if timed:
        return min(timed, key=lambda one: one.in_s or 0.0)
    return next((one for one in found if one.by == "not known"), found[0] if found else None)


def _by_time(retention: Retention, unread: Unread) -> Loss:
    kept = retention.kept_s
    if kept is None:
        return Loss("never")
    if unread.age_s is None:
        return Loss("not known")
    left = kept - unread.age_s
    if left <= 0:
        return Loss("retention.ms", 0.0, kept)
    gained = unread.taken_per_s * unread.age_s / unread.records
    if gained >= 1:
        return Loss("never")
    return Loss("retention.ms", left / (1 - gained), kept)


def _by_bytes(retention: Retention, unread: Unread) -> Loss:
    kept = retention.kept_bytes
    if kept is None:
        return Loss("never")
    if unread.bytes is None:
        return Loss("not known")
    each = unread.bytes / unread.records
    arriving = unread.arriving_per_s * each
    kept_s = kept / arriving if arriving > 0 else None
    if unread.bytes >= kept:
        return Loss("retention.bytes", 0.0, kept_s)
    growing = arriving - unread.taken_per_s * each
    if growing <= 0:
        return Loss("never")
    return Loss("retention.bytes", (kept - unread.bytes) / growing, kept_s)
