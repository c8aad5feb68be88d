"""Keys in a request, as the log writes them: the text of one field, or a JSON object of several."""

from __future__ import annotations

from functools import lru_cache

from headrace.model.errors import ValueDoesNotFit
from headrace.model.fitting import expected
from headrace.model.json_text import parse
from headrace.model.kinds import Choice, Field, Plain
from headrace.model.schema import Schema
from headrace.model.values import KeyCodec
from headrace.serve.errors import RequestUnfit
from headrace.serve.filter import value_of
from headrace.views.position import Shape
from headrace.views.question import All, By, Compare, Condition, before, behind, starts_with
from headrace.views.rows import Row, Value, plain

__all__ = ["key_of", "prefix_of", "range_of"]

_KEPT = 256


def key_of(shape: Shape, text: str, what: str = "key") -> Row:
    """All fields of the key, in its order."""
    try:
        found = _codec(shape).decode(_bytes(text))
    except ValueDoesNotFit as error:
        raise RequestUnfit(f"{what}: {error.message}", hint=_hint(shape)) from None
    return tuple(plain(one.kind)(found[one.name]) for one in _fields(shape))


def prefix_of(shape: Shape, text: str) -> Condition:
    """The beginning of a text, where the key is one; of a key of several fields, the first of them."""
    fields = _fields(shape)
    if len(fields) == 1:
        (field,) = fields
        if field.kind != Plain("text") and not isinstance(field.kind, Choice):
            raise RequestUnfit(
                f"prefix: the key is {expected(field.kind)}, and only texts have a beginning",
                hint="ask for a range: from and to",
            )
        _bytes(text)
        return starts_with(field.name, text)
    values = _leading(shape, text, "prefix")
    return All(tuple(Compare(one.name, "=", value) for one, value in zip(fields, values, strict=False)))


def range_of(shape: Shape, begin: str | None, end: str | None) -> Condition:
    """From ``begin`` up to, and not including, ``end``; of a key of several fields, each may have the first of them."""
    parts: list[Condition] = []
    for text, what in ((begin, "from"), (end, "to")):
        if text is not None:
            values = _leading(shape, text, what)
            names = shape.key[: len(values)]
            parts.append(
                behind([*map(By, names)], values, inclusive=True) if what == "from" else before(names, values)
            )
    return All(tuple(parts))


def _leading(shape: Shape, text: str, what: str) -> list[Value]:
    """Of the first fields of the key, as many as there are."""
    fields = _fields(shape)
    if len(fields) == 1:
        return list(key_of(shape, text, what))
    try:
        found = parse(_bytes(text))
    except ValueDoesNotFit as error:
        raise RequestUnfit(f"{what}: {error.message}", hint=_hint(shape)) from None
    names = [one.name for one in fields]
    if not isinstance(found, dict) or not found or set(found) != set(names[: len(found)]):
        raise RequestUnfit(f"{what}: a JSON object of the first fields of the key", hint=_hint(shape))
    return [value_of(one, found[one.name]) for one in fields[: len(found)]]


@lru_cache(_KEPT)
def _codec(shape: Shape) -> KeyCodec:
    return KeyCodec(Schema("key", shape.fields), shape.key)


def _fields(shape: Shape) -> list[Field]:
    return [shape.fields[at] for at in shape.key_places]


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RequestUnfit("half a surrogate pair is no character") from None


def _hint(shape: Shape) -> str:
    if len(shape.key) == 1:
        return f"the key is the text of {shape.key[0]}"
    return "the key is a JSON object of " + ", ".join(shape.key)
