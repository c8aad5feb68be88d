"""X1, kill -9: at random moments of first start, produce, transactions, roll, retention, commits, topic changes,
snapshots of the journals, recovery and clean stops.

A run kills the broker several times on one data directory while every kind of client is busy. A kill counts as a hit
if requests were under way, or, for a kill during a start, if the broker had begun to work on its files and was not
ready yet. A clean stop is no hit.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from confluent_kafka import KafkaException

from bench.faults.connection import Gone
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerProcess
from bench.faults.scene import Scene
from bench.faults.workplace import workplace

__all__ = ["UNPROTECTED", "run"]

FAULT = "X1"
UNPROTECTED = {"write-before-ack": r"^\d+ lost$", "producer-state": r"^\d+ duplicated$"}


def run(
    seed: int, *, protected: bool = True, without: str = "write-before-ack", kills: tuple[int, int] = (2, 4)
) -> Outcome:
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    starter = [] if protected else ["--without", without]
    if rng.random() < 0.5:
        starter += ["--journal-snapshot", "3000"]
    options = ["--durability", rng.choice(["synced", "synced", "os"])]
    with (
        workplace(FAULT, seed, in_memory=rng.random() < 0.7) as home,
        BrokerProcess(home, starter=starter, retention_check_ms=100, options=options, forked=True) as broker,
    ):
        if rng.random() < 0.5:
            outcome.hits += _kill_while_starting(broker, rng)
        broker.start()
        scene = Scene(broker, rng, transactions=True)
        scene.make_topics()
        scene.employ()
        try:
            scene.wait_for_acks()
            for _ in range(rng.randint(*kills)):
                if rng.random() < 0.4:
                    scene.wait_for_transactions(rng.randint(1, 5))
                time.sleep(rng.uniform(0.02, 0.3))
                was_busy = scene.in_flight > 0
                outcome.hits += _end(broker, rng, scene) and was_busy
                while rng.random() < 0.4:
                    outcome.hits += _kill_while_starting(broker, rng)
                broker.start()
                scene.wait_for_acks()
            scene.finish()
            broker.kill()
            broker.start()
            scene.judge()
        except (AssertionError, KafkaException, Gone) as failure:
            scene.ledger.object(f"{type(failure).__name__}: {failure}")
        finally:
            scene.give_up()
        return scene.report(outcome)


def _end(broker: BrokerProcess, rng: random.Random, scene: Scene) -> bool:
    """Mostly a kill out of the blue; at times one that comes upon a clean stop, and at times the clean stop itself.
    Returns whether it was killed.
    """
    way = rng.random()
    if way < 0.1:
        if code := broker.stop():
            scene.ledger.object(f"a stop under load ended with {code}")
        return False
    if way < 0.25:
        broker.terminate()
        time.sleep(rng.uniform(0, 0.05))
    was_running = broker.runs
    broker.kill()
    return was_running


def _kill_while_starting(broker: BrokerProcess, rng: random.Random) -> int:
    """Start and kill again before the ready line; returns 1 if the broker had its hands on the files by then."""
    sign = _identity(broker.data)
    broker.spawn()
    try:
        # Most of a start is Python's own; the broker's part begins when it replaces its identity file.
        broker.wait_until(lambda: broker.is_ready or _identity(broker.data) != sign, "no sign of a start")
        time.sleep(rng.choice([0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02]))
        return int(not broker.is_ready)
    finally:
        broker.kill()


def _identity(data: Path) -> tuple[int, ...]:
    """Changes when a start begins to write: the lock is made first, then the identity is replaced."""
    found = []
    for name in ("lock", "headrace.json"):
        try:
            found.append(os.stat(data / name).st_ino)
        except FileNotFoundError:
            found.append(0)
    return tuple(found)
