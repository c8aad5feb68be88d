"""Orders that come slowly and evenly, so that every batch is small."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from bench.orders import event
from headrace.client.cluster import Cluster

__all__ = ["trickle"]

_PATIENCE_S = 180.0
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
    begun: Callable[[], None] = lambda: None,
) -> None:
    """``begun`` is called when a first batch is done and ``warm_s`` are over; then it goes on for ``seconds``, and
    until a few batches are done.
    """
    producer = cluster.producer({"linger.ms": 0})
    due = time.monotonic()
    deadline = due + _PATIENCE_S
    counts_at: float | None = None
    first: int | None = None
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
        if counts_at is None:
            if _last_done(checkpoints) is not None:
                counts_at = now + warm_s
                deadline = counts_at + seconds + _PATIENCE_S
        elif first is None:
            if now >= counts_at:
                first = _last_done(checkpoints)
                begun()
        elif now >= counts_at + seconds and (_last_done(checkpoints) or 0) >= first + _BATCHES:
            break
        if now > deadline:
            raise SystemExit(f"too few batches were done within {_PATIENCE_S:.0f} s: {checkpoints}")
        time.sleep(_TICK_S)
    producer.flush(30)


def _last_done(checkpoints: Path) -> int | None:
    numbers = [int(one.name) for one in checkpoints.glob("*/*/commits/[0-9]*")]
    return max(numbers, default=None)
