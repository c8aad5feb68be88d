"""A plain HTTP client from the standard library. It sends exactly what the test specifies."""

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
    """The headers, by lower-case name."""
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

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 240.0,
        **query: Any,
    ) -> Reply:
        """Send a request. If Python reserves a name in ``query``, the caller appends an underscore to the name, and
        this method removes the underscore.
        """
        encoded = urllib.parse.urlencode({name.rstrip("_"): value for name, value in query.items()})
        sent = {"Host": f"127.0.0.1:{self.port}", **(headers or {})}
        if self.token and "Authorization" not in sent:
            sent["Authorization"] = f"Bearer {self.token}"
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(method, f"{path}{'?' if encoded else ''}{encoded}", raw, sent)
            answer = connection.getresponse()
            response_headers = {name.lower(): text for name, text in answer.getheaders()}
            # Do not wait for the end of an event stream.
            goes_on = (
                response_headers.get("content-type", "").startswith("text/event-stream") and method != "HEAD"
            )
            return Reply(answer.status, response_headers, answer.read1() if goes_on else answer.read())
        finally:
            connection.close()

    def get(self, path: str, **more: Any) -> Reply:
        return self.request("GET", path, **more)

    def post(self, path: str, body: Any, **more: Any) -> Reply:
        return self.request("POST", path, body=body, **more)

    def rows(self, view: str, **query: Any) -> list[Any]:
        """Return the rows of all pages."""
        rows: list[Any] = []
        page = self.get(f"/v1/views/{view}/rows", **query).expect(200)
        while True:
            rows += page["rows"]
            if "next" not in page:
                return rows
            page = self.get(page["next"]).expect(200)
