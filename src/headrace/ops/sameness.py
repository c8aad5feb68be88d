"""Whether two rows say the same, though not to the letter.

Values, and lists, maps and records in a column, are JSON, which has more than one spelling. And a sum of floats depends
on the order in which they are added: a flow that adds up batch by batch comes to another last digit than one that adds
up in one go. So floats of an aggregation are equal within a billionth of their value. Values near zero are equal within
a billionth of 1, because sums that cancel out leave only rounding errors. All else must be exact.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from headrace.model.kinds import Field, Kind, Many, Named, Plain, Record
from headrace.ops.plain_rows import Value

__all__ = ["Sameness"]

_NEAR = 1e-9
_NUMBERS = (int, float, Decimal)
Row = tuple[Value, ...]


class Sameness:
    def __init__(self, fields: Sequence[Field], *, floats_add_up: bool) -> None:
        self._kinds = [one.kind for one in fields]
        self._whole = Record(tuple(fields))
        self._close = floats_add_up

    def of_rows(self, expected: Row, found: Row) -> list[int]:
        """Of plain rows: the places of the columns that differ."""
        return [
            place
            for place, (kind, one, other) in enumerate(zip(self._kinds, expected, found, strict=True))
            if (one != other or type(one) is not type(other)) and not self._is_same_column(kind, one, other)
        ]

    def _is_same_column(self, kind: Kind, one: Value, other: Value) -> bool:
        if isinstance(kind, (Many, Named, Record)):
            return self._is_same_json(kind, one, other)
        return kind == Plain("float") and self._is_close(one, other)

    def of_values(self, expected: Row, found: Row) -> list[int]:
        """Of a key and its value, as the topic has them: the same."""
        return [] if self._is_same_json(self._whole, expected[1], found[1]) else [1]

    def _is_same_json(self, kind: Kind, one: Any, other: Any) -> bool:
        try:
            first, second = (json.loads(text, parse_float=Decimal) for text in (one, other))
        except (TypeError, ValueError, RecursionError):
            return False
        return self._is_same(kind, first, second)

    def _is_same(self, kind: Kind, one: Any, other: Any) -> bool:
        if one is None or other is None or isinstance(one, bool) or isinstance(other, bool):
            return one is other
        match kind:
            case Record(fields) if isinstance(one, dict) and isinstance(other, dict):
                known = {field.name: field.kind for field in fields}
                return one.keys() == other.keys() and all(
                    name in known and self._is_same(known[name], one[name], other[name]) for name in one
                )
            case Named(of) if isinstance(one, dict) and isinstance(other, dict):
                return one.keys() == other.keys() and all(
                    self._is_same(of, one[name], other[name]) for name in one
                )
            case Many(of) if isinstance(one, list) and isinstance(other, list):
                return len(one) == len(other) and all(
                    self._is_same(of, first, second) for first, second in zip(one, other, strict=True)
                )
            case Plain("float"):
                return _is_same_float(one, other) or self._is_close(one, other)
        return bool(one == other)

    def _is_close(self, one: Any, other: Any) -> bool:
        if not self._close or not isinstance(one, _NUMBERS) or not isinstance(other, _NUMBERS):
            return False
        return math.isclose(float(one), float(other), rel_tol=_NEAR, abs_tol=_NEAR)


def _is_same_float(one: Any, other: Any) -> bool:
    """One float has several texts: 5e-324 and 4.9E-324 are the same."""
    if not isinstance(one, _NUMBERS) or not isinstance(other, _NUMBERS):
        return bool(one == other)
    return float(one) == float(other)
