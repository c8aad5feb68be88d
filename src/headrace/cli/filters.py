"""``--filter`` selects the records to print, in the filter language of ``headrace.model.filter``.

    key = "abc"                  value contains "error"        header.trace != "7"
    key matches "^ab"            key startswith "ab"           topic in ("orders", "returns")

The columns are ``key``, ``value``, ``topic`` and ``header.NAME``. Values are compared as bytes. A number is compared as
its digits, so ``key = 42`` means ``key = "42"``. A comparison with an absent or null column is false, and its negation
is true. A repeated header passes if one of its values passes. With several filters, a record must pass all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from headrace.cli.errors import UsageError
from headrace.cli.record import Record
from headrace.model.filter import FilterInvalid, Test, fold, parse_filter

__all__ = ["Filter", "compile_filters"]

Filter = Callable[[Record], bool]

_HINT = """for example: key = 42 and value contains "error", or header.trace matches "^7\""""


def _values(column: str) -> Callable[[Record], list[bytes]]:
    """Return a function that lists the column's values in a record; a repeated header has several values."""
    if column == "key":
        return lambda record: [] if record.key is None else [record.key]
    if column == "value":
        return lambda record: [] if record.value is None else [record.value]
    if column == "topic":
        return lambda record: [record.topic.encode()]
    if not column.startswith("header."):
        raise UsageError(
            f"--filter: a record has no column {column!r}", hint="use key, value, topic or header.NAME"
        )
    name = column.removeprefix("header.")
    return lambda record: [value for header, value in record.headers if header == name and value is not None]


def _predicate(test: Test) -> Callable[[bytes], bool]:
    text = test.operand.text.encode("utf-8", "surrogateescape") if test.operand is not None else b""
    match test.operator:
        case "=":
            return lambda value: value == text
        case "contains":
            return lambda value: text in value
        case "startswith":
            return lambda value: value.startswith(text)
        case "matches":
            try:
                pattern = re.compile(text)
            except re.error as error:
                raise UsageError(f"--filter: {text!r} is not a regular expression: {error}") from None
            return lambda value: pattern.search(value) is not None
    raise UsageError(f"--filter: {test.column} cannot be tested with {test.operator}", hint=_HINT)


def _test(test: Test) -> Filter:
    values = _values(test.column)
    if test.operator == "null":
        return lambda record: not values(record)
    predicate = _predicate(test)
    return lambda record: any(predicate(value) for value in values(record))


def _not(part: Filter) -> Filter:
    return lambda record: not part(record)


def _all_of(parts: tuple[Filter, ...]) -> Filter:
    return lambda record: all(part(record) for part in parts)


def _any_of(parts: tuple[Filter, ...]) -> Filter:
    return lambda record: any(part(record) for part in parts)


def compile_filters(texts: Sequence[str]) -> Filter:
    filters: list[Filter] = []
    for text in texts:
        try:
            parsed = parse_filter(text)
        except FilterInvalid as error:
            raise UsageError(f"--filter {text!r}: {error.message}", hint=_HINT) from None
        filters.append(fold(parsed, _test, _not, _all_of, _any_of))
    return filters[0] if len(filters) == 1 else _all_of(tuple(filters))
