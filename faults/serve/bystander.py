"""A well-behaved client of the server beside the attackers. It reads rows over HTTP and PostgreSQL's protocol.

Every response must be right. The client uses one connection of each kind for all its requests.
"""

from __future__ import annotations

import http.client
import json
import time
from typing import Any

import psycopg

from faults.bystander import BystanderThread
from faults.serve.scene import ROWS, VIEW, ServedShop, amount_of

__all__ = ["ServedBystander"]

_TIMEOUT_S = 60.0
_STATEMENT_EVERY = 20


class ServedBystander(BystanderThread):
    """``selects``: also send SQL statements, which a separate process runs."""

    def __init__(self, shop: ServedShop, *, pause_s: float = 0.002, selects: bool = True) -> None:
        super().__init__("served bystander", pause_s)
        self._shop = shop
        self._selects = selects
        self._http: http.client.HTTPConnection | None = None
        self._pg: psycopg.Connection[Any] | None = None

    def prepare(self) -> None:
        """Open both connections, and send the first request of each kind, which is slower."""
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
        self._read_rows()
        self._select(1)

    def send_requests(self) -> None:
        while not self.stop_requested.is_set():
            began = time.monotonic()
            key = self.requests % ROWS
            if self.requests % _STATEMENT_EVERY:
                self._read_row(key)
            else:
                self._select(key)
            self.requests += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            time.sleep(self.pause_s)

    def _get(self, path: str) -> Any:
        assert self._http is not None
        self._http.request("GET", path, headers={"Authorization": f"Bearer {self._shop.reader}"})
        answer = self._http.getresponse()
        body = answer.read()
        if answer.status != 200:
            self.problems.append(f"the bystander got status {answer.status}: {body[:200]!r}")
            return None
        return json.loads(body)

    def _read_row(self, key: int) -> None:
        response = self._get(f"/v1/views/{VIEW}/rows/k{key}")
        if response is not None and response["row"]["amount"] != amount_of(key):
            self.problems.append(f"the bystander's row k{key} is {response['row']!r:.100}")

    def _read_rows(self) -> None:
        response = self._get(f"/v1/views/{VIEW}/rows?limit=20")
        if response is not None and len(response["rows"]) != 20:
            self.problems.append(f"the bystander received {len(response['rows'])} of 20 rows")

    def _select(self, key: int) -> None:
        assert self._pg is not None
        expected: int | str = amount_of(key) if self._selects else "on"
        sql = "SHOW standard_conforming_strings"
        if self._selects:
            sql = f"SELECT amount FROM {VIEW} WHERE product = 'k{key}'"
        rows = self._pg.execute(sql).fetchall()
        if rows != [(expected,)]:
            self.problems.append(f"the bystander's {sql} returned {rows!r:.100}")

    def finish(self, timeout_s: float = 120.0) -> list[str]:
        problems = super().finish(timeout_s)
        for connection in (self._http, self._pg):
            if connection is not None:
                connection.close()
        return problems
