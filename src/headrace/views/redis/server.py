"""A connection to Redis, and transactions on it.

A transaction is optimistic: what it depends on is watched (WATCH), then read and judged, then the changes are sent and
wait in the server (MULTI) until all of them happen at once (EXEC), or none if anything that is watched has changed
since. So whoever sleeps anywhere in between, and wakes after another one has taken the view, changes nothing; whoever
dies in between leaves nothing behind, since what waits goes with its connection.

A server without memory refuses a transaction before its first command. A script would be as atomic, but of the server's
time, in which it serves nobody else, it takes more than twice as much for the same rows (docs/decisions).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from redis import Connection
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import ExecAbortError, ResponseError
from redis.retry import Retry

from headrace.model.address import resolved, shown
from headrace.views.errors import StoreUnusable
from headrace.views.redis.trouble import told_as

__all__ = ["Command", "Server"]

Command = Sequence[str | bytes | int]

_TIMEOUT_S = 10.0
_CONNECT_S = 5.0


class Server:
    """For one thread."""

    def __init__(self, address: str, client_name: str) -> None:
        self.where = shown(address)
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
                "decode_responses": False,
                # It is for the follower to try again: it must know that it was away.
                "retry": Retry(NoBackoff(), 0),
            }
            return options.pop("connection_class", Connection)(**options)
        except (ValueError, TypeError) as error:
            raise StoreUnusable(
                f"{self.where} is no address of Redis: {error}",
                hint="redis://host:6379/0, rediss://... with TLS, or unix:///path/to/socket",
            ) from error

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
        with told_as(self.where):
            try:
                self._send(("MULTI",))
                count = 1
                for command in commands:
                    self._send(command)
                    count += 1
                self._send(("EXEC",))
                return self._executed(count)
            except BaseException:
                # What waits in the server goes with the connection.
                self._connection.disconnect()
                raise

    def _executed(self, count: int) -> bool:
        refused: ResponseError | None = None
        for _ in range(count):
            try:
                self._connection.read_response()
            except ResponseError as error:
                refused = refused or error
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
