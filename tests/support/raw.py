"""Sends single requests of any API and version without a client library."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from faults.clients.java_driver import JavaDriver
from tests.support.definitions import complete

__all__ = ["CLOSED", "Raw", "raw_connection"]

# The server closed the connection instead of responding.
CLOSED = "closed"

_names = itertools.count()


class Raw:
    """One connection. Fields have the names of Kafka's definitions, in camel case."""

    def __init__(self, driver: JavaDriver, port: int) -> None:
        self.driver = driver
        self.name = f"raw-{next(_names)}"
        self.apis: dict[str, list[int]] = driver.call("raw.versions")
        driver.call("raw.connect", on=self.name, port=port)

    def request(self, api: str, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        body = complete(f"{api}Request", version, fields)
        return {"on": self.name, "api": self.apis[api][0], "version": version, "body": body}

    def call(self, api: str, version: int, /, **fields: Any) -> Any:
        """Send a request and return the fields of its response, or ``CLOSED`` if the server closed the connection."""
        answer = self.driver.call("raw.request", **self.request(api, version, fields))
        return CLOSED if "closed" in answer else answer["body"]

    def send(self, api: str, version: int, /, **fields: Any) -> int:
        """Send without reading, for pipelining and for a produce without a response; return the correlation id."""
        sent: int = self.driver.call("raw.send", **self.request(api, version, fields))
        return sent

    def receive(self, api: str, version: int) -> tuple[int, Any]:
        """Read the next response; return its correlation id, and its fields decoded as those of the API."""
        answer = self.driver.call("raw.receive", on=self.name, api=self.apis[api][0], version=version)
        return answer["correlation_id"], answer["body"]

    def ask_bytes(self, frame: bytes, api: str, answer_version: int) -> Any:
        """Send a frame that no definition can express; decode the response as one of the API."""
        answer = self.driver.call(
            "raw.request",
            on=self.name,
            hex=frame.hex(),
            api=self.apis[api][0],
            version=answer_version,
        )
        return CLOSED if "closed" in answer else answer["body"]

    def encode(self, api: str, version: int, correlation_id: int = 1, /, **fields: Any) -> bytes:
        """The bytes of a request, without its frame size."""
        request = self.request(api, version, fields)
        return bytes.fromhex(self.driver.call("raw.encode", **request, correlation_id=correlation_id))

    def close(self) -> None:
        self.driver.call("raw.close", on=self.name)


@contextmanager
def raw_connection(driver: JavaDriver, port: int) -> Iterator[Raw]:
    connection = Raw(driver, port)
    try:
        yield connection
    finally:
        connection.close()
