"""Some who write over HTTP, and read what they have written as soon as they may.

    python -m bench.serving.own_load TASK

Each waits a little between two writes, for a time that nobody knows before, so that they come at any moment of a batch.
The first may take its time, and what comes within ``warm_s`` after it does not count.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import sys
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from bench.serving.spans import at_share

__all__ = ["main"]

_PAUSE_S = 0.2
_FIRST_S = 240.0
_WAIT = "25s"


@dataclass(frozen=True, slots=True)
class _Task:
    port: int
    topic: str
    view: str
    what: str
    """orders or ticks."""
    writers: int
    warm_s: float
    seconds: float


@dataclass(slots=True)
class _Found:
    waits: list[float] = field(default_factory=list)
    """From the answer to the write to the answer to the read."""
    whole: list[float] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)


def _order(number: int) -> tuple[str, dict[str, Any]]:
    key = f"o{number:09}"
    told = {"order_id": key, "customer_id": "c1", "product_id": "p1", "quantity": 2, "note": None}
    return key, {**told, "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}


def _tick(number: int) -> tuple[str, dict[str, Any]]:
    key = f"own{number:09}"
    return key, {"tick_id": key, "due_us": 0, "note": ""}


_MAKE = {"orders": _order, "ticks": _tick}


class _Writer:
    def __init__(self, task: _Task, numbers: itertools.count[int]) -> None:
        self._task = task
        self._numbers = numbers
        self._connection = http.client.HTTPConnection("127.0.0.1", task.port, timeout=60)

    def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def once(self, deadline: float | None = None) -> tuple[float, float]:
        """How long the read took, and both. Until the deadline it may be late."""
        key, value = _MAKE[self._task.what](next(self._numbers))
        began = time.perf_counter()
        status, told = self._ask(
            "POST", f"/v1/topics/{self._task.topic}/records", json.dumps({"value": value}).encode()
        )
        if status != 200:
            raise SystemExit(f"a write was answered with {status}: {told}")
        written = time.perf_counter()
        query = urllib.parse.urlencode({"after": told["token"], "wait": _WAIT})
        while True:
            status, told = self._ask("GET", f"/v1/views/{self._task.view}/rows/{key}?{query}")
            if status == 200:
                break
            if deadline is None or time.monotonic() > deadline:
                raise SystemExit(f"a read was answered with {status}: {told}")
            # Nothing may serve yet, which is said at once.
            time.sleep(0.1)
        read = time.perf_counter()
        assert key in told["row"].values(), told
        return read - written, read - began


def _write_on(task: _Task, numbers: itertools.count[int], counts_from: float, found: _Found) -> None:
    rng = random.Random(threading.get_ident())
    until = counts_from + task.seconds
    try:
        writer = _Writer(task, numbers)
        while (now := time.monotonic()) < until:
            wait, whole = writer.once()
            if now >= counts_from:
                found.waits.append(wait)
                found.whole.append(whole)
            time.sleep(rng.uniform(0, _PAUSE_S))
    except BaseException as error:
        found.errors.append(error)


def main() -> None:
    task = _Task(**json.loads(sys.argv[1]))
    numbers, found = itertools.count(), _Found()
    _Writer(task, numbers).once(time.monotonic() + _FIRST_S)
    counts_from = time.monotonic() + task.warm_s
    threads = [
        threading.Thread(target=_write_on, args=(task, numbers, counts_from, found))
        for _ in range(task.writers)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    if found.errors:
        raise found.errors[0]
    waits, whole = sorted(found.waits), sorted(found.whole)
    told = {"p50_ms": at_share(waits, 0.5) * 1e3, "p99_ms": at_share(waits, 0.99) * 1e3}
    print(json.dumps({**told, "whole_p99_ms": at_share(whole, 0.99) * 1e3, "count": len(waits)}))


if __name__ == "__main__":
    main()
