"""The events of a followed statement."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any

from faults.serve.http import Http

__all__ = ["results"]


@contextlib.contextmanager
def results(client: Http, sql: str, *parameters: Any, cursor: str = "") -> Iterator[Iterator[dict[str, Any]]]:
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=60)
    headers = {"Content-Type": "application/json"}
    if client.token:
        headers["Authorization"] = f"Bearer {client.token}"
    body = json.dumps({"sql": sql, "parameters": parameters})
    try:
        connection.request("POST", f"/v1/sql/changes{cursor and f'?cursor={cursor}'}", body, headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        yield _events(response)
    finally:
        connection.close()


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    while line := response.readline():
        if line.startswith(b"data: "):
            yield json.loads(line[6:])
