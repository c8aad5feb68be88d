"""How much one batch may cost us, whatever its few compressed bytes claim."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RecordLimits"]

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RecordLimits:
    unpacked_bytes_max: int = 256 * MIB
    records_max: int = 10_000_000
    headers_max: int = 10_000
