"""A snapshot of a view in Redis.

The hash ``{<prefix><view>}:headrace`` has the fields ``serving`` (position) and ``serving.shape``. The hash
``<prefix><view>`` has a field per row. One transaction reads the first hash and copies the second hash to a temporary
key, so position and rows belong together. The follower can continue while the copy is read in parts. The copy needs as
much memory on the server as the view. Copying blocks the server for about a second per million rows. The temporary key
expires soon after the reader ends.
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

from headrace.model.kinds import Digits, Field, List, Map, Record, Scalar
from headrace.model.store import redact_address, resolve_address
from headrace.ops.verify.comparison import Scratch
from headrace.ops.verify.errors import NotServed, StoreUnreadable
from headrace.ops.verify.plain_rows import Value, column_type
from headrace.ops.verify.snapshot import StoreSnapshot, not_serving, snapshot_of

__all__ = ["read_redis"]

_COPY_TTL_S = 120
_TIMEOUT_S = 60
_CONNECT_TIMEOUT_S = 5
_SCAN_ROWS = 2_000
_COPY = """if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('RESTORE', KEYS[2], ARGV[1], redis.call('DUMP', KEYS[1]))
end"""
"""Copies a key in Redis before 6.2, which does not have COPY."""


def read_redis(folder: Path, url: str, prefix: str, view: str) -> tuple[StoreSnapshot, Scratch]:
    """Return the position, and the rows in a scratch file in ``folder``."""
    key = f"{prefix}{view}"
    where = f"{redact_address(url)}, key {key}"
    slot = key if "{" in prefix else f"{{{key}}}"
    copy = f"{slot}:verify:{secrets.token_hex(8)}"
    with (
        _translate_errors(where),
        contextlib.closing(_connect(url)) as server,
        _delete_afterwards(server, copy),
    ):
        metadata = _copy(server, key, slot, copy)
        snapshot = _snapshot(metadata, where, view)
        scratch = _scratch(folder, server, copy, snapshot)
    return snapshot, scratch


@contextlib.contextmanager
def _delete_afterwards(server: Any, copy: str) -> Iterator[None]:
    """Delete the copy afterwards. If the server does not respond, send no more commands: the key expires."""
    responds = True
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError):
        responds = False
        raise
    finally:
        if responds:
            with contextlib.suppress(redis.RedisError):
                server.unlink(copy)


def _connect(url: str) -> Any:
    try:
        return redis.Redis.from_url(
            resolve_address(url),
            retry=Retry(NoBackoff(), 0),
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_CONNECT_TIMEOUT_S,
            client_name="headrace:verify",
            decode_responses=False,
        )
    except (ValueError, TypeError):
        raise StoreUnreadable(
            f"{redact_address(url)} is not a Redis address", hint="use redis://user:password@host:6379/0"
        ) from None


def _copy(server: Any, key: str, slot: str, copy: str) -> dict[str, str]:
    """Copy the rows, and return the view's metadata as of the same time."""
    for command in (("COPY", key, copy), ("EVAL", _COPY, 2, key, copy, _COPY_TTL_S * 1_000)):
        transaction = server.pipeline(transaction=True)
        transaction.hgetall(f"{slot}:headrace")
        transaction.execute_command(*command)
        transaction.expire(copy, _COPY_TTL_S)
        try:
            metadata, *_ = transaction.execute()
        except redis.ResponseError as error:
            if "unknown command" in str(error).lower():
                continue
            raise
        return {name.decode(): text.decode() for name, text in metadata.items()}
    raise StoreUnreadable(f"cannot copy {slot}: the server supports neither COPY nor EVAL")


def _snapshot(metadata: dict[str, str], where: str, view: str) -> StoreSnapshot:
    if not metadata:
        raise NotServed(
            f"{where} contains no view",
            hint=f"no follower has built view {view} yet; start one with headrace run or headrace view follow",
        )
    if "serving" not in metadata:
        raise not_serving(view, where)
    return snapshot_of(where, view, msgspec.json.decode(metadata["serving"]), metadata["serving.shape"])


