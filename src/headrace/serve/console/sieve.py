"""A sieve: a cheap test on a record's bytes, which runs before the expression is evaluated.

A sieve passes every record that matches the expression, and some others. Only the records that pass are evaluated. A
sieve must never drop a match. So it allows for all ways in which JSON can write a value: escapes in strings, exponents,
and numbers with more digits than a double has.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from headrace.serve.console.expression import And, Comparison, Condition, Or, parse_condition

__all__ = ["Sieve", "sieve_of"]

Sieve = Callable[[Any], bool]
"""Returns False for a Kafka message that certainly does not match."""

_SPACE = rb"[ \t\n\r]*"
_NUMBER_MAX = Decimal(2**53)
_EXACT_MAX = Decimal(10**9)
# Up to _EXACT_MAX, six fractional digits identify a double. Any larger number with a fraction must pass.
_SEVEN_DECIMALS = rb"-?[0-9]+\.[0-9]{7}"
_FRACTION = rb"-?[0-9]+\.[0-9]"
_EXPONENT = rb"-?[0-9]+(?:\.[0-9]+)?[eE]"
_ANY_NUMBER = rb"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.le,
    "<=": operator.le,
    ">": operator.ge,
    ">=": operator.ge,
}


def sieve_of(where: str) -> Sieve | None:
    """Return None if no test on the raw bytes is possible for the expression."""
    try:
        return _sieve(parse_condition(where))
    except UnicodeEncodeError:
        return None


def _sieve(condition: Condition) -> Sieve | None:
    match condition:
        case And(parts):
            sieves = [sieve for sieve in map(_sieve, parts) if sieve is not None]
            if len(sieves) == 2:
                first, second = sieves
                return lambda message: first(message) and second(message)
            return (
                (lambda message: all(sieve(message) for sieve in sieves))
                if len(sieves) > 1
                else next(iter(sieves), None)
            )
        case Or(parts):
            part_sieves = [_sieve(part) for part in parts]
            usable = [sieve for sieve in part_sieves if sieve is not None]
            return (
                None
                if len(usable) < len(part_sieves)
                else lambda message: any(sieve(message) for sieve in usable)
            )
        case Comparison(root="key", path=()):
            return _plain(condition, lambda message: message.key())
        case Comparison(root="text", path=()):
            return _plain(condition, lambda message: message.value())
        case Comparison(root="value"):
            return _in_value(condition)
        case Comparison(root="headers", path=(str(),)):
            return _in_headers(condition)
    return None


def _plain(comparison: Comparison, raw_of: Callable[[Any], bytes | None]) -> Sieve | None:
    """Compare raw bytes. This is exact, because UTF-8 encodes each text in only one way."""
    if not isinstance(comparison.literal, str):
        return None
    wanted = comparison.literal.encode()
    match comparison.operator:
        case "==":
            return lambda message: raw_of(message) == wanted
        case "contains":
            return lambda message: wanted in (raw_of(message) or b"")
        case "startsWith":
            return lambda message: (raw_of(message) or b"").startswith(wanted)
        case "endsWith":
            return lambda message: (raw_of(message) or b"").endswith(wanted)
    return None


def _in_headers(comparison: Comparison) -> Sieve | None:
    name = comparison.path[0]
    if comparison.operator == "==" and isinstance(comparison.literal, str):
        wanted = (name, comparison.literal.encode())
        return lambda message: wanted in (message.headers() or ())
    return lambda message: any(header == name for header, _ in message.headers() or ())


def _in_value(comparison: Comparison) -> Sieve | None:
    if isinstance(comparison.literal, str) and comparison.operator in (
        "==",
        "contains",
        "startsWith",
        "endsWith",
    ):
        # Inside JSON, a text that equals the literal is quoted. A value that is not JSON is one unquoted text.
        quoted = comparison.path and comparison.operator == "=="
        return _value_contains(f'"{comparison.literal}"'.encode() if quoted else comparison.literal.encode())
    name = comparison.path[-1] if comparison.path else None
    if not isinstance(name, str):
        return None
    field = f'"{name}"'.encode()
    literal = comparison.literal
    if comparison.operator in _RELATIONS and isinstance(literal, Decimal):
        return _field_is_within(field, _RELATIONS[comparison.operator], float(literal))
    if comparison.operator != "==":
        return _value_contains(field)
    if isinstance(literal, Decimal):
        number = _number(literal)
        return _value_contains(field) if number is None else _field_matches(field, number)
    return _field_matches(field, {True: b"true", False: b"false"}.get(literal, b"null"))  # type: ignore[arg-type]


def _value_contains(wanted: bytes) -> Sieve:
    def passes(message: Any) -> bool:
        raw = message.value()
        return raw is not None and (wanted in raw or b"\\" in raw)

    return passes


def _field_matches(field: bytes, literal: bytes) -> Sieve:
    search = re.compile(re.escape(field) + _SPACE + b":" + _SPACE + b"(?:" + literal + b")").search

    def passes(message: Any) -> bool:
        raw = message.value()
        return raw is not None and (b"\\" in raw or (field in raw and search(raw) is not None))

    return passes


def _field_is_within(field: bytes, relation: Callable[[float, float], bool], wanted: float) -> Sieve:
    """Compare as doubles and accept equality: rounding never reverses the order of two numbers, but can make them
    equal.
    """
    find_numbers = re.compile(re.escape(field) + _SPACE + b":" + _SPACE + b"(" + _ANY_NUMBER + b")").finditer

    def passes(message: Any) -> bool:
        raw = message.value()
        if raw is None:
            return False
        return b"\\" in raw or any(relation(float(match[1]), wanted) for match in find_numbers(raw))

    return passes


def _number(wanted: Decimal) -> bytes | None:
    """Return a pattern that matches all ways to write the number in JSON, or None if a double cannot represent
    the number precisely enough.
    """
    if abs(wanted) >= _NUMBER_MAX:
        return None
    whole, _, rest = format(abs(wanted), "f").partition(".")
    rest = rest.rstrip("0")
    if len(rest) > 6:
        return None
    sign = b"-?" if wanted == 0 else b"-" if wanted < 0 else b""
    digits = str(int(whole)).encode()
    plain = digits + (rb"\." + rest.encode() + b"0*" if rest else rb"(?:\.0*)?") + b"(?![0-9.eE])"
    imprecise = _SEVEN_DECIMALS if abs(wanted) <= _EXACT_MAX else _FRACTION
    return sign + plain + b"|" + imprecise + b"|" + _EXPONENT
