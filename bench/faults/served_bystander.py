"""A good client of the server beside the bad ones: it reads rows over HTTP and in PostgreSQL's protocol.

Every answer must be right. One connection of each kind serves for all of its requests.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
import traceback
from typing import Any

import psycopg

from bench.faults.served_shop import ROWS, VIEW, ServedShop, amount_of

__all__ = ["ServedBystander"]

_TIMEOUT_S = 60.0
_STATEMENT_EVERY = 20


class ServedBystander(threading.Thread):
    """``selects``: with statements, which take a process of their own; without, only what the server knows itself."""

    def __init__(self, shop: ServedShop, *, pause_s: float = 0.002, selects: bool = True) -> None:
        super().__init__(name="served bystander", daemon=True)
        self.problems: list[str] = []
        self.requests = 0
        self.slowest_s = 0.0
        self._shop = shop
        self._pause_s = pause_s
        self._selects = selects
        self._stop_wanted = threading.Event()
        self._http: http.client.HTTPConnection | None = None
        self._pg: psycopg.Connection[Any] | None = None

    def prepare(self) -> None:
        """Both connections, and what the first request of each kind costs."""
        self._http = http.client.HTTPConnection("127.0.0.1", self._shop.server.port, timeout=_TIMEOUT_S)
        self._pg = psycopg.connect(
            host="127.0.0.1",
            port=self._shop.pg_port,
            user="bystander",
            password=self._shop.reader,
            autocommit=True,
            connect_timeout=60,
        )
        for key in range(40):
            self._read_row(key)
        self._ask_for_rows()
        self._select(1)

    def run(self) -> None:
        try:
            while not self._stop_wanted.is_set():
                began = time.monotonic()
                key = self.requests % ROWS
                if self.requests % _STATEMENT_EVERY:
                    self._read_row(key)
                else:
                    self._select(key)
                self.requests += 1
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                time.sleep(self._pause_s)
        except Exception:
            self.problems.append(f"the bystander was disturbed:\n{traceback.format_exc()}")

    def _get(self, path: str) -> Any:
        assert self._http is not None
        self._http.request("GET", path, headers={"Authorization": f"Bearer {self._shop.reader}"})
        answer = self._http.getresponse()
        body = answer.read()
        if answer.status != 200:
            self.problems.append(f"the bystander was answered with {answer.status}: {body[:200]!r}")
            return None
        return json.loads(body)

    def _read_row(self, key: int) -> None:
        found = self._get(f"/v1/views/{VIEW}/rows/k{key}")
        if found is not None and found["row"]["amount"] != amount_of(key):
            self.problems.append(f"the bystander's row k{key} is {found['row']!r:.100}")

    def _ask_for_rows(self) -> None:
        found = self._get(f"/v1/views/{VIEW}/rows?limit=20")
        if found is not None and len(found["rows"]) != 20:
            self.problems.append(f"the bystander was given {len(found['rows'])} rows of 20")

    def _select(self, key: int) -> None:
        assert self._pg is not None
        if self._selects:
            sql, right = f"SELECT amount FROM {VIEW} WHERE product = 'k{key}'", amount_of(key)
        else:
            sql, right = "SHOW standard_conforming_strings", "on"
        found = self._pg.execute(sql).fetchall()  # type: ignore[call-overload]
        if found != [(right,)]:
            self.problems.append(f"the bystander's {sql} gave {found!r:.100}")

    def wait_for(self, requests: int, timeout_s: float) -> None:
        """Until it has made so many, or has stopped."""
        deadline = time.monotonic() + timeout_s
        while self.requests < requests and self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        if self.requests < requests:
            self.problems.append(f"the good client got {self.requests} of {requests} answers")

    def finish(self, timeout_s: float = 120.0) -> list[str]:
        """What went wrong for it."""
        self._stop_wanted.set()
        self.join(timeout_s)
        if self.is_alive():
            self.problems.append(f"the bystander was not done within {timeout_s} s")
        if not self.requests:
            self.problems.append("the bystander never had an answer")
        for connection in (self._http, self._pg):
            if connection is not None:
                connection.close()
        return self.problems
