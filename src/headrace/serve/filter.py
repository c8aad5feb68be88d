"""A filter, read by the columns that it is about: what comes out is a condition with values of the right kind.

    filter  = any
    any     = all { "or" all }
    all     = one { "and" one }
    one     = "not" one | "(" any ")" | column test
    test    = ("=" | "!=") (value | "null") | ("<" | "<=" | ">" | ">=") value
            | "in" "(" value { "," value } ")" | "startswith" text
    value   = text in double quotes, as in JSON | number | "true" | "false"

Texts also stand for what is no number in JSON: times, dates, bytes in base64, "NaN". A value must fit its column as a
value of the log must (``headrace.model.fitting``). ``!=`` is the opposite of ``=``, so it is true of null.
"""

from __future__ import annotations

from typing import Any

from headrace.model.errors import ValueDoesNotFit
from headrace.model.fitting import expected, fit
from headrace.model.json_text import FractionText, NumberText, parse
from headrace.model.kinds import Choice, Field, Plain
from headrace.serve.errors import FilterUnfit
from headrace.serve.filter_text import Word, words_of
from headrace.views.position import Shape
from headrace.views.question import (
    All,
    By,
    Compare,
    Condition,
    IsNull,
    Not,
    Operator,
    is_comparable,
    starts_with,
)
from headrace.views.question import Any as AnyOf
from headrace.views.rows import Value, plain

__all__ = ["field_of", "filter_of", "sort_of", "value_of"]

_DEPTH_MAX = 32
_VALUES_MAX = 100
_SORTS_MAX = 8
_SIGNS: dict[str, Operator] = {"<": "<", "<=": "<=", ">": ">", ">=": ">="}


def filter_of(text: str, shape: Shape) -> Condition:
    reading = _Reading(words_of(text), shape)
    found = reading.any_of(0)
    reading.expect_end()
    return found


def sort_of(text: str, shape: Shape) -> tuple[By, ...]:
    """``-amount,name``: names of columns, each with a minus in front for the other direction."""
    found: list[By] = []
    for part in text.split(","):
        descending, name = part.startswith("-"), part.removeprefix("-").strip()
        field_of(shape, name, "sort")
        if any(one.column == name for one in found):
            raise FilterUnfit(f"sort names {name!r} twice")
        found.append(By(name, descending))
    if len(found) > _SORTS_MAX:
        raise FilterUnfit(f"sort names {len(found)} columns, where {_SORTS_MAX} are allowed")
    return tuple(found)


def field_of(shape: Shape, name: str, what: str) -> Field:
    """A column that has an order."""
    found = _field(shape, name, what)
    if not is_comparable(found):
        raise FilterUnfit(
            f"{what}: {name!r} is {expected(found.kind)}, and those are not compared",
            hint="compare a column of its own; a flow can make one",
        )
    return found


def value_of(field: Field, found: Any) -> Value:
    """As rows have it; ``found`` is JSON as ``json_text.parse`` makes it."""
    try:
        fitting = fit(field.kind, found)
    except ValueDoesNotFit as error:
        raise FilterUnfit(error.inside(field.name).message) from None
    return plain(field.kind)(fitting)


def _field(shape: Shape, name: str, what: str) -> Field:
    found = next((one for one in shape.fields if one.name == name), None)
    if found is None:
        raise FilterUnfit(
            f"{what}: there is no column {name[:80]!r}", hint=f"the columns are {', '.join(shape.names)}"
        )
    return found


class _Reading:
    def __init__(self, words: list[Word], shape: Shape) -> None:
        self._words = words
        self._at = 0
        self._shape = shape

    def any_of(self, depth: int) -> Condition:
        parts = [self._all_of(depth)]
        while self._takes("word", "or"):
            parts.append(self._all_of(depth))
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _all_of(self, depth: int) -> Condition:
        parts = [self._one(depth)]
        while self._takes("word", "and"):
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _one(self, depth: int) -> Condition:
        if depth > _DEPTH_MAX:
            raise FilterUnfit(f"a filter that nests deeper than {_DEPTH_MAX} levels")
        if self._takes("word", "not"):
            return Not(self._one(depth + 1))
        if self._takes("sign", "("):
            found = self.any_of(depth + 1)
            self._expect("sign", ")")
            return found
        if self._next.kind != "name":
            raise self._unfit("the name of a column")
        return self._test(self._take().text)

    def _test(self, name: str) -> Condition:
        sign = self._take()
        if sign.text in ("=", "!=") and sign.kind == "sign":
            found = self._equal(name)
            return found if sign.text == "=" else Not(found)
        field = field_of(self._shape, name, "filter")
        if sign.kind == "sign" and sign.text in _SIGNS:
            return Compare(name, _SIGNS[sign.text], self._value(field))
        if sign.kind == "word" and sign.text == "in":
            return self._among(field)
        if sign.kind == "word" and sign.text == "startswith":
            if field.kind != Plain("text") and not isinstance(field.kind, Choice):
                raise FilterUnfit(f"filter: {name!r} is {expected(field.kind)}, and startswith is for texts")
            return starts_with(name, self._text())
        self._at -= 1
        raise self._unfit("=, !=, <, <=, >, >=, in or startswith")

    def _equal(self, name: str) -> Condition:
        if self._takes("word", "null"):
            _field(self._shape, name, "filter")
            return IsNull(name)
        return Compare(name, "=", self._value(field_of(self._shape, name, "filter")))

    def _among(self, field: Field) -> Condition:
        self._expect("sign", "(")
        found = [self._value(field)]
        while self._takes("sign", ","):
            found.append(self._value(field))
        self._expect("sign", ")")
        if len(found) > _VALUES_MAX:
            raise FilterUnfit(f"in has {len(found)} values, where {_VALUES_MAX} are allowed")
        return AnyOf(tuple(Compare(field.name, "=", one) for one in found))

    # Values

    def _text(self) -> str:
        if self._next.kind != "text":
            raise self._unfit("a text in double quotes")
        return str(self._json(self._take()))

    def _value(self, field: Field) -> Value:
        word = self._next
        if word.kind == "word" and word.text in ("true", "false"):
            self._take()
            return value_of(field, word.text == "true")
        if word.kind == "number":
            self._take()
            whole = word.text.removeprefix("-").isdigit()
            return value_of(field, NumberText(word.text) if whole else FractionText(word.text))
        if word.kind == "text":
            return value_of(field, self._json(self._take()))
        raise self._unfit("a value")

    def _json(self, word: Word) -> Any:
        try:
            return parse(word.text.encode("utf-8", "replace"))
        except ValueDoesNotFit as error:
            raise FilterUnfit(f"the text at character {word.at + 1} of the filter: {error.reason}") from None

    # Words

    @property
    def _next(self) -> Word:
        return self._words[self._at]

    def _take(self) -> Word:
        word = self._words[self._at]
        self._at = min(self._at + 1, len(self._words) - 1)
        return word

    def _takes(self, kind: str, text: str) -> bool:
        if (self._next.kind, self._next.text) != (kind, text):
            return False
        self._take()
        return True

    def _expect(self, kind: str, text: str) -> None:
        if not self._takes(kind, text):
            raise self._unfit(repr(text))

    def expect_end(self) -> None:
        if self._next.kind != "end":
            raise self._unfit("and, or, or the end")

    def _unfit(self, wanted: str) -> FilterUnfit:
        return FilterUnfit(
            f"character {self._next.at + 1} of the filter: expected {wanted}, found {self._next}",
            hint='for example: amount >= 10 and (region = "eu" or not closed = true)',
        )
