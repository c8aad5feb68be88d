"""What an alert says, in the log: one record when it begins to fire, and one when that is over.

``<app>.alerts``, one partition, compacted: the key is ``<alert>/<what>/<name>``, the value is this as JSON. The last
record of a key says what holds; those before it are kept for a week.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["AlertRecord", "decode", "encode", "key_of"]


class AlertRecord(msgspec.Struct, frozen=True):
    app: str
    alert: str
    what: str
    """flow, view or group."""
    name: str
    state: Literal["firing", "resolved"]
    at_ms: int
    """When it changed."""
    since_ms: int
    """Since when it has held, or had held."""
    when: str
    """The rule."""
    text: str
    """For a person."""
    measures: dict[str, float | None] = {}
    """As they were then; what is not known is null, and so is a loss that never comes."""

    @property
    def key(self) -> str:
        return key_of(self.alert, self.what, self.name)

    def row(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__struct_fields__}


_decoder = msgspec.json.Decoder(AlertRecord)


def key_of(alert: str, what: str, name: str) -> str:
    return f"{alert}/{what}/{name}"


def encode(record: AlertRecord) -> tuple[bytes, bytes]:
    """Key and value."""
    return record.key.encode(), msgspec.json.encode(record)


def decode(value: bytes) -> AlertRecord | None:
    """None for what no release that is known has written."""
    try:
        return _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
