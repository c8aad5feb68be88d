"""Fault X10, absurd event times: records from 1970, 9999 and before the Unix epoch, mixed with records that have valid
times.

The records with absurd times must become dead letters that name their topic, partition and offset. The watermark of
every batch and all windows must be the same as without these records.
"""

from __future__ import annotations

import random

from faults.flows.disordered_events import Disorder
from faults.outcome import Outcome
from faults.patch import patched

__all__ = ["UNPROTECTED", "run"]

FAULT = "X10"
_VERIFIED_EVERY = 10
UNPROTECTED = {"earliest": r"\.dead: .* missing", "ahead": r"\.dead: .* missing"}


def run(seed: int, *, protected: bool = True, without: str = "earliest", rounds: int = 2) -> Outcome:
    from headrace.flow import context as options
    from headrace.flow.codec import codec as decoding

    outcome = Outcome(FAULT, seed)
    scene = Disorder(
        random.Random(f"{FAULT} {seed}"), outcome, absurd=True, verified=seed % _VERIFIED_EVERY == 1
    )
    if protected:
        scene.run(rounds)
    elif without == "earliest":
        with patched(decoding, "EARLIEST_US", -(2**62)):
            scene.run(rounds)
    else:
        with patched(options, "TimeBounds", lambda future_us: decoding.TimeBounds(2**60)):
            scene.run(rounds)
    scene.judge()
    return outcome
