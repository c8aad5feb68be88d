"""The events of a statement that is followed, as they come."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any

from tests.serve.http import Http

__all__ = ["results"]


@contextlib.contextmanager
def results(http_: Http, sql: str, *parameters: Any, cursor: str = "") -> Iterator[Iterator[dict[str, Any]]]:
    connection = http.client.HTTPConnection("127.0.0.1", http_.port, timeout=60)
    headers = {"Content-Type": "application/json"}
    if http_.token:
        headers["Authorization"] = f"Bearer {http_.token}"
    body = json.dumps({"sql": sql, "parameters": parameters})
    try:
        connection.request("POST", f"/v1/sql/changes{cursor and f'?cursor={cursor}'}", body, headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        yield _events(answer)
    finally:
        connection.close()


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    while line := answer.readline():
        if line.startswith(b"data: "):
            yield json.loads(line[6:])
