"""Fault X1: kill -9 of the broker at random moments: during the first start, Produce requests, transactions, segment
rolls, retention, offset commits, topic changes, journal snapshots, recovery, or a clean stop.

A run kills the broker several times on one data directory while every kind of client is busy. A kill is a hit if
requests were in flight. A kill during a start is a hit if the broker had begun to write its files, but was not ready
yet. A clean stop is not a hit.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from confluent_kafka import KafkaException

from faults.log.scene import Scene
from faults.outcome import Outcome
from faults.protocol.connection import Gone
from faults.run_directory import run_directory
from faults.servers.broker_process import BrokerProcess

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
        run_directory(FAULT, seed, in_memory=rng.random() < 0.7) as home,
        BrokerProcess(home, starter=starter, retention_check_ms=100, options=options, forked=True) as broker,
    ):
        if rng.random() < 0.5:
            outcome.hits += _kill_while_starting(broker, rng)
        broker.start()
        scene = Scene(broker, rng, transactions=True)
        scene.create_topics()
        scene.start_clients()
        try:
            scene.wait_for_acks()
            for _ in range(rng.randint(*kills)):
                if rng.random() < 0.4:
                    scene.wait_for_transactions(rng.randint(1, 5))
                time.sleep(rng.uniform(0.02, 0.3))
                was_busy = scene.in_flight > 0
                outcome.hits += _stop_or_kill(broker, rng, scene) and was_busy
                while rng.random() < 0.4:
                    outcome.hits += _kill_while_starting(broker, rng)
                broker.start()
                scene.wait_for_acks()
            scene.finish()
            broker.kill()
            broker.start()
            scene.judge()
        except (AssertionError, KafkaException, Gone) as failure:
            scene.ledger.report_problem(f"{type(failure).__name__}: {failure}")
        finally:
            scene.give_up()
        return scene.report(outcome)


def _stop_or_kill(broker: BrokerProcess, rng: random.Random, scene: Scene) -> bool:
    """Kill the broker, kill it during a clean stop, or stop it cleanly. Return whether it was killed."""
    choice = rng.random()
    if choice < 0.1:
        if code := broker.stop():
            scene.ledger.report_problem(f"a stop under load returned exit code {code}")
        return False
    if choice < 0.25:
        broker.terminate()
        time.sleep(rng.uniform(0, 0.05))
    was_running = broker.is_running
    broker.kill()
    return was_running


def _kill_while_starting(broker: BrokerProcess, rng: random.Random) -> int:
    """Start the broker, and kill it before it is ready. Return 1 if it had begun to write files."""
    identity_before = _identity(broker.data)
    broker.spawn()
    try:
        # Python's own start takes most of the time. The broker's part begins when it replaces its identity file.
        broker.wait_until(
            lambda: broker.is_ready or _identity(broker.data) != identity_before,
            "the broker neither wrote its identity file nor got ready",
        )
        time.sleep(rng.choice([0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02]))
        return int(not broker.is_ready)
    finally:
        broker.kill()


def _identity(data: Path) -> tuple[int, ...]:
    """Return the inodes of the lock and identity files, which change when a start begins to write."""
    inodes = []
    for name in ("lock", "headrace.json"):
        try:
            inodes.append(os.stat(data / name).st_ino)
        except FileNotFoundError:
            inodes.append(0)
    return tuple(inodes)
