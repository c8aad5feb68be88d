"""A connection to Redis, its transactions and its scripts.

A transaction is optimistic. WATCH registers the keys that the transaction depends on, and the client reads and checks
these keys. MULTI queues the changes in the server. EXEC executes all changes atomically, or none if a watched key has
changed. If a client stalls before EXEC, and another follower claims the view, the transaction changes nothing. If the
client dies, the server discards the queue. If the server has no memory left, it rejects a transaction before its first
command. A script would be atomic too, but it blocks the server more than twice as long for the same rows
(docs/decisions).

Scripts read several keys at one moment, or make small conditional changes. Redis does not interrupt a script and does
not roll it back. So each script here checks all its conditions before its first write, and its writes cannot fail. A
command on a key of the wrong type would fail, but the checks have read these keys, so the keys are hashes. If the
server has no memory left, it rejects a command that needs memory, but never a command after the first write of a
script. So no script ends half-way. The first write of each script here (HDEL or UNLINK) needs no memory. Deletions, a
claim, and a swap, which frees a whole view, therefore work even if the server has no memory left. The rows of a batch
do need memory. They are written with MULTI, and the server rejects the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from redis import Connection, exceptions
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import ExecAbortError, ResponseError
from redis.retry import Retry

from headrace.model.store import redact_address, resolve_address
from headrace.stores.errors import StoreUnusable
from headrace.stores.redis.errors import translate_errors

__all__ = ["Command", "Server", "guarded", "read_keys", "read_with_row", "scan_rows", "store_position"]

Command = Sequence[str | bytes | int]

_ADDRESS_HINT = (
    "use redis://user:password@host:6379/0, rediss://... for TLS, or unix:///path/to/socket; percent-encode special"
    " characters in a password"
)
_TIMEOUT_S = 10.0
_CONNECT_TIMEOUT_S = 5.0
_STOP_S = 2.0
"""Seconds to wait for a response when the follower must stop."""
_POLL_S = 0.1
_LARGE_BATCH_BYTES = 1 << 20
"""The lowest value of client-query-buffer-limit. A server never closes a connection because of a smaller batch."""


class Server:
    """Use it in one thread. ``is_stopping`` returns whether the caller must stop soon."""

    def __init__(
        self, address: str, client_name: str, is_stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self.where = redact_address(address)
        self._is_stopping = is_stopping
        self._connection = self._create(resolve_address(address), client_name)
        with translate_errors(self.where):
            self._connection.connect()

    def _create(self, url: str, client_name: str) -> Any:
        try:
            options = {
                "socket_timeout": _TIMEOUT_S,
                "socket_connect_timeout": _CONNECT_TIMEOUT_S,
                "client_name": client_name,
                **parse_url(url),  # type: ignore[no-untyped-call]
                "protocol": 2,
                "encoding": "utf-8",
                "decode_responses": False,
                # The client library must not retry, because the follower must know that the connection was lost. A
                # health check of the library could occur in the middle of a transaction.
                "retry": Retry(NoBackoff(), 0),
                "health_check_interval": 0,
            }
            return options.pop("connection_class", Connection)(**options)
        except TypeError as error:
            raise StoreUnusable(f"{self.where} has an unknown option: {error}", hint=_ADDRESS_HINT) from None
        except ValueError:
            # Do not show the message: it quotes the address, and can show a part of a password with a slash as the
            # port.
            raise StoreUnusable(f"{self.where} is not a valid Redis address", hint=_ADDRESS_HINT) from None

    def close(self) -> None:
        self._connection.disconnect()

    def execute(self, *command: str | bytes | int) -> Any:
        return self._pipeline([command])[0]

    def _pipeline(self, commands: Sequence[Command]) -> list[Any]:
        """Send all commands at once and return all responses. The commands are not atomic."""
        with translate_errors(self.where):
            try:
                for command in commands:
                    self._send(command)
                return self._responses(len(commands))
            except ResponseError:
                raise
            except BaseException:
                self._connection.disconnect()
                raise

    def watch(self, keys: Sequence[str], read: Command) -> Any:
        """Watch the keys, then run ``read``. If one of the keys changes afterwards, ``commit`` changes nothing."""
        return self._pipeline([("WATCH", *keys), read])[1]

    def unwatch(self) -> None:
        self.execute("UNWATCH")

    def commit(self, commands: Iterable[Command]) -> bool:
        """Execute all commands atomically. If a watched key has changed, execute none of them and return False."""
        sent = 0
        with translate_errors(self.where):
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
                # When the connection closes, the server discards the queued commands.
                self._connection.disconnect()
                if isinstance(error, exceptions.ConnectionError) and sent > _LARGE_BATCH_BYTES:
                    raise exceptions.ConnectionError(
                        f"{error} This occurred after {sent >> 20} MB of one batch; check whether the server's"
                        " client-query-buffer-limit is smaller"
                    ) from error
                raise

    def _executed(self, count: int) -> bool:
        self._wait_for_response()
        first_error: ResponseError | None = None
        for _ in range(count):
            try:
                self._connection.read_response()
            except ResponseError as error:
                first_error = first_error or error
        self._wait_for_response()
        try:
            results = self._connection.read_response()
        except ExecAbortError as error:
            raise (first_error or error) from None
        for result in results or ():
            if isinstance(result, ResponseError):
                raise result
        return results is not None

    def _send(self, command: Command) -> None:
        self._connection.send_packed_command(self._connection.pack_command(*command))

    def _responses(self, count: int) -> list[Any]:
        """Read all responses, then raise the first error, if any. So the connection remains usable."""
        self._wait_for_response()
        responses: list[Any] = []
        first_error: ResponseError | None = None
        for _ in range(count):
            try:
                responses.append(self._connection.read_response())
            except ResponseError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return responses

    def _wait_for_response(self) -> None:
        """Wait for a response, but not for long if the follower must stop."""
        timeout_s, waited_s = self._connection.socket_timeout or math.inf, 0.0
        while not self._connection.can_read(timeout=_POLL_S):
            waited_s += _POLL_S
            if waited_s >= min(timeout_s, _STOP_S if self._is_stopping() else math.inf):
                raise exceptions.TimeoutError(f"no response for {waited_s:.0f} s")


# Scripts

_READ_KEYS = """local results = {}
for at, command in ipairs(ARGV) do results[at] = redis.call(command, KEYS[at]) end
return results"""

_READ_WITH_ROW = """local results = {redis.call('HGETALL', KEYS[1])}
for key = 2, #KEYS do results[key] = redis.call('HLEN', KEYS[key]) end
results[#KEYS + 1] = redis.call('HGET', KEYS[2], ARGV[1])
return results"""

_SCAN = """return {redis.call('HGET', KEYS[1], ARGV[1]), redis.call('HSCAN', KEYS[2], ARGV[2], 'COUNT', ARGV[3])}"""

# The end of a batch: stores its position and the number of rows.
_STORE_POSITION_FUNCTION = """local function store_position(meta, rows, part, position)
  local row_count = redis.call('HLEN', rows)
  redis.call('HDEL', meta, part .. '.rows')
  redis.call('HSET', meta, part, position, part .. '.rows', row_count)
end
"""

_STORE_POSITION = f"{_STORE_POSITION_FUNCTION}store_position(KEYS[1], KEYS[2], ARGV[1], ARGV[2])"

_GUARDED = f"""{_STORE_POSITION_FUNCTION}local at = 0
local function next_argument() at = at + 1 return ARGV[at] end
for _ = 1, tonumber(next_argument()) do
  local value = redis.call('HGET', KEYS[1], next_argument()) or ''
  if value ~= next_argument() then return 0 end
end
for key = 2, #KEYS do
  if redis.call('HLEN', KEYS[key]) ~= tonumber(next_argument()) then return 0 end
end
while at < #ARGV do
  local count = tonumber(next_argument())
  if ARGV[at + 1] == 'STORE_POSITION' then
    store_position(unpack(ARGV, at + 2, at + count))
  else
    redis.call(unpack(ARGV, at + 1, at + count))
  end
  at = at + count
end
return 1"""


def read_keys(reads: Sequence[tuple[str, str]]) -> Command:
    """Return a command that executes several reads, of one key each, atomically."""
    return "EVAL", _READ_KEYS, len(reads), *(key for _, key in reads), *(command for command, _ in reads)


def read_with_row(meta: str, rows: Sequence[str], field: bytes) -> Command:
    """Return a command that reads the metadata of a view, the sizes of the hashes ``rows``, and one row of the first
    of them (nil if the row is missing).
    """
    return "EVAL", _READ_WITH_ROW, 1 + len(rows), meta, *rows, field


def scan_rows(meta: str, name: str, rows: str, cursor: bytes, count: int) -> Command:
    """Return a command that reads the field ``name`` of the metadata, and the next rows of a scan, atomically."""
    return "EVAL", _SCAN, 2, meta, rows, name, cursor, count


def store_position(meta: str, rows: str, part: str, position: bytes) -> Command:
    """Return the last command of a transaction that changes rows. It stores the position and the number of rows."""
    return "EVAL", _STORE_POSITION, 2, meta, rows, part, position


def guarded(
    meta: str, expected: Mapping[str, str], sizes: Mapping[str, int], commands: Iterable[Command]
) -> Command:
    """Return a command that executes ``commands`` if all conditions hold. Its result is 1 if it executed them, else 0.

    The fields of the hash ``meta`` must have the values in ``expected`` (an empty text for a missing field), and the
    hashes in ``sizes`` must have these lengths. ``commands`` can contain ``STORE_POSITION``, with the
    arguments of ``store_position``.
    """
    arguments: list[str | bytes | int] = [len(expected)]
    for name, text in expected.items():
        arguments += (name, text)
    arguments += sizes.values()
    for command in commands:
        arguments += (len(command), *command)
    return "EVAL", _GUARDED, 1 + len(sizes), meta, *sizes, *arguments
