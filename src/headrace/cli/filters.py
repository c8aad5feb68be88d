"""``--filter``: which records to print. A field, an operator and a text; nothing is ever executed.

    key=abc          equals                key!=abc      does not
    value*=error     contains              key~^ab       matches a regular expression anywhere
    header.trace=7   a header by name      value!~^{     does not match

Fields are ``key``, ``value``, ``topic`` and ``header.NAME``. Texts are compared as bytes. A field that is
not there, or null, equals nothing and matches nothing, so that only ``!=`` and ``!~`` let it pass. Several
filters must all let a record pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from headrace.cli.errors import UsageError
from headrace.cli.record import Record

__all__ = ["Filter", "compile_filters"]

Filter = Callable[[Record], bool]

_SHAPE = re.compile(r"(key|value|topic|header\.[^=~!*]+)(!=|!~|\*=|=|~)(.*)", re.DOTALL)


def _candidates(field: str) -> Callable[[Record], list[bytes]]:
    """The field's values in a record: none, one, or several for a header that is repeated."""
    if field == "key":
        return lambda record: [] if record.key is None else [record.key]
    if field == "value":
        return lambda record: [] if record.value is None else [record.value]
    if field == "topic":
        return lambda record: [record.topic.encode()]
    name = field.removeprefix("header.")
    return lambda record: [value for header, value in record.headers if header == name and value is not None]


def _test(operator: str, text: bytes) -> Callable[[bytes], bool]:
    if operator.endswith("~"):
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise UsageError(f"{text!r} in --filter is not a regular expression: {error}") from None
        return lambda candidate: pattern.search(candidate) is not None
    if operator == "*=":
        return lambda candidate: text in candidate
    return lambda candidate: candidate == text


def _compile(text: str) -> Filter:
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--filter {text!r} is not FIELD OPERATOR TEXT",
            hint="e.g. 'key=42', 'value*=error', 'key~^ab', 'header.trace!=7'",
        )
    field, operator, wanted = match.groups()
    candidates = _candidates(field)
    test = _test(operator, wanted.encode("utf-8", "surrogateescape"))
    negated = operator.startswith("!")
    return lambda record: negated != any(test(candidate) for candidate in candidates(record))


def compile_filters(texts: Sequence[str]) -> Filter:
    filters = [_compile(text) for text in texts]
    if len(filters) == 1:
        return filters[0]
    return lambda record: all(passes(record) for passes in filters)
