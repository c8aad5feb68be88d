"""Faults that the log, flows and views survive, each as runs that a seed replays.

One module per fault, with

    run(seed, *, protected=True, without=...) -> Outcome      one randomised run
    UNPROTECTED                                               names of protections that ``without`` can take out
    RUNS                                                      where a run takes minutes: how many are enough

A fault survives if its oracle held in every run, every run was hit, and the oracle objected to a run without each of
the protections. ``bench.soak`` makes the full counts, ``tests/crash`` a quick share.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType

__all__ = ["FAULTS", "Fault"]


@dataclass(frozen=True, slots=True)
class Fault:
    """``runs`` is the full count for each of the modules; ``at_once`` how many may go side by side, because they
    mostly wait, or need no more than one core each.
    """

    name: str
    title: str
    modules: tuple[str, ...]
    runs: int
    at_once: int = 1

    def load(self) -> list[ModuleType]:
        """Imported when wanted: a fault brings clients and libraries of its own."""
        return [importlib.import_module(f"bench.faults.{name}") for name in self.modules]


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("X1", "kill -9", ("x1_kill", "x1_compaction"), 200),
        Fault("X2", "power loss", ("x2_power", "x2_compaction", "power_loss_of_flows"), 200, at_once=2),
        Fault("X3", "a sync fails once", ("x3_fsync", "x3_sync_sim", "x3_compaction"), 200, at_once=2),
        Fault("X4", "disk full", ("x4_full",), 200),
        Fault("X5", "damaged files", ("x5_damage", "x5_compaction"), 200, at_once=2),
        Fault("X6", "driver killed in a batch", ("x6_driver", "x6_realtime"), 50),
        Fault("X7", "checkpoint lost or damaged", ("x7_checkpoint",), 24),
        Fault("X8", "clock jumps", ("x8_clock",), 18, at_once=2),
        Fault("X9", "twins, disorder, lateness", ("x9_order",), 200, at_once=2),
        Fault("X10", "absurd event times", ("x10_absurd",), 30, at_once=2),
        Fault("X12", "zombie producer", ("x12_zombie",), 50, at_once=2),
        Fault("X13", "zombie follower or flow", ("x13_follower", "x13_flow", "x13_realtime"), 50),
        Fault("X14", "broker gone for a minute", ("x14_gone", "x14_flow"), 50, at_once=10),
        Fault("X17", "store gone, wiped or restored old", ("x17_store",), 50, at_once=4),
        Fault("X18", "far behind and past retention", ("x18_behind",), 6),
        Fault("X19", "size lies", ("x19_sizes",), 10),
        Fault("X20", "malformed frames", ("x20_frames",), 100, at_once=2),
        Fault("X21", "lying batches", ("x21_batches",), 100, at_once=2),
        Fault("X22", "slow and many", ("x22_slow", "x22_subscribers"), 5),
        Fault("X24", "names as paths", ("x24_names",), 100),
        Fault("X26", "poison values", ("x26_poison",), 20),
        Fault("X29", "the plan reorders", ("plan_order",), 20, at_once=2),
        Fault("X30", "input that explodes", ("exploding_input",), 6),
        Fault("X31", "the function changes under its data", ("changed_function",), 20, at_once=2),
        Fault("X32", "amplification", ("x32_amplification",), 3),
        Fault("subscribers", "killed servers, followers and logs", ("subscribers_killed",), 20),
        Fault("followers", "killed followers", ("follower_killed",), 50, at_once=2),
        Fault("backup", "backups of killed brokers, restored", ("backup_kill",), 50, at_once=2),
        Fault("operations", "every operation fails once", ("operations",), 50, at_once=2),
    )
}
