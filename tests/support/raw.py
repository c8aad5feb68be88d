"""Requests without a client around them: any API, any version, one answer each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.definitions import complete
from tests.support.java_driver import JavaDriver

__all__ = ["CLOSED", "Raw", "raw_connection"]

# What the server did instead of answering.
CLOSED = "closed"

_names = itertools.count()


class Raw:
    """One connection. Fields are named as Kafka's definitions name them, in camel case."""

    def __init__(self, driver: JavaDriver, port: int) -> None:
        self.driver = driver
        self.name = f"raw-{next(_names)}"
        self.apis: dict[str, list[int]] = driver.call("raw.versions")
        driver.call("raw.connect", on=self.name, port=port)

    def request(self, api: str, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        body = complete(f"{api}Request", version, fields)
        return {"on": self.name, "api": self.apis[api][0], "version": version, "body": body}

    def ask(self, api: str, version: int, /, **fields: Any) -> Any:
        """The answer's fields, or ``CLOSED`` if the server hung up instead."""
        answer = self.driver.call("raw.request", **self.request(api, version, fields))
        return CLOSED if "closed" in answer else answer["body"]

    def send(self, api: str, version: int, /, **fields: Any) -> int:
        """Send and read nothing, for pipelining and for the produce that has no answer; gives the correlation id."""
        sent: int = self.driver.call("raw.send", **self.request(api, version, fields))
        return sent

    def receive(self, api: str, version: int) -> tuple[int, Any]:
        """The next answer on the connection: its correlation id, and its fields read as the given API's."""
        answer = self.driver.call("raw.receive", on=self.name, api=self.apis[api][0], version=version)
        return answer["correlation_id"], answer["body"]

    def ask_bytes(self, frame: bytes, api: str, answer_version: int) -> Any:
        """Send a frame that no definition can express; the answer is decoded as the given API's."""
        answer = self.driver.call(
            "raw.request",
            on=self.name,
            hex=frame.hex(),
            api=self.apis[api][0],
            version=answer_version,
        )
        return CLOSED if "closed" in answer else answer["body"]

    def encode(self, api: str, version: int, correlation_id: int = 1, /, **fields: Any) -> bytes:
        """The bytes of a request, without the size before them."""
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
