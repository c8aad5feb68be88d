"""X9, twins, disorder and lateness: events up to the limit behind the latest, some far behind it, one in ten twice,
read in batches of any size over several runs.

What is late is decided once, by the watermark that a batch began with. The oracle works it out by hand: every event is
counted, late or dead, and each place is in the side topics once; what is derived is what a plain loop over the counted
events gives.
"""

from __future__ import annotations

import random

from bench.faults.flow_order import Disorder
from bench.faults.outcome import Outcome
from bench.faults.sim_loop import patched

__all__ = ["UNPROTECTED", "run"]

FAULT = "X9"
_PROVEN_EVERY = 10
UNPROTECTED = {"late-record": r"\.late: .* missing", "own-watermark": r"had the watermark"}


def run(seed: int, *, protected: bool = True, without: str = "late-record", rounds: int = 2) -> Outcome:
    outcome = Outcome(FAULT, seed)
    scene = Disorder(random.Random(f"{FAULT} {seed}"), outcome, proven=seed % _PROVEN_EVERY == 1)
    if protected:
        scene.play(rounds)
    elif without == "late-record":
        from headrace.flow import batch

        sides = batch._side_records

        def forgetful(flow, result, generation):  # type: ignore[no-untyped-def]
            return [one for one in sides(flow, result, generation) if not one.topic.endswith(".late")]

        with patched(batch, "_side_records", forgetful):
            scene.play(rounds)
    else:
        from headrace.flow.watermark import WatermarkCell

        # Spark alone decides, and tells nobody.
        with patched(WatermarkCell, "set", lambda self, watermark_us: self._cell.set(0, -(2**63))):
            scene.play(rounds)
    scene.judge()
    return outcome
