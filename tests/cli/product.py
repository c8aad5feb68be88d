"""What the apps of these tests have on sale: a field of every kind that a store may get wrong."""

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
