"""A connection to Redis, and transactions on it.

A transaction is optimistic: what it depends on is watched (WATCH), then read and judged, then the changes are sent and
wait in the server (MULTI) until all of them happen at once (EXEC), or none if anything that is watched has changed
since. So whoever sleeps anywhere in between, and wakes after another one has taken the view, changes nothing; whoever
dies in between leaves nothing behind, since what waits goes with its connection.

A server without memory refuses a transaction before its first command. A script would be as atomic, but of the server's
time, in which it serves nobody else, it takes more than twice as much for the same rows (docs/decisions).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from redis import Connection
from redis import exceptions as said
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import ExecAbortError, ResponseError
from redis.retry import Retry

from headrace.model.address import resolved, shown
from headrace.views.errors import StoreUnusable
from headrace.views.redis.trouble import told_as

__all__ = ["Command", "Server"]

Command = Sequence[str | bytes | int]

_ADDRESS = (
    "redis://user:password@host:6379/0, rediss://... with TLS, or unix:///path/to/socket; special characters in a"
    " password are %-encoded"
)
_TIMEOUT_S = 10.0
_CONNECT_S = 5.0
_STOP_S = 2.0
"""How long an answer is waited for that nobody wants any more."""
_GLANCE_S = 0.1
_MUCH_BYTES = 1 << 20
"""Below it no server ends a connection for having been sent too much."""


class Server:
    """For one thread. ``is_stopping`` says whether its user is to end."""

    def __init__(
        self, address: str, client_name: str, is_stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self.where = shown(address)
        self._is_stopping = is_stopping
        self._connection = self._made(resolved(address), client_name)
        with told_as(self.where):
            self._connection.connect()

    def _made(self, url: str, client_name: str) -> Any:
        try:
            options = {
                "socket_timeout": _TIMEOUT_S,
                "socket_connect_timeout": _CONNECT_S,
                "client_name": client_name,
                **parse_url(url),  # type: ignore[no-untyped-call]
                "protocol": 2,
                "encoding": "utf-8",
                "decode_responses": False,
                # It is for the follower to try again: it must know that it was away. A check of the client's own would
                # come in the middle of a transaction.
                "retry": Retry(NoBackoff(), 0),
                "health_check_interval": 0,
            }
            return options.pop("connection_class", Connection)(**options)
        except TypeError as error:
            raise StoreUnusable(
                f"{self.where} has an option that a connection does not have: {error}", hint=_ADDRESS
            ) from None
        except ValueError:
            # What it says quotes the address: a password with a slash in it would be told as a port.
            raise StoreUnusable(f"{self.where} is no address of Redis", hint=_ADDRESS) from None

    def close(self) -> None:
        self._connection.disconnect()

    def ask(self, *command: str | bytes | int) -> Any:
        return self.ask_all([command])[0]

    def ask_all(self, commands: Sequence[Command]) -> list[Any]:
        """One after another, in one message; others may come in between."""
        with told_as(self.where):
            try:
                for command in commands:
                    self._send(command)
                return self._answers(len(commands))
            except ResponseError:
                raise
            except BaseException:
                self._connection.disconnect()
                raise

    def watch(self, keys: Sequence[str], read: Command) -> Any:
        """Whatever changes the keys from now on makes ``commit`` come to nothing."""
        return self.ask_all([("WATCH", *keys), read])[1]

    def unwatch(self) -> None:
        self.ask("UNWATCH")

    def commit(self, commands: Iterable[Command]) -> bool:
        """All of them at once; False, and none of them, if what is watched was changed."""
        sent = 0
        with told_as(self.where):
            try:
                self._send(("MULTI",))
                count = 1
                for command in commands:
                    packed = self._connection.pack_command(*command)
                    sent += sum(map(len, packed))
                    self._connection.send_packed_command(packed)
                    count += 1
                self._send(("EXEC",))
                return self._executed(count)
            except BaseException as error:
                # What waits in the server goes with the connection.
                self._connection.disconnect()
                if isinstance(error, said.ConnectionError) and sent > _MUCH_BYTES:
                    raise said.ConnectionError(
                        f"{error} After {sent >> 20} MB of one batch: is its client-query-buffer-limit larger?"
                    ) from error
                raise

    def _executed(self, count: int) -> bool:
        self._await_answer()
        refused: ResponseError | None = None
        for _ in range(count):
            try:
                self._connection.read_response()
            except ResponseError as error:
                refused = refused or error
        self._await_answer()
        try:
            done = self._connection.read_response()
        except ExecAbortError as error:
            raise (refused or error) from None
        for answer in done or ():
            if isinstance(answer, ResponseError):
                raise answer
        return done is not None

    def _send(self, command: Command) -> None:
        self._connection.send_packed_command(self._connection.pack_command(*command))

    def _answers(self, count: int) -> list[Any]:
        """All of them are read before the first error is raised, so that the connection can be used further."""
        self._await_answer()
        answers: list[Any] = []
        refused: ResponseError | None = None
        for _ in range(count):
            try:
                answers.append(self._connection.read_response())
            except ResponseError as error:
                refused = refused or error
        if refused is not None:
            raise refused
        return answers

    def _await_answer(self) -> None:
        """Until there is one to be read. A server that sleeps holds up nobody who is to end."""
        timeout_s, waited_s = self._connection.socket_timeout or math.inf, 0.0
        while not self._connection.can_read(timeout=_GLANCE_S):
            waited_s += _GLANCE_S
            if waited_s >= min(timeout_s, _STOP_S if self._is_stopping() else math.inf):
                raise said.TimeoutError(f"no answer for {waited_s:.0f} s")