def _scratch(folder: Path, server: Any, copy: str, snapshot: StoreSnapshot) -> Scratch:
    connection = Scratch.open(folder)
    try:
        columns = [(field.name, column_type(field)) for field in snapshot.fields]
        scratch = Scratch(connection, columns, snapshot.key)
        decoder = _RowDecoder(snapshot.fields, snapshot.key)
        cursor, count = 0, server.hlen(copy)
        while True:
            cursor, found = server.hscan(copy, cursor, count=_SCAN_ROWS)
            server.expire(copy, _COPY_TTL_S)
            scratch.put("found", [decoder.row(field, value) for field, value in found.items()])
            if not cursor:
                break
        if server.hlen(copy) != count:
            raise StoreUnreadable(
                f"the copy of {snapshot.where} disappeared before it was read",
                hint="check whether the server is short of memory, and retry",
            )
    except BaseException:
        connection.close()
        raise
    return scratch


class _RowDecoder:
    """Decodes a field of the hash and its value to the columns of a row."""

    def __init__(self, fields: tuple[Field, ...], key: tuple[str, ...]) -> None:
        self._names = [field.name for field in fields]
        self._key = [next(field for field in fields if field.name == name) for name in key]
        self._decoders = {field.name: _decoder(field) for field in fields}

    def row(self, field: bytes, value: bytes) -> tuple[Value, ...]:
        """Decode a row. If it cannot be decoded, or is under the wrong key, return text instead of its values."""
        try:
            found = self._values(value)
            if self._key_text(found) == field:
                return tuple(found[name] for name in self._names)
        except (msgspec.DecodeError, KeyError, ValueError):
            pass
        text = f"unreadable: {value.decode(errors='backslashreplace')[:200]}"
        key = self._key_values(field)
        return tuple(key.get(name, text) for name in self._names)

    def _values(self, value: bytes) -> dict[str, Value]:
        raw_values = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
        if len(raw_values) != len(self._names):
            raise ValueError(f"{len(raw_values)} columns")
        return {name: self._value(name, raw_values[name]) for name in self._names}

    def _value(self, name: str, raw: msgspec.Raw) -> Value:
        return None if bytes(raw) == b"null" else self._decoders[name](bytes(raw))

    def _key_text(self, found: dict[str, Value]) -> bytes:
        """Return the field of the hash under which the row must be stored."""
        if len(self._key) > 1:
            parts = {field.name: _json(field, found[field.name]) for field in self._key}
            return msgspec.json.encode(parts)
        (key_field,) = self._key
        encoded = _json(key_field, found[key_field.name])
        return encoded.encode() if isinstance(encoded, str) else msgspec.json.encode(encoded)

    def _key_values(self, field: bytes) -> dict[str, Value]:
        text = field.decode(errors="backslashreplace")
        try:
            if len(self._key) > 1:
                raw_values = msgspec.json.decode(field, type=dict[str, msgspec.Raw])
                return {
                    column.name: self._value(column.name, raw_values[column.name]) for column in self._key
                }
            (key_field,) = self._key
            is_text = column_type(key_field) == "TEXT" and not isinstance(key_field.kind, Digits)
            return {key_field.name: text if is_text else self._value(key_field.name, msgspec.Raw(field))}
        except (msgspec.DecodeError, KeyError, ValueError):
            return {column.name: text for column in self._key}


def _json(field: Field, value: Value) -> Any:
    match field.kind:
        case Scalar("bool"):
            return bool(value)
        case Digits():
            return msgspec.Raw(str(value).encode())
    return value


def _decoder(field: Field) -> Callable[[bytes], Value]:
    match field.kind:
        case Scalar("int"):
            return msgspec.json.Decoder(int).decode
        case Scalar("bool"):
            decode_bool = msgspec.json.Decoder(bool).decode
            return lambda raw: int(decode_bool(raw))
        case Scalar("bytes"):
            return msgspec.json.Decoder(bytes).decode
        case Scalar("float"):
            decode_float = msgspec.json.Decoder(float | str).decode
            return lambda raw: _float(decode_float(raw))
        case Digits() | List() | Map() | Record():
            return bytes.decode
    return msgspec.json.Decoder(str).decode


def _float(found: float | str) -> Value:
    if isinstance(found, str):
        if found not in ("NaN", "Infinity", "-Infinity"):
            raise ValueError(found)
        return found if found == "NaN" else float(found.replace("Infinity", "inf"))
    return found


@contextlib.contextmanager
def _translate_errors(where: str) -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise StoreUnreadable(
            f"cannot read {where}: {error}",
            hint="check that the server runs, that this login can read and copy, and that memory suffices for a copy",
        ) from error
