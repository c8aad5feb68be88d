"""Orders that arrive slowly and evenly, so that every batch is small."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from bench.flow.orders import event
from headrace.client.cluster import Cluster

__all__ = ["trickle"]

_TIMEOUT_S = 180.0
_BATCHES = 4
_TICK_S = 0.002


def trickle(
    cluster: Cluster,
    topic: str,
    checkpoints: Path,
    check: Callable[[], None],
    *,
    rate: int,
    warm_s: float,
    seconds: float,
    on_start: Callable[[], None] = lambda: None,
) -> None:
    """Send orders until ``warm_s`` seconds after the end of the first batch. Then call ``on_start``. Continue for at
    least ``seconds``, until a few more batches are done.
    """
    producer = cluster.producer({"linger.ms": 0})
    due = time.monotonic()
    deadline = due + _TIMEOUT_S
    counting_from: float | None = None
    first_counted: int | None = None
    number = 0
    while True:
        now = time.monotonic()
        while due <= now:
            key, value = event(number, datetime.fromtimestamp(time.time(), UTC))
            producer.produce(topic, value, key)
            number += 1
            due += 1 / rate
        producer.poll(0)
        check()
        if counting_from is None:
            if _last_done(checkpoints) is not None:
                counting_from = now + warm_s
                deadline = counting_from + seconds + _TIMEOUT_S
        elif first_counted is None:
            if now >= counting_from:
                first_counted = _last_done(checkpoints)
                on_start()
        elif now >= counting_from + seconds and (_last_done(checkpoints) or 0) >= first_counted + _BATCHES:
            break
        if now > deadline:
            raise SystemExit(f"too few batches were done within {_TIMEOUT_S:.0f} s: {checkpoints}")
        time.sleep(_TICK_S)
    producer.flush(30)


def _last_done(checkpoints: Path) -> int | None:
    numbers = [int(path.name) for path in checkpoints.glob("*/*/commits/[0-9]*")]
    return max(numbers, default=None)
