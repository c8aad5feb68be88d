"""What a record must have for an expression to be true of it, found in its bytes before anything is decoded.

A sieve lets through all records of which the expression is true, and some others: those are evaluated. It may never
keep back a true one, so it knows how else JSON can write the same: texts with escapes, numbers with exponents, or with
more digits than a double has.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from headrace.serve.console.expression import Every, OneOf, Part, Said, parts_of

__all__ = ["Sieve", "sieve_of"]

Sieve = Callable[[Any], bool]
"""Of a message."""

_SPACE = rb"[ \t\n\r]*"
_NUMBER_MAX = Decimal(2**53)
_EXACT_MAX = Decimal(10**9)
# A double near a number of this size is told apart by six digits behind the point, of a larger one by none.
_LONG = rb"-?[0-9]+\.[0-9]{7}"
_BROKEN = rb"-?[0-9]+\.[0-9]"
_RAISED = rb"-?[0-9]+(?:\.[0-9]+)?[eE]"
_ANY_NUMBER = rb"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.le,
    "<=": operator.le,
    ">": operator.ge,
    ">=": operator.ge,
}


def sieve_of(where: str) -> Sieve | None:
    """None where nothing can be said before a record is looked into."""
    try:
        return _sieve(parts_of(where))
    except UnicodeEncodeError:
        return None


def _sieve(part: Part) -> Sieve | None:
    match part:
        case Every(parts):
            found = [one for one in map(_sieve, parts) if one is not None]
            if len(found) == 2:
                first, second = found
                return lambda message: first(message) and second(message)
            return (
                (lambda message: all(one(message) for one in found))
                if len(found) > 1
                else next(iter(found), None)
            )
        case OneOf(parts):
            either = [_sieve(one) for one in parts]
            known = [one for one in either if one is not None]
            return None if len(known) < len(either) else lambda message: any(one(message) for one in known)
        case Said(root="key", path=()):
            return _plain(part, lambda message: message.key())
        case Said(root="text", path=()):
            return _plain(part, lambda message: message.value())
        case Said(root="value"):
            return _in_value(part)
        case Said(root="headers", path=(str(),)):
            return _in_headers(part)
    return None


def _plain(said: Said, raw_of: Callable[[Any], bytes | None]) -> Sieve | None:
    """Of what is text as it is: the same bytes, since UTF-8 has one way to write a text."""
    if not isinstance(said.literal, str):
        return None
    wanted = said.literal.encode()
    match said.how:
        case "==":
            return lambda message: raw_of(message) == wanted
        case "contains":
            return lambda message: wanted in (raw_of(message) or b"")
        case "startsWith":
            return lambda message: (raw_of(message) or b"").startswith(wanted)
        case "endsWith":
            return lambda message: (raw_of(message) or b"").endswith(wanted)
    return None


def _in_headers(said: Said) -> Sieve | None:
    name = said.path[0]
    if said.how == "==" and isinstance(said.literal, str):
        wanted = (name, said.literal.encode())
        return lambda message: wanted in (message.headers() or ())
    return lambda message: any(one == name for one, _ in message.headers() or ())


def _in_value(said: Said) -> Sieve | None:
    if isinstance(said.literal, str) and said.how in ("==", "contains", "startsWith", "endsWith"):
        # Of a value that is no JSON, all of it is the text; within JSON a whole text stands in quotes.
        quoted = said.path and said.how == "=="
        return _holding(f'"{said.literal}"'.encode() if quoted else said.literal.encode())
    name = said.path[-1] if said.path else None
    if not isinstance(name, str):
        return None
    field = f'"{name}"'.encode()
    literal = said.literal
    if said.how in _RELATIONS and isinstance(literal, Decimal):
        return _beyond(field, _RELATIONS[said.how], float(literal))
    if said.how != "==":
        return _holding(field)
    if isinstance(literal, Decimal):
        number = _number(literal)
        return _holding(field) if number is None else _fitting(field, number)
    return _fitting(field, {True: b"true", False: b"false"}.get(literal, b"null"))  # type: ignore[arg-type]


def _holding(wanted: bytes) -> Sieve:
    def holds(message: Any) -> bool:
        raw = message.value()
        return raw is not None and (wanted in raw or b"\\" in raw)

    return holds


def _fitting(field: bytes, literal: bytes) -> Sieve:
    search = re.compile(re.escape(field) + _SPACE + b":" + _SPACE + b"(?:" + literal + b")").search

    def fits(message: Any) -> bool:
        raw = message.value()
        return raw is not None and (b"\\" in raw or (field in raw and search(raw) is not None))

    return fits


def _beyond(field: bytes, beyond: Callable[[float, float], bool], wanted: float) -> Sieve:
    """What is beyond a number is so as a double too, or is the same double."""
    every = re.compile(re.escape(field) + _SPACE + b":" + _SPACE + b"(" + _ANY_NUMBER + b")").finditer

    def fits(message: Any) -> bool:
        raw = message.value()
        if raw is None:
            return False
        return b"\\" in raw or any(beyond(float(one[1]), wanted) for one in every(raw))

    return fits


def _number(wanted: Decimal) -> bytes | None:
    """How JSON may write a number that is equal, or None where doubles are too coarse for it."""
    if abs(wanted) >= _NUMBER_MAX:
        return None
    whole, _, rest = format(abs(wanted), "f").partition(".")
    rest = rest.rstrip("0")
    if len(rest) > 6:
        return None
    sign = b"-?" if wanted == 0 else b"-" if wanted < 0 else b""
    digits = str(int(whole)).encode()
    plain = digits + (rb"\." + rest.encode() + b"0*" if rest else rb"(?:\.0*)?") + b"(?![0-9.eE])"
    coarse = _LONG if abs(wanted) <= _EXACT_MAX else _BROKEN
    return sign + plain + b"|" + coarse + b"|" + _RAISED
