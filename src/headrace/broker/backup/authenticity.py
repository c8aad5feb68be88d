"""Whether a manifest was written by somebody who has the key of the backup.

A checksum finds damage; anyone who can write to the folder can compute another one. With a key, each manifest carries
the HMAC-SHA256 of its JSON. The JSON has the SHA-256 of every piece, so the MAC covers all bytes of a moment. It does
not show that newer moments were removed.
"""

from __future__ import annotations

import hmac
from enum import Enum
from pathlib import Path

from headrace.errors import ConfigError

__all__ = ["Authenticity", "authenticity_of", "mac_of", "read_key"]

_KEY_BYTES_MIN = 32
_KEY_BYTES_MAX = 4_096
_CREATE = "create one: (umask 077; head -c 32 /dev/urandom | base64 > FILE)"


class Authenticity(Enum):
    AUTHENTIC = "authentic"
    MISSING = "it has no MAC"
    WRONG = "its MAC is wrong: it was changed, or written with another key"
    UNCHECKED = "it has a MAC, and no key is configured to check it"


def mac_of(key: bytes, body: bytes) -> str:
    return hmac.new(key, b"headrace backup manifest\n" + body, "sha256").hexdigest()


def authenticity_of(body: bytes, mac: str, key: bytes | None) -> Authenticity:
    if not mac:
        return Authenticity.MISSING
    if key is None:
        return Authenticity.UNCHECKED
    return Authenticity.AUTHENTIC if hmac.compare_digest(mac_of(key, body), mac) else Authenticity.WRONG


def read_key(text: str | None, file: Path | None) -> bytes | None:
    """The key from ``broker.backup_key`` or the file of ``broker.backup_key_file``; None where neither is set."""
    if text is not None and file is not None:
        raise ConfigError("broker.backup_key and broker.backup_key_file are both set", hint="set one of them")
    if text is not None:
        key, origin = text.strip().encode(), "broker.backup_key"
    elif file is not None:
        key, origin = _read_file(file), str(file)
    else:
        return None
    if not _KEY_BYTES_MIN <= len(key) <= _KEY_BYTES_MAX:
        raise ConfigError(
            f"the backup key in {origin} has {len(key)} bytes ({_KEY_BYTES_MIN} to {_KEY_BYTES_MAX})",
            hint=_CREATE,
        )
    return key


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_KEY_BYTES_MAX + 3).strip()
    except OSError as error:
        raise ConfigError(
            f"cannot read the backup key from {path}: {error.strerror or error}", hint=_CREATE
        ) from error
