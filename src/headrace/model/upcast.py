"""Upcasters: functions that convert the values of older records to the newest schema of their topic.

    def split_name(value: dict) -> dict:
        if "name" in value:
            value["first"], value["last"] = value.pop("name").split(" ", 1)
        return value

    app.topic("riders", Rider, key="rider_id", upcast=split_name)

Each function receives every value of the topic, as JSON: text, bool, None, int, Decimal (a number with a point or an
exponent), list, dict. It returns a value of the next version. It recognizes older values itself, and returns a value of
the newest schema unchanged, because records have no version: any Kafka client can write them. Several functions form a
chain, oldest first.

The result is encoded as JSON, then decoded with the schema like any other value. If a function raises, or returns
anything else than a dict of such values, the record does not fit, and becomes a dead letter. Followers, the server,
``verify`` and flows on Spark all call ``Upcaster.apply``.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec

from headrace.model.codec.json_text import describe_python, parse_plain
from headrace.model.errors import SourceLocation, ValueDoesNotFit

__all__ = ["Upcast", "Upcaster"]

Upcast = Callable[[dict[str, Any]], dict[str, Any]]

_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_ERROR_CHARS_MAX = 200
_encode = msgspec.json.Encoder(decimal_format="number").encode


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Upcaster:
    functions: tuple[Upcast, ...]
    """Oldest first. Each receives the result of the previous function."""
    location: SourceLocation | None = None

    def apply(self, raw: bytes) -> bytes:
        """Return the value of a record in the newest version. Raises ``ValueDoesNotFit``."""
        value = parse_plain(raw)
        for function in self.functions:
            if not isinstance(value, dict):
                break  # The schema's decoder raises the error.
            value = _call(function, value)
        try:
            return _encode(_json_value(value))
        except ValueDoesNotFit as error:
            raise ValueDoesNotFit(f"the upcaster returned {error.reason}", path=error.path) from None
        except (UnicodeEncodeError, RecursionError, OverflowError, ValueError, TypeError) as error:
            raise ValueDoesNotFit(
                f"the upcaster returned a value that JSON cannot represent: {_text(error)}"
            ) from None


def _call(function: Upcast, value: dict[str, Any]) -> dict[str, Any]:
    name = getattr(function, "__name__", type(function).__name__)
    try:
        result: Any = function(value)
    except MemoryError:
        raise  # The value is not the cause.
    except (Exception, SystemExit) as error:
        raise ValueDoesNotFit(f"the upcaster {name} raised {_text(error)}") from error
    if not isinstance(result, dict):
        raise ValueDoesNotFit(f"the upcaster {name} returned {describe_python(result)}, not a dict")
    return result


def _json_value(value: Any) -> Any:
    """Convert to values that msgspec encodes without a loss. Raises ``ValueDoesNotFit`` for anything else."""
    match value:
        case None | bool() | bytes():
            return value
        case enum.Enum():
            return _json_value(value.value)
        case str():
            return value
        case int():
            # msgspec encodes integers of 64 bits only.
            return value if _INT_MIN <= value <= _INT_MAX else Decimal(value)
        case float():
            return _float(value)
        case Decimal() if value.is_finite():
            return value
        case datetime() | date():
            return value
        case list() | tuple():
            return [_json_value(element) for element in value]
        case dict():
            return {_key(key): _json_value(element) for key, element in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _json_value(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise ValueDoesNotFit(describe_python(value))


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueDoesNotFit(f"the key {describe_python(key)}, which is not text")
    return key


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _text(error: BaseException) -> str:
    """Describe an error of the user's function. Its own text can fail or be very long."""
    try:
        message = str(error)
    except Exception:
        message = ""
    return f"{type(error).__name__}: {message}"[:_ERROR_CHARS_MAX] if message else type(error).__name__
