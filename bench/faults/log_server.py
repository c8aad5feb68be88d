"""The log of a run of flows: the embedded broker, and for a share of the seeds a real Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.faults.outcome import Outcome
from bench.faults.process import BrokerProcess

__all__ = ["is_on_kafka", "log_server"]

_KAFKA_EVERY = 10


def is_on_kafka(seed: int) -> bool:
    return seed % _KAFKA_EVERY == 0


@contextmanager
def log_server(home: Path, seed: int, outcome: Outcome) -> Iterator[str]:
    """Where it can be reached. The outcome gets what it did not foresee, but not its memory: others are attacked."""
    if is_on_kafka(seed):
        from tests.support.apache_kafka import start_kafka

        kafka = start_kafka(home / "kafka")
        try:
            yield kafka.bootstrap
        finally:
            kafka.kill()
        outcome.figures["on Apache Kafka"] = 1
        return
    with BrokerProcess(home, forked=True) as broker:
        broker.start()
        yield broker.bootstrap
        outcome.problems += broker.traces()
        broker.kill()
