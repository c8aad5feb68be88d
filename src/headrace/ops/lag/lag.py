"""How far a reader is behind: in records, bytes and seconds, how fast that changes, and when it becomes a loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.model.rule import SHARE
from headrace.ops.lag.loss import Loss
from headrace.ops.lag.reader import Partition, Reader

__all__ = ["Lag"]


@dataclass(frozen=True, slots=True)
class Lag:
    """None is "not known"; then the reader's state says why."""

    reader: Reader
    records: int | None = None
    gone: int = 0
    """Records that were deleted before they were read."""
    est_bytes: int | None = None
    """Of what is unread, by the average record of each partition: an estimate."""
    age_s: float | None = None
    """Of the oldest record that is unread; 0 if none is."""
    arriving_per_s: float | None = None
    taken_per_s: float | None = None
    loss: Loss | None = None
    """None where nothing is unread, or its lag is not known."""
    places: Mapping[Partition, int] = field(default_factory=dict)
    """Unread records per partition."""
    ages: Mapping[Partition, float | None] = field(default_factory=dict)
    """Of the oldest unread record of each, in seconds."""
    ends: Mapping[Partition, int] = field(default_factory=dict)
    """Of each partition that is read: what it could read up to."""
    why: str = ""
    """Why nothing is known, where the reader does not say it itself."""

    @property
    def measures(self) -> dict[str, float | None]:
        """What rules compare."""
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
        # What is past its limit has no share left, whatever the rate is.
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
