"""The faults that the log, the flows, the views and the server must survive, such as X1 (``docs/faults.md`` lists
them). Random runs test each fault; a seed replays a run. *The product* is the code under test, in ``src/headrace``.

Each fault has one or more modules with

    run(seed, *, protected=True, without=...) -> Outcome      one random run
    UNPROTECTED                                               protection -> regex; a run without the protection must
                                                              report a problem that matches the regex
    RUNS                                                      the full number of runs, if it differs from the fault's

Headrace survives a fault if the fault struck in every run, the oracle reported no problem in any run, and for each
protection a run without it reported the expected problem. Any other problem, or an exception, does not count.
``bench.soak`` executes all runs, ``tests/crash`` a few of them.

Tests and benchmarks import this package, which imports neither of them.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType

__all__ = ["FAULTS", "Fault"]

_FLOWS_AT_ONCE_MAX = 3
"""More Sparks than this, on two cores, wait so long for a core that their runs time out."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``runs`` is the full number of runs per module. ``product`` lists the tested code, relative to ``src/headrace``.
    Up to ``at_once`` runs may execute in parallel, because they mostly wait or need one core each. Each run of
    flows has a Spark of its own, so at most three of them execute in parallel.
    """

    name: str
    title: str
    modules: tuple[str, ...]
    runs: int
    product: tuple[str, ...]
    at_once: int = 1

    @property
    def covered_paths(self) -> list[str]:
        """The files and folders that the runs test, and the fault's modules. A result is stale when one of them
        changes.
        """
        product = [f"src/headrace/{path}" for path in self.product]
        return sorted([*product, *(f"faults/{name.replace('.', '/')}.py" for name in self.modules)])

    def parallel_runs(self, module: str) -> int:
        return min(self.at_once, _FLOWS_AT_ONCE_MAX) if module.startswith("faults.flows.") else self.at_once

    def load(self) -> list[ModuleType]:
        """Import the modules only when needed, because each fault imports its own clients and libraries."""
        return [importlib.import_module(f"faults.{name}") for name in self.modules]


_LOG = ("broker", "clock.py", "files.py", "log", "memory_files.py", "records", "wire")
_FLOWS = ("client", "flow", "model")
_VIEWS = ("client", "follow", "model", "stores")
_FLOWS_AND_VIEWS = ("flow", *_VIEWS)

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("X1", "kill -9", ("log.broker_kill", "log.kill_in_compaction"), 200, _LOG),
        Fault(
            "X2",
            "power loss",
            ("simulation.power_loss", "simulation.power_loss_in_compaction", "flows.power_loss"),
            200,
            (*_LOG, *_FLOWS),
            at_once=2,
        ),
        Fault(
            "X3",
            "a sync fails once",
            ("log.sync_failure", "simulation.sync_failure", "simulation.sync_failure_in_compaction"),
            200,
            _LOG,
            at_once=2,
        ),
        Fault("X4", "disk full", ("log.full_disk",), 200, _LOG),
        Fault(
            "X5",
            "damaged files",
            ("simulation.damaged_files", "simulation.damaged_compacted_files"),
            200,
            _LOG,
            at_once=2,
        ),
        Fault(
            "X6",
            "driver killed in a batch",
            ("flows.driver_kill", "flows.realtime_driver_kill"),
            50,
            _FLOWS_AND_VIEWS,
        ),
        Fault("X7", "checkpoint lost or damaged", ("flows.damaged_checkpoint",), 24, _FLOWS),
        Fault(
            "X8",
            "clock jumps",
            ("simulation.clock_jumps", "flows.clock_jumps"),
            18,
            (*_LOG, *_FLOWS),
            at_once=2,
        ),
        Fault("X9", "duplicate, out-of-order and late events", ("flows.disorder",), 200, _FLOWS, at_once=2),
        Fault("X10", "absurd event times", ("flows.absurd_times",), 30, _FLOWS, at_once=2),
        Fault("X12", "zombie producer", ("log.zombie_producer",), 50, _LOG, at_once=2),
        Fault(
            "X13",
            "zombie follower or flow",
            ("views.zombie_follower", "flows.zombie_driver", "flows.zombie_realtime_driver"),
            50,
            _FLOWS_AND_VIEWS,
            at_once=2,
        ),
        Fault(
            "X14",
            "broker unreachable for a minute",
            ("log.broker_outage", "flows.broker_outage"),
            50,
            (*_LOG, *_FLOWS_AND_VIEWS, "cli", "serve"),
            at_once=10,
        ),
        Fault(
            "X17",
            "store stopped, wiped or restored from an old backup",
            ("views.store_loss",),
            50,
            _VIEWS,
            at_once=4,
        ),
        Fault(
            "X18",
            "reader far behind or past retention",
            ("log.lagging_reader", "views.missed_deletions"),
            6,
            (*_LOG, *_VIEWS, "cli"),
        ),
        Fault("X19", "false sizes", ("log.size_claims", "serve.size_claims"), 10, (*_LOG, "serve")),
        Fault(
            "X20",
            "malformed frames",
            ("log.malformed_frames", "serve.malformed_requests"),
            100,
            (*_LOG, "serve"),
            at_once=2,
        ),
        Fault("X21", "invalid batches", ("log.invalid_batches",), 100, _LOG, at_once=2),
        Fault(
            "X22",
            "slow and many connections",
            ("log.slow_connections", "serve.slow_subscribers", "serve.slow_connections"),
            5,
            (*_LOG, "serve"),
        ),
        Fault(
            "X24",
            "names as paths",
            ("log.path_names", "log.hostile_manifests", "serve.path_names", "views.declared_names"),
            100,
            (*_LOG, "serve"),
        ),
        Fault("X25", "SQL injection", ("serve.sql_injection",), 100, ("serve", "stores"), at_once=2),
        Fault("X26", "poison values", ("flows.poison_values",), 20, _FLOWS_AND_VIEWS),
        Fault("X27", "browser attacks", ("serve.browser_attacks",), 20, ("serve",), at_once=2),
        Fault("X29", "the plan reorders", ("flows.plan_order",), 20, _FLOWS, at_once=2),
        Fault("X30", "exploding input", ("flows.exploding_input",), 6, _FLOWS),
        Fault(
            "X31",
            "the code or a schema changes",
            ("flows.changed_function", "flows.generation_switch", "flows.deployment_kill"),
            200,
            (*_FLOWS_AND_VIEWS, "cli", "runtime"),
            at_once=2,
        ),
        Fault("X32", "amplification", ("log.amplification",), 3, _LOG),
        Fault(
            "subscribers",
            "servers, followers and logs killed under subscribers",
            ("serve.kill_under_subscribers",),
            20,
            (*_VIEWS, "serve"),
        ),
        Fault("followers", "killed followers", ("views.follower_kill",), 50, _VIEWS, at_once=2),
        Fault("backup", "backups of killed brokers, restored", ("log.backup_kill",), 50, _LOG, at_once=2),
        Fault(
            "operations",
            "every operation fails once",
            ("simulation.failing_operations",),
            50,
            _LOG,
            at_once=2,
        ),
    )
}
