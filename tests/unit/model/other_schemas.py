"""A schema in another file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Base:
    ride: str
