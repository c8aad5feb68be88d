"""A plain client of HTTP, from the standard library: what it sends is what is written here."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Http", "Reply"]


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    """By their names in small letters."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def expect(self, status: int) -> Any:
        assert self.status == status, (self.status, self.body)
        return self.json if self.body else None


class Http:
    def __init__(self, port: int, token: str = "") -> None:
        self.port = port
        self.token = token

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 240.0,
        **asked: Any,
    ) -> Reply:
        """``asked`` becomes the query; a name that Python has taken ends in a line."""
        query = urllib.parse.urlencode({name.rstrip("_"): value for name, value in asked.items()})
        sent = {"Host": f"127.0.0.1:{self.port}", **(headers or {})}
        if self.token and "Authorization" not in sent:
            sent["Authorization"] = f"Bearer {self.token}"
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(method, f"{path}{'?' if query else ''}{query}", raw, sent)
            answer = connection.getresponse()
            told = {name.lower(): text for name, text in answer.getheaders()}
            # An answer that goes on is not waited for.
            goes_on = told.get("content-type", "").startswith("text/event-stream") and method != "HEAD"
            return Reply(answer.status, told, answer.read1() if goes_on else answer.read())
        finally:
            connection.close()

    def get(self, path: str, **more: Any) -> Reply:
        return self.ask("GET", path, **more)

    def post(self, path: str, body: Any, **more: Any) -> Reply:
        return self.ask("POST", path, body=body, **more)

    def rows(self, view: str, **asked: Any) -> list[Any]:
        """Of all pages."""
        found: list[Any] = []
        told = self.get(f"/v1/views/{view}/rows", **asked).expect(200)
        while True:
            found += told["rows"]
            if "next" not in told:
                return found
            told = self.get(told["next"]).expect(200)
