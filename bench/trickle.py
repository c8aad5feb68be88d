"""Orders that come slowly and evenly, so that every batch is small."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from bench.orders import event
from headrace.client.cluster import Cluster

__all__ = ["trickle"]

_FIRST_S = 180.0
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
    """``begun`` is called when a first batch is done and ``warm_s`` are over; then it goes on for ``seconds``."""
    producer = cluster.producer({"linger.ms": 0})
    due = time.monotonic()
    deadline = due + _FIRST_S
    counts_at: float | None = None
    number = 0
    has_begun = False
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
            if any(checkpoints.glob("*/*/commits/[0-9]*")):
                counts_at = now + warm_s
            elif now > deadline:
                raise SystemExit(f"no batch was done within {_FIRST_S:.0f} s")
        elif not has_begun and now >= counts_at:
            begun()
            has_begun = True
        elif has_begun and now >= counts_at + seconds:
            break
        time.sleep(_TICK_S)
    producer.flush(30)
