"""Clients that write over HTTP, and read their own writes immediately.

    python -m bench.serve.own_writes_load TASK

Each client pauses for a random time between two writes, so that the writes arrive at random points of a flow's batch.
The first write can take longer, and writes within ``warm_s`` after it do not count.
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

from bench.serve.http_load import percentile

__all__ = ["main"]

_PAUSE_S = 0.2
_FIRST_TIMEOUT_S = 240.0
_WAIT = "25s"


@dataclass(frozen=True, slots=True)
class _Task:
    port: int
    topic: str
    view: str
    kind: str
    """orders or ticks."""
    writers: int
    warm_s: float
    seconds: float


@dataclass(slots=True)
class _Measured:
    waits: list[float] = field(default_factory=list)
    """Seconds from the response to the write to the response to the read."""
    write_and_read_s: list[float] = field(default_factory=list)
    """Seconds from the start of the write to the response to the read."""
    errors: list[BaseException] = field(default_factory=list)


def _order(number: int) -> tuple[str, dict[str, Any]]:
    key = f"o{number:09}"
    fields = {"order_id": key, "customer_id": "c1", "product_id": "p1", "quantity": 2, "note": None}
    return key, {**fields, "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}


def _tick(number: int) -> tuple[str, dict[str, Any]]:
    key = f"own{number:09}"
    return key, {"tick_id": key, "due_us": 0, "note": ""}


_RECORDS = {"orders": _order, "ticks": _tick}


class _Writer:
    def __init__(self, task: _Task, numbers: itertools.count[int]) -> None:
        self._task = task
        self._numbers = numbers
        self._connection = http.client.HTTPConnection("127.0.0.1", task.port, timeout=60)

    def _request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        self._connection.request(method, path, body, headers)
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())

    def write_and_read(self, deadline: float | None = None) -> tuple[float, float]:
        """Return the duration of the read, and of write and read together. Retry the read until the deadline."""
        key, value = _RECORDS[self._task.kind](next(self._numbers))
        began = time.perf_counter()
        status, body = self._request(
            "POST", f"/v1/topics/{self._task.topic}/records", json.dumps({"value": value}).encode()
        )
        if status != 200:
            raise SystemExit(f"a write returned status {status}: {body}")
        written = time.perf_counter()
        query = urllib.parse.urlencode({"after": body["token"], "wait": _WAIT})
        while True:
            status, body = self._request("GET", f"/v1/views/{self._task.view}/rows/{key}?{query}")
            if status == 200:
                break
            if deadline is None or time.monotonic() > deadline:
                raise SystemExit(f"a read returned status {status}: {body}")
            # If the view is not served yet, the server returns an error at once.
            time.sleep(0.1)
        read = time.perf_counter()
        assert key in body["row"].values(), body
        return read - written, read - began


def _write_until_end(
    task: _Task, numbers: itertools.count[int], warm_up_end_s: float, measured: _Measured
) -> None:
    rng = random.Random(threading.get_ident())
    until = warm_up_end_s + task.seconds
    try:
        writer = _Writer(task, numbers)
        while (now := time.monotonic()) < until:
            read_s, write_and_read_s = writer.write_and_read()
            if now >= warm_up_end_s:
                measured.waits.append(read_s)
                measured.write_and_read_s.append(write_and_read_s)
            time.sleep(rng.uniform(0, _PAUSE_S))
    except BaseException as error:
        measured.errors.append(error)


def main() -> None:
    task = _Task(**json.loads(sys.argv[1]))
    numbers, measured = itertools.count(), _Measured()
    _Writer(task, numbers).write_and_read(time.monotonic() + _FIRST_TIMEOUT_S)
    warm_up_end_s = time.monotonic() + task.warm_s
    threads = [
        threading.Thread(target=_write_until_end, args=(task, numbers, warm_up_end_s, measured))
        for _ in range(task.writers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if measured.errors:
        raise measured.errors[0]
    waits, durations_s = sorted(measured.waits), sorted(measured.write_and_read_s)
    figures = {"p50_ms": percentile(waits, 0.5) * 1e3, "p99_ms": percentile(waits, 0.99) * 1e3}
    print(json.dumps({**figures, "whole_p99_ms": percentile(durations_s, 0.99) * 1e3, "count": len(waits)}))


if __name__ == "__main__":
    main()
