"""What a Redis server serves of a view.

It is read as it is documented: of the hash ``{<prefix><view>}:headrace`` the fields ``serving`` (position) and
``serving.shape`` count, and the hash ``<prefix><view>`` has a field per row. One transaction reads the former and
copies the latter to a key of our own, so that position and rows belong together; the follower goes on, and the copy is
read piece by piece. It takes as much memory of the server as the view, and the server's time in one go, about a second
for a million rows. Its key expires soon after whoever reads it has gone.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from headrace.model.address import resolved, shown
from headrace.model.kinds import Digits, Field, Many, Named, Plain, Record
from headrace.ops.errors import NotServed, StoreUnreadable
from headrace.ops.plain_rows import Value, column_type
from headrace.ops.scratch import Scratch
from headrace.ops.served import Served, served_of

__all__ = ["read_redis"]

_KEPT_S = 120
_TIMEOUT_S = 60
_CONNECT_S = 5
_AT_ONCE = 2_000
_COPY = """if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('RESTORE', KEYS[2], ARGV[1], redis.call('DUMP', KEYS[1]))
end"""
"""For servers that have no COPY: Redis before 6.2."""


def read_redis(folder: Path, url: str, prefix: str, view: str) -> tuple[Served, Scratch]:
    """The position, and the rows in a scratch file in ``folder``."""
    key = f"{prefix}{view}"
    where = f"{shown(url)}, key {key}"
    beside = key if "{" in prefix else f"{{{key}}}"
    aside = f"{beside}:verify:{secrets.token_hex(8)}"
    with _told(where), contextlib.closing(_connect(url)) as server, _unlinked(server, aside):
        told = _copied(server, key, beside, aside)
        served = _served(told, where, view)
        scratch = _scratch(folder, server, aside, served)
    return served, scratch


@contextlib.contextmanager
def _unlinked(server: Any, aside: str) -> Iterator[None]:
    """A server that does not answer is not asked once more; the key expires."""
    answers = True
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError):
        answers = False
        raise
    finally:
        if answers:
            with contextlib.suppress(redis.RedisError):
                server.unlink(aside)


def _connect(url: str) -> Any:
    try:
        return redis.Redis.from_url(
            resolved(url),
            retry=Retry(NoBackoff(), 0),
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_CONNECT_S,
            client_name="headrace:verify",
            decode_responses=False,
        )
    except (ValueError, TypeError):
        raise StoreUnreadable(
            f"{shown(url)} is no address of Redis", hint="as in redis://user:password@host:6379/0"
        ) from None


def _copied(server: Any, key: str, beside: str, aside: str) -> dict[str, str]:
    """What is noted of the view, as of the moment of the copy."""
    for copy in (("COPY", key, aside), ("EVAL", _COPY, 2, key, aside, _KEPT_S * 1_000)):
        at_once = server.pipeline(transaction=True)
        at_once.hgetall(f"{beside}:headrace")
        at_once.execute_command(*copy)
        at_once.expire(aside, _KEPT_S)
        try:
            told, *_ = at_once.execute()
        except redis.ResponseError as error:
            if "unknown command" in str(error).lower():
                continue
            raise
        return {name.decode(): text.decode() for name, text in told.items()}
    raise StoreUnreadable(f"{beside} cannot be copied: the server has neither COPY nor RESTORE")


def _served(told: dict[str, str], where: str, view: str) -> Served:
    if not told:
        raise NotServed(
            f"{where} holds no view",
            hint=f"nothing follows view {view} yet: headrace run, or headrace view follow",
        )
    if "serving" not in told:
        raise NotServed(
            f"view {view} does not serve at {where} yet", hint="it is being built, or nothing follows it"
        )
    return served_of(where, view, msgspec.json.decode(told["serving"]), told["serving.shape"])


def _scratch(folder: Path, server: Any, aside: str, served: Served) -> Scratch:
    connection = Scratch.open(folder)
    try:
        columns = [(one.name, column_type(one)) for one in served.fields]
        scratch = Scratch(connection, columns, served.key)
        reading = _Reading(served.fields, served.key)
        cursor, count = 0, server.hlen(aside)
        while True:
            cursor, found = server.hscan(aside, cursor, count=_AT_ONCE)
            server.expire(aside, _KEPT_S)
            scratch.put("found", [reading.row(field, value) for field, value in found.items()])
            if not cursor:
                break
        if server.hlen(aside) != count:
            raise StoreUnreadable(
                f"the copy of {served.where} was gone before it was read",
                hint="is the server short of memory? Make room, and try again",
            )
    except BaseException:
        connection.close()
        raise
    return scratch


class _Reading:
    """A field of the hash and its value, as the columns of a row."""

    def __init__(self, fields: tuple[Field, ...], key: tuple[str, ...]) -> None:
        self._names = [one.name for one in fields]
        self._key = [next(one for one in fields if one.name == name) for name in key]
        self._read = {one.name: _reader(one) for one in fields}

    def row(self, field: bytes, value: bytes) -> tuple[Value, ...]:
        """One that cannot be read, or that is another key's, has its texts in the place of its values."""
        try:
            found = self._values(value)
            if self._text(found) == field:
                return tuple(found[name] for name in self._names)
        except (msgspec.DecodeError, KeyError, ValueError):
            pass
        told = f"unreadable: {value.decode(errors='backslashreplace')[:200]}"
        key = self._values_of_key(field)
        return tuple(key.get(name, told) for name in self._names)

    def _values(self, value: bytes) -> dict[str, Value]:
        raws = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
        if len(raws) != len(self._names):
            raise ValueError(f"{len(raws)} columns")
        return {name: self._value(name, raws[name]) for name in self._names}

    def _value(self, name: str, raw: msgspec.Raw) -> Value:
        return None if bytes(raw) == b"null" else self._read[name](bytes(raw))

    def _text(self, found: dict[str, Value]) -> bytes:
        """The field that a row belongs under."""
        if len(self._key) > 1:
            parts = {one.name: _json(one, found[one.name]) for one in self._key}
            return msgspec.json.encode(parts)
        (only,) = self._key
        written = _json(only, found[only.name])
        return written.encode() if isinstance(written, str) else msgspec.json.encode(written)

    def _values_of_key(self, field: bytes) -> dict[str, Value]:
        text = field.decode(errors="backslashreplace")
        try:
            if len(self._key) > 1:
                raws = msgspec.json.decode(field, type=dict[str, msgspec.Raw])
                return {one.name: self._value(one.name, raws[one.name]) for one in self._key}
            (only,) = self._key
            is_text = column_type(only) == "TEXT" and not isinstance(only.kind, Digits)
            return {only.name: text if is_text else self._value(only.name, msgspec.Raw(field))}
        except (msgspec.DecodeError, KeyError, ValueError):
            return {one.name: text for one in self._key}


def _json(field: Field, value: Value) -> Any:
    match field.kind:
        case Plain("bool"):
            return bool(value)
        case Digits():
            return msgspec.Raw(str(value).encode())
    return value


def _reader(field: Field) -> Callable[[bytes], Value]:
    match field.kind:
        case Plain("int"):
            return msgspec.json.Decoder(int).decode
        case Plain("bool"):
            truth = msgspec.json.Decoder(bool).decode
            return lambda raw: int(truth(raw))
        case Plain("bytes"):
            return msgspec.json.Decoder(bytes).decode
        case Plain("float"):
            number = msgspec.json.Decoder(float | str).decode
            return lambda raw: _float(number(raw))
        case Digits() | Many() | Named() | Record():
            return bytes.decode
    return msgspec.json.Decoder(str).decode


def _float(found: float | str) -> Value:
    if isinstance(found, str):
        if found not in ("NaN", "Infinity", "-Infinity"):
            raise ValueError(found)
        return found if found == "NaN" else float(found.replace("Infinity", "inf"))
    return found


@contextlib.contextmanager
def _told(where: str) -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise StoreUnreadable(
            f"{where} cannot be read: {error}",
            hint="is the server up, may this login read and copy, and is there memory for a copy of the view?",
        ) from error
