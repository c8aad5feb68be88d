"""How exact numbers, times, dates and bytes are written in values and keys. One text for each, and the way back.

    Digits    all the digits behind the point that are declared: 12.500000
    time      UTC, in microseconds: 2026-01-31T12:00:00.123456Z
    date      2026-01-31
    bytes     base64, with its padding

Read are also times with another offset, and with one to nine digits of a second: what is finer than a microsecond is
cut off, as Spark does it. Every reader raises ValueError or ArithmeticError for what it cannot take.
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
    "exactly",
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
def exactly(kind: Digits) -> Callable[[Decimal], Decimal]:
    """The same number with the declared digits behind the point; it never rounds."""
    unit = Decimal(1).scaleb(-kind.scale)
    context = decimal.Context(prec=kind.precision, traps=[decimal.Inexact, decimal.InvalidOperation])
    quantize = context.quantize

    def fit(number: Decimal) -> Decimal:
        made = quantize(number, unit)
        if not made.is_finite():
            raise ValueError(f"{number} is not a number")
        # Zero has no sign elsewhere: not in Spark, not in JSON's integers.
        return made or made.copy_abs()

    return fit


def digits_text(number: Decimal) -> str:
    # Not str(), which writes 0E-7.
    return format(number, "f")


def digits_from(text: str) -> Decimal:
    # Decimal() takes more than JSON has: underscores, blanks, digits of other scripts.
    if _NUMBER(text) is None:
        raise ValueError(text)
    return Decimal(text)


def time_text(moment: datetime) -> str:
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def time_from(text: str) -> datetime:
    # Python takes more than the format has: weeks, commas, times without an offset.
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
    # The library overlooks what is not base64; what was written here reads back as the very same text.
    if bytes_text(data) != text:
        raise ValueError(text)
    return data
