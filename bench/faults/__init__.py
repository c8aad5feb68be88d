"""Faults that the log, flows and views survive, each as runs that a seed replays.

One module per fault, with

    run(seed, *, protected=True, without=...) -> Outcome      one randomised run
    UNPROTECTED                                               the protections that ``without`` can take out: for each
                                                              a pattern of the finding that a run without it must show
    RUNS                                                      where each run makes every case: how many runs are enough

A fault is survived if its oracle held in every run, every run was hit, and for each protection a run without it showed
its finding; another objection, or an exception, does not count. ``bench.soak`` makes the full counts, ``tests/crash`` a
quick share.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType

__all__ = ["FAULTS", "Fault"]


@dataclass(frozen=True, slots=True)
class Fault:
    """``runs`` is the full count for each of the modules; ``product`` the code that it attacks, below ``src/headrace``;
    ``at_once`` how many runs may go side by side, because they mostly wait, or need no more than one core each.
    """

    name: str
    title: str
    modules: tuple[str, ...]
    runs: int
    product: tuple[str, ...]
    at_once: int = 1

    @property
    def covers(self) -> list[str]:
        """Files and folders of the repository. If any of them changes, what was counted is stale."""
        product = [f"src/headrace/{one}" for one in self.product]
        return sorted([*product, *(f"bench/faults/{one}.py" for one in self.modules)])

    def load(self) -> list[ModuleType]:
        """Imported when wanted: a fault brings clients and libraries of its own."""
        return [importlib.import_module(f"bench.faults.{name}") for name in self.modules]


_LOG = ("broker", "clock.py", "files.py", "log", "memory_files.py", "records", "wire")
_FLOWS = ("client", "flow", "model")
_VIEWS = ("client", "model", "stores.py", "views")
_FLOWS_AND_VIEWS = ("flow", *_VIEWS)

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("X1", "kill -9", ("x1_kill", "x1_compaction"), 200, _LOG),
        Fault(
            "X2",
            "power loss",
            ("x2_power", "x2_compaction", "power_loss_of_flows"),
            200,
            (*_LOG, *_FLOWS),
            at_once=2,
        ),
        Fault("X3", "a sync fails once", ("x3_fsync", "x3_sync_sim", "x3_compaction"), 200, _LOG, at_once=2),
        Fault("X4", "disk full", ("x4_full",), 200, _LOG),
        Fault("X5", "damaged files", ("x5_damage", "x5_compaction"), 200, _LOG, at_once=2),
        Fault("X6", "driver killed in a batch", ("x6_driver", "x6_realtime"), 50, _FLOWS_AND_VIEWS),
        Fault("X7", "checkpoint lost or damaged", ("x7_checkpoint",), 24, _FLOWS),
        Fault("X8", "clock jumps", ("x8_clock",), 18, _LOG, at_once=2),
        Fault("X9", "twins, disorder, lateness", ("x9_order",), 200, _FLOWS, at_once=2),
        Fault("X10", "absurd event times", ("x10_absurd",), 30, _FLOWS, at_once=2),
        Fault("X12", "zombie producer", ("x12_zombie",), 50, _LOG, at_once=2),
        Fault(
            "X13",
            "zombie follower or flow",
            ("x13_follower", "x13_flow", "x13_realtime"),
            50,
            _FLOWS_AND_VIEWS,
        ),
        Fault(
            "X14",
            "broker gone for a minute",
            ("x14_gone", "x14_flow"),
            50,
            (*_LOG, *_FLOWS_AND_VIEWS, "cli"),
            at_once=10,
        ),
        Fault("X17", "store gone, wiped or restored old", ("x17_store",), 50, _VIEWS, at_once=4),
        Fault(
            "X18",
            "far behind and past retention",
            ("x18_behind", "missed_deletions"),
            6,
            (*_LOG, *_VIEWS, "cli"),
        ),
        Fault("X19", "size lies", ("x19_sizes",), 10, _LOG),
        Fault("X20", "malformed frames", ("x20_frames",), 100, _LOG, at_once=2),
        Fault("X21", "lying batches", ("x21_batches",), 100, _LOG, at_once=2),
        Fault("X22", "slow and many", ("x22_slow", "x22_subscribers"), 5, (*_LOG, "serve")),
        Fault("X24", "names as paths", ("x24_names", "hostile_manifests"), 100, _LOG),
        Fault("X26", "poison values", ("x26_poison",), 20, _FLOWS_AND_VIEWS),
        Fault("X29", "the plan reorders", ("plan_order",), 20, _FLOWS, at_once=2),
        Fault("X30", "input that explodes", ("exploding_input",), 6, _FLOWS),
        Fault("X31", "the function changes under its data", ("changed_function",), 20, _FLOWS, at_once=2),
        Fault("X32", "amplification", ("x32_amplification",), 3, _LOG),
        Fault(
            "subscribers",
            "killed servers, followers and logs",
            ("subscribers_killed",),
            20,
            (*_VIEWS, "serve"),
        ),
        Fault("followers", "killed followers", ("follower_killed",), 50, _VIEWS, at_once=2),
        Fault("backup", "backups of killed brokers, restored", ("backup_kill",), 50, _LOG, at_once=2),
        Fault("operations", "every operation fails once", ("operations",), 50, _LOG, at_once=2),
    )
}
