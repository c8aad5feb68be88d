"""Whether a manifest was written by somebody who has the key of the backup.

A checksum finds damage; anyone who can write to the folder can compute another one. With a key, each manifest carries
the HMAC-SHA256 of its JSON. The JSON has the SHA-256 of every piece, so the MAC covers all bytes of a moment. It does
not show that newer moments were removed.
"""

from __future__ import annotations

import hmac
from enum import Enum

from headrace.settings import BrokerSettings
from headrace.settings.secrets import read_secret

__all__ = ["Authenticity", "authenticity_of", "mac_of", "read_key"]

_KEY_BYTES_MIN = 32


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


def read_key(broker: BrokerSettings) -> bytes | None:
    """None where no key is set."""
    return read_secret(
        "broker.backup_key", broker.backup_key, broker.backup_key_file, bytes_min=_KEY_BYTES_MIN
    )
