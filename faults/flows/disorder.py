"""Fault X9: duplicate, out-of-order and late events. Most are within the allowed lateness, some far beyond it, and one
in ten is sent twice. The flow reads them in batches of random sizes, over several runs.

Whether an event is late depends only on the earlier events of its partition. So both flows must find the same late
events, however they cut the partitions into batches. Every event must be counted, or be reported as late, or become a
dead letter. Each late event and each dead letter must be in its side topic once. The results must equal those of a
plain loop over the counted events. In half of the runs, one partition is far behind the other: Spark's own watermark
would drop its events.
"""

from __future__ import annotations

import random

from faults.flows.disordered_events import Disorder
from faults.outcome import Outcome
from faults.patch import patched

__all__ = ["UNPROTECTED", "run"]

FAULT = "X9"
_VERIFIED_EVERY = 10
UNPROTECTED = {"late-record": r"\.late: .* missing", "own-watermark": r"the counts: .* missing"}


def run(seed: int, *, protected: bool = True, without: str = "late-record", rounds: int = 2) -> Outcome:
    outcome = Outcome(FAULT, seed)
    scene = Disorder(random.Random(f"{FAULT} {seed}"), outcome, verified=seed % _VERIFIED_EVERY == 1)
    if protected:
        scene.run(rounds)
    elif without == "late-record":
        from headrace.flow import commit as batch

        side_records = batch._side_records

        def without_late_records(flow, result, generation):  # type: ignore[no-untyped-def]
            return [
                record
                for record in side_records(flow, result, generation)
                if not record.topic.endswith(".late")
            ]

        with patched(batch, "_side_records", without_late_records):
            scene.run(rounds)
    else:
        from headrace.flow.compile.spark_watermark import SparkWatermark

        scene.skew_s = 150
        # Now Spark moves its watermark with the newest event of all partitions, and drops events without a report.
        with patched(SparkWatermark, "set", lambda self, query, watermark_us: None):
            scene.run(rounds)
    scene.judge()
    return outcome
