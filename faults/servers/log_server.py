"""The log of a fault run with flows: the embedded broker, or a real Apache Kafka for one seed in ten."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.outcome import Outcome
from faults.servers.broker_process import BrokerProcess

__all__ = ["is_on_kafka", "log_server"]

_KAFKA_EVERY = 10


def is_on_kafka(seed: int) -> bool:
    return seed % _KAFKA_EVERY == 0


@contextmanager
def log_server(home: Path, seed: int, outcome: Outcome) -> Iterator[str]:
    """Yield the bootstrap address. The outcome gets the broker's unexpected exceptions, but not its memory, because the
    broker is not under attack.
    """
    if is_on_kafka(seed):
        from faults.servers.apache_kafka import start_kafka

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
        outcome.problems += broker.unexpected_exceptions()
        broker.kill()
