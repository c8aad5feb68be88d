"""The text of exact numbers, times, dates and bytes in values and keys. Each value has exactly one text when written.

    Digits    all declared digits after the point: 12.500000
    time      UTC, in microseconds: 2026-01-31T12:00:00.123456Z
    date      2026-01-31
    bytes     base64 with padding

The parsers also accept times with another offset, and times with one to nine decimal places in the seconds. They drop
digits after the microseconds, as Spark does. They raise ValueError or ArithmeticError for any other text.
"""

from __future__ import annotations

import binascii
import decimal
import functools
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal

from headrace.model.kinds import Digits

__all__ = [
    "bytes_from",
    "bytes_text",
    "date_from",
    "date_text",
    "digits_from",
    "digits_text",
    "quantizer",
    "time_from",
    "time_text",
]

_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    r"(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9]|[+-]18:00)"
).fullmatch
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?").fullmatch
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}").fullmatch


@functools.cache
def quantizer(kind: Digits) -> Callable[[Decimal], Decimal]:
    """Return a function that extends a number to the declared digits after the point. The function never rounds."""
    unit = Decimal(1).scaleb(-kind.scale)
    context = decimal.Context(prec=kind.precision, traps=[decimal.Inexact, decimal.InvalidOperation])
    quantize = context.quantize

    def fit(number: Decimal) -> Decimal:
        quantized = quantize(number, unit)
        if not quantized.is_finite():
            raise ValueError(f"{number} is not a number")
        # Remove the sign of zero: zero has no sign in Spark or in JSON's integers.
        return quantized or quantized.copy_abs()

    return fit


def digits_text(number: Decimal) -> str:
    # Not str(), which writes 0E-7.
    return format(number, "f")


def digits_from(text: str) -> Decimal:
    # Decimal() accepts more than JSON: underscores, blanks, and digits of other scripts.
    if _NUMBER(text) is None:
        raise ValueError(text)
    return Decimal(text)


def time_text(moment: datetime) -> str:
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def time_from(text: str) -> datetime:
    # fromisoformat() accepts more than this format: weeks, commas, and times without an offset.
    if _TIME(text) is None:
        raise ValueError(text)
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is UTC else moment.astimezone(UTC)


def date_text(day: date) -> str:
    return day.isoformat()


def date_from(text: str) -> date:
    if _DATE(text) is None:
        raise ValueError(text)
    return date.fromisoformat(text)


def bytes_text(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def bytes_from(text: str) -> bytes:
    data = binascii.a2b_base64(text)
    # a2b_base64 ignores characters that are not base64. Encoding the data again detects such characters.
    if bytes_text(data) != text:
        raise ValueError(text)
    return data
