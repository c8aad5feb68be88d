"""Fault X3, a sync fails once on a simulated disk that loses the data: reads still return the data, but a later sync
does not write it to the disk, and it is missing after a power loss.

The sync of one of these files fails:

    data      a segment of one partition    error 56, and no later batch of that partition is acked before a restart
    roll      that partition's directory    the same
    topics    the journal of topics         topic changes are refused until a restart
    commits   the journal of groups         commits are refused until a restart
    mark      that partition's mark         only DeleteRecords is refused, because the older slot is still correct
    side      an index or a state           nothing is refused, because these files can be rebuilt

Everything else must continue. Each ack is compared with what the simulation knows to be on the disk. Then either the
power fails, or the process is killed. After a kill the next process finds the forgotten bytes in its page cache, and
everything that it serves must survive a power loss.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from faults.disk.faulty_files import Fault, FaultyFiles
from faults.outcome import Outcome
from faults.simulation.facts import TopicFact
from faults.simulation.machine import Machine
from faults.simulation.partition_oracle import Findings
from faults.simulation.requests import DATA, SimulatedBroker
from faults.simulation.scene import Scene
from faults.simulation.unprotected import without_protection

__all__ = ["AIMS", "UNPROTECTED", "run"]

FAULT = "X3"
UNPROTECTED = {
    "fence": r"sent after the failure and acknowledged|is not on the disk",
    "second-write": r"cannot be read, error 2",
}
AIMS = ("data", "roll", "topics", "commits", "mark", "side")
_WEIGHTS = (8, 3, 3, 3, 2, 1)
_STORAGE, _NOT_COORDINATOR = 56, 16
_TRIES = 6


class _Aim:
    """The file that fails, and the errors that are allowed meanwhile."""

    def __init__(self, kind: str, rng: random.Random) -> None:
        self.kind = kind
        self.topic = ""
        self.partition = -1
        self.fault: Fault | None = None
        self._rng = rng

    @property
    def has_struck(self) -> bool:
        return self.fault is not None and self.fault.hits > 0

    def allows(self, kind: str, topic: str, partition: int, error: int) -> bool:
        if not self.has_struck:
            return False
        is_target = (topic, partition) == (self.topic, self.partition)
        if self.kind in ("data", "roll"):
            return is_target and kind in ("produce", "change") and error == _STORAGE
        if self.kind == "topics":
            return kind == "change" and error == _STORAGE
        if self.kind == "commits":
            # Deleting a topic also deletes its committed offsets, so it needs this journal too.
            return (kind, error) in (("commit", _NOT_COORDINATOR), ("change", _STORAGE))
        return self.kind == "mark" and is_target and kind == "change" and error == _STORAGE

    def arm(self, scene: Scene) -> None:
        """Set up the fault on the current files."""
        confirmed_topics = [
            (name, fact.confirmed) for name, fact in scene.topics.items() if fact.confirmed is not None
        ]
        if not confirmed_topics:
            return
        self.topic, fact = self._rng.choice(confirmed_topics)
        assert fact is not None
        self.partition = self._rng.randrange(fact.partitions)
        directory = DATA / "topics" / fact.id.hex() / str(self.partition)
        files = scene.machine.files
        nth = self._rng.randint(1, 4)
        if self.kind == "roll":
            self.fault = files.fail("sync_dir", path=str(directory))
        else:
            pattern = {
                "data": f"{directory}/*.log",
                "topics": f"{DATA}/metadata/*.log",
                "commits": f"{DATA}/groups/*.log",
                "mark": f"{directory}/mark",
                "side": f"{directory}/*.new",
            }[self.kind]
            self.fault = files.forget_sync(path=pattern, nth=1 if self.kind == "mark" else nth)
        self._watch_acks(scene, fact, directory)

    def _watch_acks(self, scene: Scene, fact: TopicFact, directory: Path) -> None:
        oracle = scene.oracle_of(self.topic, fact, self.partition)
        oracle.is_durable = _durability_check(scene.machine.files, directory)
        if self.kind in ("data", "roll"):
            oracle.has_failed = lambda: self.has_struck

    def disarm(self, scene: Scene) -> None:
        for oracle in scene.oracles.values():
            oracle.is_durable = lambda body: True
            oracle.has_failed = lambda: False


def _durability_check(files: FaultyFiles, directory: Path) -> Callable[[bytes], bool]:
    def is_durable(body: bytes) -> bool:
        names = [name for name in files.list(directory) if name.endswith(".log")]
        return any(body in (files.durable_content(directory / name) or b"") for name in names)

    return is_durable


def run(seed: int, *, protected: bool = True, without: str = "fence", aim: str | None = None) -> Outcome:
    rng = random.Random(f"{FAULT} {seed}")
    outcome = Outcome(FAULT, seed)
    findings = Findings()
    aim_file = _Aim(aim or rng.choices(AIMS, _WEIGHTS)[0], rng)
    if not protected:
        aim_file.kind = "data"
    machine = Machine(seed, findings.report_problem)
    scene = Scene(seed, machine, findings, allows=aim_file.allows)
    with without_protection(None if protected else without):
        machine.run_process(lambda: scene.run_broker(steps=12))
        for _ in range(_TRIES):
            if not aim_file.has_struck and not findings.problems:
                _fail_once(scene, aim_file, rng)
        outcome.hits += aim_file.has_struck
        if protected and aim_file.has_struck and aim_file.kind != "side":
            _check_failure_was_logged(machine, findings)
        aim_file.disarm(scene)
        if rng.random() < 0.7 or not protected:
            machine.end("kill")
            machine.run_process(lambda: scene.run_broker(steps=rng.randint(0, 4), stop=rng.random() < 0.5))
        if not findings.problems:
            machine.end("power loss")
            machine.run_process(lambda: scene.run_broker(steps=4))
    findings.report_to(outcome)
    outcome.figures = {
        "refused": scene.refused,
        "batches": sum(len(oracle.sent) for oracle in scene.oracles.values()),
        "acked": sum(oracle.acked for oracle in scene.oracles.values()),
        "trace": machine.trace,
    }
    return outcome


def _fail_once(scene: Scene, aim_file: _Aim, rng: random.Random) -> None:
    def arm(broker: SimulatedBroker) -> None:
        aim_file.arm(scene)

    stops = rng.random() < 0.3
    scene.machine.run_process(lambda: scene.run_broker(steps=25, stop=stops, before_work=arm))
    if not aim_file.has_struck:
        aim_file.disarm(scene)
        scene.machine.end("kill")


def _check_failure_was_logged(machine: Machine, findings: Findings) -> None:
    if not any("Input/output error" in line for line in machine.log_lines):
        findings.report_problem(f"no log line reports the failed sync, only {machine.log_lines}")
