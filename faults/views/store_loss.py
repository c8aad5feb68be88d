"""Fault X17, a running follower loses its store in one of these ways:

    gone       it is stopped for a while, and started again
    wiped      it is emptied, or created again
    restored   rows and positions are reset to an earlier state; on odd seeds, to before the follower was the owner

The same follower process must resume or rebuild the view without help. Every read of the view must show exactly the
state after the batch at the view's position. At the end the view must equal the rows that result from all batches in
the log. Other readers of the log, and the flow that writes it, must not be delayed.
"""

from __future__ import annotations

import random
import time

from faults.outcome import Outcome
from faults.run_directory import run_directory
from faults.servers.log_server import log_server
from faults.stores.port import FaultyStore
from faults.stores.registry import KINDS, kind_of, store_faults
from faults.views.follower_process import FollowerProcess
from faults.views.view_reader import ViewReader
from faults.views.zombie_follower import BatchWriter

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
    """``store`` is one of ``KINDS``, ``way`` one of ``WAYS``. By default the seed chooses them."""
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    kind = store or kind_of(seed)
    way = (way or WAYS[seed // len(KINDS) % len(WAYS)]) if protected else "restored"
    with (
        run_directory(FAULT, seed) as home,
        store_faults(kind).create(home) as faulty_store,
        log_server(home, seed if protected else 1, outcome) as bootstrap,
    ):
        writer = BatchWriter(bootstrap, rng)
        reader = ViewReader(faulty_store, _NAME, writer.expected)

        def follow() -> FollowerProcess:
            return FollowerProcess(
                bootstrap, kind, faulty_store.address, _NAME, without="" if protected else without
            )

        follower = follow()
        try:
            follower.wait_for("applied", rng.randint(3, 10))
            if not protected:
                # Wait until the view is built: other checks protect a view that is still being built, which
                # simply starts again.
                reader.wait_for(*writer.at)
            backup = faulty_store.back_up() if way == "restored" else None
            if backup is not None and protected and seed % 2:
                follower.kill()
                follower = follow()
            _lose_store(
                way,
                faulty_store,
                reader,
                writer,
                rng,
                follower,
                gone_s,
                backup,
                between_batches=not protected,
            )
            outcome.hits += 1
            follower.wait_for("applied", writer.at[1])
            writer.stop()
            reader.wait_for(*writer.at)
        finally:
            writer.stop()
            outcome.peak_rss_mb = max(outcome.peak_rss_mb, follower.rss_mb())
            follower.kill()
            reader.close()
        outcome.problems += reader.problems
        outcome.figures["looks"] = reader.reads
    return outcome


def _lose_store(
    way: str,
    faulty_store: FaultyStore,
    reader: ViewReader,
    writer: BatchWriter,
    rng: random.Random,
    follower: FollowerProcess,
    gone_s: float,
    backup: object,
    *,
    between_batches: bool,
) -> None:
    """``between_batches``: restore the backup only while the follower does not write. A follower whose files vanish
    during a write reopens everything and notices the loss, even without the protection.
    """
    match way:
        case "gone":
            faulty_store.stop()
            at_stop = writer.at
            time.sleep(gone_s)
            if writer.at <= at_stop:
                reader.problems.append("the flow was delayed by a store that was stopped")
            faulty_store.start()
        case "wiped":
            reader.may_go_back()
            faulty_store.wipe()
        case "restored":
            follower.wait_for("applied", writer.at[1] + rng.randint(2, 8))
            if between_batches:
                _pause_between_batches(follower)
            reader.may_go_back()
            faulty_store.restore(backup)
            follower.resume()


def _pause_between_batches(follower: FollowerProcess) -> None:
    """Wait until the follower is between two batches."""
    follower.pause()
    while follower.is_within:
        follower.resume()
        time.sleep(0.003)
        follower.pause()
