"""X17, a store that goes, is wiped, or is restored from an old backup, under a follower at work. The ways:

    gone       stopped for a while, and started again
    wiped      emptied, or made anew
    restored   put back to what it was a while ago, rows and positions; on odd seeds, to before its
               follower was the owner

Nobody helps: the same process goes on, or builds the view again. Whoever reads the view at any moment sees the rows of
the batch that its position names, and at the end it is what the log's batches come to. Other readers of the log, and
the flow that writes it, are not held up.
"""

from __future__ import annotations

import random
import time

from bench.faults.follower_process import FollowerProcess
from bench.faults.log_server import log_server
from bench.faults.outcome import Outcome
from bench.faults.store_kinds import KINDS, StorePlace, kind_of
from bench.faults.view_watch import ViewWatch
from bench.faults.workplace import workplace
from bench.faults.x13_follower import Writing

__all__ = ["UNPROTECTED", "WAYS", "run"]

FAULT = "X17"
UNPROTECTED = {"position": r"rows differ"}
WAYS = ("gone", "wiped", "restored")
_NAME = "sales"


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "position",
    store: str = "",
    way: str = "",
    gone_s: float = 60.0,
) -> Outcome:
    """``store`` is one of ``store_kinds.KINDS``, ``way`` one of ``WAYS``; without them, the seed says which."""
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    kind = store or kind_of(seed)
    way = (way or WAYS[seed // len(KINDS) % len(WAYS)]) if protected else "restored"
    with (
        workplace(FAULT, seed) as home,
        KINDS[kind].place(home) as place,
        log_server(home, seed if protected else 1, outcome) as bootstrap,
    ):
        writing = Writing(bootstrap, rng)
        watch = ViewWatch(place, _NAME, writing.expected)

        def follow() -> FollowerProcess:
            return FollowerProcess(
                bootstrap, kind, place.address, _NAME, without="" if protected else without
            )

        follower = follow()
        try:
            follower.wait_for("applied", rng.randint(3, 10))
            if not protected:
                # One that is still being built has other protections, and is begun anew.
                watch.wait_for(*writing.at)
            kept = place.keep() if way == "restored" else None
            if kept is not None and protected and seed % 2:
                follower.kill()
                follower = follow()
            _strike(way, place, watch, writing, rng, follower, gone_s, kept, at_rest=not protected)
            outcome.hits += 1
            follower.wait_for("applied", writing.at[1])
            writing.stop()
            watch.wait_for(*writing.at)
        finally:
            writing.stop()
            outcome.peak_rss_mb = max(outcome.peak_rss_mb, follower.rss_mb())
            follower.kill()
            watch.close()
        outcome.problems += watch.problems
        outcome.figures["looks"] = watch.looks
    return outcome


def _strike(
    way: str,
    place: StorePlace,
    watch: ViewWatch,
    writing: Writing,
    rng: random.Random,
    follower: FollowerProcess,
    gone_s: float,
    kept: object,
    *,
    at_rest: bool,
) -> None:
    """``at_rest``: not while it writes. One whose files go under it opens all anew, and looks then, whatever is left
    out.
    """
    match way:
        case "gone":
            place.stop()
            began = writing.at
            time.sleep(gone_s)
            if writing.at <= began:
                watch.problems.append("the flow was held up by a store that was gone")
            place.start()
        case "wiped":
            watch.may_go_back()
            place.wipe()
        case "restored":
            follower.wait_for("applied", writing.at[1] + rng.randint(2, 8))
            if at_rest:
                _put_to_rest(follower)
            watch.may_go_back()
            place.restore(kept)
            follower.wake()


def _put_to_rest(follower: FollowerProcess) -> None:
    """Between two batches."""
    follower.sleep()
    while follower.is_within:
        follower.wake()
        time.sleep(0.003)
        follower.sleep()
