"""The schema of the apps in these tests. It has a field of every kind that a store could store incorrectly."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

__all__ = ["Product"]


@dataclass(frozen=True)
class Product:
    product_id: str
    name: str
    price: Decimal
    weight: float = 0.0
    picture: bytes | None = None
