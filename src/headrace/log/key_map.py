"""The newest offset of each key, in a fixed amount of memory.

A key of fewer than 16 bytes stands for itself. A longer one stands as its BLAKE2b hash of 16 bytes, behind a secret
that is drawn for every map: two of a thousand million keys share a hash with a probability of about 10^-21, and without
the secret nobody can look for two that do. If it happened, the older of the two keys would be lost, and that is why the
hash is this wide. A short key and a hash can never be taken for each other, because their lengths differ.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple, Protocol

__all__ = ["KEY_BYTES", "KeyMap", "Sifted"]

#: What one key takes in memory at the most: an entry of the dictionary when it has just grown, the key, the offset.
KEY_BYTES = 256

_HASH_BYTES = 16


class _Keyed(Protocol):
    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


class Sifted(NamedTuple):
    """``kept`` has a 1 for each record that stays; deletions are told by their offsets, -1 for none."""

    kept: bytearray
    last_deletion_kept: int
    last_deletion_dropped: int


class KeyMap:
    def __init__(self, budget_bytes: int) -> None:
        self.keys_max = max(1, budget_bytes // KEY_BYTES)
        self._secret = secrets.token_bytes(16)
        self._newest: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._newest)

    def has_room_for(self, count: int) -> bool:
        return len(self._newest) + count <= self.keys_max

    def note(self, records: Iterable[_Keyed], base_offset: int) -> None:
        """Remember the records of a batch; batches come in the order of their offsets."""
        newest, secret = self._newest, self._secret
        for record in records:
            key = record.key
            if key is None:
                continue
            if len(key) >= _HASH_BYTES:
                key = blake2b(secret + key, digest_size=_HASH_BYTES).digest()
            newest[key] = base_offset + record.offset

    def sift(self, records: Iterable[_Keyed], base_offset: int, *, drop_deletions: bool) -> Sifted:
        """Which records of a batch are the newest of their key, as far as the map knows.

        A record without a key stays: nothing ever replaces it.
        """
        get, secret = self._newest.get, self._secret
        kept = bytearray()
        deletion_kept = deletion_dropped = -1
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
                    if drop_deletions:
                        keep = 0
                        deletion_dropped = offset
                    else:
                        deletion_kept = offset
            kept.append(keep)
        return Sifted(kept, deletion_kept, deletion_dropped)
