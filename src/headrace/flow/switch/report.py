"""What a switch to another generation would change, and whether the limits allow it without an operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from headrace.flow.switch.difference import DifferenceCounts, SampleRow
from headrace.model.progress import Batch, Totals
from headrace.settings import SwitchSettings

__all__ = ["Shares", "SwitchReport", "shares_of"]


@dataclass(frozen=True, slots=True)
class Shares:
    """Late and dead records of a generation, in percent of the records that it has read."""

    late_percent: float = 0.0
    dead_percent: float = 0.0


def shares_of(last: Batch | None) -> Shares:
    totals = last.totals if last is not None else Totals()
    if not totals.rows_in:
        return Shares()
    dead = totals.dead + totals.table_dead + totals.keyless
    return Shares(
        round(100 * totals.late / totals.rows_in, 3),
        round(100 * min(dead, totals.rows_in) / totals.rows_in, 3),
    )


@dataclass(frozen=True, slots=True)
class SwitchReport:
    flow: str
    before: int
    """The number of the serving generation."""
    after: int
    counts: DifferenceCounts
    shares_before: Shares
    shares_after: Shares
    samples: Sequence[SampleRow] = ()

    @property
    def gone_percent(self) -> float:
        return 100 * self.counts.gone / max(1, self.counts.before)

    @property
    def gone_rows_percent(self) -> float:
        """Where each row of a key counts, a key can lose rows without being gone."""
        lost = self.counts.rows_before - self.counts.rows_after
        return 100 * max(0, lost) / max(1, self.counts.rows_before)

    @property
    def changed_percent(self) -> float:
        return 100 * self.counts.changed / max(1, self.counts.before)

    def exceeded(self, switch: SwitchSettings) -> list[str]:
        """Return a text for each limit that the difference exceeds."""
        before, after = self.shares_before, self.shares_after
        values = (
            (
                self.gone_percent,
                switch.gone_percent_max,
                f"{self.counts.gone} of {self.counts.before} keys are gone",
            ),
            (
                self.gone_rows_percent,
                switch.gone_percent_max,
                f"there are {self.counts.rows_after} rows instead of {self.counts.rows_before}",
            ),
            (
                self.changed_percent,
                switch.changed_percent_max,
                f"the rows of {self.counts.changed} of {self.counts.before} keys changed",
            ),
            (
                after.late_percent - before.late_percent,
                switch.rejected_percent_max,
                f"late records are {after.late_percent:g} % of the input instead of {before.late_percent:g} %",
            ),
            (
                after.dead_percent - before.dead_percent,
                switch.rejected_percent_max,
                f"dead records are {after.dead_percent:g} % of the input instead of {before.dead_percent:g} %",
            ),
        )
        return [f"{text} (limit {limit:g} %)" for value, limit, text in values if value > limit]

    def with_samples(self, samples: Sequence[SampleRow]) -> SwitchReport:
        return replace(self, samples=samples)

    def line(self) -> str:
        counts, before, after = self.counts, self.shares_before, self.shares_after
        return (
            f"flow {self.flow}, generation {self.before} and {self.after}: {counts.rows_before} and {counts.rows_after}"
            f" rows, {counts.before} and {counts.after} keys; {counts.gone} gone, {counts.changed} changed,"
            f" {counts.new} new; late {before.late_percent:g} % and {after.late_percent:g} %,"
            f" dead {before.dead_percent:g} % and {after.dead_percent:g} %"
        )

    def sample_lines(self) -> list[str]:
        return [
            f"  {sample.kind} {sample.key}: {sample.before or 'no row'} -> {sample.after or 'no row'}"
            for sample in self.samples
        ]

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> SwitchReport:
        """Decode the result of ``to_json``."""
        return msgspec.convert(value, cls)

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "gone_percent": round(self.gone_percent, 3),
            "changed_percent": round(self.changed_percent, 3),
        }
