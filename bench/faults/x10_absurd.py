"""X10, absurd event times: records of 1970, 9999 and before the common era of clocks, among others that are in order.

They are dead letters with their place; the watermark of every batch, and all windows, are as without them.
"""

from __future__ import annotations

import random

from bench.faults.flow_order import Disorder
from bench.faults.outcome import Outcome
from bench.faults.sim_loop import patched

__all__ = ["UNPROTECTED", "run"]

FAULT = "X10"
_PROVEN_EVERY = 10
UNPROTECTED = {"earliest": r"\.dead: .* missing", "ahead": r"\.dead: .* missing"}


def run(seed: int, *, protected: bool = True, without: str = "earliest", rounds: int = 2) -> Outcome:
    from headrace.flow import decoding, options

    outcome = Outcome(FAULT, seed)
    scene = Disorder(random.Random(f"{FAULT} {seed}"), outcome, absurd=True, proven=seed % _PROVEN_EVERY == 1)
    if protected:
        scene.play(rounds)
    elif without == "earliest":
        with patched(decoding, "EARLIEST_US", -(2**62)):
            scene.play(rounds)
    else:
        with patched(options, "TimeBounds", lambda future_us: decoding.TimeBounds(2**60)):
            scene.play(rounds)
    scene.judge()
    return outcome
