"""The newest offset of each key, in a fixed amount of memory.

A key shorter than 16 bytes is stored unchanged. A longer key is stored as a BLAKE2b hash of 16 bytes, with a random
secret per map. A collision would lose the record of the older key. The probability of a collision among a billion keys
is about 10^-21, and an attacker without the secret cannot construct one. A short key never equals a hash, because its
length differs.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple, Protocol

__all__ = ["KEY_BYTES", "KeyMap", "SiftResult"]

#: Maximum memory per key: a dictionary entry directly after the dictionary has grown, the key, and the offset.
KEY_BYTES = 256

_HASH_BYTES = 16


class _KeyedRecord(Protocol):
    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


class SiftResult(NamedTuple):
    """``kept`` has a 1 for each record that remains. The other two fields are offsets of tombstones, or -1."""

    kept: bytearray
    last_kept_tombstone: int
    last_dropped_tombstone: int


class KeyMap:
    def __init__(self, budget_bytes: int) -> None:
        self.keys_max = max(1, budget_bytes // KEY_BYTES)
        self._secret = secrets.token_bytes(16)
        self._newest: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._newest)

    def has_room_for(self, count: int) -> bool:
        return len(self._newest) + count <= self.keys_max

    def note(self, records: Iterable[_KeyedRecord], base_offset: int) -> None:
        """Record the keys of a batch. Batches must be passed in offset order."""
        newest, secret = self._newest, self._secret
        for record in records:
            key = record.key
            if key is None:
                continue
            if len(key) >= _HASH_BYTES:
                key = blake2b(secret + key, digest_size=_HASH_BYTES).digest()
            newest[key] = base_offset + record.offset

    def sift(self, records: Iterable[_KeyedRecord], base_offset: int, *, drop_tombstones: bool) -> SiftResult:
        """Find the records of a batch for which the map has no newer record with the same key.

        A record without a key always remains, because no other record replaces it.
        """
        get, secret = self._newest.get, self._secret
        kept = bytearray()
        last_kept_tombstone = last_dropped_tombstone = -1
        for record in records:
            key = record.key
            keep = 1
            if key is not None:
                if len(key) >= _HASH_BYTES:
                    key = blake2b(secret + key, digest_size=_HASH_BYTES).digest()
                offset = base_offset + record.offset
                if get(key, -1) > offset:
                    keep = 0
                elif record.value is None:
                    if drop_tombstones:
                        keep = 0
                        last_dropped_tombstone = offset
                    else:
                        last_kept_tombstone = offset
            kept.append(keep)
        return SiftResult(kept, last_kept_tombstone, last_dropped_tombstone)
